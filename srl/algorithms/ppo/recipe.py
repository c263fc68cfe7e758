"""The default experiment of PPO: what is known to learn in environments of a kind, from the bundled experiments.

================== ========================================= ==============================
kind               near to the bundled                       told by
================== ========================================= ==============================
images             ``atari_pong_ppo``                        an image among the observations
continuous control ``halfcheetah_ppo``, ``hopper_ppo``       a Box among the actions
discrete choices   ``acrobot_ppo``, ``lunarlander_ppo``      neither
================== ========================================= ==============================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from srl.algorithms.networks.spec import is_image
from srl.algorithms.ppo.spec import boxes
from srl.api.environment import EnvironmentSpec
from srl.api.spaces import SpaceSpec, mask_size

MOST_ACTORS = 4
STACKED_FRAMES = 4
MOST_CHANNELS = 4
"""Images of more are several frames already."""
MASK_KEY = "action_mask"
"""Entry of a Dict observation that says which actions are legal."""


@dataclass(frozen=True)
class Kind:
    """What is chosen for one kind of environment.

    Attributes:
        algorithm: Options of PPO that differ from its defaults.
        environments: Environments of all actors together: with ``rows`` they make the rows of an update, which must
            not grow with the machine. Divisible by :data:`MOST_ACTORS`.
        env_steps: Budget, in env steps.
        interval_env_steps: Env steps between evaluations.
        episodes: Episodes per evaluation.
        stream: Options of the sample stream.
    """

    algorithm: Mapping[str, Any]
    environments: int
    env_steps: int
    interval_env_steps: int
    episodes: int
    stream: Mapping[str, Any]


IMAGES = Kind(
    algorithm={"rows": 128, "learning_rate": 2.5e-4, "epochs": 4, "minibatch_rows": 256, "clip_range": 0.1},
    environments=16,
    env_steps=10_000_000,
    interval_env_steps=250_000,
    episodes=10,
    stream={},
)
CONTINUOUS = Kind(
    algorithm={
        "rows": 256,
        "learning_rate": 6e-4,
        "learning_rate_schedule": "linear",
        "epochs": 10,
        "minibatch_rows": 256,
        "value_coefficient": 1.0,
    },
    environments=8,
    env_steps=1_000_000,
    interval_env_steps=100_000,
    episodes=20,
    stream={"max_policy_lag": 0},
)
DISCRETE = Kind(
    algorithm={
        "rows": 128,
        "learning_rate": 7e-4,
        "learning_rate_schedule": "linear",
        "epochs": 6,
        "minibatch_rows": 256,
    },
    environments=16,
    env_steps=1_000_000,
    interval_env_steps=100_000,
    episodes=20,
    stream={},
)


def ppo_recipe(environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
    """One trainer, actors on the cores that are left, an evaluator; inline inference.

    Args:
        environment: The experiment's ``environment`` mapping.
        spec: What it is.
        cores: Cores of the machine.
    """
    given = dict(environment)
    if _holds_mask(environment, spec):
        given["action_mask"] = "observation"
        spec = replace(spec, observation=_without_mask(spec.observation))
    kind = _kind(spec)
    actors = max(count for count in (1, 2, MOST_ACTORS) if count <= max(1, cores - 1))
    # Of a class that is named by its place, the class.
    name = re.sub(r"[^A-Za-z0-9_\-]+", "_", spec.name.rpartition(":")[2])
    return {
        "name": f"ppo-{name}"[:64],
        "environment": {**given, **_wrapped(environment, spec.observation)},
        "policies": {"learner": {"algorithm": {"type": "ppo", **kind.algorithm, **_scales(environment, spec)}}},
        "streams": {"samples": {"kind": "sample", **kind.stream}},
        "workers": {
            "actor": {
                "kind": "actor",
                "count": actors,
                "environments": kind.environments // actors,
                "agents": [{"policy": "learner", "samples": "samples"}],
            },
            "trainer": {"kind": "trainer", "policy": "learner", "samples": "samples"},
            "evaluator": {
                "kind": "evaluator",
                "policy": "learner",
                "episodes": kind.episodes,
                "interval_env_steps": kind.interval_env_steps,
            },
        },
        "stop": {"env_steps": kind.env_steps},
    }


def _holds_mask(environment: Mapping[str, Any], spec: EnvironmentSpec) -> bool:
    """True where the observation has an entry that can only be an action mask, and the experiment does not say so."""
    if environment["type"] not in ("gymnasium", "envpool") or "action_mask" in environment:
        return False
    entries = dict(spec.observation.children) if spec.observation.kind == "dict" else {}
    mask = entries.get(MASK_KEY)
    return mask is not None and len(entries) > 1 and prod(mask.shape) == mask_size(spec.action)


def _without_mask(space: SpaceSpec) -> SpaceSpec:
    return SpaceSpec.nested("dict", {name: child for name, child in space.children if name != MASK_KEY})


def _kind(spec: EnvironmentSpec) -> Kind:
    if any(is_image(leaf.space) for leaf in spec.observation.leaves()):
        return IMAGES
    return CONTINUOUS if boxes(spec.action) else DISCRETE


def _scales(environment: Mapping[str, Any], spec: EnvironmentSpec) -> dict[str, Any]:
    """Observations and returns normalised where they may have any scale; a bonus for entropy where that has a bound."""
    leaves = [leaf.space for leaf in spec.observation.leaves()]
    return {
        "normalize_observations": any(np.dtype(one.dtype).kind == "f" and not is_image(one) for one in leaves),
        "normalize_returns": not _clips_rewards(environment),
        "entropy_coefficient": 0.0 if boxes(spec.action) else 0.01,
    }


def _clips_rewards(environment: Mapping[str, Any]) -> bool:
    """True where rewards are cut to -1..1 on their way to the learner."""
    kind = environment["type"]
    if kind == "atari":
        return bool(environment.get("reward_clipping", True))
    if kind == "envpool":
        return bool(environment.get("kwargs", {}).get("reward_clip", False))
    return any(wrapper.get("type") == "reward_clip" for wrapper in environment.get("wrappers", ()))


def _wrapped(environment: Mapping[str, Any], observation: SpaceSpec) -> dict[str, Any]:
    """Wrappers that bring images into the form that networks take: channels first, some frames so that motion shows.

    Atari and EnvPool do that themselves, and so may who names wrappers, or a vector environment.
    """
    if environment["type"] != "gymnasium" or not is_image(observation):
        return {}
    present = environment.get("wrappers", ())
    channels = observation.shape[0]
    added: list[dict[str, Any]] = []
    if channels > observation.shape[2]:
        channels = observation.shape[2]
        added.append({"type": "channels_first"})
    is_single = "id" in environment and environment.get("vectorization") != "vector_entry_point"
    if is_single and not present and channels <= MOST_CHANNELS:
        added.append({"type": "frame_stack", "frames": STACKED_FRAMES, "concatenate": True})
    return {"wrappers": [*present, *added]} if added else {}
