"""PPO's part in a trainer worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.ppo.bootstrap import bootstrap
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.losses import LossSums, LossWeights, Minibatch, normalized, ppo_loss
from srl.algorithms.ppo.minibatches import Order
from srl.algorithms.ppo.policy import PPOPolicy
from srl.algorithms.ppo.rollout import Part, Rollout, Rows, Sequences
from srl.algorithms.ppo.scales import Scales
from srl.algorithms.ppo.targets import advantages
from srl.api.algorithm import Algorithm, Batch, TrainerContext
from srl.api.errors import NonFiniteError


class PPOAlgorithm(Algorithm):
    """Proximal policy optimisation; see the README of this folder.

    Attributes:
        optimizer: Adam over the policy's parameters.
    """

    config: PPOConfig

    def __init__(self, config: PPOConfig, trainer: TrainerContext) -> None:
        super().__init__(config, trainer)
        self.optimizer = trainer.optimizer(
            learning_rate=config.learning_rate,
            epsilon=config.adam_epsilon,
            max_gradient_norm=config.max_gradient_norm,
        )
        self._policy: PPOPolicy = trainer.policy  # type: ignore[assignment]  # what PPO's spec names
        self._scales = Scales(config, self._policy, trainer)
        self._weights = LossWeights(
            config.clip_range, config.value_clip_range, config.entropy_coefficient, config.value_coefficient
        )

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on one batch; metrics are means over the gradient steps of the last epoch made."""
        with np.errstate(all="ignore"):  # what is not finite is found by checks that name it
            return self._update(batch)

    def state(self) -> dict[str, Any]:
        """The returns under way; the optimizer belongs to the trainer, statistics to the policy."""
        return {"returns": self._scales.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self._scales.load_state(state["returns"])

    def _update(self, batch: Batch) -> dict[str, float]:
        if self.config.learning_rate_schedule == "linear":
            self.optimizer.learning_rate = self.config.learning_rate * max(0.0, 1.0 - self.trainer.progress)
        self._policy.refresh()
        position = np.flatnonzero(batch["valid"])
        total = int(self.trainer.reduce(len(position)))
        if total == 0:
            return {"epochs_done": 0.0, "learning_rate": self.optimizer.learning_rate}
        data = self._transitions(batch, position)
        self._weights = replace(self._weights, value_clip_range=self._scales.clip_range(self.config.value_clip_range))
        variances = _variances(data, self.trainer, total)
        rollout = self._rollout(batch, position, data)
        order = Order(self.trainer, batch.headers, rollout.present)
        steps = min(ceil(total / self.config.minibatch_rows), order.total)
        for epochs_done in range(1, self.config.epochs + 1):
            sums, norm = self._epoch(rollout, order, steps)
            if epochs_done < self.config.epochs and self.config.target_kl is None:
                continue  # nobody asks, and asking is a message to every rank
            means = self._means(sums, total)
            if self.config.target_kl is not None and means["approximate_kl"] > self.config.target_kl:
                break
        self._scales.learn(batch, position)
        return {
            **means,
            "explained_variance": variances,
            "gradient_norm": norm,
            "learning_rate": self.optimizer.learning_rate,
            "epochs_done": float(epochs_done),
            **self._scales.metrics(),
        }

    def _epoch(self, rollout: Rollout, order: Order, steps: int) -> tuple[LossSums, float]:
        """One pass over all transitions; sums over those of this rank, and the mean gradient norm."""
        sums = LossSums(0.0, 0.0, 0.0, 0.0, 0.0)
        norm = 0.0
        units, parts = order.epoch(steps)
        shuffled = rollout.take(units)
        scales = self._advantage_scales([shuffled.advantage(*part) for part in parts])
        for (first, last), (mean, deviation) in zip(parts, scales, strict=True):
            part = shuffled.part(first, last)
            if self.config.normalize_advantages:
                part.data.advantage = normalized(part.data.advantage, mean, deviation)
            part_sums, part_norm = self._step(part)
            norm += part_norm / steps
            for field in fields(LossSums):
                setattr(sums, field.name, getattr(sums, field.name) + getattr(part_sums, field.name))
        return sums, norm

    def _step(self, part: Part) -> tuple[LossSums, float]:
        """One gradient step."""
        data = part.data
        count = len(data.advantage)
        if not count:  # another rank's rows make up this minibatch: its gradient arrives in the reduction
            norm = self.trainer.step(self.optimizer, valid_count=0, backward=lambda: None)
            return LossSums(0.0, 0.0, 0.0, 0.0, 0.0), norm
        outputs, value, backward = self._policy.differentiable(part.inputs, part.memory)
        if part.chosen is None:
            sums, *gradients = self._loss(outputs, value, data)
        else:
            sums, *chosen = self._loss(outputs[part.chosen], value[part.chosen], data)
            gradients = [np.zeros_like(outputs), np.zeros_like(value)]
            gradients[0][part.chosen], gradients[1][part.chosen] = chosen
        norm = self.trainer.step(self.optimizer, valid_count=count, backward=lambda: backward(*gradients))
        return sums, norm

    def _loss(
        self, outputs: NDArray[np.float32], value: NDArray[np.float32], data: Minibatch
    ) -> tuple[LossSums, NDArray[np.float32], NDArray[np.float32]]:
        evaluation = self._policy.distribution.evaluate(outputs, data.action, data.action_mask)
        return ppo_loss(evaluation, value, data, self._weights)

    def _advantage_scales(self, advantages: Sequence[NDArray[np.float32]]) -> list[tuple[float, float]]:
        """Mean and standard deviation of each minibatch's advantages over all ranks, for a whole epoch at once.

        Two reductions per epoch instead of two per minibatch: with small networks they would take most of the time.
        """
        if not self.config.normalize_advantages:
            return [(0.0, 1.0)] * len(advantages)
        first = np.array([(len(part), part.sum(dtype=np.float64)) for part in advantages])
        counts, sums = self.trainer.reduce_array(first).T
        rows = np.maximum(counts, 1.0)
        means = sums / rows
        centred = [part - np.float32(mean) for part, mean in zip(advantages, means, strict=True)]
        squares = self.trainer.reduce_array(np.array([float(np.dot(part, part)) for part in centred]))
        return list(zip(means.tolist(), np.sqrt(squares / rows).tolist(), strict=True))

    def _rollout(self, batch: Batch, position: NDArray[np.int64], data: Minibatch) -> Rollout:
        """The transitions with the inputs of their rows, which are made once per update."""
        observation = batch["observation"][:-1]
        if self.config.normalize_observations:
            observation = observation.copy()
        inputs = self._policy.inputs(observation.reshape(-1, *observation.shape[2:]))
        place = self.trainer.to_device
        if not self._policy.spec.state_size:
            return Rows(inputs, position, data, batch["valid"], place)
        number = np.full(batch["valid"].size, -1, np.int64)
        number[position] = np.arange(len(position))
        return Sequences(inputs, batch, number, data, self._policy.spec.state_rows, place)

    def _transitions(self, batch: Batch, position: NDArray[np.int64]) -> Minibatch:
        """Targets, once per batch, for its valid rows."""
        taken = self.advantages(batch).reshape(-1).take(position).astype(np.float32)
        old_value = batch["value"].reshape(-1).take(position)
        old_log_probability = batch["log_probability"].reshape(-1).take(position)
        # Rewards too: where they are scaled, infinite ones are cut.
        read = (taken, old_log_probability, batch["reward"].reshape(-1).take(position))
        is_finite = all(np.isfinite(one).all() for one in read)
        self.trainer.agree(None if is_finite else _first_bad_value(batch, taken, position))
        target = self._scales.targets(taken + old_value)
        mask = batch.fields.get("action_mask")
        action = batch["action"]
        return Minibatch(
            action=action.reshape(-1, *action.shape[2:]).take(position, axis=0),
            old_log_probability=old_log_probability,
            advantage=taken,
            value_target=target,
            old_value=self._scales.normalized(old_value),
            action_mask=None if mask is None else mask[:-1].reshape(-1, mask.shape[2]).take(position, axis=0),
        )

    def advantages(self, batch: Batch) -> NDArray[np.float64]:
        """Advantages of a batch, ``float64[T, C]``: behaviour values, bootstraps from the present weights."""
        ends = bootstrap(self._policy, batch, self.trainer.to_device)
        return advantages(
            reward=self._scales.rewards(batch),
            value=batch["value"],
            terminated=batch["terminated"],
            truncated=batch["truncated"],
            valid=batch["valid"],
            final_row=batch["final_row"],
            last_value=self._scales.values(ends.last),
            final_value=self._scales.values(ends.final),
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )

    def _means(self, sums: LossSums, total: int) -> dict[str, float]:
        means = self.trainer.reduce_array(np.array(astuple(sums), np.float64)) / total
        names = ("loss/policy", "loss/value", "entropy", "approximate_kl", "clip_fraction")
        return dict(zip(names, means.tolist(), strict=True))


def _variances(data: Minibatch, trainer: TrainerContext, total: int) -> float:
    """Explained variance, 1 - Var(target - value) / Var(target), of the values that acted; 0 if targets do not vary."""
    parts = np.stack([data.value_target, data.value_target - data.old_value]).astype(np.float64)
    means = trainer.reduce_array(parts.sum(axis=1)) / total
    spread, error = trainer.reduce_array(np.square(parts - means[:, None]).sum(axis=1)) / total
    return float(1.0 - error / spread) if spread > 0.0 else 0.0


def _first_bad_value(batch: Batch, taken: NDArray[np.float32], position: NDArray[np.int64]) -> NonFiniteError:
    """The error for targets that are not finite: names the field the first bad value came from."""
    columns = batch["valid"].shape[1]
    for name in ("reward", "value", "log_probability"):
        values = batch[name].reshape(-1).take(position)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            row, column = divmod(int(position[bad[0]]), columns)
            return NonFiniteError(
                "a value to be trained on is not finite",
                where=f"batch, row {row}, column {column}, field {name}",
                value=float(values[bad[0]]),
                hint="The batch is rejected; the weights are unchanged.",
            )
    row, column = divmod(int(position[np.flatnonzero(~np.isfinite(taken))[0]]), columns)
    return NonFiniteError(
        "an advantage is not finite, though reward and value are: the value of a successor is not, or they overflow",
        where=f"batch, row {row}, column {column}",
        hint="The batch is rejected; the weights are unchanged.",
    )
