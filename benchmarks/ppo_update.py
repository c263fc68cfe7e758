"""PPO's `update` by itself, against a plain torch loop over the same data with the same network and options.

    python benchmarks/ppo_update.py                                   # CartPole: MLP 2x64, 16 x 128 rows
    python benchmarks/ppo_update.py --network nature_cnn --columns 8 --epochs 1 --pairs 3 --precision bf16

One thread, one process. Updates alternate (ours, plain, ours, plain, ...); the ratio is taken within each pair, so what
else runs on the machine disturbs both sides. Prints one line of JSON: env steps trained per second (median, and the
best, which is nearest to an idle machine) and the ratio with its 10th and 90th percentile.

The plain loop is good ordinary torch: tensors made once per update, `torch.optim.Adam(fused=True)`, `clip_grad_norm_`,
loss by automatic differentiation.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.plugin import PPO
from srl.algorithms.ppo.trainer import PPOAlgorithm
from srl.api.algorithm import Batch
from srl.api.environment import EnvironmentSpec
from srl.api.spaces import SpaceSpec
from srl.system.workers.training import Training

SPACES = {
    "mlp": (SpaceSpec("box", (4,), "float32"), 2),
    "nature_cnn": (SpaceSpec("box", (4, 84, 84), "uint8", low=0, high=255), 6),
}


def random_batch(training: Training, rows: int, columns: int) -> Batch:
    """Random observations and rewards, acted by nobody: every action as probable as the others."""
    generator = np.random.default_rng(0)
    spec = training.spec
    shape = (rows, columns)
    size = (rows + 1, columns, *spec.observation.shape)
    observation = (
        generator.integers(0, 256, size, dtype=np.uint8)
        if spec.observation.dtype == "uint8"
        else generator.normal(size=size).astype(np.float32)
    )
    fields = {
        "observation": observation,
        "action": generator.integers(spec.action.n, size=shape),
        "reward": np.ones(shape, np.float32),
        "terminated": generator.random(shape) < 0.02,
        "truncated": np.zeros(shape, bool),
        "valid": np.ones(shape, bool),
        "final_row": np.full(shape, -1, np.int32),
        "final_observation": observation[0, :1].copy(),
        "log_probability": np.full(shape, -np.log(spec.action.n), np.float32),
        "value": np.zeros(shape, np.float32),
    }
    return Batch(fields, [], rows * columns)


class PlainPPO:
    """PPO as it is usually written."""

    def __init__(self, network: str, config: PPOConfig) -> None:
        observation, actions = SPACES[network]
        self.config = config
        if network == "mlp":
            self.policy = self._tower(observation.shape[0], actions)
            self.value = self._tower(observation.shape[0], 1)
        else:
            trunk = nn.Sequential(
                nn.Conv2d(4, 32, 8, 4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(3136, 512),
                nn.ReLU(),
            )
            self.policy = nn.Sequential(trunk, nn.Linear(512, actions))
            self.value = nn.Sequential(trunk, nn.Linear(512, 1))
        parameters = {id(p): p for module in (self.policy, self.value) for p in module.parameters()}
        self.parameters = list(parameters.values())
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.learning_rate, eps=1e-5, fused=True)

    @staticmethod
    def _tower(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values."""
        if observation.dtype == torch.uint8:
            features = self.policy[0](observation.float() / 255.0)
            return self.policy[1](features), self.value[1](features).squeeze(1)
        return self.policy(observation), self.value(observation).squeeze(1)

    def update(self, batch: Batch) -> None:
        """All epochs over one batch."""
        config = self.config
        data = {name: torch.from_numpy(array) for name, array in batch.fields.items()}
        rows, columns = data["valid"].shape
        with torch.no_grad():
            _, last = self.forward(data["observation"][-1])
            advantage = torch.zeros(rows, columns)
            carried = torch.zeros(columns)
            for row in reversed(range(rows)):
                following = last if row == rows - 1 else data["value"][row + 1]
                alive = 1.0 - data["terminated"][row].float()
                delta = data["reward"][row] + config.gamma * following * alive - data["value"][row]
                carried = delta + config.gamma * config.gae_lambda * alive * carried
                advantage[row] = carried
        flat = {name: data[name].flatten(0, 1) for name in ("action", "log_probability", "value")}
        observation = data["observation"][:-1].flatten(0, 1)
        advantage = advantage.flatten()
        target = advantage + flat["value"]
        for _ in range(config.epochs):
            for part in torch.randperm(rows * columns).split(config.minibatch_rows):
                self._step(observation[part], advantage[part], target[part], {k: v[part] for k, v in flat.items()})

    def _step(
        self,
        observation: torch.Tensor,
        advantage: torch.Tensor,
        target: torch.Tensor,
        flat: dict[str, torch.Tensor],
    ) -> None:
        config = self.config
        logits, value = self.forward(observation)
        log_probabilities = torch.log_softmax(logits, 1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(1).mean()
        ratio = (log_probabilities.gather(1, flat["action"][:, None])[:, 0] - flat["log_probability"]).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        bounded = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
        policy_loss = -torch.min(ratio * advantage, bounded * advantage).mean()
        value_loss = 0.5 * ((value - target) ** 2).mean()
        loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_gradient_norm or float("inf"))
        self.optimizer.step()


def seconds(action: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(SPACES), default="mlp", help="network and observation space")
    parser.add_argument("--columns", type=int, default=16, help="environments (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=128, help="rows per block (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="epochs per update (default: %(default)s)")
    parser.add_argument("--minibatch-rows", type=int, default=512, help="transitions per step (default: %(default)s)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of ours (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=200, help="pairs of updates (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = PPOConfig(
        rows=arguments.rows,
        epochs=arguments.epochs,
        minibatch_rows=arguments.minibatch_rows,
        precision=arguments.precision,
    )
    observation, actions = SPACES[arguments.network]
    environment = EnvironmentSpec("benchmark", observation, SpaceSpec("discrete", (), "int64", n=actions))
    training = Training(PPO.policy_spec("learner", config, {}, environment), seed=1)
    ours, plain = PPOAlgorithm(config, training), PlainPPO(arguments.network, config)
    batch = random_batch(training, arguments.rows, arguments.columns)
    for update in (ours.update, plain.update):
        update(batch)  # first calls allocate
    times = np.array(
        [[seconds(lambda: ours.update(batch)), seconds(lambda: plain.update(batch))] for _ in range(arguments.pairs)]
    )
    steps = arguments.rows * arguments.columns
    ratios = times[:, 1] / times[:, 0]
    print(
        json.dumps(
            {
                "network": arguments.network,
                "precision": arguments.precision,
                "env_steps_per_second_median": [round(steps / value) for value in np.median(times, axis=0)],
                "env_steps_per_second_best": [round(steps / value) for value in times.min(axis=0)],
                "sides": ["ours", "plain torch"],
                "ratio_median": round(float(np.median(ratios)), 2),
                "ratio_p10_p90": [round(float(value), 2) for value in np.percentile(ratios, [10, 90])],
                "pairs": arguments.pairs,
            }
        )
    )


if __name__ == "__main__":
    main()
