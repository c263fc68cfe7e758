"""Field case 63: NaN and infinity in observations, rewards and losses are named, and no weight or file has any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from srl.system.workers.trainer import SKIPS_IN_A_ROW

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"
STEP = 37
BOUNDARY = 48
"""Of runs that replace: the reward is that of a block's last row, the observation row 0 of the block behind it."""
ROWS, COLUMNS, UPDATES = 16, 2, 6
GAMMA = 0.75
LENGTHS = {"stop": 10, "skip": 10, "replace": 1000}
FUSED, PROCESSES = ["--placement", "fused"], ["--placement", "processes"]
TCP = ["--placement", "processes", "--transport", "tcp"]
PPO = f"{{type: ppo, rows: {ROWS}, minibatch_rows: 16, epochs: 2, gamma: {GAMMA}}}"
NORMALIZED = [f"policies.main.algorithm.normalize_{what}=true" for what in ("observations", "returns")]

# Name: (fault, on_non_finite, where). The environment has one step in which the value is bad.
RUNS: dict[str, tuple[str, str, list[str]]] = {
    "stop, reward": ("nan_reward", "stop", PROCESSES),
    "stop, observation": ("nan_observation", "stop", FUSED),
    "stop, infinity": ("inf_observation", "stop", TCP),
    "skip, reward": ("nan_reward", "skip", PROCESSES),
    "replace, infinity": ("inf_observation", "replace", FUSED),
    "replace, observation": ("nan_observation", "replace", TCP),
    "replace, reward": ("nan_reward", "replace", PROCESSES),
}
STOPPED = [name for name in RUNS if name.startswith("stop")]
SKIPPED = [name for name in RUNS if name.startswith("skip")]
REPLACED = [name for name in RUNS if name.startswith("replace")]
FIELDS = {"nan_reward": "reward", "nan_observation": "observation", "inf_observation": "observation"}


@pytest.fixture(scope="module")
def ended(shared_trial_run: Any) -> dict[str, Any]:
    """Every run of RUNS, and two with an absurd learning rate; they run side by side."""
    common = [f"workers.actors.environments={COLUMNS}", f"policies.main.algorithm={PPO}", "--screen", "plain"]
    trials = {}
    for name, (fault, mode, place) in RUNS.items():
        environment = (
            "{type: gymnasium, entry: 'srl.environments.toy:Faulty', "
            f"kwargs: {{kind: {fault}, step: {BOUNDARY if mode == 'replace' else STEP}, length: {LENGTHS[mode]}}}}}"
        )
        # Whole blocks in the order of their rows, so that it is known which were trained on.
        whole = ["streams.samples.on_straggler=wait", *NORMALIZED] if mode == "replace" else []
        trials[name] = shared_trial_run.start(
            FIELD,
            f"environment={environment}",
            f"on_non_finite={mode}",
            "checkpoints.interval_updates=1",
            f"stop.updates={UPDATES}",
            *common,
            *whole,
            *place,
        )
    for name, mode in (("learning rate, stop", "stop"), ("learning rate, skip", "skip")):
        trials[name] = shared_trial_run.start(
            FIELD,
            "environment={type: gymnasium, id: CartPole-v1}",
            f"on_non_finite={mode}",
            *common,
            "policies.main.algorithm.learning_rate=1e6",
            "policies.main.network={type: mlp, activation: relu}",
            "checkpoints.interval_updates=1",
            "stop={updates: 20}",
            *(FUSED if mode == "stop" else PROCESSES),
        )
    return {name: trial.finish(150) for name, trial in trials.items()}


def text(trial: Any) -> str:
    return str((trial.trial_dir / "main.log").read_text())


def all_names() -> list[str]:
    return [*RUNS, "learning rate, stop", "learning rate, skip"]


@pytest.mark.parametrize("name", all_names())
def test_every_file_is_finite_and_valid(ended: Any, name: str) -> None:
    trial = ended[name]
    trial.check(1 if "stop" in name or "learning rate" in name else 0)
    summary = trial.summary
    assert summary["evaluation"] is None
    for line in (trial.trial_dir / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} in the metrics"))
    checkpoints = sorted((trial.trial_dir / "checkpoints").iterdir())
    assert bool(checkpoints) == (name != "learning rate, skip"), "that run never makes a version"
    for checkpoint in checkpoints:
        for key, array in load_file(checkpoint / "weights.safetensors").items():
            assert np.isfinite(array).all(), (checkpoint, key)
    newest = int(checkpoints[-1].name.rpartition("-")[2]) if checkpoints else 0
    assert newest == summary["policy_version"]


@pytest.mark.parametrize("name", STOPPED)
def test_stop_names_worker_environment_step_and_field(ended: Any, name: str) -> None:
    trial = ended[name]
    fault = RUNS[name][0]
    summary = trial.summary
    assert summary["exit_reason"] == "failed"
    (failure,) = summary["failures"]
    assert failure["worker"] == "actors/0"
    for log in (text(trial), trial.stderr):
        assert "actors/0 failed" in log
        assert f"the {FIELDS[fault]} of environment 0 is not finite" in log
        assert f"ring group 0 of actor 0, step {STEP - 1}" in log
        assert ("inf" if fault.startswith("inf") else "nan") in log
    # The bad row is in the third block: whatever was trained on was whole.
    assert summary["policy_version"] <= 2


@pytest.mark.parametrize("name", SKIPPED)
def test_skip_gives_the_block_up_and_goes_on(ended: Any, name: str) -> None:
    trial = ended[name]
    fault = RUNS[name][0]
    assert trial.summary["updates"] == 6
    assert trial.summary["rows"]["unaccounted"] == 0
    assert f"the {FIELDS[fault]} of environment 0 is not finite" in text(trial)
    assert "the block is skipped" in trial.stderr


@pytest.mark.parametrize("name", REPLACED)
def test_replace_counts_and_goes_on(ended: Any, name: str) -> None:
    trial = ended[name]
    assert trial.summary["updates"] == UPDATES
    assert trial.summary["blocks"]["trained"] == UPDATES
    assert trial.summary["non_finite"]["environment_values"] == 2  # both environments have their bad step at once
    assert f"the {FIELDS[RUNS[name][0]]} of environment 0 is not finite" in trial.stderr
    assert trial.stderr.count("replaced by 0") == 1


@pytest.mark.parametrize("name", REPLACED)
def test_statistics_are_those_of_what_was_finite(ended: Any, name: str) -> None:
    """The observation is the number of the row, every reward is 1, no episode ends: all sums are known."""
    trial = ended[name]
    weights = load_file(max((trial.trial_dir / "checkpoints").iterdir()) / "weights.safetensors")
    rows = np.arange(ROWS * UPDATES, dtype=np.float64)
    is_reward = RUNS[name][0] == "nan_reward"
    observations = rows if is_reward else np.delete(rows, BOUNDARY)
    returns = (1.0 - GAMMA ** (rows + 1.0)) / (1.0 - GAMMA)  # of 1, 2, ... rewards
    returns = returns[:-1] if is_reward else returns
    for statistics, values in (("observation_statistics", observations), ("return_statistics", returns)):
        count, mean, m2 = (weights[f"{statistics}.{part}"] for part in ("count", "mean", "m2"))
        assert count[0] == COLUMNS * len(values)
        np.testing.assert_allclose(mean, values.mean(), rtol=1e-9)
        np.testing.assert_allclose(m2, COLUMNS * np.square(values - values.mean()).sum(), rtol=1e-9)


def test_an_absurd_learning_rate_stops_with_the_last_good_weights(ended: Any) -> None:
    trial = ended["learning rate, stop"]
    (failure,) = trial.summary["failures"]
    assert failure["worker"] == "trainer/0"
    assert "not finite" in failure["text"]
    assert "policy main, version" in failure["text"]
    assert "Lower the learning rate" in trial.stderr


def test_an_absurd_learning_rate_skipped(ended: Any) -> None:
    """No update is finite any more, so the run ends by itself."""
    trial = ended["learning rate, skip"]
    (failure,) = trial.summary["failures"]
    assert f"{SKIPS_IN_A_ROW} updates in a row were not finite" in failure["text"]
    assert trial.summary["non_finite"]["updates_skipped"] == SKIPS_IN_A_ROW - 1
    assert "the update is skipped" in trial.stderr
    assert trial.summary["blocks"]["dropped"]["non_finite_update"] == SKIPS_IN_A_ROW - 1


def test_before_the_first_episode_there_is_no_number(ended: Any) -> None:
    trial = ended["replace, infinity"]
    assert trial.summary["episodes"]["count"] == 0
    assert trial.summary["episodes"]["return_mean_last_100"] is None
    assert "nan" not in trial.stdout.lower()
