"""What every environment must keep to, checked by Gymnasium and by SRL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium.utils.env_checker import check_env
from srl.api.importing import import_target
from srl.environments.checking import check_environment

ENTRY = f"{Path(__file__).resolve().with_name('skeleton.py')}:Skeleton"


def test_gymnasiums_contract() -> None:
    """Spaces, seeding, resets, what ``step`` returns."""
    check_env(import_target(ENTRY)(), skip_render_check=True)


def test_frames() -> None:
    """What ``srl-run video`` films."""
    env = import_target(ENTRY)(size=5, render_mode="rgb_array")
    env.reset(seed=1)
    assert env.render().dtype == np.uint8
    assert env.render().shape == (80, 80, 3)


def test_srls_contract() -> None:
    """Stepped as an actor does: all of it fits a block, equal seeds give equal bits."""
    check_environment({"type": "gymnasium", "entry": ENTRY, "kwargs": {"size": 4}})


def test_a_caught_ball_pays_1() -> None:
    """Played by hand: straight under the ball, as far as the steps reach."""
    env = import_target(ENTRY)(size=5)
    observation, _ = env.reset(seed=1)
    terminated, total = False, 0.0
    while not terminated:
        direction = np.sign(observation[0] - observation[2])
        observation, reward, terminated, truncated, _ = env.step(1 + int(direction))
        assert not truncated
        total += reward
    assert total == 1.0
