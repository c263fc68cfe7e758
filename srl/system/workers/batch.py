"""Assembly of blocks into the batch of one update, in a buffer of its own, so that slots are free early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.algorithm import Batch
from srl.api.block import Block, BlockHeader, BlockSchema

_TABLES = ("final_observation", "policy_version", "policy_index")


def copied_blocks(blocks_per_update: int) -> int:
    """Blocks that a trainer rank holds copies of: one batch is assembled while another is trained on.

    A single block is trained on where it lies.

    Args:
        blocks_per_update: N, of the rank.
    """
    return 0 if blocks_per_update == 1 else 2 * blocks_per_update


class BatchBuffer:
    """Room for the blocks of one update, side by side: ``[T(+1), N * B, ...]``.

    Args:
        schema: The schema of one block.
        blocks: N, blocks per update.
    """

    def __init__(self, schema: BlockSchema, blocks: int) -> None:
        self._schema = schema
        self._columns = schema.columns
        self._finals: list[NDArray[Any]] = []
        self._fields: dict[str, NDArray[Any]] = {}
        for field, layout in zip(schema.fields, schema.layouts, strict=True):
            if field.name not in _TABLES:
                rows = layout.shape[0]
                self._fields[field.name] = np.zeros((rows, blocks * schema.columns, *field.shape), field.dtype)
        self._fields["version"] = np.zeros((schema.rows, blocks * schema.columns), np.int64)

    def fill(self, blocks: Sequence[tuple[BlockHeader, Block]]) -> Batch:
        """Copy blocks, in the order given; the batch aliases this buffer until it is filled again."""
        columns = len(blocks) * self._columns
        finals: list[NDArray[Any]] = []
        offset = 0
        for position, (header, block) in enumerate(blocks):
            place = slice(position * self._columns, (position + 1) * self._columns)
            for name, array in self._fields.items():
                if name not in ("version", "final_row"):
                    array[:, place] = block[name]
            self._fields["version"][:, place] = row_versions(block)
            self._fields["final_row"][:, place] = _renumbered(block["final_row"], offset)
            finals.append(block["final_observation"][: header.finals])
            offset += header.finals
        fields = {name: array[:, :columns] for name, array in self._fields.items()}
        fields["final_observation"] = np.concatenate(finals)
        return _batch(fields, [header for header, _ in blocks])


def batch_in_place(header: BlockHeader, block: Block) -> Batch:
    """The batch of one block without copying: it aliases the block, whose slot must stay taken meanwhile."""
    fields: dict[str, NDArray[Any]] = {name: array for name, array in block.fields.items() if name not in _TABLES}
    fields["version"] = row_versions(block)
    fields["final_observation"] = block["final_observation"][: header.finals]
    return _batch(fields, [header])


def row_versions(block: Block) -> NDArray[np.int64]:
    """The policy version behind each row: int64 ``[T, B]``, from the index and the block's table."""
    versions: NDArray[np.int64] = block["policy_version"][block["policy_index"]]
    return versions


def lag_of(batch: Batch, version: int) -> tuple[int, int, int]:
    """Policy lag of the valid rows: (sum, rows, maximum), in versions.

    Args:
        batch: The batch of an update.
        version: The trainer's version on entering it.
    """
    lag = version - batch["version"][batch["valid"]]
    return (int(lag.sum()), int(lag.size), int(lag.max())) if lag.size else (0, 0, 0)


def _renumbered(final_row: NDArray[np.int32], offset: int) -> NDArray[np.int32]:
    return np.where(final_row >= 0, final_row + np.int32(offset), final_row)


def _batch(fields: Mapping[str, NDArray[Any]], headers: Sequence[BlockHeader]) -> Batch:
    return Batch(fields=fields, headers=headers, valid_rows=sum(header.valid_rows for header in headers))
