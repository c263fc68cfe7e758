"""The policy of PPO as plain data, resolved for an environment. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from srl.algorithms.networks.spec import resolve_network
from srl.algorithms.ppo.config import PPOConfig
from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, SRLError
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec

EXTRAS = (FieldSpec("log_probability", (), "float32"), FieldSpec("value", (), "float32"))


def ppo_policy_spec(
    name: str, config: PPOConfig, network: Mapping[str, Any], environment: EnvironmentSpec
) -> PolicySpec:
    """The policy for an environment; arguments and errors as ``AlgorithmPlugin.policy_spec``."""
    key = f"policies.{name}"
    _check_action(key, environment)
    resolved = resolve_network(network, environment.observation, f"{key}.network")
    small = resolved["type"] == "mlp"
    if small and config.precision == "bf16":
        raise ExperimentError(
            [
                SRLError(
                    "an MLP computes in fp32 only",
                    where=f"{key}.algorithm.precision",
                    value="bf16",
                    expected="fp32, or a network of type nature_cnn",
                )
            ]
        )
    return PolicySpec(
        name=name,
        module="srl.algorithms.ppo.policy:PPOPolicy",
        acting="srl.algorithms.ppo.acting:NumpyActing" if small else "srl.algorithms.ppo.torch_acting:TorchActing",
        backend="numpy" if small else "torch",
        observation=environment.observation,
        action=environment.action,
        action_array=ArraySpec((), environment.action.dtype),
        extras=EXTRAS,
        noise=NoiseSpec("uniform", (1,)),
        network=resolved,
        acting_dtype="bfloat16" if config.precision == "bf16" else "float32",
    )


def _check_action(key: str, environment: EnvironmentSpec) -> None:
    action = environment.action
    if action.kind == "discrete" and action.n >= 1 and np.dtype(action.dtype).kind in "iu":
        return
    raise ExperimentError(
        [
            SRLError(
                f"PPO cannot act in {environment.name}: observations {environment.observation.describe()}, "
                f"actions {action.describe()}",
                where=f"{key}.algorithm",
                value=action.describe(),
                expected="Discrete actions (and Box observations)",
            )
        ]
    )
