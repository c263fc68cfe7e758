"""What can happen to a trial (events) and what is then to be done (instructions): the language of the trial machine.

Every event of a worker carries its incarnation; an event of a superseded one is refused and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from srl.distributed.lifecycle import State


class CommandKind(StrEnum):
    """What a worker can be told to do."""

    START = "start"
    PAUSE = "pause"
    DRAIN = "drain"
    STOP = "stop"
    DUMP_STACKS = "dump_stacks"


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker dialled in. ``state`` is not ``CREATED`` where it comes back after a lost connection."""

    worker: str
    incarnation: int
    connection: int
    pid: int
    host: str
    state: State = State.CREATED


@dataclass(frozen=True, slots=True)
class EndpointsBound:
    """A worker is configured: name to address of what it bound (empty for those who only connect)."""

    worker: str
    incarnation: int
    endpoints: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StateReached:
    """A worker entered a state."""

    worker: str
    incarnation: int
    state: State


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat.

    Attributes:
        worker: Whose.
        incarnation: Of which life.
        silent_seconds: Time since its main loop last turned; its control thread beats on even where that one hangs.
        doing: What the main loop is at.
    """

    worker: str
    incarnation: int
    silent_seconds: float
    doing: str


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker has reached what ends the trial (``env_steps``, ``updates``, ...)."""

    worker: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker raised; ``text`` holds its host, what it was at and the traceback."""

    worker: str
    incarnation: int
    text: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A control connection ended, whatever the cause."""

    connection: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker's process is dead and waited for.

    Attributes:
        worker: Whose.
        incarnation: Of which life.
        code: Exit code; negative = number of the signal.
        description: The same in words (``signal SEGV``).
    """

    worker: str
    incarnation: int
    code: int
    description: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The trial is to end.

    Attributes:
        reason: The word for the summary (``env_steps``, ``interrupted``, ...).
        exit_code: Exit code of the run.
        is_orderly: True = its goal was reached: last evaluations and the last checkpoint take the time they need.
            False = it is to be over within the shutdown limit.
    """

    reason: str
    exit_code: int
    is_orderly: bool


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """The trial is to end at once: everything is killed."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


WorkerEvent = Registered | EndpointsBound | StateReached | Beat | WorkerFinished | WorkerFailed | Exited
Event = WorkerEvent | Disconnected | StopRequested | AbortRequested | Tick


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for this incarnation."""

    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Send the assignment, with the endpoints known so far."""

    worker: str
    endpoints: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command on a worker's connection."""

    worker: str
    command: CommandKind


@dataclass(frozen=True, slots=True)
class TellGone:
    """Tell the living that a worker's process is dead: whoever it fed ends its credits."""

    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """End a connection, saying why."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Have a worker write the stacks of its threads into its log."""

    worker: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a worker's process; its death is confirmed by :class:`Exited`."""

    worker: str


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Tell the person which worker failed; ``with_log`` = show the end of its log, which holds what it last said."""

    worker: str
    text: str
    with_log: bool


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the main log; ``is_warning`` for what went wrong without ending the run."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The trial is over: every worker is gone (or, where even killing failed, named)."""

    reason: str
    exit_code: int


Instruction = Launch | Assign | Send | TellGone | Refuse | DumpStacks | Kill | ReportFailure | Note | End
