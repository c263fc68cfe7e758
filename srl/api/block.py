"""The block: one contiguous buffer of trajectory rows, the unit in which data moves.

Axes: ``T`` rows (time), ``B`` columns (environments of one ring group x agent slots), ``F`` rows of the side table of
final observations, ``K`` rows of the table of policy versions, ``S`` states, one every C rows. ``observation`` and
``action_mask`` are ``[T+1, B, ...]``; everything else per row is ``[T, B, ...]``; row ``T`` equals row 0 of the
column's next block.

The successor of a valid row is the observation of the next valid row of its column (row ``T`` if there is none);
where ``terminated`` or ``truncated`` is set it is ``final_observation[final_row[t, b]]``.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import SchemaMismatchError
from srl.api.spaces import ArraySpec

if TYPE_CHECKING:
    from srl.api.policy import PolicySpec

ALIGNMENT_BYTES = 64
SCHEMA_VERSION = 1
POLICY_TABLE_ROWS = 256

Axes = Literal["T+1,B", "T,B", "S,B", "F", "K"]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a block.

    Attributes:
        name: Field name, unique in the schema.
        shape: Shape behind the axes.
        dtype: numpy dtype name.
        axes: Leading axes: ``"T+1,B"``, ``"T,B"``, ``"S,B"`` (stored states), ``"F"`` (side table) or ``"K"``
            (version table).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: Axes = "T,B"


REPLACED = (FieldSpec("observation_replaced", (), "bool", "T+1,B"), FieldSpec("reward_replaced", (), "bool"))
"""Where a zero stands for a value that was not finite: in blocks of experiments that do not stop there."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """Where a field lies in the buffer: full shape, dtype name and byte offset (a multiple of 64)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int


@dataclass(frozen=True)
class BlockSchema:
    """Names, shapes, dtypes and offsets of a block's fields; agreed once at connection.

    Attributes:
        rows: T.
        columns: B.
        final_rows: F, rows of the side table of final observations.
        fields: The fields in buffer order.
        state_rows: C, rows from one stored state to the next; 0 = none are stored.
    """

    rows: int
    columns: int
    final_rows: int
    fields: tuple[FieldSpec, ...]
    state_rows: int = 0

    def __post_init__(self) -> None:
        """Compute the layout once."""
        offset = 0
        layouts = []
        for field in self.fields:
            leading = {
                "T+1,B": (self.rows + 1, self.columns),
                "T,B": (self.rows, self.columns),
                "S,B": (self.rows // max(self.state_rows, 1), self.columns),
                "F": (self.final_rows,),
                "K": (POLICY_TABLE_ROWS,),
            }[field.axes]
            shape = leading + field.shape
            layouts.append(FieldLayout(field.name, shape, field.dtype, offset))
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
            offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        object.__setattr__(self, "layouts", tuple(layouts))
        object.__setattr__(self, "size_bytes", offset)

    layouts: ClassVar[tuple[FieldLayout, ...]]
    size_bytes: ClassVar[int]

    @property
    def digest(self) -> str:
        """SHA-256 over version, axes and fields; two ends with equal digests agree about every byte."""
        text = json.dumps([SCHEMA_VERSION, self.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "final_rows": self.final_rows,
            "fields": [asdict(field) for field in self.fields],
            "state_rows": self.state_rows,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BlockSchema:
        """The inverse of :meth:`to_dict`."""
        fields = tuple(FieldSpec(**{**field, "shape": tuple(field["shape"])}) for field in data["fields"])
        return cls(data["rows"], data["columns"], data["final_rows"], fields, data["state_rows"])

    def check_equal(self, other: BlockSchema, where: str) -> None:
        """Raise if the other end's schema differs.

        Raises:
            SchemaMismatchError: Naming the first field or axis that differs.
        """
        for axis in ("rows", "columns", "final_rows", "state_rows"):
            if getattr(self, axis) != getattr(other, axis):
                raise SchemaMismatchError(
                    f"the two ends disagree about '{axis}'",
                    where=where,
                    value=getattr(other, axis),
                    expected=str(getattr(self, axis)),
                )
        mine = {field.name: field for field in self.fields}
        theirs = {field.name: field for field in other.fields}
        for name in [*mine, *theirs]:
            if mine.get(name) != theirs.get(name):
                raise SchemaMismatchError(
                    f"the two ends disagree about field '{name}'",
                    where=where,
                    value=str(theirs.get(name, "absent")),
                    expected=str(mine.get(name, "absent")),
                    hint="Both ends must come from the same resolved experiment and the same version of SRL.",
                )

    def allocate(self) -> Block:
        """A block in private memory, zeroed."""
        return Block(self, np.zeros(self.size_bytes, np.uint8))


def default_final_rows(rows: int, columns: int, observation: ArraySpec) -> int:
    """F, the size of the side table: room for every row while that costs at most 1 MiB, else a sixteenth of it."""
    every = rows * columns
    if every * observation.size_bytes() <= 1 << 20:
        return every
    return max(columns, every // 16)


def trajectory_schema(
    *,
    rows: int,
    columns: int,
    observation: ArraySpec,
    action: ArraySpec,
    extras: tuple[FieldSpec, ...],
    final_rows: int | None = None,
    action_mask: int = 0,
    state_size: int = 0,
    state_rows: int = 0,
    marks_replaced: bool = False,
) -> BlockSchema:
    """The schema of a trajectory block: the fixed fields and what the policy adds per row.

    Args:
        rows: T.
        columns: B.
        observation: One observation of one column.
        action: One action of one column, as the policy stores it.
        extras: Per-row outputs of the policy (``log_probability``, ``value``, ...), axes ``"T,B"``.
        final_rows: F; default :func:`default_final_rows`.
        action_mask: M, entries of the action mask; 0 = no such field.
        state_size: S, numbers of recurrent state; 0 = no such field.
        state_rows: C, divides ``rows``; 0 without state.
        marks_replaced: Fields that say where a zero stands for a value that was not finite.
    """
    table = default_final_rows(rows, columns, observation) if final_rows is None else final_rows
    fields = (
        FieldSpec("observation", observation.shape, observation.dtype, "T+1,B"),
        FieldSpec("action", action.shape, action.dtype),
        FieldSpec("reward", (), "float32"),
        FieldSpec("terminated", (), "bool"),
        FieldSpec("truncated", (), "bool"),
        FieldSpec("valid", (), "bool"),
        FieldSpec("episode_start", (), "bool"),
        FieldSpec("final_row", (), "int32"),
        FieldSpec("policy_index", (), "uint8"),
        *extras,
        *([FieldSpec("action_mask", (action_mask,), "bool", "T+1,B")] if action_mask else []),
        *([FieldSpec("state", (state_size,), "float32", "S,B")] if state_size else []),
        *(REPLACED if marks_replaced else ()),
        FieldSpec("final_observation", observation.shape, observation.dtype, "F"),
        FieldSpec("policy_version", (), "int64", "K"),
    )
    return BlockSchema(rows, columns, table, fields, state_rows if state_size else 0)


def policy_schema(policy: PolicySpec, *, rows: int, columns: int, marks_replaced: bool = False) -> BlockSchema:
    """The schema of the blocks that a policy's decisions fill.

    Args:
        policy: The policy.
        rows: T.
        columns: B.
        marks_replaced: As in :func:`trajectory_schema`.
    """
    return trajectory_schema(
        rows=rows,
        columns=columns,
        observation=policy.observation.array,
        action=policy.action_array,
        extras=policy.extras,
        action_mask=policy.action_mask,
        state_size=policy.state_size,
        state_rows=policy.state_rows,
        marks_replaced=marks_replaced,
    )


class Block:
    """Typed views on one contiguous buffer. Views alias the buffer; nothing is copied.

    Args:
        schema: The layout.
        buffer: ``uint8[schema.size_bytes]`` (or longer), writable for producers.
    """

    __slots__ = ("buffer", "fields", "schema")

    def __init__(self, schema: BlockSchema, buffer: NDArray[np.uint8]) -> None:
        self.schema = schema
        self.buffer = buffer[: schema.size_bytes]
        self.fields: dict[str, NDArray[Any]] = {}
        for layout in schema.layouts:
            dtype = np.dtype(layout.dtype)
            size = int(np.prod(layout.shape, dtype=np.int64)) * dtype.itemsize
            raw = self.buffer[layout.offset_bytes : layout.offset_bytes + size]
            self.fields[layout.name] = raw.view(dtype).reshape(layout.shape)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The array of a field."""
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What travels beside a block, or instead of it on one host; packed into 80 bytes.

    Attributes:
        actor: Index of the producing actor worker in its group.
        incarnation: Its incarnation.
        ring_group: Index of the ring group in the actor.
        sequence: Number of the block in its (actor, ring group), counted from 0.
        grant: Number of the grant this block answers.
        slot: Slot it lies in.
        generation: Generation of that slot.
        length: Rows that count, at most T; fewer after a cut or a full side table.
        valid_rows: Number of (row, column) pairs with ``valid`` set.
        finals: Rows used in the side table.
        versions: Rows used in the table of policy versions.
        min_version: The version at the grant.
    """

    actor: int
    incarnation: int
    ring_group: int
    sequence: int
    grant: int
    slot: int
    generation: int
    length: int
    valid_rows: int
    finals: int
    versions: int
    min_version: int

    PACKING: ClassVar[struct.Struct] = struct.Struct("<IIIIQQQIIIIqII")
    MAGIC: ClassVar[int] = 0x53524C42

    def pack(self) -> bytes:
        """The header as bytes."""
        return self.PACKING.pack(
            self.actor,
            self.incarnation,
            self.ring_group,
            self.slot,
            self.sequence,
            self.grant,
            self.generation,
            self.length,
            self.valid_rows,
            self.finals,
            self.versions,
            self.min_version,
            self.MAGIC,
            0,
        )

    @classmethod
    def unpack(cls, data: bytes) -> BlockHeader:
        """The inverse of :meth:`pack`.

        Raises:
            SchemaMismatchError: If the bytes are not a block header.
        """
        if len(data) != cls.PACKING.size:
            raise SchemaMismatchError(
                "a block header has the wrong size", value=len(data), expected=f"{cls.PACKING.size} bytes"
            )
        (actor, incarnation, ring_group, slot, sequence, grant, generation, length, valid, finals, versions, minimum,
         magic, _) = cls.PACKING.unpack(data)  # fmt: skip
        if magic != cls.MAGIC:
            raise SchemaMismatchError("a block header has the wrong magic number", value=hex(magic))
        return cls(
            actor, incarnation, ring_group, sequence, grant, slot, generation, length, valid, finals, versions, minimum
        )
