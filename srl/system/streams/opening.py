"""Which transport a worker process has: decided here, once, from its assignment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from srl.api.errors import UsageError
from srl.system.streams.shared_memory.transport import SharedMemoryTransport
from srl.system.streams.tcp.keys import load_trial_keys
from srl.system.streams.tcp.transport import TcpTransport
from srl.system.transport import Transport
from srl.system.worker import Assignment


def open_transport(assignment: Assignment, descriptors: Mapping[str, int], run_dir: Path) -> Transport:
    """The transport of a worker that has a process of its own.

    Args:
        assignment: Names the transport, and the addresses of what other processes bound.
        descriptors: Name to descriptor of the segments and eventfds that the process inherited.
        run_dir: The run's private directory (mode 0700): unix sockets, and the trial key for TCP.

    Raises:
        UsageError: For ``in_process``, whose one object all workers of a fused run share, and for unknown names.
        StreamError: If the trial key is not there.
    """
    if assignment.transport == "shared_memory":
        return SharedMemoryTransport(descriptors, run_dir, assignment.endpoints)
    if assignment.transport == "tcp":
        return TcpTransport(assignment.endpoints, load_trial_keys(run_dir))
    raise UsageError(
        "a worker in a process of its own cannot have this transport",
        where=assignment.worker.name,
        value=assignment.transport,
        expected="shared_memory or tcp",
    )
