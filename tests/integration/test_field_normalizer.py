"""Field case 20: statistics of observations over actors, trainer ranks and evaluators, through whole trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

EXPERIMENT = {
    "name": "normaliser",
    "seed": 2,
    "environment": {
        "type": "gymnasium",
        "id": "CartPole-v1",
        # 100 + 10 x: sums of squares would lose what differs
        "wrappers": [{"type": f"{Path(__file__).parents[1] / 'plugins' / 'shifted.py'}:Shifted"}],
    },
    "policies": {
        "main": {"algorithm": {"type": "ppo", "rows": 16, "minibatch_rows": 64, "normalize_observations": True}}
    },
    "streams": {"samples": {"kind": "sample"}, "ask": {"kind": "inference", "policy": "main"}},
    "workers": {
        "actor": {
            "kind": "actor",
            "count": 3,
            "environments": 4,
            "ring_groups": 2,
            "agents": [{"policy": "main", "samples": "samples", "inference": "ask"}],
        },
        "policy": {"kind": "policy", "serves": "ask"},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        "evaluator": {
            "kind": "evaluator",
            "policy": "main",
            "episodes": 4,
            "environments": 2,
            "interval_env_steps": 300,
        },
    },
    "stop": {"updates": 10},
    "placement": "processes",
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_observation_trained_on_is_counted_once(ranks: int, trial_run: Any, tmp_path: Path) -> None:
    """Three actors, ten rounds, an evaluator that only reads: the count is that of the rows trained on."""
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    ended = trial_run(path, f"workers.trainer.count={ranks}", "--screen", "off").check()
    weights = load_file(max((ended.trial_dir / "checkpoints").iterdir()) / "weights.safetensors")
    summary = ended.summary
    assert summary["updates"] == 10
    assert summary["evaluation"]["episodes"] == 4
    count, mean, m2 = (weights[f"observation_statistics.{part}"] for part in ("count", "mean", "m2"))
    assert count[0] == summary["env_steps"] == summary["rows"]["trained"] > 0
    np.testing.assert_allclose(mean, 100.0, atol=5.0)
    deviation = np.sqrt(m2 / count[0])
    assert ((deviation > 0.1) & (deviation < 20.0)).all()  # CartPole's are 0.05 to 1, times 10
