"""Field cases 36, 43, 64: starts of episodes, frames beside steps, and exactly the asked episodes in evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

PLUGINS = Path(__file__).parents[1] / "plugins"
FIELD = PLUGINS / "field.yaml"
PLACES = {"fused": ["--placement", "fused"], "processes": ["--placement", "processes"]}


def batches(directory: Path) -> list[dict[str, NDArray[Any]]]:
    return [dict(np.load(path)) for path in sorted(directory.glob("update-*.npz"))]


def starts(directory: Path) -> NDArray[Any]:
    """The first observations of all episodes, in order of time."""
    return np.concatenate(
        [batch["observation"][:-1][batch["episode_start"] & batch["valid"]] for batch in batches(directory)]
    )


@pytest.fixture(scope="module")
def seeded(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, NDArray[Any]]:
    """First observations of single environments (fused, processes) and of a native vector environment."""
    single = "environment={type: gymnasium, entry: ./field_environments.py:SeedCount}"
    vector = "environment={type: gymnasium, id: CartPole-v1, vectorization: vector_entry_point}"
    runs = {name: [single, *place] for name, place in PLACES.items()}
    runs["native vector"] = [vector, *PLACES["fused"], "policies.main.algorithm.rows=200"]
    trials = {}
    for name, overrides in runs.items():
        directory = tmp_path_factory.mktemp("batches")
        overrides = [f"policies.main.algorithm.directory={directory}", "stop.updates=2", *overrides]
        trials[name] = (shared_trial_run.start(FIELD, *overrides, "--screen", "off"), directory)
    found = {}
    for name, (trial, directory) in trials.items():
        trial.finish(120).check()
        found[name] = starts(directory)
    return found


@pytest.mark.parametrize("variant", [*PLACES, "native vector"])
def test_case_36_every_episode_has_a_start_of_its_own(seeded: Any, variant: str) -> None:
    found = seeded[variant]
    assert len(found) >= 5
    assert len(np.unique(found, axis=0)) == len(found)


def test_case_36_only_the_first_reset_has_a_seed(seeded: Any) -> None:
    for variant in PLACES:
        draws, seeds = seeded[variant].T
        assert (seeds == 1).all()
        assert len(draws) == 8


def test_case_36_the_starts_follow_from_the_seed(seeded: Any) -> None:
    np.testing.assert_array_equal(seeded["fused"], seeded["processes"])


FRAMES = {"whole": 40, "end within a step": 38}


@pytest.fixture(scope="module")
def skipping(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """Episodes of 40 and 38 frames, 4 frames under a step, reward 1 per frame; 10 steps per episode."""
    trials = {}
    for name, frames in FRAMES.items():
        directory = tmp_path_factory.mktemp("batches")
        trials[name] = (
            shared_trial_run.start(
                FIELD,
                "environment={type: gymnasium, entry: 'srl.environments.toy:FrameSkip', frames_per_step: 4}",
                f"environment.kwargs={{skip: 4, frames: {frames}}}",
                f"policies.main.algorithm={{type: ./recording.py:Recording, rows: 10, directory: {directory}}}",
                "workers.evaluator={kind: evaluator, policy: main, episodes: 2}",
                "stop={env_steps: 30}",
                *("--screen", "off", "--placement", "fused"),
            ),
            directory,
        )
    return {name: (trial.finish(120).check(), directory) for name, (trial, directory) in trials.items()}


@pytest.mark.parametrize("variant", FRAMES)
def test_case_43_return_in_frames_length_in_steps_and_both_labelled(skipping: Any, variant: str) -> None:
    ended, directory = skipping[variant]
    summary = ended.summary
    assert summary["episodes"]["count"] == 3
    assert summary["episodes"]["return_mean_last_100"] == FRAMES[variant]
    assert summary["evaluation"]["mean_return"] == FRAMES[variant]
    assert summary["episodes"]["env_steps_mean_last_100"] == summary["evaluation"]["mean_length"] == 10
    assert summary["episodes"]["frames_mean_last_100"] == summary["evaluation"]["mean_frames"] == 40
    # The budget is in env steps.
    assert summary["exit_reason"] == "env_steps"
    assert summary["env_steps"] == 30
    assert summary["frames"] == 120
    lines = [json.loads(line) for line in (ended.trial_dir / "metrics.jsonl").read_text().splitlines()]
    assert (lines[-1]["env_steps"], lines[-1]["frames"]) == (30, 120)
    assert any((line.get("episode/env_steps"), line.get("episode/frames")) == (10, 40) for line in lines)
    last_reward = [float(batch["reward"][9, 0]) for batch in batches(directory)]
    assert last_reward == [FRAMES[variant] - 36] * 3


@pytest.fixture(scope="module")
def evaluated(shared_trial_run: Any) -> Any:
    """Six episodes on four evaluators; episodes last 3, 5, 7, 9 steps, so that the first to finish would be short."""
    return shared_trial_run(
        FIELD,
        "environment={type: gymnasium, entry: 'srl.environments.toy:CountVector', kwargs: {lengths: [3, 5, 7, 9]}}",
        "policies.main.algorithm={type: ./recording.py:Recording, rows: 12, update_seconds: 0.1}",
        "workers.actors.environments=4",
        "workers.evaluators={kind: evaluator, policy: main, episodes: 6, environments: 4, count: 4}",
        "workers.evaluators.interval_env_steps=100",
        "stop.updates=30",
        *("--screen", "off", "--placement", "processes"),
        timeout_seconds=120,
    ).check()


def test_case_64_every_evaluation_has_exactly_the_asked_episodes_and_one_version(evaluated: Any) -> None:
    lines = [json.loads(line) for line in (evaluated.trial_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "evaluation/episodes" in line]
    summary = evaluated.summary
    assert len(evaluations) == summary["evaluations"] > 4
    assert [line["evaluation/episodes"] for line in evaluations] == [6] * len(evaluations)
    assert all(0 < line["policy_version"] <= summary["policy_version"] for line in evaluations)
    assert summary["evaluation"]["episodes"] == 6
    assert summary["evaluation"]["policy_version"] == summary["policy_version"] == 30
    workers = [f"evaluators/{index}" for index in range(4)]
    assert all(summary["workers"][worker]["shares"].get("evaluating", 0) > 0 for worker in workers)


def test_case_64_short_episodes_are_not_preferred(evaluated: Any) -> None:
    """Quotas 2, 2, 1, 1: the first six to finish would be 3, 5, 3, 7, 3, 9 or so."""
    lines = [json.loads(line) for line in (evaluated.trial_dir / "metrics.jsonl").read_text().splitlines()]
    means = [line["evaluation/mean_return"] for line in lines if "evaluation/mean_return" in line]
    assert means == [pytest.approx((3 + 3 + 5 + 5 + 7 + 9) / 6)] * len(means)


def test_case_64_evaluation_counts_no_env_step(evaluated: Any) -> None:
    summary = evaluated.summary
    assert summary["env_steps"] == summary["rows"]["trained"]


def test_case_64_a_blocked_evaluation_does_not_stop_training(trial_run: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    trial = trial_run.start(
        FIELD,
        f"environment={{type: gymnasium, entry: ./field_environments.py:BlockedAlone, kwargs: {{file: {go}}}}}",
        f"policies.main.algorithm.directory={tmp_path / 'batches'}",
        "workers.actors.environments=2",
        "workers.evaluator={kind: evaluator, policy: main, episodes: 6, environments: 1, interval_env_steps: 20}",
        "stop.updates=200",
        *("--screen", "off", "--placement", "processes"),
    )
    trial.wait_for(lambda: len(list((tmp_path / "batches").glob("*.npz"))) == 200, "200 updates", 90)
    go.touch()
    summary = trial.finish(60).check().summary
    assert summary["updates"] == 200
    assert summary["evaluation"]["episodes"] == 6
    assert summary["evaluation"]["policy_version"] == 200
    # Before that the first version it was blocked with, whatever came out meanwhile.
    assert summary["evaluations"] == 2
