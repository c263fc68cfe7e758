"""One ring group of an actor: its environments, the block being filled and what is carried from block to block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from srl.api.block import POLICY_TABLE_ROWS, Block, BlockHeader, BlockSchema
from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault, SRLError
from srl.api.policy import PolicySpec
from srl.system.actions import ActionTransformer
from srl.system.noise import block_noise
from srl.system.report import Episode
from srl.system.streams.interface import Credit, Producer
from srl.system.workers.episodes import EpisodeTracker
from srl.system.workers.finite import FiniteGuard
from srl.system.workers.legal import LegalActions
from srl.system.workers.recurrent import RecurrentState
from srl.system.workers.rows import BlockRows, RowViews, new_step_output


@dataclass(frozen=True, slots=True)
class RingGroupIdentity:
    """Who a ring group is: seeds, noise and headers follow from it."""

    producer: Producer
    index: int
    seed: int

    def __str__(self) -> str:
        """For messages."""
        return f"ring group {self.index} of actor {self.producer.actor}"


class RingGroup:
    """Fills blocks, one row at a time. Decides nothing about when: the actor worker drives it.

    Order of calls per block: :meth:`begin`, then for each row :meth:`views` (ask for a decision) and :meth:`step`,
    then :meth:`finish`.

    Args:
        identity: Who it is.
        environment: Its environments; owned, closed by :meth:`close`.
        schema: The block schema; ``columns`` = B.
        policy: The policy that acts.
        guard: What happens to NaN and infinite values.
    """

    def __init__(
        self,
        identity: RingGroupIdentity,
        environment: VectorEnvironment,
        schema: BlockSchema,
        policy: PolicySpec,
        guard: FiniteGuard,
    ) -> None:
        columns = schema.columns
        self.identity = identity
        self.environment = environment
        self.credit: Credit | None = None
        self.block: Block | None = None
        self.row = 0
        self.sequence = 0
        self.steps = 0
        self.waiting = False
        self.rows = schema.rows
        self._schema = schema
        self._policy = policy
        self._guard = guard
        self._transform = ActionTransformer(policy)
        self._episodes = EpisodeTracker(environment.spec, columns)
        self._noise: NDArray[np.float32] = np.zeros((schema.rows, columns, *policy.noise.shape), np.float32)
        self._carry = new_step_output(policy, columns)
        self._memory = RecurrentState(columns, policy.state_size) if policy.state_size else None
        self._legal = LegalActions(environment.spec) if policy.action_mask else None
        self._views = BlockRows(policy, environment.spec, self._carry, self._noise, self._memory, guard)
        self._rows: list[RowViews] = []
        self._versions: dict[int, int] = {}
        self._finals = 0
        self._marks_replaced = any(field.name == "observation_replaced" for field in schema.fields)
        self._carry_replaced = np.zeros(columns, np.bool_)

    def reset(self) -> None:
        """Start the environments: fills the row that the first block begins with."""
        self.environment.reset(self._carry)
        environment = self.environment.spec
        marks = {"observation": self._carry_replaced, "reward": np.zeros_like(self._carry_replaced)}
        self._guard.check(self._guard.watch(self._carry, environment, marks), environment, f"{self.identity}, reset")
        self._check_legal(self._carry)

    def begin(self, credit: Credit, block: Block) -> None:
        """A new block for ``credit``: row 0 is where the block before ended."""
        self.credit, self.block, self.row = credit, block, 0
        self._rows = self._views.of(credit, block)
        self._versions = {}
        self._finals = 0
        block["observation"][0] = self._carry.observation
        if self._carry.action_mask is not None:
            block["action_mask"][0] = self._carry.action_mask
        block["valid"][0] = self._carry.valid
        block["episode_start"][0] = self._carry.episode_start
        block["final_row"].fill(-1)
        block["policy_index"].fill(0)
        if self._marks_replaced:
            block["observation_replaced"].fill(False)
            block["observation_replaced"][0] = self._carry_replaced
            block["reward_replaced"].fill(False)
        self._noise[:] = block_noise(
            self._policy.noise,
            seed=self.identity.seed,
            actor=self.identity.producer.actor,
            ring_group=self.identity.index,
            columns=self._schema.columns,
            first_step=self.steps,
            rows=self._schema.rows,
        )

    def views(self) -> RowViews:
        """Views on the row to decide on."""
        return self._rows[self.row]

    def step(self, version: int) -> list[Episode]:
        """The decision of ``version`` for the row is there: step the environments.

        Returns:
            The episodes that ended.

        Raises:
            EnvironmentFault: The environment raised (the original exception is its cause), or leaves no legal action.
        """
        views = self._rows[self.row]
        index = self._versions.get(version)
        if index is None:
            index = self._versions[version] = len(self._versions)
        if index:
            views.policy_index.fill(index)
        if self._memory is not None:
            self._remember(self._memory, views)
        try:
            ended = self.environment.step(self._transform(views.act_output.action), views.step_output)
        except SRLError:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"the environment raised {type(error).__name__}: {error}",
                where=f"{self.identity}, step {self.steps}",
            ) from error
        if not views.finite.passes():
            self._guard.check(views.finite, self.environment.spec, f"{self.identity}, step {self.steps}")
        self._episodes.add(views.step_output.reward, views.act_input.valid)
        self.row += 1
        self.steps += 1
        if self._legal is not None:
            self._check_legal(views.step_output)
        return [] if ended is None else self._take_ended(ended, views, version)

    def full(self) -> bool:
        """True if the block must end here: T rows, or no room for the final observations of one more step."""
        return (
            self.row == self._schema.rows
            or self._finals + self._schema.columns > self._schema.final_rows
            or len(self._versions) == POLICY_TABLE_ROWS
        )

    def finish(self) -> BlockHeader:
        """Close the block at the present row; rows beyond it become invalid and row T the bootstrap observation."""
        credit, block, length = self.credit, self.block, self.row
        if credit is None or block is None:
            raise EnvironmentFault("a block was finished that was never begun", where=str(self.identity))
        if length < self._schema.rows:
            self._pad(block, length)
        self._carry_over(block, length)
        block["policy_version"][: len(self._versions)] = list(self._versions)
        header = BlockHeader(
            actor=self.identity.producer.actor,
            incarnation=self.identity.producer.incarnation,
            ring_group=self.identity.index,
            sequence=self.sequence,
            grant=credit.grant,
            slot=credit.slot,
            generation=credit.generation,
            length=length,
            valid_rows=int(np.count_nonzero(block["valid"])),
            finals=self._finals,
            versions=len(self._versions),
            min_version=credit.min_version,
        )
        self.sequence += 1
        self.credit = self.block = None
        return header

    def abandon(self) -> int:
        """Give the open block up; the environments go on from the present row.

        Returns:
            Valid rows that are lost with it.
        """
        block, length = self.block, self.row
        self.credit = self.block = None
        if block is None:
            return 0
        self._keep_row(block, length)
        self._carry_over(block, length)
        return int(np.count_nonzero(block["valid"][:length]))

    def close(self) -> None:
        """Close the environments."""
        self.environment.close()

    def _take_ended(self, ended: Ended, views: RowViews, version: int) -> list[Episode]:
        if self.block is None:
            raise EnvironmentFault("an episode ended outside a block", where=str(self.identity))
        self._guard.check_final(ended, self.environment.spec, f"{self.identity}, step {self.steps - 1}")
        count = len(ended.columns)
        first = self._finals
        self.block["final_observation"][first : first + count] = ended.final_observation
        views.final_row[ended.columns] = np.arange(first, first + count, dtype=np.int32)
        self._finals += count
        return self._episodes.ended(ended, version)

    @staticmethod
    def _remember(memory: RecurrentState, views: RowViews) -> None:
        """Store the state that the decision went by, where the block has room for it, and go on with the next."""
        if views.state is not None:
            views.state[...] = memory.used
        memory.advance(views.act_input.valid)

    def _check_legal(self, out: StepOutput) -> None:
        if self._legal is not None and out.action_mask is not None:
            self._legal.check(out.action_mask, out.valid, self.identity, self.steps)

    def _pad(self, block: Block, length: int) -> None:
        """Make the rows behind a short block harmless: not valid, no ends, bootstrap observation in row T."""
        self._keep_row(block, length)
        block["observation"][length + 1 :] = block["observation"][length]
        for name in ("valid", "terminated", "truncated", "episode_start"):
            block[name][length:] = False
        block["reward"][length:] = 0.0
        for extra in self._policy.extras:
            block[extra.name][length:] = 0
        block["action"][length:] = 0
        if self._policy.action_mask:
            block["action_mask"][length + 1 :] = block["action_mask"][length]
        if self._policy.state_size:
            block["state"][-(-length // self._policy.state_rows) :] = 0.0

    def _carry_over(self, block: Block, row: int) -> None:
        """The next block begins with what this row, T or less, has of the row to come."""
        self._carry.observation[...] = block["observation"][row]
        if self._carry.action_mask is not None:
            self._carry.action_mask[...] = block["action_mask"][row]
        if self._marks_replaced:
            self._carry_replaced[:] = block["observation_replaced"][row]

    def _keep_row(self, block: Block, row: int) -> None:
        """Carry over the flags of a row that the next block begins with (row T is written to the carry anyway)."""
        if row < self._schema.rows:
            self._carry.valid[:] = block["valid"][row]
            self._carry.episode_start[:] = block["episode_start"][row]
