"""Memory for shared blocks, estimated before anything starts, against what the machine and its cgroup have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from srl.api.errors import SRLError


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of one sample stream, in bytes.

    Attributes:
        stream: Its name.
        slots: Blocks in the pool.
        block_bytes: Bytes of one block.
        batch_blocks: Blocks that trainers copy side by side, for the batch under training and the one after it.
        private_blocks: Blocks that producers hold in memory of their own (TCP).
        key: Key path whose value, made smaller, lowers the need most directly.
    """

    stream: str
    slots: int
    block_bytes: int
    batch_blocks: int
    private_blocks: int
    key: str

    @property
    def total_bytes(self) -> int:
        """Pool, batch and private blocks together."""
        return (self.slots + self.batch_blocks + self.private_blocks) * self.block_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """Memory there is: bytes, and who says so."""

    available_bytes: int
    source: str


def available_memory(limit_bytes: int | None = None, root: Path = Path("/")) -> Room:
    """The smallest of: free memory of the machine, what its cgroups leave, ``limits.memory_bytes``.

    Args:
        limit_bytes: The experiment's own limit.
        root: Where ``proc`` and ``sys`` are mounted.
    """
    rooms = [_machine(root / "proc/meminfo"), _cgroup_v2(root), _cgroup_v1(root)]
    if limit_bytes is not None:
        rooms.append(Room(limit_bytes, "limits.memory_bytes"))
    known = [room for room in rooms if room is not None]
    return min(known, key=lambda room: room.available_bytes, default=Room(1 << 62, "unknown"))


def memory_problem(needs: Sequence[Need], room: Room) -> SRLError | None:
    """The refusal, with both numbers and the key that lowers the need; ``None`` if it fits."""
    total = sum(need.total_bytes for need in needs)
    if total <= room.available_bytes:
        return None
    largest = max(needs, key=lambda need: need.total_bytes)
    return SRLError(
        f"blocks need {mebibytes(total)} ({total:,} bytes), but there are {mebibytes(room.available_bytes)} "
        f"({room.available_bytes:,} bytes, {room.source})",
        where=largest.key,
        hint=f"Stream '{largest.stream}' holds {largest.slots} blocks of {mebibytes(largest.block_bytes)}: lower "
        f"'{largest.key}', the rows per block, or 'streams.{largest.stream}.max_policy_lag'.",
    )


def describe_needs(needs: Sequence[Need]) -> str:
    """One line per stream, and the total."""
    lines = [
        f"{need.stream}: {need.slots} slots x {mebibytes(need.block_bytes)} + batches {need.batch_blocks} x "
        f"{mebibytes(need.block_bytes)} = {mebibytes(need.total_bytes)}"
        for need in needs
    ]
    return "\n".join([*lines, f"total {mebibytes(sum(need.total_bytes for need in needs))}"])


def describe_total(needs: Sequence[Need], room: Room) -> str:
    """What all streams need beside what there is, on one line."""
    total = mebibytes(sum(need.total_bytes for need in needs))
    return f"memory for blocks: {total} of {mebibytes(room.available_bytes)} ({room.source})"


def mebibytes(size_bytes: int) -> str:
    """Bytes in MiB, with as many digits as say something."""
    size = size_bytes / 2**20
    return f"{size:,.0f} MiB" if size >= 100 else f"{size:.3g} MiB"


def _machine(meminfo: Path) -> Room | None:
    text = _read(meminfo)
    for line in (text or "").splitlines():
        if line.startswith("MemAvailable:"):
            return Room(int(line.split()[1]) * 1024, "free on this machine")
    return None


def _cgroup_v2(root: Path) -> Room | None:
    path = next((line[3:] for line in _own_groups(root) if line.startswith("0::")), None)
    if path is None:
        return None
    return _smallest(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")


def _cgroup_v1(root: Path) -> Room | None:
    path = next((line.split(":", 2)[2] for line in _own_groups(root) if ":memory:" in line), None)
    if path is None:
        return None
    base = root / "sys/fs/cgroup/memory"
    return _smallest(base, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _own_groups(root: Path) -> list[str]:
    return (_read(root / "proc/self/cgroup") or "").splitlines()


def _smallest(base: Path, path: str, limit: str, usage: str, reclaimable: str) -> Room | None:
    """The tightest of a cgroup and the groups around it."""
    own = base / path.strip("/")
    chain = [own, *own.parents]
    inside = [folder for folder in chain if folder == base or base in folder.parents]
    rooms = [room for folder in inside if (room := _left(folder, limit, usage, reclaimable)) is not None]
    return min(rooms, key=lambda room: room.available_bytes, default=None)


def _left(folder: Path, limit: str, usage: str, reclaimable: str) -> Room | None:
    maximum = _read(folder / limit)
    if maximum is None or not maximum.strip().isdigit():
        return None  # "max": no limit at this level
    used = int(_read(folder / usage) or 0)
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable:
            used = max(0, used - int(value))
    return Room(max(0, int(maximum) - used), f"left by the memory limit in {folder}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


MemoryReader = Callable[[int | None], Room]
"""What :func:`available_memory` is: ``limits.memory_bytes`` in, the room out; tests give their own."""
