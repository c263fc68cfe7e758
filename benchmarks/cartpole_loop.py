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
import math
import os
import time
from collections import deque
from dataclasses import dataclass, fields
from itertools import pairwise

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
    """Options of the loop; the defaults are those of the bundled experiment `cartpole_ppo`.

    The learning rate falls to 0 over `env_steps`.
    """

    environments: int = 16
    rows: int = 128
    minibatch: int = 512
    epochs: int = 4
    hidden: int = 64
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.8
    clip: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 0.5
    env_steps: int = 500_000
    warm_up_updates: int = 5
    seed: int = 1
    maths: str = "plain"


def mlp(outputs: int, last_gain: float, hidden: int) -> nn.Sequential:
    """4 - hidden - hidden - outputs with tanh, orthogonal weights, zero biases."""
    layers = [nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class PlainNetworks:
    """Actor and critic as torch modules; acting is numpy on the memory of their parameters."""

    def __init__(self, settings: Settings) -> None:
        self.actor, self.critic = mlp(2, 0.01, settings.hidden), mlp(1, 1.0, settings.hidden)
        self._views = [
            [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in network[::2]]
            for network in (self.actor, self.critic)
        ]

    def logits(self, x: Floats) -> Floats:
        """``[N, 4]`` to ``[N, 2]``."""
        return self._forward(self._views[0], x)

    def values(self, x: Floats) -> Floats:
        """``[N, 4]`` to ``[N]``."""
        return self._forward(self._views[1], x)[:, 0]

    @staticmethod
    def _forward(layers: list[tuple[Floats, Floats]], x: Floats) -> Floats:
        for weight, bias in layers[:-1]:
            x = x @ weight
            x += bias
            np.tanh(x, out=x)
        weight, bias = layers[-1]
        return x @ weight + bias


class FlatNetworks:
    """The same two networks with all parameters in one vector: hidden weights stacked ``[2, in, out]``."""

    def __init__(self, settings: Settings) -> None:
        hidden = settings.hidden
        self.shapes = (
            *((2, 4, hidden), (2, 1, hidden), (2, hidden, hidden), (2, 1, hidden)),
            *((hidden, 2), (2,), (hidden, 1), (1,)),
        )
        self.parameters = torch.zeros(sum(math.prod(shape) for shape in self.shapes))
        self.views = self.split(self.parameters.numpy())
        plain = [mlp(2, 0.01, hidden), mlp(1, 1.0, hidden)]
        for k, network in enumerate(plain):
            for index, layer in enumerate(network[::2]):
                weight = layer.weight.detach().numpy().T
                if index < 2:
                    self.views[2 * index][k] = weight
                else:
                    self.views[4 + 2 * k][:] = weight

    def split(self, flat: Floats) -> list[Floats]:
        """Views of a vector in the parameters' shapes."""
        views, offset = [], 0
        for shape in self.shapes:
            views.append(flat[offset : offset + math.prod(shape)].reshape(shape))
            offset += math.prod(shape)
        return views

    def logits(self, x: Floats) -> Floats:
        """``[N, 4]`` to ``[N, 2]``."""
        w1, b1, w2, b2, w_actor, b_actor, _, _ = self.views
        return np.tanh(np.tanh(x @ w1[0] + b1[0]) @ w2[0] + b2[0]) @ w_actor + b_actor

    def values(self, x: Floats) -> Floats:
        """``[N, 4]`` to ``[N]``."""
        w1, b1, w2, b2, _, _, w_critic, b_critic = self.views
        return (np.tanh(np.tanh(x @ w1[1] + b1[1]) @ w2[1] + b2[1]) @ w_critic + b_critic)[:, 0]


Networks = PlainNetworks | FlatNetworks


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

    def __init__(self, settings: Settings, networks: Networks, random: np.random.Generator) -> None:
        self._networks, self._random = networks, random
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
            logits = self._networks.logits(self._observation)
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

    observation: Floats
    action: NDArray[np.int64]
    log_probability: Floats
    advantage: Floats
    target: Floats


class PlainLearner:
    """Ordinary torch: autograd, gradient norm clipping, fused Adam."""

    def __init__(self, settings: Settings, networks: PlainNetworks) -> None:
        self._settings, self._actor, self._critic = settings, networks.actor, networks.critic
        self._parameters = [*self._actor.parameters(), *self._critic.parameters()]
        self.optimizer = torch.optim.Adam(self._parameters, settings.learning_rate, eps=1e-5, fused=True)

    def minibatch(self, samples: Samples) -> None:
        """One gradient step."""
        settings = self._settings
        observation, action = torch.from_numpy(samples.observation), torch.from_numpy(samples.action)
        advantage, target = torch.from_numpy(samples.advantage), torch.from_numpy(samples.target)
        log_probabilities = torch.log_softmax(self._actor(observation), 1)
        value = self._critic(observation).squeeze(1)
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        log_probability = log_probabilities.gather(1, action.unsqueeze(1)).squeeze(1)
        ratio = torch.exp(log_probability - torch.from_numpy(samples.log_probability))
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (value - target).square().mean()
        entropy = -(log_probabilities.exp() * log_probabilities).sum(1).mean()
        loss = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, settings.max_gradient_norm)
        self.optimizer.step()


class FastLearner:
    """The same gradient step with the whole backward pass by hand in numpy, on flat buffers."""

    def __init__(self, settings: Settings, networks: FlatNetworks) -> None:
        self._settings, self._networks = settings, networks
        self._gradient = torch.zeros_like(networks.parameters)
        self._flat_gradient = self._gradient.numpy()
        self._gradients = networks.split(self._flat_gradient)
        networks.parameters.grad = self._gradient
        self.optimizer = torch.optim.Adam([networks.parameters], settings.learning_rate, eps=1e-5, fused=True)

    def minibatch(self, samples: Samples) -> None:
        """One gradient step."""
        count = len(samples.action)
        w1, b1, w2, b2, w_actor, b_actor, w_critic, b_critic = self._networks.views
        first = np.matmul(samples.observation, w1)
        first += b1
        np.tanh(first, out=first)
        second = np.matmul(first, w2)
        second += b2
        np.tanh(second, out=second)
        d_logits = self._policy_gradient(second[0] @ w_actor + b_actor, samples)
        d_value = second[1] @ w_critic + b_critic
        d_value -= samples.target[:, None]
        d_value *= self._settings.value_coefficient / count

        d_w1, d_b1, d_w2, d_b2, d_w_actor, d_b_actor, d_w_critic, d_b_critic = self._gradients
        np.matmul(second[0].T, d_logits, out=d_w_actor)
        np.matmul(second[1].T, d_value, out=d_w_critic)
        ones = np.ones((1, count), np.float32)
        d_b_actor[:] = (ones @ d_logits)[0]
        d_b_critic[:] = (ones @ d_value)[0]
        d_second = np.empty_like(second)
        np.matmul(d_logits, w_actor.T, out=d_second[0])
        np.multiply(d_value, w_critic.T, out=d_second[1])
        _times_tanh_slope(d_second, second)
        np.matmul(first.swapaxes(1, 2), d_second, out=d_w2)
        np.matmul(ones, d_second, out=d_b2)
        d_first = np.matmul(d_second, w2.swapaxes(1, 2))
        _times_tanh_slope(d_first, first)
        np.matmul(samples.observation.T, d_first, out=d_w1)
        np.matmul(ones, d_first, out=d_b1)
        self._clip_and_step()

    def _policy_gradient(self, logits: Floats, samples: Samples) -> Floats:
        """Gradient of policy loss and entropy bonus with respect to the logits, ``[N, 2]``."""
        settings, count = self._settings, len(logits)
        log_probabilities = logits - np.logaddexp(logits[:, :1], logits[:, 1:])
        probabilities = np.exp(log_probabilities)
        advantage = samples.advantage - samples.advantage.mean()
        advantage /= advantage.std() + 1e-8
        chosen = np.take(log_probabilities.reshape(-1), samples.action + np.arange(0, 2 * count, 2))
        ratio = np.exp(chosen - samples.log_probability)
        # The minimum picks the clipped term, which is constant, where the ratio has left the range on its good side.
        clipped = np.where(advantage > 0, ratio > 1 + settings.clip, ratio < 1 - settings.clip)
        d_chosen = np.where(clipped, np.float32(0), ratio * advantage) / np.float32(-count)
        entropy = -(probabilities * log_probabilities).sum(1, keepdims=True)
        gradient = probabilities * (log_probabilities + entropy)
        gradient *= settings.entropy_coefficient / count
        gradient -= probabilities * d_chosen[:, None]
        gradient.reshape(-1)[samples.action + np.arange(0, 2 * count, 2)] += d_chosen
        return gradient

    def _clip_and_step(self) -> None:
        norm = math.sqrt(self._flat_gradient @ self._flat_gradient)
        self._flat_gradient *= min(1.0, self._settings.max_gradient_norm / (norm + 1e-6))
        self.optimizer.step()


def _times_tanh_slope(delta: Floats, features: Floats) -> None:
    """``delta`` times the derivative of tanh, which follows from its result; ``features`` are overwritten."""
    np.multiply(features, features, out=features)
    np.subtract(1, features, out=features)
    delta *= features


Learner = PlainLearner | FastLearner


def samples_of(rows: Rows, networks: Networks, settings: Settings) -> Samples:
    """Targets and log-probabilities for all valid rows, computed in one batch with the weights that acted."""
    steps, count = rows.action.shape
    flat = rows.observation.reshape(-1, 4)
    value = networks.values(flat).reshape(steps + 1, count)
    logits = networks.logits(flat[: steps * count])
    advantage = advantages(rows, value, settings.gamma, settings.gae_lambda)
    chosen = np.take_along_axis(logits, rows.action.reshape(-1, 1), 1)[:, 0]
    log_probability = chosen - np.logaddexp(logits[:, 0], logits[:, 1])
    keep = np.flatnonzero(rows.valid)
    return Samples(
        observation=flat[keep],
        action=rows.action.reshape(-1)[keep],
        log_probability=log_probability[keep],
        advantage=advantage.reshape(-1)[keep],
        target=(advantage + value[:-1]).reshape(-1)[keep],
    )


def train(samples: Samples, learner: Learner, settings: Settings, random: np.random.Generator) -> None:
    """Some epochs over all samples in a new order each, in as few and as equal minibatches as the size allows."""
    count = len(samples.action)
    parts = -(-count // settings.minibatch)
    edges = [count * part // parts for part in range(parts + 1)]
    for _ in range(settings.epochs):
        order = random.permutation(count)
        shuffled = [getattr(samples, field.name)[order] for field in fields(Samples)]
        for start, stop in pairwise(edges):
            learner.minibatch(Samples(*(array[start:stop] for array in shuffled)))


def run(settings: Settings) -> dict[str, float | int]:
    """The whole trial; rates are over the updates after the warm-up."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    networks: Networks
    learner: Learner
    if settings.maths == "fast":
        networks = FlatNetworks(settings)
        learner = FastLearner(settings, networks)
    else:
        networks = PlainNetworks(settings)
        learner = PlainLearner(settings, networks)
    collector = Collector(settings, networks, random)
    rows = Rows(settings)
    env_steps = updates = warm_env_steps = 0
    began = warm = time.perf_counter()
    while env_steps < settings.env_steps:
        collector.collect(rows)
        learner.optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - env_steps / settings.env_steps)
        train(samples_of(rows, networks, settings), learner, settings, random)
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
        choices = ("plain", "fast") if field.name == "maths" else None
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, choices=choices)
    print(json.dumps(run(Settings(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
