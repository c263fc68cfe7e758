"""Acting policies of plugins: imported, built, and tried once, before an actor depends on them.

``out.action[...] = decisions`` casts silently, and ``out.action = decisions`` leaves the block as it was: neither
raises, and both train on nonsense. So every acting policy decides once on made-up rows, into arrays that notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import PluginError, SRLError
from srl.api.plugin_checks import definition, failure, load_class
from srl.api.policy import ActingPolicy, ActInput, ActOutput, PolicySpec
from srl.api.spaces import stored_space
from srl.system.decisions import ArrayForms, input_forms, input_of, output_forms, output_of

COLUMNS = 7
"""Rows of the trial: a number that widths and numbers of actions seldom have, so that wrong shapes do not fit."""


def build_acting(spec: PolicySpec) -> ActingPolicy:
    """The acting policy that a spec names.

    Raises:
        PluginError: It cannot be imported, is no :class:`ActingPolicy`, or its constructor raised.
    """
    where = f"policies.{spec.name}"
    policy: type[ActingPolicy] = load_class(spec.acting, ActingPolicy, "acting policy", where)
    try:
        return policy(spec)
    except SRLError:
        raise
    except Exception as error:
        raise failure(f"building the acting policy '{spec.acting}'", error, policy, where) from error


def load_checked(acting: ActingPolicy, spec: PolicySpec, parameters: Mapping[str, NDArray[Any]]) -> None:
    """Load the first version, and decide once each way.

    Args:
        acting: The policy.
        spec: What it is.
        parameters: The weights.

    Raises:
        PluginError: It raised, or did not write what the spec says.
    """
    where = f"policies.{spec.name}"
    try:
        acting.load(parameters)
    except SRLError:
        raise
    except Exception as error:
        expected = f"to take over {', '.join(list(parameters)[:12])}"
        raise failure(f"load() of the acting policy '{spec.acting}'", error, type(acting), where, expected) from error
    for deterministic in (False, True):
        _try(acting, spec, deterministic, one_is_legal=False)
        if spec.action_mask:
            _try(acting, spec, deterministic, one_is_legal=True)


class _Noticing(np.ndarray[Any, np.dtype[Any]]):
    """An array that refuses numbers which do not fit its dtype, where numpy would cut them off."""

    def __setitem__(self, key: Any, value: Any) -> None:
        given = np.asarray(value).dtype
        if self.dtype.kind in "iub" and given.kind in "fc":
            raise TypeError(f"{given} is written into an array of {self.dtype}: fractions would be cut off")
        super().__setitem__(key, value)


def _try(acting: ActingPolicy, spec: PolicySpec, deterministic: bool, one_is_legal: bool) -> None:
    forms = output_forms(spec, COLUMNS)
    arrays = {name: np.zeros(shape, dtype).view(_Noticing) for name, (shape, dtype) in forms.items()}
    plain = {name: _fields(array, len(spec.action.leaves())) for name, array in arrays.items()}
    for field in (field for fields in plain.values() for field in fields):
        _mark_unwritten(field)
    batch, out = _rows(spec, one_is_legal), output_of(arrays)
    asked = _copies(batch)
    where = f"policies.{spec.name}"
    doing = f"act({'deterministic=True' if deterministic else ''}) of the acting policy '{spec.acting}'"
    try:
        acting.act(batch, out, deterministic=deterministic)
    except SRLError:
        raise
    except Exception as error:
        raise failure(doing, error, type(acting), where, f"for {COLUMNS} rows, {_described(forms)}") from error
    for problem, expected in (
        *_replaced(arrays, out),
        *_changed(asked, batch),
        *_wrong(plain),
        *_illegal(arrays["action"], spec, one_is_legal),
    ):
        place = definition(type(acting))
        raise PluginError(
            f"{doing} {problem}", where=where, expected=expected, hint=f"Defined at {place}" if place else ""
        )


def _rows(spec: PolicySpec, one_is_legal: bool) -> ActInput:
    """Rows of zeros at the start of an episode, noise in the middle; the last value of each choice is legal, or all."""
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in input_forms(spec, COLUMNS).items()}
    for name in ("episode_start", "valid", "action_mask"):
        if name in arrays:
            arrays[name].fill(True)
    if one_is_legal:
        counts = [count for leaf in spec.action.leaves() for count in (leaf.space.nvec or (leaf.space.n,)) if count]
        arrays["action_mask"].fill(False)
        arrays["action_mask"][:, np.cumsum(counts) - 1] = True
    arrays["noise"].fill(0.5)
    return input_of(arrays)


def _replaced(arrays: Mapping[str, NDArray[Any]], out: ActOutput) -> Iterator[tuple[str, str]]:
    now = {"action": out.action, "state": out.state, "used_state": out.used_state}
    now |= {f"extras.{name}": array for name, array in out.extras.items()}
    for name, array in arrays.items():
        if now.get(name) is not array:
            attribute = f'out.extras["{name.removeprefix("extras.")}"]' if "." in name else f"out.{name}"
            yield f"put another array in the place of {attribute}", f"{attribute}[...] = ..., which writes into it"


def _changed(asked: Mapping[str, NDArray[Any]], batch: ActInput) -> Iterator[tuple[str, str]]:
    for name, array in asked.items():
        if not np.array_equal(array, getattr(batch, name)):
            yield f"changed its input: batch.{name}", "inputs as they were; they lie in the block"


def _wrong(plain: Mapping[str, list[NDArray[Any]]]) -> Iterator[tuple[str, str]]:
    """Outputs that were not written, or are not finite."""
    for name, fields in plain.items():
        for field in fields:
            if field.dtype.kind == "f" and not np.isfinite(field).all():
                yield f"left {name} unwritten, or wrote what is not finite", f"finite {_form(field)}"
            elif field.dtype.kind in "iu" and field.size and (field == np.iinfo(field.dtype).max).all():
                yield f"left {name} unwritten", _form(field)


def _illegal(action: NDArray[Any], spec: PolicySpec, one_is_legal: bool) -> Iterator[tuple[str, str]]:
    """Actions that the space does not have, or that the mask forbids."""
    for stored, leaf in zip(stored_space(spec.action).leaves(), spec.action.leaves(), strict=True):
        space = leaf.space
        match space.kind:
            case "discrete":
                limit = np.asarray(space.n)
            case "multi_discrete":
                limit = np.reshape(space.nvec, space.shape)
            case "multi_binary":
                limit = np.asarray(2)
            case _:
                continue
        values = np.asarray(stored.of(action))
        bad = (values < 0) | (values >= limit)
        if bad.any():
            yield f"chose action {values[bad][0]}, which {space.describe()} does not have", "values that count from 0"
        elif one_is_legal and space.kind != "multi_binary" and (values != limit - 1).any():
            chosen = values[values != limit - 1][0]
            yield f"chose action {chosen}, which batch.action_mask forbids", "legal actions only: True = legal"


def _mark_unwritten(field: NDArray[Any]) -> None:
    """Fill with what no policy writes."""
    if field.dtype.kind == "f":
        field.fill(np.nan)
    elif field.dtype.kind in "iu":
        field.fill(np.iinfo(field.dtype).max)


def _fields(array: NDArray[Any], leaves: int) -> list[NDArray[Any]]:
    """The plain arrays of a record, its padding (after the leaves) left out; the array itself if it is none."""
    names = array.dtype.names
    if names is None:
        return [np.asarray(array)]
    return [np.asarray(array[name]) for name in names[:leaves]]


def _copies(batch: ActInput) -> dict[str, NDArray[Any]]:
    names = ("observation", "noise", "episode_start", "valid", "action_mask", "state")
    return {name: np.copy(array) for name in names if (array := getattr(batch, name)) is not None}


def _described(forms: ArrayForms) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in forms.items())


def _form(array: NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"
