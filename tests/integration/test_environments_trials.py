"""Wrappers and EnvPool through whole trials: what blocks hold, what is reported (field cases 35, 42, 43)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"
SKIP = "{type: frame_skip, frames: 4}"
WRAPPERS = f"[{SKIP}, {{type: ./field_wrappers.py:multiplied, factor: 10}}, {{type: reward_clip, low: -3, high: 3}}]"
ENVIRONMENTS = {
    # 38 raw frames, reward 1 each: ten steps, the last of two frames.
    "wrapped": "{type: gymnasium, entry: 'srl.environments.toy:FrameSkip', kwargs: {skip: 1, frames: 38}, "
    f"wrappers: {WRAPPERS}}}",
    "envpool": "{type: envpool, id: CartPole-v1, max_episode_steps: 5}",
}


@pytest.fixture(scope="module")
def trials(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """A trial of each, two environments, 30 env steps."""
    started = {}
    for name, environment in ENVIRONMENTS.items():
        directory = tmp_path_factory.mktemp("batches")
        started[name] = (
            shared_trial_run.start(
                FIELD,
                f"environment={environment}",
                f"policies.main.algorithm={{type: ./recording.py:Recording, rows: 10, directory: {directory}}}",
                "workers.actors.environments=2",
                "workers.evaluator={kind: evaluator, policy: main, episodes: 2}",
                "stop={env_steps: 40}",
                *("--screen", "off", "--placement", "processes"),
            ),
            directory,
        )
    return {name: (trial.finish(120).check(), directory) for name, (trial, directory) in started.items()}


def batches(directory: Path) -> list[dict[str, Any]]:
    return [dict(np.load(path)) for path in sorted(directory.glob("update-*.npz"))]


def test_blocks_hold_wrapped_rewards_and_reports_those_before(trials: Any) -> None:
    ended, directory = trials["wrapped"]
    for batch in batches(directory):
        assert (batch["reward"] == 3).all()
    summary = ended.summary
    assert summary["episodes"]["return_mean_last_100"] == summary["evaluation"]["mean_return"] == 38
    assert summary["episodes"]["env_steps_mean_last_100"] == summary["evaluation"]["mean_length"] == 10
    assert summary["episodes"]["frames_mean_last_100"] == summary["evaluation"]["mean_frames"] == 40
    assert (summary["env_steps"], summary["frames"]) == (40, 160)


def test_envpool_through_a_trial(trials: Any) -> None:
    ended, directory = trials["envpool"]
    found = batches(directory)
    starts = np.concatenate([batch["observation"][:-1][batch["episode_start"]] for batch in found])
    assert len(np.unique(starts, axis=0)) == len(starts) >= 8
    for batch in found:
        assert batch["valid"].all()
        assert batch["truncated"][4::5].all()
        assert not batch["terminated"].any()
        # The observation an episode ended with is none of those in the block.
        assert not np.isin(batch["final_observation"][:, 0], batch["observation"][..., 0]).any()
    assert ended.summary["episodes"]["return_mean_last_100"] == 5
    assert ended.summary["evaluation"]["mean_length"] == 5
