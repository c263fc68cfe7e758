"""The policy of PPO as plain data, resolved for an environment. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from srl.algorithms.distributions.base import ActionDistribution
from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.networks.spec import resolve_network, state_of
from srl.algorithms.ppo.config import PPOConfig
from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, SRLError
from srl.api.policy import ActionTransform, PolicySpec
from srl.api.spaces import SpaceSpec

EXTRAS = (FieldSpec("log_probability", (), "float32"), FieldSpec("value", (), "float32"))


def ppo_policy_spec(
    name: str, config: PPOConfig, network: Mapping[str, Any], environment: EnvironmentSpec
) -> PolicySpec:
    """The policy for an environment; arguments and errors as ``AlgorithmPlugin.policy_spec``."""
    key = f"policies.{name}"
    resolved = resolve_network(network, environment.observation, f"{key}.network")
    state_size, state_rows = state_of(resolved)
    in_numpy = resolved["type"] == "mlp" and not state_size
    problems = [
        *_action_problems(environment, config, key),
        *_precision_problems(config, in_numpy, key),
        *_state_problems(config, state_rows, key),
    ]
    if problems:
        raise ExperimentError(problems)
    options = {
        "standard_deviation": config.standard_deviation,
        "initial_log_std": config.initial_log_std,
        "normalize_observations": config.normalize_observations,
        "observation_bound": config.observation_bound,
        "normalize_returns": config.normalize_returns,
        "popart": config.popart,
    }
    distribution = _distribution(environment.action, options)
    return PolicySpec(
        name=name,
        module="srl.algorithms.ppo.policy:PPOPolicy",
        acting="srl.algorithms.ppo.acting:NumpyActing" if in_numpy else "srl.algorithms.ppo.torch_acting:TorchActing",
        backend="numpy" if in_numpy else "torch",
        observation=environment.observation,
        action=environment.action,
        action_array=distribution.action,
        extras=EXTRAS,
        noise=distribution.noise,
        action_transform=_transform(environment.action, config),
        network=resolved,
        acting_dtype="bfloat16" if config.precision == "bf16" else "float32",
        action_mask=distribution.mask if environment.action_mask else 0,
        state_size=state_size,
        state_rows=state_rows,
        options=options,
    )


def distribution_of(spec: PolicySpec) -> ActionDistribution:
    """The family of distributions that a policy of PPO's decides with."""
    return _distribution(spec.action, spec.options)


def _distribution(action: SpaceSpec, options: Mapping[str, Any]) -> ActionDistribution:
    return build_distribution(
        action, standard_deviation=options["standard_deviation"], initial_log_std=options["initial_log_std"]
    )


def boxes(space: SpaceSpec) -> list[SpaceSpec]:
    """The continuous parts of an action space."""
    return [leaf.space for leaf in space.leaves() if leaf.space.kind == "box"]


def _bounded(space: SpaceSpec) -> bool:
    bounds = [bound for box in boxes(space) for bound in (box.low, box.high)]
    return all(bound is not None and bool(np.isfinite(bound).all()) for bound in bounds)


def _transform(action: SpaceSpec, config: PPOConfig) -> ActionTransform:
    if not boxes(action):
        return "none"
    if config.action_transform == "auto":
        return "clip" if any(box.low is not None or box.high is not None for box in boxes(action)) else "none"
    return config.action_transform


def _action_problems(environment: EnvironmentSpec, config: PPOConfig, key: str) -> list[SRLError]:
    action = environment.action
    integers = [box for box in boxes(action) if not box.dtype.startswith("float")]
    if integers:
        return [
            SRLError(
                f"PPO cannot act in {environment.name}: integer boxes have no distribution",
                where=f"{key}.algorithm",
                value=action.describe(),
                expected="Discrete, MultiDiscrete, MultiBinary or floating-point Box actions, Dict or Tuple of them",
                hint="Offer a MultiDiscrete space in the environment.",
            )
        ]
    if config.action_transform == "tanh_affine" and not _bounded(action):
        return [
            SRLError(
                "tanh_affine needs bounds on every continuous action",
                where=f"{key}.algorithm.action_transform",
                value=action.describe(),
                expected="finite lower and upper bounds",
                hint="Use clip, or bound the action space in the environment.",
            )
        ]
    return []


def _precision_problems(config: PPOConfig, in_numpy: bool, key: str) -> list[SRLError]:
    if not in_numpy or config.precision == "fp32":
        return []
    return [
        SRLError(
            "an MLP computes in fp32 only",
            where=f"{key}.algorithm.precision",
            value=config.precision,
            expected="fp32, or another type of network",
        )
    ]


def _state_problems(config: PPOConfig, state_rows: int, key: str) -> list[SRLError]:
    if not state_rows or config.rows % state_rows == 0:
        return []
    return [
        SRLError(
            "blocks do not divide into sequences",
            where=f"{key}.network.recurrent.rows",
            value=state_rows,
            expected=f"a divisor of the block's rows, {key}.algorithm.rows = {config.rows}",
        )
    ]
