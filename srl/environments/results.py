"""What ``reset`` and ``step`` return, looked at where it cannot be used: one error that names the part at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from srl.api.errors import EnvironmentFault
from srl.api.importing import place_of
from srl.environments.values import Where

RESET, STEP = ("observation", "info"), ("observation", "reward", "terminated", "truncated", "info")
"""What Gymnasium's calls return."""
NOTHING = object()
"""In place of what a call has not returned."""


def parts_fault(result: Any, names: tuple[str, ...], where: Where) -> EnvironmentFault | None:
    """The error for a result that is not a tuple of these parts; ``None`` if it is one.

    Args:
        result: What the environment returned.
        names: :data:`RESET` or :data:`STEP`.
        where: Environment and step.
    """
    if isinstance(result, tuple) and len(result) == len(names):
        return None
    call = "reset" if names == RESET else "step"
    return EnvironmentFault(
        f"{call}() of the environment does not return what Gymnasium's {call}() does",
        where=where(),
        value=f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__,
        expected=f"a tuple of {len(names)}: {', '.join(names)}",
        hint="Environments of the old Gym return an observation alone, and 'done' in place of the two flags.",
    )


def step_fault(result: Any, where: Where) -> EnvironmentFault | None:
    """The error for what a single environment's ``step`` returned; ``None`` if nothing is wrong with it."""
    fault = parts_fault(result, STEP, where)
    if fault is not None:
        return fault
    for name, value, expected in (
        ("reward", result[1], "a number"),
        ("terminated", result[2], "True or False"),
        ("truncated", result[3], "True or False"),
    ):
        array = _array(value)
        if array is None or array.ndim or array.dtype.kind not in "biuf":
            seen = f"shape {array.shape}, dtype {array.dtype}" if isinstance(value, np.ndarray) else repr(value)
            return EnvironmentFault(
                f"the {name} of a step is no single value", where=where(), value=seen[:80], expected=expected
            )
    return None


def info_of(info: Any, where: Where) -> Mapping[str, Any]:
    """What ``reset`` or ``step`` returned as info.

    Raises:
        EnvironmentFault: It is no dict.
    """
    if isinstance(info, Mapping):
        return info
    raise EnvironmentFault("the info is no dict", where=where(), value=type(info).__name__, expected="a dict")


def raised_fault(error: Exception, who: str, call: str, where: str) -> EnvironmentFault:
    """The error for an exception that came out of ``reset`` or ``step``.

    Args:
        error: The exception.
        who: ``the environment``, ...
        call: ``reset`` or ``step``.
        where: Environment and step.
    """
    takes_no_seed = call == "reset" and isinstance(error, TypeError) and "argument 'seed'" in str(error)
    return EnvironmentFault(
        f"{who} raised {type(error).__name__} in {call}: {error}",
        where=where,
        hint="Gymnasium's reset is reset(self, *, seed=None, options=None)."
        if takes_no_seed
        else f"Raised at {place_of(error)}",
    )


def _array(value: Any) -> Any:
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return None
