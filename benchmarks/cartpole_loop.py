"""PPO on CartPole-v1 as one hand-written loop: what a person writes who wants speed and no system around it.

The yardstick for `srl-run cartpole_ppo` with placement fused: the same semantics, and nothing of SRL. Environments are
Gymnasium's native vector CartPole with its next-step autoreset; the row after an episode's end is the reset query, it
holds no transition and enters nothing. A truncated episode bootstraps from the value of its true final observation.
One thread, one process; acting in numpy on the weights that torch trains, so that nothing is copied.

    python benchmarks/cartpole_loop.py --env-steps 500000 --seed 1

prints one line of JSON. `--maths plain` (default) is good ordinary torch; `--maths fast` computes the same update with
flat buffers, the loss gradient in closed form and numpy's tanh, as SRL's own PPO does.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from dataclasses import dataclass, fields

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """Options of the loop; the defaults are those of the bundled experiment `cartpole_ppo`."""

    environments: int = 16
    rows: int = 128
    minibatch: int = 512
    epochs: int = 4
    hidden: int = 64
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    env_steps: int = 500_000
    warm_up_updates: int = 5
    seed: int = 1


def mlp(outputs: int, last_gain: float, hidden: int) -> nn.Sequential:
    """4 - hidden - hidden - outputs with tanh, orthogonal weights, zero biases."""
    layers = [nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class NumpyView:
    """A network computed by numpy on the memory of its torch parameters."""

    def __init__(self, network: nn.Sequential) -> None:
        self._layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in network[::2]]

    def __call__(self, x: Floats) -> Floats:
        """``[N, 4]`` to ``[N, outputs]``."""
        for weight, bias in self._layers[:-1]:
            x = x @ weight
            x += bias
            np.tanh(x, out=x)
        weight, bias = self._layers[-1]
        return x @ weight + bias


class Rows:
    """T rows of B environments; ``observation`` has one row more."""

    def __init__(self, settings: Settings) -> None:
        shape = (settings.rows, settings.environments)
        self.observation = np.zeros((settings.rows + 1, settings.environments, 4), np.float32)
        self.action = np.zeros(shape, np.int64)
        self.reward = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)
        self.truncated = np.zeros(shape, np.bool_)
        self.valid = np.zeros(shape, np.bool_)


class Collector:
    """Steps the environments and fills rows."""

    def __init__(self, settings: Settings, actor: NumpyView, random: np.random.Generator) -> None:
        self._settings, self._actor, self._random = settings, actor, random
        self._environment = gymnasium.make_vec(
            "CartPole-v1", settings.environments, vectorization_mode="vector_entry_point"
        )
        self._observation, _ = self._environment.reset(seed=settings.seed)
        self._ended = np.zeros(settings.environments, np.bool_)
        self._returns = np.zeros(settings.environments)
        self.finished: deque[float] = deque(maxlen=100)

    def collect(self, rows: Rows) -> None:
        """Fill all rows with the present weights."""
        uniform = self._random.random(rows.action.shape, dtype=np.float32)
        for t in range(len(rows.action)):
            rows.observation[t] = self._observation
            np.logical_not(self._ended, out=rows.valid[t])
            logits = self._actor(self._observation)
            # Two actions: the first has probability 1 / (1 + exp(l1 - l0)).
            action = rows.action[t]
            action[:] = uniform[t] * (1 + np.exp(logits[:, 1] - logits[:, 0])) >= 1
            self._observation, reward, terminated, truncated, _ = self._environment.step(action)
            rows.reward[t], rows.terminated[t], rows.truncated[t] = reward, terminated, truncated & ~terminated
            self._ended = terminated | truncated
            self._returns += reward
            if self._ended.any():
                self.finished.extend(self._returns[self._ended].tolist())
                self._returns[self._ended] = 0
        rows.observation[-1] = self._observation


def advantages(rows: Rows, value: Floats, gamma: float, gae_lambda: float) -> Floats:
    """Generalised advantage estimates, ``[T, B]`` (Schulman et al. 2016, equation 16).

    With next-step autoreset the row after an end holds the true final observation, so ``value[t + 1]`` (``[T+1, B]``)
    is the right bootstrap in every case; only the recursion is cut there.
    """
    delta = rows.reward + gamma * value[1:] * ~rows.terminated - value[:-1]
    decay = (gamma * gae_lambda) * ~(rows.terminated | rows.truncated)
    result = np.zeros_like(delta)
    last = np.zeros(delta.shape[1], np.float32)
    for t in reversed(range(len(delta))):
        last = delta[t] + decay[t] * last
        result[t] = last
    return result


@dataclass(slots=True)
class Samples:
    """The valid rows of one update, side by side: N samples."""

    observation: torch.Tensor
    action: torch.Tensor
    log_probability: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor


class PlainLearner:
    """Autograd, fused Adam, gradient norm clipping."""

    def __init__(self, settings: Settings, actor: nn.Sequential, critic: nn.Sequential) -> None:
        self._settings, self._actor, self._critic = settings, actor, critic
        self._parameters = [*actor.parameters(), *critic.parameters()]
        self._optimizer = torch.optim.Adam(self._parameters, settings.learning_rate, eps=1e-5, fused=True)

    def minibatch(self, observation, action, log_probability, advantage, target) -> None:
        """One gradient step."""
        settings = self._settings
        log_probabilities = torch.log_softmax(self._actor(observation), 1)
        value = self._critic(observation).squeeze(1)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = torch.exp(log_probabilities.gather(1, action).squeeze(1) - log_probability)
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (value - target).square().mean()
        entropy = -(log_probabilities.exp() * log_probabilities).sum(1).mean()
        loss = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, settings.max_gradient_norm)
        self._optimizer.step()


def samples_of(rows: Rows, actor: NumpyView, critic: NumpyView, settings: Settings) -> Samples:
    """Targets and log-probabilities for all valid rows, computed in one batch with the weights that acted."""
    steps, count = rows.action.shape
    flat = rows.observation.reshape(-1, 4)
    value = critic(flat).reshape(steps + 1, count)
    logits = actor(flat[: steps * count])
    advantage = advantages(rows, value, settings.gamma, settings.gae_lambda)
    chosen = np.take_along_axis(logits, rows.action.reshape(-1, 1), 1)[:, 0]
    log_probability = chosen - np.logaddexp(logits[:, 0], logits[:, 1])
    keep = np.flatnonzero(rows.valid)
    return Samples(
        observation=torch.from_numpy(flat[keep]),
        action=torch.from_numpy(rows.action.reshape(-1)[keep]).unsqueeze(1),
        log_probability=torch.from_numpy(log_probability[keep]),
        advantage=torch.from_numpy(advantage.reshape(-1)[keep]),
        target=torch.from_numpy((advantage + value[:-1]).reshape(-1)[keep]),
    )


def train(samples: Samples, learner: PlainLearner, settings: Settings, random: np.random.Generator) -> None:
    """Some epochs over all samples in a new order each."""
    count = len(samples.advantage)
    for _ in range(settings.epochs):
        order = torch.from_numpy(random.permutation(count))
        shuffled = [getattr(samples, field.name)[order] for field in fields(Samples)]
        for start in range(0, count, settings.minibatch):
            learner.minibatch(*(array[start : start + settings.minibatch] for array in shuffled))


def run(settings: Settings) -> dict[str, float | int]:
    """The whole trial; rates are over the updates after the warm-up."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    actor_network, critic_network = mlp(2, 0.01, settings.hidden), mlp(1, 1.0, settings.hidden)
    actor, critic = NumpyView(actor_network), NumpyView(critic_network)
    collector = Collector(settings, actor, random)
    learner = PlainLearner(settings, actor_network, critic_network)
    rows = Rows(settings)
    env_steps = updates = warm_env_steps = 0
    began = warm = time.perf_counter()
    while env_steps < settings.env_steps:
        collector.collect(rows)
        train(samples_of(rows, actor, critic, settings), learner, settings, random)
        env_steps += int(rows.valid.sum())
        updates += 1
        if updates == settings.warm_up_updates:
            warm, warm_env_steps = time.perf_counter(), env_steps
    ended = time.perf_counter()
    return {
        "env_steps": env_steps,
        "updates": updates,
        "training_seconds": ended - began,
        "env_steps_per_second": (env_steps - warm_env_steps) / (ended - warm),
        "mean_return_last_100": float(np.mean(collector.finished)),
    }


def main() -> None:
    """Parse the options, run, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Settings):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    print(json.dumps(run(Settings(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
