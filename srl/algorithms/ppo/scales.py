"""The scales of observations, rewards and values during training: where statistics are read, and when they move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.normalization.moments import Moments
from srl.algorithms.normalization.returns import DiscountedReturns
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.policy import PPOPolicy
from srl.api.algorithm import Batch, TrainerContext

Floats = NDArray[np.floating]


class Scales:
    """Everything about PPO that has running statistics.

    The statistics of observations and returns move once per update, behind the last epoch: within an update, and in
    everybody who acts with its version, they are the same. PopArt's move before the first epoch, as the targets that
    they normalise are made; values stay what they were.

    Args:
        config: PPO's options.
        policy: Holds the statistics.
        trainer: Reduces over ranks.
    """

    def __init__(self, config: PPOConfig, policy: PPOPolicy, trainer: TrainerContext) -> None:
        self._config = config
        self._policy = policy
        self._trainer = trainer
        self._returns = DiscountedReturns(config.gamma, trainer)

    def rewards(self, batch: Batch) -> Floats:
        """Rewards ``[T, C]`` as they are trained on."""
        statistics = self._policy.return_statistics
        reward: Floats = batch["reward"]
        if statistics is None:
            return reward
        scaled = reward / statistics.moments().deviation()
        return np.clip(scaled, -self._config.reward_bound, self._config.reward_bound)

    def values(self, outputs: Floats) -> Floats:
        """Values of what the network puts out."""
        if self._policy.popart is None:
            return outputs
        scale = self._policy.popart.scale()
        return outputs * scale.deviation() + scale.mean()

    def normalized(self, values: Floats) -> NDArray[np.float32]:
        """What the network has to put out for values: the inverse of :meth:`values`."""
        if self._policy.popart is None:
            return values.astype(np.float32, copy=False)
        scale = self._policy.popart.scale()
        return ((values - scale.mean()) / scale.deviation()).astype(np.float32)

    def targets(self, targets: Floats) -> NDArray[np.float32]:
        """What the network is to put out for value targets ``[M]``; with PopArt its moments take them in first."""
        popart = self._policy.popart
        if popart is not None:
            exact = targets.astype(np.float64)
            sums = np.array([len(exact), exact.sum(), np.square(exact).sum()])
            count, first, second = self._trainer.reduce_array(sums)
            moved = popart.scale().updated(first / count, second / count, self._config.popart_rate)
            popart.move(moved, *self._policy.network.value_head())
        return self.normalized(targets)

    def clip_range(self, bound: float | None) -> float | None:
        """A bound on changes of values, as one on changes of what the network puts out."""
        return (
            bound if bound is None or self._policy.popart is None else bound / self._policy.popart.scale().deviation()
        )

    def learn(self, batch: Batch, position: NDArray[np.int64]) -> None:
        """Take the batch into the statistics, without the rows in which a zero stands for a value that was not finite.

        Args:
            batch: The batch.
            position: ``int64[M]`` its valid rows.
        """
        statistics = self._policy.observation_statistics
        if statistics is not None:
            observation = batch["observation"]
            own, _ = _own(batch, "observation_replaced", position)
            rows = observation.reshape(-1, *observation.shape[2:]).take(own, axis=0)
            values = self._policy.normalizer.values(rows)
            statistics.set(statistics.moments().merged(Moments.of(values, self._trainer.reduce_array)))
        statistics = self._policy.return_statistics
        if statistics is not None:
            ended = batch["terminated"] | batch["truncated"]
            own, known = _own(batch, "reward_replaced", position)
            returns = self._returns.follow(batch.headers, batch["reward"], ended, batch["valid"], known)
            values = returns.reshape(-1, 1).take(own, axis=0)
            statistics.set(statistics.moments().merged(Moments.of(values, self._trainer.reduce_array)))

    def metrics(self) -> dict[str, float]:
        """The scales by name."""
        found = {}
        if self._policy.observation_statistics is not None:
            found["normalizer/observations"] = float(self._policy.observation_statistics.count[0])
        if self._policy.return_statistics is not None:
            found["normalizer/return_deviation"] = float(self._policy.return_statistics.moments().deviation()[0])
        if self._policy.popart is not None:
            scale = self._policy.popart.scale()
            found |= {"popart/mean": scale.mean(), "popart/deviation": scale.deviation()}
        return found

    def state(self) -> dict[str, Any]:
        """For a checkpoint, beside the weights."""
        return dict(self._returns.state())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self._returns.load_state(state)


def _own(
    batch: Batch, replaced: str, position: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """The rows among ``position`` whose values are the environment's own, and ``bool[T, C]``; ``None`` = all are."""
    marks = batch.fields.get(replaced)
    if marks is None:
        return position, None
    own = ~marks[: len(batch["valid"])]
    return position[own.reshape(-1).take(position)], own
