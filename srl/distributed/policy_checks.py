"""What a plugin says about its policy, checked against the environment before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import numpy as np

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.block import FieldSpec, policy_schema
from srl.api.environment import EnvironmentSpec
from srl.api.errors import SRLError
from srl.api.importing import is_target
from srl.api.plugin_checks import ask, is_count, misfit
from srl.api.policy import ActingBackend, ActionTransform, NoiseSpec, PolicySpec
from srl.api.spaces import mask_size, stored_action
from srl.system.actions import ActionTransformer

NOISES = ("uniform", "normal")
ACTING_DTYPES = ("float32", "bfloat16")


def policy_spec_of(
    plugin: type[AlgorithmPlugin], name: str, config: Any, network: Mapping[str, Any], environment: EnvironmentSpec
) -> PolicySpec:
    """The policy that a plugin makes for an environment.

    Raises:
        SRLError: As the plugin raised it.
        PluginError: It raised something else, or returned something else.
    """
    where = f"policies.{name}"
    spec = ask(plugin, "policy_spec", where, name, config, network, environment)
    if not isinstance(spec, PolicySpec):
        kind = f"{PolicySpec.__module__}.{PolicySpec.__name__}"
        raise misfit(plugin, "policy_spec", where, type(spec).__name__, kind)
    if spec.name != name:
        raise misfit(plugin, "policy_spec", where, f"name={spec.name!r}", f"the name that it was given, '{name}'")
    return spec


def spec_problems(spec: PolicySpec, environment: EnvironmentSpec) -> Iterator[SRLError]:
    """Where a policy does not fit its environment, or its outputs fit no block."""
    where = f"policies.{spec.name}"
    for what in ("observation", "action"):
        wanted, made = getattr(environment, what), getattr(spec, what)
        if wanted != made:
            yield SRLError(
                f"the policy's {what} space is not the environment's",
                where=where,
                value=made.describe(),
                expected=f"{wanted.describe()}, as in {environment.name}",
            )
    for key in ("module", "acting"):
        if not is_target(getattr(spec, key)):
            yield SRLError(
                f"the policy's '{key}' names no class",
                where=where,
                value=getattr(spec, key),
                expected="'package.module:Attr' or '/path/file.py:Attr', as text",
            )
    yield from _words(spec, where)
    yield from _plain(spec, where)
    forms = [*_extras(spec, where), *_noise(spec, where), *_state(spec, where), *_mask(spec, environment, where)]
    yield from forms
    if not forms:
        yield from _stored_action(spec, where)
        yield from _names(spec, where)


def state_problems(spec: PolicySpec, requirements: DataRequirements) -> Iterator[SRLError]:
    """Stored states that do not divide a block."""
    if spec.state_size and requirements.rows % spec.state_rows:
        yield SRLError(
            "the policy stores its state at rows that do not divide a block",
            where=f"policies.{spec.name}",
            value=spec.state_rows,
            expected=f"a 'state_rows' that divides the {requirements.rows} rows of a block",
        )


def _words(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    for key, known in (("backend", get_args(ActingBackend)), ("acting_dtype", ACTING_DTYPES)):
        if getattr(spec, key) not in known:
            yield SRLError(
                f"the policy's '{key}' is unknown", where=where, value=getattr(spec, key), expected=" or ".join(known)
            )


def _plain(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    """What other processes get must be what the plugin made."""
    for key in ("network", "options"):
        made = getattr(spec, key)
        try:
            same = json.loads(json.dumps(made, allow_nan=False)) == made
            value = made
        except (TypeError, ValueError) as error:
            same, value = False, str(error)
        if not same:
            yield SRLError(
                f"the policy's '{key}' cannot be sent to other processes as they are",
                where=where,
                value=value,
                expected="a dict of numbers, texts, None, and lists and dicts of them; keys are texts",
                hint="A tuple would arrive as a list there; numbers of numpy are made plain by their method item().",
            )


def _extras(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    if not isinstance(spec.extras, tuple):
        yield SRLError("the policy's extras are no tuple", where=where, value=spec.extras, expected="(FieldSpec(...),)")
        return
    for extra in spec.extras:
        if not isinstance(extra, FieldSpec):
            yield SRLError("an extra of the policy is no FieldSpec", where=where, value=extra)
        elif not isinstance(extra.name, str) or not extra.name:
            yield SRLError("an extra of the policy has no name", where=where, value=extra.name, expected="a text")
        elif extra.axes != "T,B":
            yield SRLError(
                f"the policy's extra '{extra.name}' has axes that are not those of a row",
                where=where,
                value=extra.axes,
                expected="'T,B'",
            )
        elif not _is_shape(extra.shape):
            yield SRLError(
                f"the policy's extra '{extra.name}' has a shape that is none",
                where=where,
                value=extra.shape,
                expected="a tuple of whole numbers, such as () or (3,)",
            )
        elif not _is_dtype(extra.dtype) or not _holds_numbers(np.dtype(extra.dtype)):
            yield SRLError(
                f"the policy's extra '{extra.name}' has a dtype that numpy does not know as one of numbers",
                where=where,
                value=extra.dtype,
                expected="a name such as 'float32' or 'int64'",
            )


def _noise(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    noise = spec.noise
    if not isinstance(noise, NoiseSpec) or noise.kind not in NOISES or not _is_shape(noise.shape):
        yield SRLError(
            "the policy's noise is of no known form", where=where, value=noise,
            expected=f"NoiseSpec of kind {' or '.join(NOISES)}, with a shape such as (1,)",
        )  # fmt: skip


def _state(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    size, rows = spec.state_size, spec.state_rows
    if not is_count(size, 0) or (size > 0 and not is_count(rows, 1)):
        yield SRLError(
            "the policy's recurrent state is of no known form",
            where=where,
            value=f"state_size={size!r}, state_rows={rows!r}",
            expected="two whole numbers: numbers of state per column, and rows from one stored state to the next; or 0 "
            "and 0 without a state",
        )


def _mask(spec: PolicySpec, environment: EnvironmentSpec, where: str) -> Iterator[SRLError]:
    """A policy may pass over the mask of its environment, but not make one up."""
    offered = mask_size(environment.action) if environment.action_mask else 0
    if spec.action_mask not in (0, offered) or isinstance(spec.action_mask, bool):
        yield SRLError(
            "the policy's action mask is not the environment's",
            where=where,
            value=spec.action_mask,
            expected=f"{offered}, as {environment.name} gives it, or 0 to do without"
            if offered
            else f"0: {environment.name} gives none",
        )


def _stored_action(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    """The stored action must be one that the transform can make an action of."""
    wanted, made = stored_action(spec.action), spec.action_array
    is_like = _is_dtype(made.dtype) and made.shape == wanted.shape and _kind(made.dtype) == _kind(wanted.dtype)
    if not is_like:
        yield SRLError(
            "the policy stores actions in a form that the environment's cannot be made of",
            where=where,
            value=f"{made.dtype}{list(made.shape)}",
            expected=f"{wanted.dtype}{list(wanted.shape)}, as srl.api.spaces.stored_action gives",
        )
    if spec.action_transform not in get_args(ActionTransform):
        yield SRLError(
            "the policy's action transform is unknown", where=where, value=spec.action_transform,
            expected=" or ".join(get_args(ActionTransform)),
        )  # fmt: skip
        return
    try:
        ActionTransformer(spec)
    except SRLError as error:
        yield error


def _names(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    try:
        names = [
            field.name
            for field in policy_schema(spec, rows=max(spec.state_rows, 1), columns=1, marks_replaced=True).fields
        ]
    except (TypeError, KeyError, ValueError) as error:
        yield SRLError(f"the policy's outputs fit no block: {error}", where=where)
        return
    names.append("version")  # what batches call the version of each row
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield SRLError(
            "the policy has an output with the name of another block field",
            where=where,
            value=name,
            expected="names that no block field has",
        )


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(is_count(size, 0) for size in shape)


def _is_dtype(text: Any) -> bool:
    try:
        np.dtype(text)
    except TypeError:
        return False
    return isinstance(text, str)


def _holds_numbers(dtype: np.dtype[Any]) -> bool:
    """Numbers, arrays of them, or records of those, as elements of nested spaces are."""
    element = dtype.base
    if element.fields is not None:
        return all(_holds_numbers(field[0]) for field in element.fields.values())
    return element.kind in "biuf"


def _kind(dtype: str) -> str:
    """Integers of any size and sign are one kind, and so are floats; records are themselves."""
    kind = np.dtype(dtype).kind
    return {"u": "i"}.get(kind, kind) if kind != "V" else dtype
