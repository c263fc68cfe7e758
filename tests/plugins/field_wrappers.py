"""Wrappers of one's own, named by this file."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import TransformReward


def multiplied(env: gymnasium.Env[Any, Any], factor: float = 2.0) -> gymnasium.Env[Any, Any]:
    """Rewards times a factor."""
    return TransformReward(env, lambda reward: float(reward) * factor)
