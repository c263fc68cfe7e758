"""PPO on tasks whose optimum is known, through whole trials: every space, masks, memory, time limits."""

from __future__ import annotations

import numpy as np
import pytest

import srl
from srl.system.checkpoint import load_checkpoint

SMALL = {"type": "ppo", "rows": 32, "minibatch_rows": 256, "learning_rate": 2e-3, "entropy_coefficient": 0.0}


def train(tmp_path, environment, *, network=None, env_steps=40_000, episodes=40, **algorithm):
    """A fused trial: the same bits every time."""
    experiment = {
        "name": "task",
        "seed": 1,
        "environment": {"type": "gymnasium", **environment},
        "policies": {"main": {"algorithm": {**SMALL, **algorithm}, "network": network or {}}},
        "streams": {"samples": {"kind": "sample"}},
        "workers": {
            "actor": {"kind": "actor", "environments": 16, "agents": [{"policy": "main", "samples": "samples"}]},
            "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
            "evaluator": {"kind": "evaluator", "policy": "main", "episodes": episodes, "environments": 10},
        },
        "stop": {"env_steps": env_steps},
        "placement": "fused",
        "lockstep": True,
    }
    trial = srl.run(experiment, trial_dir=tmp_path / "trial", screen="off")
    assert trial.exit_code == 0
    return trial


def score(trial):
    return trial.summary["evaluation"]["mean_return"]


def test_multi_discrete_actions_reach_the_optimum(tmp_path):
    assert score(train(tmp_path, {"id": "srl/Combination-v0"}, env_steps=60_000)) > 9.9


def test_continuous_actions_come_near_the_optimum(tmp_path):
    assert score(train(tmp_path, {"id": "srl/Target-v0"}, gamma=0.0, initial_log_std=-1.0)) > 9.3


def test_nested_observations_and_actions_come_near_the_optimum(tmp_path):
    """Dict and Tuple both ways, bytes, numbers and choices, in one policy."""
    trial = train(tmp_path, {"id": "srl/Mixed-v0"}, env_steps=120_000, gamma=0.0, initial_log_std=-1.0)
    assert score(trial) > 8.5


def test_masks_make_the_best_legal_move_learnable(tmp_path):
    """The environment raises on any illegal move, so not a single one was made; without masks 0 is the optimum."""
    environment = {"id": "srl/LegalMoves-v0", "kwargs": {"strict": True}, "action_mask": "info"}
    assert score(train(tmp_path, environment, env_steps=80_000, gamma=0.0)) > 13.5


def test_an_lstm_recalls_what_an_mlp_cannot_know(tmp_path):
    environment = {"id": "srl/Recall-v0", "kwargs": {"cues": 3, "delay": 4}}
    memory = {"type": "mlp", "hidden": [32], "recurrent": {"type": "lstm", "size": 32, "rows": 16}}
    recalled = train(tmp_path / "lstm", environment, network=memory, episodes=100, epochs=8)
    guessed = train(tmp_path / "mlp", environment, episodes=100)
    assert score(recalled) > 0.95
    assert score(guessed) < 0.6


GAMMA = 0.9


def value_of_forever(tmp_path, end):
    """What a policy comes to believe of a reward of 1 per step in episodes of 10 steps that show no time."""
    environment = {"id": "srl/Forever-v0", "kwargs": {"end": end, "steps": 10}}
    trial = train(tmp_path / end, environment, env_steps=60_000, gamma=GAMMA, value_coefficient=1.0)
    weights = load_checkpoint(trial.policy.checkpoint).weights()
    hidden = np.ones((1, 1), np.float32)
    for layer in (0, 1):
        weight, bias = (weights[f"network.hidden_{layer}_{part}"][1] for part in ("weight", "bias"))
        hidden = np.tanh(hidden @ weight.T + bias)
    return (hidden @ weights["network.value_weight"].T + weights["network.value_bias"]).item()


def test_values_grow_to_the_sum_of_the_series_only_where_a_time_limit_is_no_end(tmp_path):
    """1 / (1 - gamma) = 10 with truncation; less where the episode terminates, and where both flags are set."""
    truncated, terminated, both = (value_of_forever(tmp_path, end) for end in ("truncated", "terminated", "both"))
    assert truncated == pytest.approx(1 / (1 - GAMMA), rel=0.03)
    # The mean over time to go of (1 - gamma^n) / (1 - gamma), n = 1 to 10, is 4.14; bootstraps at block ends blur it.
    assert terminated == pytest.approx(np.mean([(1 - GAMMA**n) / (1 - GAMMA) for n in range(1, 11)]), rel=0.15)
    assert both == terminated
