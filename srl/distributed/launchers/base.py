"""What a launcher is: it starts, watches and kills the processes of workers, and decides nothing.

Order of calls::

    launcher.scale(workers)                  # room for so many; names what is missing
    launcher.submit(request)                 # returns at once
    select(launcher.wait_descriptors())
    launcher.poll() -> [WorkerExit, ...]     # every submitted worker appears here once, when it is dead and waited for
    launcher.cancel(worker, incarnation)     # kill; the end is still reported by poll
    launcher.close(timeout_seconds)          # kills what is left
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl.system.worker import WorkerId


@dataclass(frozen=True)
class LaunchRequest:
    """One process to start.

    Attributes:
        worker: The worker, with its incarnation.
        options: What its shell needs to dial the controller, JSON-compatible
            (:class:`srl.distributed.worker_process.ShellOptions`).
        log: File that its output goes to, appended.
        threads: Threads for its libraries.
        needs_torch: Whether it will import torch.
        cores: Cores to keep it on; empty = all.
        descriptors: Name to descriptor in this process, to be there in the other (local launchers only).
        entry: What runs there, ``package.module:Attr``: takes ``options`` and the descriptors there, returns the exit
            code.
    """

    worker: WorkerId
    options: Mapping[str, Any]
    log: Path
    threads: int = 1
    needs_torch: bool = False
    cores: tuple[int, ...] = ()
    descriptors: Mapping[str, int] = field(default_factory=dict)
    entry: str = "srl.distributed.worker_process:main"


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A process is dead.

    Attributes:
        worker: Name of the worker.
        incarnation: Its incarnation.
        code: Exit code; negative = number of the signal.
        description: The same in words.
    """

    worker: str
    incarnation: int
    code: int
    description: str


class Launcher(ABC):
    """Starts, watches and kills processes."""

    @abstractmethod
    def scale(self, workers: int) -> None:
        """Make room for so many workers at once.

        Raises:
            ResourceError: There is none; both numbers are named.
        """

    @abstractmethod
    def submit(self, request: LaunchRequest) -> None:
        """Start a process."""

    @abstractmethod
    def poll(self) -> Sequence[WorkerExit]:
        """Ends since the last call."""

    @abstractmethod
    def cancel(self, worker: str, incarnation: int) -> None:
        """Kill a worker's process and whatever it started; nothing happens if it is dead already."""

    @abstractmethod
    def dump_stacks(self, worker: str, incarnation: int) -> bool:
        """Have a process write its stacks into its log, even where its main loop hangs; False = not possible here."""

    @abstractmethod
    def wait_descriptors(self) -> Iterable[int]:
        """Descriptors that are readable when :meth:`poll` may return something."""

    @abstractmethod
    def close(self, timeout_seconds: float) -> None:
        """Kill what is left, and end whatever the launcher runs itself."""
