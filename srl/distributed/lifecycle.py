"""The life cycle of workers and trials: one enum, one table of transitions, and the record of one worker.

::

    CREATED --> CONFIGURED --> RUNNING <--> PAUSED
       |             |            |           |
       +-------------+-----+------+-----------+
                           v
                       DRAINING --> STOPPED        FAILED is reachable from every state that is not final

``CREATED``: launched, or about to be. ``CONFIGURED``: has its assignment, its stream ends are bound or connected.
``DRAINING``: begins nothing new. A trial goes through the same states as its workers. Everything here is pure: no
clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from srl.api.errors import SRLError
from srl.system.worker import WorkerId


class State(StrEnum):
    """State of a worker or of a trial."""

    CREATED = "created"
    CONFIGURED = "configured"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """True for the states that nothing leads out of."""
        return not TRANSITIONS[self]


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATED: frozenset({State.CONFIGURED, State.DRAINING, State.STOPPED, State.FAILED}),
    State.CONFIGURED: frozenset({State.RUNNING, State.DRAINING, State.STOPPED, State.FAILED}),
    State.RUNNING: frozenset({State.PAUSED, State.DRAINING, State.STOPPED, State.FAILED}),
    State.PAUSED: frozenset({State.RUNNING, State.DRAINING, State.STOPPED, State.FAILED}),
    State.DRAINING: frozenset({State.STOPPED, State.FAILED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset(),
}


class LifecycleError(SRLError):
    """A state was to follow that cannot follow the present one."""


def check_transition(subject: str, present: State, following: State) -> None:
    """Raise unless ``following`` can follow ``present``.

    Args:
        subject: Whose state it is, for the message.
        present: The state it is in.
        following: The state it is to enter.

    Raises:
        LifecycleError: Naming the states that could follow.
    """
    if following not in TRANSITIONS[present]:
        choices = ", ".join(sorted(TRANSITIONS[present])) or "nothing: this state is final"
        raise LifecycleError(f"cannot go from {present} to {following}", where=subject, expected=choices)


ASSIGNMENT_STEPS = {"trainer": 0, "buffer": 1, "policy": 2, "actor": 3, "evaluator": 3}
"""Who is assigned when: those who bind first, since they publish the endpoints that the later ones connect to."""

DRAIN_STEPS = {"actor": 0, "policy": 1, "buffer": 2, "evaluator": 3, "trainer": 4}
"""Who is drained when: those who ask before those who answer; trainers last, for they write the last checkpoint."""


TERMINATED = 143
"""Exit code of a worker that drained because of a SIGTERM: 128 and the signal's number."""

LOOPS: Mapping[State, str] = {State.RUNNING: "poll", State.DRAINING: "drain"}
"""What the main loop of a worker is at in states that last, in its own words."""


@dataclass(slots=True)
class WorkerRecord:
    """What is known about one worker in its present incarnation.

    Attributes:
        id: Who it is, with its present incarnation.
        state: As it last reported, or as its exit showed.
        connection: The control connection it registered on; ``None`` before, and after a disconnection.
        is_assigned: True once its assignment was sent.
        is_launched: True once its launch was ordered.
        is_gone: True once its process is confirmed to be dead, or was never launched.
        is_started: True once it was told to start.
        drain_sent: True once it was told to drain or to stop.
        endpoints: Name to address of what it bound.
        alive_at: Monotonic seconds of the last sign that its main loop turns.
        doing: What its main loop was at then, in words.
        host: Where its process is.
        hung_at: When its stacks were asked for because it was silent for too long; ``None`` = it is not.
        stacks_asked: True once its stacks were asked for because it does not stop.
        killed_at: When its killing was ordered.
    """

    id: WorkerId
    state: State = State.CREATED
    connection: int | None = None
    is_assigned: bool = False
    is_launched: bool = False
    is_gone: bool = False
    is_started: bool = False
    drain_sent: bool = False
    endpoints: dict[str, str] = field(default_factory=dict)
    alive_at: float = 0.0
    doing: str = ""
    host: str = ""
    hung_at: float | None = None
    stacks_asked: bool = False
    killed_at: float | None = None

    @property
    def name(self) -> str:
        """Name for messages, such as ``actor/0``."""
        return self.id.name

    @property
    def is_killed(self) -> bool:
        """True once its killing was ordered."""
        return self.killed_at is not None

    @property
    def is_alive(self) -> bool:
        """True while its process may run."""
        return self.is_launched and not self.is_gone

    @property
    def place(self) -> str:
        """What its main loop was at when it was heard of last, as the end of a message."""
        return f", at: {self.doing}" if self.doing else ""

    @property
    def place_and_host(self) -> str:
        """The same with its host, for messages of failures."""
        return f"{self.place}, on host {self.host}" if self.host else self.place

    @property
    def assignment_step(self) -> int:
        """Position in the order of assignments."""
        return ASSIGNMENT_STEPS.get(self.id.kind, max(ASSIGNMENT_STEPS.values()))

    @property
    def drain_step(self) -> int:
        """Position in the order of draining."""
        return DRAIN_STEPS.get(self.id.kind, 0)

    def advance(self, state: State) -> None:
        """Enter ``state``; staying in the present one is no transition and always possible.

        Raises:
            LifecycleError: It cannot follow.
        """
        if state is not self.state:
            check_transition(self.name, self.state, state)
            self.state = state
            # What it was at before is over, and it may end before it says anything else.
            self.doing = self.doing and LOOPS.get(state, self.doing)
