"""Stable-Baselines3's PPO on a continuous-control task: the curve and a final evaluation, as JSON.

PPO's defaults with observations and rewards normalised by VecNormalize (as its documentation advises for MuJoCo),
one environment. Runs in a virtual environment of its own (benchmarks/peers/sb3.txt, with gymnasium[mujoco]).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize


class Curve(BaseCallback):
    """Notes env steps and return of every training episode (returns before normalisation)."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.points.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def main() -> None:
    """Parse the options, train, evaluate, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    environments = VecNormalize(make_vec_env(options.id, 1, seed=options.seed))
    model = PPO("MlpPolicy", environments, seed=options.seed, device="cpu")
    curve = Curve()
    began = time.perf_counter()
    model.learn(options.env_steps, callback=curve)
    seconds = time.perf_counter() - began
    fresh = make_vec_env(options.id, 1, seed=options.seed + 10_000)
    evaluation = VecNormalize(fresh, training=False, norm_reward=False)
    evaluation.obs_rms = environments.obs_rms
    returns, lengths = evaluate_policy(
        model, evaluation, n_eval_episodes=options.episodes, deterministic=True, return_episode_rewards=True
    )
    options.out.write_text(
        json.dumps(
            {
                "id": options.id,
                "seed": options.seed,
                "env_steps": model.num_timesteps,
                "seconds": seconds,
                "evaluation_returns": returns,
                "evaluation_lengths": lengths,
                "evaluation_mean": float(np.mean(returns)),
                "last_100_training_episodes_mean": float(np.mean([value for _, value in curve.points[-100:]])),
                "curve": curve.points,
                "gymnasium": gymnasium.__version__,
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
