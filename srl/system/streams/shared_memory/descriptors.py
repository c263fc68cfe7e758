"""What the processes of one host share, planned and created by the controller, inherited by descriptor.

Segments are memfds: they have no name in ``/dev/shm`` (whose size a container may limit to 64 MB) and are gone with
the last process that holds them, however it ended. Their pages are allocated at once, so that lack of memory is an
error here and not a SIGBUS in a worker later.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from srl.api.block import BlockSchema
from srl.api.errors import ResourceError
from srl.api.policy import PolicySpec
from srl.system.memory import PAGE_BYTES, round_up
from srl.system.streams.shared_memory.mailboxes import Mailboxes
from srl.system.streams.shared_memory.segments import slot_stride_bytes

MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class SampleSegments:
    """A sample stream, as far as memory goes.

    Attributes:
        stream: Its name.
        schema: What a block looks like.
        slots: Slots per trainer rank.
        consumers: Names of the trainer workers, by rank.
        users: Names of the other workers that read or write blocks: actors, policy workers.
    """

    stream: str
    schema: BlockSchema
    slots: int
    consumers: tuple[str, ...]
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InferenceSegment:
    """An inference stream, as far as memory and wake-ups go.

    Attributes:
        stream: Its name.
        schema: Schema of the sample stream whose blocks the requests are about.
        spec: The policy.
        ring_groups: Ring groups per actor.
        actors: Names of the actor workers, by actor index.
        servers: Names of the policy workers, by index.
    """

    stream: str
    schema: BlockSchema
    spec: PolicySpec
    ring_groups: int
    actors: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightsSegment:
    """A policy's weights: its name, and the names of the workers that write or read them."""

    policy: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """One descriptor to create.

    Attributes:
        name: ``samples:STREAM:RANK``, ``inference:STREAM``, ``weights:POLICY``, ``wake:STREAM:server:I`` or
            ``wake:STREAM:actor:A``.
        kind: A segment or a wake-up.
        size_bytes: Memory it takes at creation. Weights start with one page; the first publication sizes them.
        holders: Names of the workers that need it.
        header: Bytes at the start of the segment.
    """

    name: str
    kind: Literal["memfd", "eventfd"]
    size_bytes: int
    holders: tuple[str, ...]
    header: bytes = b""


def plan_descriptors(
    samples: Iterable[SampleSegments] = (),
    inference: Iterable[InferenceSegment] = (),
    weights: Iterable[WeightsSegment] = (),
) -> tuple[DescriptorPlan, ...]:
    """Everything that a graph on one host shares."""
    plan: list[DescriptorPlan] = []
    for stream in samples:
        size = stream.slots * slot_stride_bytes(stream.schema)
        plan += [
            DescriptorPlan(f"samples:{stream.stream}:{rank}", "memfd", size, (consumer, *stream.users))
            for rank, consumer in enumerate(stream.consumers)
        ]
    for asked in inference:
        plan += _plan_inference(asked)
    plan += [DescriptorPlan(f"weights:{item.policy}", "memfd", PAGE_BYTES, item.users) for item in weights]
    return tuple(plan)


def _plan_inference(asked: InferenceSegment) -> list[DescriptorPlan]:
    servers = len(asked.servers)
    layout = Mailboxes.of(len(asked.actors), asked.ring_groups, servers, asked.schema, asked.spec)
    name = asked.stream
    return [
        DescriptorPlan(
            f"inference:{name}", "memfd", layout.size_bytes, (*asked.actors, *asked.servers), layout.header()
        ),
        *(
            DescriptorPlan(f"wake:{name}:server:{index}", "eventfd", 0, (server, *asked.actors[index::servers]))
            for index, server in enumerate(asked.servers)
        ),
        *(
            DescriptorPlan(f"wake:{name}:actor:{index}", "eventfd", 0, (actor, asked.servers[index % servers]))
            for index, actor in enumerate(asked.actors)
        ),
    ]


def create_descriptors(plan: Iterable[DescriptorPlan], available_bytes: int | None = None) -> dict[str, int]:
    """Create everything planned; all or nothing. All descriptors are close-on-exec.

    Args:
        plan: What to create.
        available_bytes: Memory there is to have; default :func:`available_memory_bytes`.

    Raises:
        ResourceError: If there is not enough memory (both numbers) or there are not enough descriptors.
    """
    wanted = tuple(plan)
    _check_memory(sum(round_up(item.size_bytes, PAGE_BYTES) for item in wanted), available_bytes)
    descriptors: dict[str, int] = {}
    try:
        for item in wanted:
            descriptors[item.name] = _create_segment(item) if item.kind == "memfd" else _create_wake_up(item.name)
    except BaseException:
        close_descriptors(descriptors)
        raise
    return descriptors


def close_descriptors(descriptors: Mapping[str, int]) -> None:
    """Close what :func:`create_descriptors` returned; what others mapped or inherited stays alive."""
    for descriptor in descriptors.values():
        os.close(descriptor)


def _check_memory(wanted: int, available_bytes: int | None) -> None:
    available = available_memory_bytes() if available_bytes is None else available_bytes
    if wanted > available:
        raise ResourceError(
            f"shared memory for {wanted} bytes ({wanted / 2**20:.1f} MiB) was asked for, "
            f"{available} bytes ({available / 2**20:.1f} MiB) are there",
            value=wanted,
            expected=f"at most {available} bytes",
            hint="Use fewer or shorter blocks, or give the machine or container more memory.",
        )


def _create_segment(item: DescriptorPlan) -> int:
    name = f"srl-{os.getpid()}-{item.name}"[:MAX_NAME_BYTES]
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _no_descriptor(item.name, error) from error
    try:
        os.posix_fallocate(descriptor, 0, max(item.size_bytes, 1))
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
            raise
        raise ResourceError(
            f"no memory for a shared segment of {item.size_bytes} bytes: {os.strerror(error.errno)}",
            where=item.name,
            value=item.size_bytes,
            expected=f"room within the {available_memory_bytes()} bytes that the machine has",
            hint="Use fewer or shorter blocks, or give the machine or container more memory.",
        ) from error
    # Nobody can cut it short under those who mapped it, which would kill them with SIGBUS.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    os.pwrite(descriptor, item.header, 0)
    return descriptor


def _create_wake_up(name: str) -> int:
    try:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError as error:
        raise _no_descriptor(name, error) from error


def _no_descriptor(name: str, error: OSError) -> ResourceError:
    return ResourceError(
        f"no descriptor for '{name}': {os.strerror(error.errno or 0)}",
        where=name,
        value=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        expected="a higher limit on open files",
        hint="Raise it with 'ulimit -n'.",
    )


def available_memory_bytes() -> int:
    """Memory that can be had without swapping: what the machine has, within the limit of the own cgroup."""
    candidates = [_meminfo_available(), *_cgroup_rooms()]
    return min(candidates)


def _meminfo_available() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES


def _cgroup_rooms() -> list[int]:
    """Limit minus use of every cgroup (v2, then v1) above this process that has a limit."""
    rooms = []
    with open("/proc/self/cgroup") as lines:
        for line in lines:
            _, controllers, path = line.strip().split(":", 2)
            if controllers == "":
                rooms += _rooms("/sys/fs/cgroup", path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                root = "/sys/fs/cgroup/memory"
                rooms += _rooms(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return rooms


def _rooms(root: str, path: str, limit_file: str, usage_file: str) -> list[int]:
    rooms = []
    while True:
        try:
            with open(f"{root}{path}/{limit_file}") as limit, open(f"{root}{path}/{usage_file}") as usage:
                rooms.append(max(0, int(limit.read()) - int(usage.read())))
        except (OSError, ValueError):  # no such file in this cgroup, or "max"
            pass
        if path in ("", "/"):
            return rooms
        path = path.rpartition("/")[0]
