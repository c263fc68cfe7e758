"""What only a GPU can show. Without one these tests are skipped; the logic around is in ``test_devices.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from srl.algorithms.ppo.plugin import PPO
from srl.api.environment import EnvironmentSpec
from srl.api.spaces import SpaceSpec
from srl.system.workers.staging import BUFFERS, Staging, claim_device
from srl.system.workers.training import Training

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(not GPUS, reason="torch finds no CUDA GPU on this machine")

NUMBERS = EnvironmentSpec("Numbers", SpaceSpec("box", (4,), "float32"), SpaceSpec("discrete", (), "int64", n=2))
PARALLEL = Path(__file__).parents[1] / "plugins" / "parallel.yaml"


def test_copies_to_the_device_and_back_are_exact() -> None:
    stage = Staging(claim_device("cuda:0"))
    generator = np.random.default_rng(0)
    for turn in range(3 * BUFFERS):
        array = generator.integers(0, 256, (turn + 1, 84, 84), dtype=np.uint8)
        kept = array.copy()
        tensor = stage.to_device(array)
        array.fill(0)  # the caller's memory may be used again at once
        np.testing.assert_array_equal(stage.to_host(tensor + 0), kept)


def test_a_share_of_memory_is_kept() -> None:
    script = """
import torch
from srl.system.workers.staging import claim_device
claim_device("cuda:0", 0.05)
total = torch.cuda.get_device_properties(0).total_memory
try:
    torch.empty(total // 10, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("refused")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.strip() == "refused"


def test_training_on_the_gpu_is_training() -> None:
    spec = PPO.policy_spec("main", PPO.config(), {}, NUMBERS)
    trainings = [Training(spec, seed=1, device=device) for device in ("cpu", "cuda:0")]
    np.testing.assert_array_equal(trainings[0].flat_weights(), trainings[1].flat_weights())
    for training in trainings:
        optimizer = training.optimizer(learning_rate=0.01, epsilon=1e-5, max_gradient_norm=0.5)
        for _ in range(3):
            loss = sum((parameter**2).sum() for parameter in training.policy.parameters())
            training.step(optimizer, valid_count=4, loss_sum=loss)
    weights = [training.layout.views(training.flat_weights()) for training in trainings]
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trial_with_ppo_on_the_gpu(trial_run: Any, ranks: int) -> None:
    """Two ranks on one GPU exchange gradients through host memory, on GPUs of their own over NCCL."""
    ended = trial_run(
        PARALLEL,
        "policies.main.algorithm={type: ppo, rows: 32}",
        f"workers.trainer={{kind: trainer, count: {ranks}, policy: main, samples: samples, device: cuda}}",
        "stop.updates=5",
        *("--screen", "off"),
        timeout_seconds=170,
    ).check()
    digests = {worker.get("weights_sha256") for worker in ended.summary["workers"].values()} - {None}
    assert digests == {ended.summary["weights_sha256"]}
    assert ended.summary["updates"] == 5
    log = (ended.trial_dir / "logs" / "trainer-0.log").read_text()
    if ranks == 2:
        assert f"gradients over {'nccl' if GPUS > 1 else 'gloo'}" in log
    assert json.dumps(ended.summary)
