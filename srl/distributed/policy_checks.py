"""What a plugin says about its policy and its needs, checked against the environment before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import numpy as np

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.block import FieldSpec, policy_schema
from srl.api.environment import EnvironmentSpec
from srl.api.errors import PluginError, SRLError
from srl.api.importing import is_target
from srl.api.plugin_checks import definition, failure
from srl.api.policy import ActionTransform, NoiseSpec, PolicySpec
from srl.api.spaces import stored_action
from srl.system.actions import ActionTransformer

NOISES = ("uniform", "normal")


def policy_spec_of(
    plugin: type[AlgorithmPlugin], name: str, config: Any, network: Mapping[str, Any], environment: EnvironmentSpec
) -> PolicySpec:
    """The policy that a plugin makes for an environment.

    Raises:
        SRLError: As the plugin raised it.
        PluginError: It raised something else, or returned something else.
    """
    where, doing = f"policies.{name}", f"policy_spec() of {plugin.__name__}"
    try:
        spec = plugin.policy_spec(name, config, network, environment)
    except SRLError:
        raise
    except Exception as error:
        raise failure(doing, error, plugin, where) from error
    if not isinstance(spec, PolicySpec):
        raise _something_else(spec, PolicySpec, plugin, doing, where)
    return spec


def requirements_of(plugin: type[AlgorithmPlugin], config: Any, where: str) -> DataRequirements:
    """What a plugin asks of the data path.

    Raises:
        PluginError: It raised, or returned something else.
    """
    doing = f"requirements() of {plugin.__name__}"
    try:
        requirements = plugin.requirements(config)
    except SRLError:
        raise
    except Exception as error:
        raise failure(doing, error, plugin, where) from error
    if not isinstance(requirements, DataRequirements):
        raise _something_else(requirements, DataRequirements, plugin, doing, where)
    return requirements


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
    forms = [*_extras(spec, where), *_noise(spec, where)]
    yield from forms
    if not forms:
        yield from _stored_action(spec, where)
        yield from _names(spec, where)


def _extras(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    for extra in spec.extras:
        if not isinstance(extra, FieldSpec):
            yield SRLError("an extra of the policy is no FieldSpec", where=where, value=extra)
        elif extra.axes != "T,B":
            yield SRLError(
                f"the policy's extra '{extra.name}' has axes that are not those of a row",
                where=where,
                value=extra.axes,
                expected="'T,B'",
            )
        elif not _is_dtype(extra.dtype):
            yield SRLError(
                f"the policy's extra '{extra.name}' has a dtype that numpy does not know",
                where=where,
                value=extra.dtype,
                expected="a name such as 'float32' or 'int64'",
            )


def _noise(spec: PolicySpec, where: str) -> Iterator[SRLError]:
    noise = spec.noise
    if not isinstance(noise, NoiseSpec) or noise.kind not in NOISES or not isinstance(noise.shape, tuple):
        yield SRLError(
            "the policy's noise is of no known form", where=where, value=noise,
            expected=f"NoiseSpec of kind {' or '.join(NOISES)}, with a shape such as (1,)",
        )  # fmt: skip


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
        names = [field.name for field in policy_schema(spec, rows=max(spec.state_rows, 1), columns=1).fields]
    except (TypeError, KeyError, ValueError) as error:
        yield SRLError(f"the policy's outputs fit no block: {error}", where=where)
        return
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield SRLError(
            "the policy has an output with the name of another block field",
            where=where,
            value=name,
            expected="names that no block field has",
        )


def _something_else(value: Any, kind: type[Any], plugin: type[Any], doing: str, where: str) -> PluginError:
    place = definition(plugin)
    return PluginError(
        f"{doing} returned something else",
        where=where,
        value=type(value).__name__,
        expected=f"{kind.__module__}.{kind.__name__}",
        hint=f"Defined at {place}" if place else "",
    )


def _is_dtype(text: Any) -> bool:
    try:
        np.dtype(text)
    except TypeError:
        return False
    return isinstance(text, str)


def _kind(dtype: str) -> str:
    """Integers of any size and sign are one kind, and so are floats; records are themselves."""
    kind = np.dtype(dtype).kind
    return {"u": "i"}.get(kind, kind) if kind != "V" else dtype
