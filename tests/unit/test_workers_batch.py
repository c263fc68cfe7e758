"""Assembly of blocks: columns side by side, final observations renumbered, versions and lag per row."""

import numpy as np
import pytest

from srl.api.block import BlockHeader, BlockSchema, trajectory_schema
from srl.api.errors import UsageError
from srl.api.spaces import ArraySpec
from srl.system.workers.batch import BatchBuffer, batch_in_place, copied_blocks, lag_of
from srl.system.workers.intake import Intake

SCHEMA = trajectory_schema(
    rows=3, columns=2, observation=ArraySpec((1,), "float32"), action=ArraySpec((), "int64"), extras=(), final_rows=4
)


def make_block(schema: BlockSchema, base: float, finals: int, versions: list[int]):
    block = schema.allocate()
    block["observation"][:] = base + np.arange(8).reshape(4, 2, 1)
    block["reward"][:] = base
    block["valid"][:] = True
    block["final_row"].fill(-1)
    for number in range(finals):
        block["final_row"][number, 0] = number
        block["final_observation"][number] = base + 100 + number
    block["policy_version"][: len(versions)] = versions
    block["policy_index"][-1] = len(versions) - 1
    header = BlockHeader(0, 0, 0, 0, 0, 0, 0, 3, 6, finals, len(versions), 0)
    return header, block


def test_blocks_lie_side_by_side_and_final_rows_are_renumbered():
    blocks = [make_block(SCHEMA, 0.0, 2, [5]), make_block(SCHEMA, 1000.0, 1, [5, 6])]
    batch = BatchBuffer(SCHEMA, 2).fill(blocks)
    assert batch.valid_rows == 12
    assert batch["observation"].shape == (4, 4, 1)
    np.testing.assert_array_equal(batch["observation"][:, 2:], blocks[1][1]["observation"])
    assert batch["final_observation"][:, 0].tolist() == [100, 101, 1100]
    assert batch["final_row"].tolist() == [[0, -1, 2, -1], [1, -1, -1, -1], [-1, -1, -1, -1]]
    assert batch["version"].tolist() == [[5, 5, 5, 5], [5, 5, 5, 5], [5, 5, 6, 6]]


def test_one_block_is_handed_on_without_copying():
    header, block = make_block(SCHEMA, 0.0, 1, [3])
    batch = batch_in_place(header, block)
    assert np.shares_memory(batch["observation"], block.buffer)
    assert batch["final_observation"].shape == (1, 1)


def test_both_ways_give_the_same_batch():
    header, block = make_block(SCHEMA, 7.0, 2, [1, 2])
    copied, aliased = BatchBuffer(SCHEMA, 1).fill([(header, block)]), batch_in_place(header, block)
    assert set(copied.fields) == set(aliased.fields)
    for name, array in aliased.fields.items():
        np.testing.assert_array_equal(copied[name], array)


def test_a_buffer_serves_fewer_blocks_than_it_has_room_for():
    batch = BatchBuffer(SCHEMA, 3).fill([make_block(SCHEMA, 0.0, 0, [1])])
    assert batch["reward"].shape == (3, 2)


@pytest.mark.parametrize("blocks", [1, 3])
def test_an_intake_holds_as_many_copies_as_the_memory_estimate_says(blocks):
    intake = Intake(object(), object(), SCHEMA, blocks_per_update=blocks, threaded=False)
    held = sum(buffer._fields["valid"].shape[1] // SCHEMA.columns for buffer in intake._buffers)
    assert held == copied_blocks(blocks)


def test_lag_counts_valid_rows_only():
    header, block = make_block(SCHEMA, 0.0, 0, [2, 4])
    block["valid"][0] = False
    assert lag_of(batch_in_place(header, block), 5) == (2 * 3 + 2 * 1, 4, 3)
    block["valid"][:] = False
    assert lag_of(batch_in_place(header, block), 5) == (0, 0, 0)


def test_a_field_that_is_not_there_is_named_with_the_nearest():
    batch = batch_in_place(*make_block(SCHEMA, 0.0, 0, [1]))
    with pytest.raises(UsageError, match=r"no such field \(got 'rewards'\)\. Did you mean 'reward'"):
        batch["rewards"]
    assert "reward" in batch
    assert "action_mask" not in batch
