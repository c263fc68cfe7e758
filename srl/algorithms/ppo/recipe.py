"""The default experiment of PPO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ENVIRONMENTS_PER_ACTOR = 16


def ppo_recipe(environment: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """One trainer, and actors on the cores that are left; inline inference.

    Args:
        environment: The experiment's ``environment`` mapping.
        cores: Cores of the machine.
    """
    name = re.sub(r"[^A-Za-z0-9_\-]+", "_", str(environment.get("id", environment.get("type", "environment"))))
    return {
        "name": f"ppo-{name}"[:64],
        "environment": dict(environment),
        "policies": {"learner": {"algorithm": {"type": "ppo"}}},
        "streams": {"samples": {"kind": "sample"}},
        "workers": {
            "actor": {
                "kind": "actor",
                "count": max(1, cores - 1),
                "environments": ENVIRONMENTS_PER_ACTOR,
                "agents": [{"policy": "learner", "samples": "samples"}],
            },
            "trainer": {"kind": "trainer", "policy": "learner", "samples": "samples"},
        },
        "stop": {"env_steps": 1_000_000},
    }
