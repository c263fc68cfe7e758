"""What a plugin's algorithm brings into the trainer, checked where it comes in: its class, its module, its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch

from srl.api.algorithm import Algorithm, AlgorithmPlugin, TrainerContext
from srl.api.errors import PluginError, SRLError
from srl.api.importing import import_target
from srl.api.plugin_checks import definition, failure, load_class
from srl.api.policy import PolicySpec

RESERVED = ("version", "env_steps")
"""Names of metrics that the trainer itself gives with every update."""


def build_algorithm(plugin: type[AlgorithmPlugin], config: Any, trainer: TrainerContext, policy: str) -> Algorithm:
    """The algorithm of a plugin, built over what the trainer offers.

    Raises:
        PluginError: It cannot be imported, is no complete :class:`Algorithm`, or its constructor raised.
    """
    where = f"policies.{policy}.algorithm"
    target = plugin.implementation
    algorithm: type[Algorithm] = load_class(target, Algorithm, "implementation of an algorithm", where)
    try:
        return algorithm(config, trainer)
    except SRLError:
        raise
    except Exception as error:
        raise failure(f"building the algorithm '{target}'", error, algorithm, where) from error


def make_module(spec: PolicySpec) -> torch.nn.Module:
    """The policy's torch module, with parameters that can be trained and published.

    Raises:
        PluginError: It cannot be imported, its constructor raised, it is no ``torch.nn.Module``, it has no parameters,
            or one is not float32.
    """
    where = f"policies.{spec.name}"
    factory = import_target(spec.module, where)
    try:
        module = factory(spec)
    except SRLError:
        raise
    except Exception as error:
        raise failure(f"building the module '{spec.module}'", error, factory, where) from error
    place = definition(factory)
    hint = f"Defined at {place}" if place else ""
    if not isinstance(module, torch.nn.Module):
        raise PluginError(
            f"the module of the policy, '{spec.module}', is something else",
            where=where,
            value=type(module).__name__,
            expected="a torch.nn.Module",
            hint=hint,
        )
    parameters = dict(module.named_parameters())
    if not parameters:
        raise PluginError(
            f"the module '{spec.module}' has no parameters",
            where=where,
            expected="layers or torch.nn.Parameter objects among its attributes, set in __init__",
            hint=hint,
        )
    wrong = {name: parameter.dtype for name, parameter in parameters.items() if parameter.dtype != torch.float32}
    if wrong:
        raise PluginError(
            f"the module '{spec.module}' has parameters of another dtype than float32",
            where=where,
            value=", ".join(f"{name} {dtype}" for name, dtype in wrong.items()),
            expected="float32; a policy may compute in another dtype, but keeps its parameters in this one",
            hint=hint,
        )
    return module


def metrics_of(returned: Any, algorithm: Algorithm) -> dict[str, float]:
    """What ``update`` returned, as numbers by name.

    Raises:
        PluginError: It is no mapping, a value is no single number, or a name is the trainer's own.
    """
    what = f"update() of {type(algorithm).__name__} returned"
    place = definition(type(algorithm).update)
    hint = f"Defined at {place}" if place else ""
    expected = "a dict of metrics, name to number; {} if there are none"
    if not isinstance(returned, Mapping):
        raise PluginError(f"{what} no dict", value=type(returned).__name__, expected=expected, hint=hint)
    metrics = {}
    for name, value in returned.items():
        if not isinstance(name, str) or name in RESERVED:
            raise PluginError(f"{what} a metric with a name it cannot have", value=name, expected=expected, hint=hint)
        number = _number(value)
        if number is None:
            raise PluginError(f"{what} a metric '{name}' that is no number", value=value, expected=expected, hint=hint)
        metrics[name] = number
    return metrics


def _number(value: Any) -> float | None:
    """A single number, of numpy and torch too; else ``None``."""
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0:
        return float(value.item())
    return None
