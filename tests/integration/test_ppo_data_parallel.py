"""PPO over two trainer ranks: the steps of one rank with all the data, whatever has running statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

UPDATES = 6
EXPERIMENT = {
    "name": "ppo-ranks",
    "seed": 5,
    "environment": {"type": "gymnasium", "id": "Pendulum-v1", "wrappers": [{"type": "time_limit", "steps": 25}]},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 32, "minibatch_rows": 60, "epochs": 2}}},
    "streams": {"samples": {"kind": "sample"}},
    "workers": {
        "actor": {
            "kind": "actor",
            "count": 2,
            "environments": 4,
            "agents": [{"policy": "main", "samples": "samples"}],
        },
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
    },
    "stop": {"updates": UPDATES},
    "placement": "processes",
    "lockstep": True,
}
ALGORITHM = "policies.main.algorithm"
CASES = {
    "normalised": [f"{ALGORITHM}.normalize_observations=true", f"{ALGORITHM}.normalize_returns=true"],
    "popart, stops by KL": [f"{ALGORITHM}.popart=true", f"{ALGORITHM}.target_kl=0.0005", f"{ALGORITHM}.epochs=6"],
    # field case 29 over ranks: minibatches of two and three rows, of which a rank often has one or none
    "hardly any rows": [f"{ALGORITHM}.rows=4", f"{ALGORITHM}.minibatch_rows=3", "workers.actor.environments=1"],
    "lstm": ["policies.main.network={type: mlp, hidden: [16], recurrent: {type: lstm, size: 8, rows: 8}}"],
}


def weights(ended: Any) -> dict[str, Any]:
    return dict(load_file(max((ended.trial_dir / "checkpoints").iterdir()) / "weights.safetensors"))


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_make_the_steps_of_one(case: str, trial_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    started = [
        trial_run.start(path, f"workers.trainer.count={ranks}", *CASES[case], "--screen", "off") for ranks in (1, 2)
    ]
    alone, together = (trial.finish(150).check() for trial in started)
    expected, found = weights(alone), weights(together)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5, err_msg=name)
    for key in ("env_steps", "updates", "gradient_steps"):
        assert together.summary[key] == alone.summary[key], key
    digests = {name: one["weights_sha256"] for name, one in together.summary["workers"].items() if "trainer" in name}
    assert set(digests) == {"trainer/0", "trainer/1"}
    assert len(set(digests.values())) == 1
    moved = np.abs(expected["network.policy_head.bias" if case == "lstm" else "network.policy_bias"])
    assert moved.max() > 1e-4  # biases start at 0: something was learnt that could have differed
