"""Views on the rows of a block, made once per block buffer: no view is built on the step path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.block import Block
from srl.api.environment import EnvironmentSpec, StepOutput
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.streams.interface import Credit
from srl.system.workers.finite import FiniteGuard, Marks, RowCheck
from srl.system.workers.recurrent import RecurrentState


@dataclass(slots=True)
class RowViews:
    """Views on one row of a block.

    Attributes:
        act_input: What the policy is asked.
        act_output: Where its decision goes.
        step_output: Where the step's result goes: this row, and what belongs to the next one.
        policy_index: ``uint8[B]``.
        final_row: ``int32[B]``.
        state: ``float32[B, S]`` where the state used at this row is stored; ``None`` at rows that store none.
        finite: Watches ``step_output``.
    """

    act_input: ActInput
    act_output: ActOutput
    step_output: StepOutput
    policy_index: NDArray[np.uint8]
    final_row: NDArray[np.int32]
    state: NDArray[np.float32] | None
    finite: RowCheck


class BlockRows:
    """Makes and keeps the views of every block that a ring group fills.

    Args:
        policy: The policy that acts.
        environment: Whose rows they are.
        carry: What belongs to the row behind the last one, but lies in no block.
        noise: ``float32[T, B, ...]`` noise of a block.
        memory: Recurrent state; ``None`` without.
        guard: Makes the checks of rows.
    """

    def __init__(
        self,
        policy: PolicySpec,
        environment: EnvironmentSpec,
        carry: StepOutput,
        noise: NDArray[np.float32],
        memory: RecurrentState | None,
        guard: FiniteGuard,
    ) -> None:
        self._policy = policy
        self._environment = environment
        self._carry = carry
        self._noise = noise
        self._memory = memory
        self._guard = guard
        self._known: dict[tuple[int, int], tuple[Block, list[RowViews]]] = {}

    def of(self, credit: Credit, block: Block) -> list[RowViews]:
        """Views on rows 0 to T-1 of the block of a credit."""
        place = credit.rank, credit.slot
        known = self._known.get(place)
        if known is not None and known[0] is block:
            return known[1]
        rows = [self._view(block, row) for row in range(block.schema.rows)]
        self._known[place] = (block, rows)
        return rows

    def _view(self, block: Block, row: int) -> RowViews:
        step_output = self._step_output(block, row)
        stores = self._memory is not None and row % self._policy.state_rows == 0
        return RowViews(
            act_input=self._act_input(block, row),
            act_output=self._act_output(block, row),
            step_output=step_output,
            policy_index=block["policy_index"][row],
            final_row=block["final_row"][row],
            state=block["state"][row // self._policy.state_rows] if stores else None,
            finite=self._guard.watch(step_output, self._environment, _marks(block, row)),
        )

    def _act_input(self, block: Block, row: int) -> ActInput:
        return ActInput(
            observation=block["observation"][row],
            noise=self._noise[row],
            episode_start=block["episode_start"][row],
            valid=block["valid"][row],
            action_mask=block["action_mask"][row] if self._policy.action_mask else None,
            state=None if self._memory is None else self._memory.current,
        )

    def _act_output(self, block: Block, row: int) -> ActOutput:
        extras: dict[str, NDArray[Any]] = {extra.name: block[extra.name][row] for extra in self._policy.extras}
        if self._memory is None:
            return ActOutput(block["action"][row], extras)
        return ActOutput(block["action"][row], extras, self._memory.following, self._memory.used)

    def _step_output(self, block: Block, row: int) -> StepOutput:
        last = row + 1 == block.schema.rows
        return StepOutput(
            observation=block["observation"][row + 1],
            reward=block["reward"][row],
            terminated=block["terminated"][row],
            truncated=block["truncated"][row],
            valid=self._carry.valid if last else block["valid"][row + 1],
            episode_start=self._carry.episode_start if last else block["episode_start"][row + 1],
            action_mask=block["action_mask"][row + 1] if self._policy.action_mask else None,
        )


def _marks(block: Block, row: int) -> Marks:
    """Where the block says that a step put zeros in the place of values; empty where it has no such fields."""
    if "reward_replaced" not in block.fields:
        return {}
    return {"observation": block["observation_replaced"][row + 1], "reward": block["reward_replaced"][row]}


def new_step_output(policy: PolicySpec, columns: int) -> StepOutput:
    """Where a step can write, in memory of its own, all zeros."""
    mask = np.zeros((columns, policy.action_mask), np.bool_) if policy.action_mask else None
    return StepOutput(
        observation=np.zeros((columns, *policy.observation.shape), policy.observation.dtype),
        reward=np.zeros(columns, np.float32),
        terminated=np.zeros(columns, np.bool_),
        truncated=np.zeros(columns, np.bool_),
        valid=np.zeros(columns, np.bool_),
        episode_start=np.zeros(columns, np.bool_),
        action_mask=mask,
    )
