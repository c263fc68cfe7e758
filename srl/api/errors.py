"""Errors with fields.

Every error says what happened, where (worker, stream, key path), the value seen, what was expected and what to do
next. They survive pickling and travel between processes as plain dictionaries (:meth:`SRLError.to_dict`).
"""

from __future__ import annotations

from typing import Any


class SRLError(Exception):
    """Base of all errors that SRL raises on purpose.

    Args:
        what: One sentence: what happened.
        where: The worker, stream, file or key path it happened at; empty if there is no place to name.
        value: The value seen, ``None`` if there is none to show.
        expected: What would have been right.
        hint: What to do next.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", value: Any = None, expected: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.value = value
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        """The message as a person reads it, one sentence a part."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.value is not None:
            text += f" (got {self.value!r})"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.hint:
            text += f". {self.hint}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when pickled."""
        return (_rebuild, (type(self), self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-compatible values (``value`` by ``repr`` unless it is a number or text)."""
        value = self.value if isinstance(self.value, (int, float, str, bool, type(None))) else repr(self.value)
        return {
            "what": self.what,
            "where": self.where,
            "value": value,
            "expected": self.expected,
            "hint": self.hint,
        }


def _rebuild(kind: type[SRLError], fields: dict[str, Any]) -> SRLError:
    error = kind.__new__(kind)
    SRLError.__init__(error, **fields)
    return error


class UsageError(SRLError):
    """The command line or a call of the Python API was wrong (exit code 2)."""

    exit_code = 2


class ExperimentError(SRLError):
    """An experiment does not pass validation; carries every problem found, not just the first (exit code 2).

    Args:
        problems: One error per problem, each with its key path in ``where``.
        source: The file or name of the experiment.
    """

    exit_code = 2

    def __init__(self, problems: list[SRLError], source: str = "") -> None:
        count = len(problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in the experiment", where=source)
        self.problems = list(problems)

    def __str__(self) -> str:
        """All problems, one per line."""
        return super().__str__() + "".join(f"\n  - {problem}" for problem in self.problems)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the problems when pickled."""
        return (type(self), (self.problems, self.where))


class MissingExtraError(SRLError):
    """A feature needs a package that is not installed; the hint is the command that installs it (exit code 2)."""

    exit_code = 2


class PluginError(SRLError):
    """A plugin's name is unknown or taken, or its import failed; carries the inner cause (exit code 2)."""

    exit_code = 2


class EnvironmentFault(SRLError):
    """An environment could not be made, or broke its contract (shape, dtype, changing spaces)."""


class NonFiniteError(SRLError):
    """A NaN or infinity appeared; ``where`` names worker, environment, step and field."""


class SchemaMismatchError(SRLError):
    """The two ends of a stream disagree about a block field; the field is named."""


class StreamError(SRLError):
    """A stream failed: a message of the wrong form, a superseded incarnation, an unreachable end."""


class ResourceError(SRLError):
    """Not enough memory, descriptors, disk, or a port in use; both numbers are named."""


class WaitTimeout(SRLError):
    """A bounded wait ran out; the message names what was waited for."""


class WorkerFailure(SRLError):
    """A worker raised, exited, was killed or crashed natively; carries the original traceback, exit code or signal."""
