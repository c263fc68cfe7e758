"""Stable-Baselines3's PPO on CartPole-v1, for benchmarks/compare.py: prints its steady-state rate as JSON.

Runs in a virtual environment of its own (benchmarks/peers/sb3.txt), with the settings of `cartpole_ppo`.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class SteadyRate(BaseCallback):
    """Notes time and steps at the start of each collection; the first updates are warm-up."""

    def __init__(self, warm_up_updates: int) -> None:
        super().__init__()
        self._warm_up_updates = warm_up_updates
        self._updates = 0
        self.warm: tuple[float, int] | None = None

    def _on_rollout_start(self) -> None:
        if self._updates == self._warm_up_updates:
            self.warm = (time.perf_counter(), self.num_timesteps)
        self._updates += 1

    def _on_step(self) -> bool:
        return True


def main() -> None:
    """Parse the options, train, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--minibatch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    callback = SteadyRate(warm_up_updates=5)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", options.environments, seed=options.seed),
        n_steps=options.rows,
        batch_size=options.minibatch,
        n_epochs=options.epochs,
        learning_rate=lambda remaining: 1e-3 * remaining,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        seed=options.seed,
        device="cpu",
    )
    model.learn(options.env_steps, callback=callback)
    ended = time.perf_counter()
    if callback.warm is None:
        raise SystemExit("too few env steps for a steady state")
    seconds, steps = ended - callback.warm[0], model.num_timesteps - callback.warm[1]
    print(json.dumps({"env_steps": model.num_timesteps, "env_steps_per_second": steps / seconds}))


if __name__ == "__main__":
    main()
