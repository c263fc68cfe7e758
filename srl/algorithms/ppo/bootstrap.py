"""Values of what comes after: row T and the final observations, by the weights at the start of the update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from srl.algorithms.networks.actor_critic import Place, gather
from srl.algorithms.ppo.policy import PPOPolicy
from srl.algorithms.ppo.rollout import memory_of, sequence_positions
from srl.algorithms.ppo.targets import final_rows_needed
from srl.api.algorithm import Batch

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What targets need beside the values that were stored.

    Attributes:
        last: ``float32[C]`` values of row T.
        final: ``float32[F]`` values of final observations; 0 where targets do not read them.
    """

    last: Values
    final: Values


def bootstrap(policy: PPOPolicy, batch: Batch, place: Place) -> Bootstrap:
    """The values that an update's targets end with; with PopArt in the units of its normalised outputs.

    Computed in eval mode, as the values of all other rows were when they acted: a network that is random in training
    (dropout) would make noise of the targets, and one with batch normalisation would take these rows in twice.

    Args:
        policy: The policy under training.
        batch: The batch; not changed.
        place: Brings tensors to where the policy is.
    """
    needed = final_rows_needed(batch["terminated"], batch["truncated"], batch["valid"], batch["final_row"])
    finals = batch["final_observation"]
    last = batch["observation"][-1]
    observation = np.concatenate([last, finals[needed]])
    with torch.no_grad(), evaluating(policy):
        state = _states(policy, batch, needed, place) if policy.spec.state_size else None
        inputs = gather(policy.inputs(observation), np.arange(len(observation)), place)
        _, value, _ = policy.network.compute(inputs, policy.network.prepare(), state)
    values: Values = value.cpu().numpy().copy()
    final = np.zeros(len(finals), np.float32)
    final[needed] = values[len(last) :]
    return Bootstrap(values[: len(last)], final)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode for a while; afterwards every part is in the mode it was in, whichever that was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _states(policy: PPOPolicy, batch: Batch, needed: NDArray[np.int64], place: Place) -> torch.Tensor:
    """Recurrent states behind every block's last row, then behind the rows whose final observations are needed.

    Only the sequences that hold such a row are computed, from the states that were stored at their starts.
    """
    rows, valid = policy.spec.state_rows, batch["valid"]
    columns = valid.shape[1]
    row_of = _rows_of_finals(batch, needed)
    # Rows behind a cut store no state, so whole sequences of a block may have none.
    last = np.repeat([header.length - 1 for header in batch.headers], columns // len(batch.headers))
    wanted = np.concatenate([last * columns + np.arange(columns), row_of])
    units = (wanted // columns // rows) * columns + wanted % columns
    units, number = np.unique(units, return_inverse=True)
    positions = sequence_positions(units, rows, columns)
    flat: NDArray[Any] = batch["observation"][:-1].reshape(-1, *batch["observation"].shape[2:])
    inputs = gather(policy.inputs(flat[positions.reshape(-1)]), np.arange(positions.size), place)
    after = policy.network.states(inputs, memory_of(batch, units, positions, place))
    inside = (wanted // columns) % rows
    return after[place(torch.from_numpy(inside * len(units) + number.reshape(-1)))]


def _rows_of_finals(batch: Batch, needed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions ``[T * C]`` of the transitions that end with the final observations ``needed`` (ascending)."""
    final_row = batch["final_row"].reshape(-1)
    ends = np.flatnonzero((batch["truncated"] & ~batch["terminated"] & batch["valid"]).reshape(-1))
    order = np.argsort(final_row[ends], kind="stable")
    ends = ends[order]
    result: NDArray[np.int64] = ends[np.searchsorted(final_row[ends], needed)]
    return result
