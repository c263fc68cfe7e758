"""Where the curves go: sinks by name, written by the controller's process, never in the way of training.

::

    sinks = SinkGroup.open(trial, DEFAULT_SINKS, REGISTRY.resolve)  # a sink that cannot work is left out with a note
    for problem in sinks.write(monitor.records()):                  # a sink that fails is closed; training goes on
        monitor.warn("metrics", problem)
    sinks.close()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from srl.api.errors import MissingExtraError, SRLError, UsageError
from srl.system.metrics.json_lines import JsonLinesFile
from srl.system.metrics.snapshot import MetricRecord
from srl.system.metrics.tensorboard import EventFile
from srl.system.trial import TrialDirectory


class MetricsSink(ABC):
    """One place that records are written to.

    Args:
        trial: The trial.

    Raises:
        MissingExtraError: A package is not installed; the sink is left out.
    """

    def __init__(self, trial: TrialDirectory) -> None:
        self.trial = trial

    @abstractmethod
    def write(self, records: Sequence[MetricRecord]) -> None:
        """Write records and make them visible to readers. A ``restart`` record takes back what lies behind it.

        Raises:
            OSError: The place cannot be written to any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the sink holds; may be called twice."""


class JsonLinesSink(MetricsSink):
    """``metrics.jsonl``: one JSON object a line, ``null`` where there is no number."""

    def __init__(self, trial: TrialDirectory) -> None:
        super().__init__(trial)
        self._file = JsonLinesFile(trial.metrics)

    def write(self, records: Sequence[MetricRecord]) -> None:
        """Append one line per record."""
        for record in records:
            if record.kind == "restart":
                self._file.cut(record.env_steps)
                continue
            self._file.append(
                {
                    "kind": record.kind,
                    "env_steps": record.env_steps,
                    "frames": record.frames,
                    "seconds": round(record.seconds, 3),
                    "policy_version": record.policy_version,
                    **record.values,
                }
            )
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink(MetricsSink):
    """Event files for TensorBoard; step = env steps."""

    def __init__(self, trial: TrialDirectory) -> None:
        super().__init__(trial)
        self._file = EventFile(trial.tensorboard)

    def write(self, records: Sequence[MetricRecord]) -> None:
        """Append one event per record."""
        for record in records:
            if record.kind == "restart":
                self._file.restart(record.env_steps)
            else:
                self._file.scalars(record.env_steps, {**record.values, "progress/frames": float(record.frames)})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


BUILT_IN: Mapping[str, type[MetricsSink]] = {"json_lines": JsonLinesSink, "tensorboard": TensorBoardSink}
DEFAULT_SINKS = ("json_lines", "tensorboard")


class SinkGroup:
    """The sinks of one trial.

    Attributes:
        notes: Why sinks were left out, one sentence each, for the log.
    """

    def __init__(self, sinks: Mapping[str, MetricsSink], notes: Sequence[str] = ()) -> None:
        self._sinks = dict(sinks)
        self.notes = tuple(notes)

    @classmethod
    def open(
        cls,
        trial: TrialDirectory,
        names: Sequence[str] = DEFAULT_SINKS,
        resolve: Callable[[str], type[MetricsSink]] | None = None,
    ) -> SinkGroup:
        """Open sinks by name.

        Args:
            trial: The trial.
            names: Names of built-in sinks, or whatever ``resolve`` knows.
            resolve: From name to class, for sinks of plugins (the registry's kind ``metrics_sink``).

        Raises:
            UsageError: Unknown name.
        """
        sinks: dict[str, MetricsSink] = {}
        notes = []
        for name in names:
            kind = BUILT_IN.get(name) or (resolve(name) if resolve else None)
            if kind is None:
                raise UsageError("unknown metrics sink", value=name, expected=f"one of {', '.join(BUILT_IN)}")
            try:
                sinks[name] = kind(trial)
            except MissingExtraError as error:
                notes.append(str(error))
        return cls(sinks, notes)

    def write(self, records: Sequence[MetricRecord]) -> list[str]:
        """Write to every sink; one that fails is closed for good, and what it failed with is returned, once."""
        problems = []
        for name, sink in list(self._sinks.items()) if records else []:
            try:
                sink.write(records)
            except (OSError, SRLError) as error:
                del self._sinks[name]
                problems.append(f"metrics sink {name} failed and is closed: {error}")
                problems += _close(name, sink)
        return problems

    def close(self) -> list[str]:
        """Close every sink; returns what failed."""
        problems = [problem for name, sink in self._sinks.items() for problem in _close(name, sink)]
        self._sinks.clear()
        return problems


def _close(name: str, sink: MetricsSink) -> list[str]:
    try:
        sink.close()
    except OSError as error:
        return [f"metrics sink {name} could not be closed: {error}"]
    return []
