"""The arrays of one decision: what a policy is asked and what it answers, for a number of columns.

The one place that knows which arrays there are: memory for them, copies between two sets, layouts for transports. The
action mask and the recurrent state are there only where the policy has them; ``None`` costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.policy import ActInput, ActOutput, PolicySpec

ArrayForms = dict[str, tuple[tuple[int, ...], str]]
"""Name to (shape, dtype), as :meth:`srl.system.parameters.ParameterLayout.of` takes it."""

_EXTRA = "extras."


def input_forms(spec: PolicySpec, columns: int) -> ArrayForms:
    """The arrays of an :class:`ActInput`, by the names of its attributes."""
    forms: ArrayForms = {
        "observation": ((columns, *spec.observation.shape), spec.observation.dtype),
        "noise": ((columns, *spec.noise.shape), "float32"),
        "episode_start": ((columns,), "bool"),
        "valid": ((columns,), "bool"),
    }
    if spec.action_mask:
        forms["action_mask"] = ((columns, spec.action_mask), "bool")
    if spec.state_size:
        forms["state"] = ((columns, spec.state_size), "float32")
    return forms


def output_forms(spec: PolicySpec, columns: int) -> ArrayForms:
    """The arrays of an :class:`ActOutput`, by the names of its attributes; extras are called ``extras.NAME``."""
    forms: ArrayForms = {"action": ((columns, *spec.action_array.shape), spec.action_array.dtype)}
    forms |= {f"{_EXTRA}{extra.name}": ((columns, *extra.shape), extra.dtype) for extra in spec.extras}
    if spec.state_size:
        forms |= {name: ((columns, spec.state_size), "float32") for name in ("state", "used_state")}
    return forms


def input_of(arrays: Mapping[str, NDArray[Any]]) -> ActInput:
    """The input whose arrays these are, named as in :func:`input_forms`."""
    return ActInput(**arrays)


def output_of(arrays: Mapping[str, NDArray[Any]]) -> ActOutput:
    """The output whose arrays these are, named as in :func:`output_forms`."""
    extras = {name.removeprefix(_EXTRA): array for name, array in arrays.items() if name.startswith(_EXTRA)}
    return ActOutput(arrays["action"], extras, arrays.get("state"), arrays.get("used_state"))


def new_input(spec: PolicySpec, columns: int) -> ActInput:
    """An input in memory of its own, all zeros."""
    return input_of(_zeros(input_forms(spec, columns)))


def new_output(spec: PolicySpec, columns: int) -> ActOutput:
    """An output in memory of its own, all zeros."""
    return output_of(_zeros(output_forms(spec, columns)))


def input_rows(batch: ActInput, rows: slice) -> ActInput:
    """Views on some columns of an input."""
    return ActInput(
        batch.observation[rows],
        batch.noise[rows],
        batch.episode_start[rows],
        batch.valid[rows],
        None if batch.action_mask is None else batch.action_mask[rows],
        None if batch.state is None else batch.state[rows],
    )


def output_rows(out: ActOutput, rows: slice) -> ActOutput:
    """Views on some columns of an output."""
    return ActOutput(
        out.action[rows],
        {name: array[rows] for name, array in out.extras.items()},
        None if out.state is None else out.state[rows],
        None if out.used_state is None else out.used_state[rows],
    )


def copy_input(source: ActInput, target: ActInput) -> None:
    """Copy every array of an input into those of another one of the same policy and number of columns."""
    target.observation[...] = source.observation
    target.noise[...] = source.noise
    target.episode_start[...] = source.episode_start
    target.valid[...] = source.valid
    _copy(source.action_mask, target.action_mask)
    _copy(source.state, target.state)


def copy_output(source: ActOutput, target: ActOutput) -> None:
    """Copy every array of an output into those of another one of the same policy and number of columns."""
    target.action[...] = source.action
    for name, array in target.extras.items():
        array[...] = source.extras[name]
    copy_states(source, target)


def copy_states(source: ActOutput, target: ActOutput) -> None:
    """Copy the recurrent states of an output, which lie in no block; nothing where there are none."""
    _copy(source.state, target.state)
    _copy(source.used_state, target.used_state)


def _copy(source: NDArray[Any] | None, target: NDArray[Any] | None) -> None:
    if source is not None and target is not None:
        target[...] = source


def _zeros(forms: ArrayForms) -> dict[str, NDArray[Any]]:
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in forms.items()}
