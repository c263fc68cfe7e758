"""PPO's part in a trainer worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.losses import LossSums, LossWeights, Minibatch, normalized, ppo_loss
from srl.algorithms.ppo.policy import PPOPolicy
from srl.algorithms.ppo.targets import advantages, final_rows_needed
from srl.api.algorithm import Algorithm, Batch, TrainerContext
from srl.api.errors import NonFiniteError


@dataclass(slots=True)
class Transitions:
    """The valid rows of a batch, one after the other: arrays ``[M]``, and where their observations lie."""

    position: NDArray[np.int64]
    data: Minibatch

    def take(self, order: NDArray[np.int64]) -> Transitions:
        """These transitions in another order."""
        columns = (getattr(self.data, field.name).take(order) for field in fields(Minibatch))
        return Transitions(self.position.take(order), Minibatch(*columns))

    def slice(self, first: int, last: int) -> Transitions:
        """Views on a part of them."""
        columns = (getattr(self.data, field.name)[first:last] for field in fields(Minibatch))
        return Transitions(self.position[first:last], Minibatch(*columns))


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
        self._weights = LossWeights(
            config.clip_range, config.value_clip_range, config.entropy_coefficient, config.value_coefficient
        )

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on one batch; metrics are means over the gradient steps of the last epoch made."""
        with np.errstate(all="ignore"):  # what is not finite is found by checks that name it
            return self._update(batch)

    def _update(self, batch: Batch) -> dict[str, float]:
        if self.config.learning_rate_schedule == "linear":
            self.optimizer.learning_rate = self.config.learning_rate * max(0.0, 1.0 - self.trainer.progress)
        observation = batch["observation"]
        flat_observation = observation.reshape(-1, *observation.shape[2:])
        transitions = self._transitions(batch)
        total = int(self.trainer.reduce(len(transitions.position)))
        if total == 0:
            return {"epochs_done": 0.0, "learning_rate": self.optimizer.learning_rate}
        steps = ceil(total / self.config.minibatch_rows)
        for epochs_done in range(1, self.config.epochs + 1):  # noqa: B007 used after the loop
            sums, norm = self._epoch(transitions, flat_observation, steps)
            kl = self.trainer.reduce(sums.kl) / total
            if self.config.target_kl is not None and kl > self.config.target_kl:
                break
        return {
            "loss/policy": self.trainer.reduce(sums.policy) / total,
            "loss/value": self.trainer.reduce(sums.value) / total,
            "entropy": self.trainer.reduce(sums.entropy) / total,
            "approximate_kl": kl,
            "clip_fraction": self.trainer.reduce(sums.clipped) / total,
            "explained_variance": _explained_variance(transitions.data),
            "gradient_norm": norm,
            "learning_rate": self.optimizer.learning_rate,
            "epochs_done": float(epochs_done),
        }

    def state(self) -> dict[str, Any]:
        """Nothing: the optimizer belongs to the trainer, and PPO keeps nothing from update to update."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

    def _epoch(self, transitions: Transitions, observation: NDArray[Any], steps: int) -> tuple[LossSums, float]:
        """One pass over all transitions; sums over them, and the mean gradient norm."""
        sums = LossSums(0.0, 0.0, 0.0, 0.0, 0.0)
        norm = 0.0
        for part in self._minibatches(transitions, steps):
            part_sums, part_norm = self._step(part, observation)
            norm += part_norm / steps
            for field in fields(LossSums):
                setattr(sums, field.name, getattr(sums, field.name) + getattr(part_sums, field.name))
        return sums, norm

    def _minibatches(self, transitions: Transitions, steps: int) -> Iterator[Transitions]:
        count = len(transitions.position)
        shuffled = transitions.take(self.trainer.generator.permutation(count))
        for step in range(steps):
            yield shuffled.slice(step * count // steps, (step + 1) * count // steps)

    def _step(self, part: Transitions, observation: NDArray[Any]) -> tuple[LossSums, float]:
        """One gradient step."""
        count = len(part.position)
        self._normalize(part.data, count)
        policy: PPOPolicy = self.trainer.policy  # type: ignore[assignment]  # what PPO's spec names
        logits, value, backward = policy.differentiable(self._tensor(observation, part.position))
        sums, *gradients = ppo_loss(logits, value, part.data, self._weights)
        norm = self.trainer.step(self.optimizer, valid_count=count, backward=lambda: backward(*gradients))
        return sums, norm

    def _normalize(self, data: Minibatch, count: int) -> None:
        """Normalise the advantages over the minibatch of all ranks."""
        if not self.config.normalize_advantages:
            return
        total = max(self.trainer.reduce(count), 1.0)
        mean = self.trainer.reduce(float(data.advantage.sum())) / total
        centred = data.advantage - np.float32(mean)
        variance = self.trainer.reduce(float(np.dot(centred, centred))) / total
        data.advantage = normalized(data.advantage, mean, sqrt(variance))

    def _transitions(self, batch: Batch) -> Transitions:
        """Targets, once per batch, and its valid rows."""
        advantage = self.advantages(batch)
        position = np.flatnonzero(batch["valid"])
        value = batch["value"].reshape(-1).take(position)
        old_log_probability = batch["log_probability"].reshape(-1).take(position)
        taken = advantage.reshape(-1).take(position).astype(np.float32)
        if not (np.isfinite(taken).all() and np.isfinite(old_log_probability).all()):
            raise _first_bad_value(batch, taken, position)
        data = Minibatch(
            action=batch["action"].reshape(-1).take(position),
            old_log_probability=old_log_probability,
            advantage=taken,
            value_target=taken + value,
            old_value=value,
        )
        return Transitions(position, data)

    def advantages(self, batch: Batch) -> NDArray[np.float64]:
        """Advantages of a batch, ``float64[T, C]``: behaviour values, bootstraps from the present weights."""
        flags = (batch["terminated"], batch["truncated"], batch["valid"])
        finals = batch["final_observation"]
        needed = final_rows_needed(*flags, batch["final_row"])
        last = batch["observation"][-1]
        bootstrap = self._values(np.concatenate([last, finals[needed]]))
        final_value = np.zeros(len(finals), np.float32)
        final_value[needed] = bootstrap[len(last) :]
        return advantages(
            reward=batch["reward"],
            value=batch["value"],
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            final_row=batch["final_row"],
            last_value=bootstrap[: len(last)],
            final_value=final_value,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )

    def _values(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        """Values by the present weights, ``float32[N]``; one forward pass."""
        with torch.no_grad():
            _, value = self.trainer.policy(self._tensor(observation, np.arange(len(observation))))
            result: NDArray[np.float32] = value.cpu().numpy().copy()
        return result

    def _tensor(self, array: NDArray[Any], rows: NDArray[np.int64]) -> torch.Tensor:
        """Rows of an array on the trainer's device.

        Gathered into memory of torch's own: its alignment is the same in every process, and with it the result.
        """
        gathered = torch.empty((len(rows), *array.shape[1:]), dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
        np.take(array, rows, axis=0, out=gathered.numpy(), mode="clip")
        return gathered.to(self.trainer.device)


def _explained_variance(data: Minibatch) -> float:
    """1 - Var(target - value) / Var(target) of the values that acted; 0 where the targets do not vary."""
    spread = float(data.value_target.var())
    return 1.0 - float((data.value_target - data.old_value).var()) / spread if spread > 0.0 else 0.0


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
