"""What the monitor keeps of each worker: newest report, counters over all incarnations, recent shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from srl.system.metrics.snapshot import WorkerRow
from srl.system.metrics.time_shares import shares
from srl.system.metrics.windows import Window
from srl.system.report import EdgeCount, WorkerReport
from srl.system.worker import WorkerId

# A trainer's own totals go on from its checkpoint (see WorkerReport); everything else starts at zero with a new life.
CONTINUED = frozenset({"env_steps", "frames", "updates", "gradient_steps", "policy_version"})
_WINDOW_SECONDS = 5.0


class WorkerLedger:
    """One worker over all its incarnations. Pure.

    Args:
        worker: Who it is.
        now: The time it was declared.

    Attributes:
        state: State in its life cycle.
        incarnation: Its newest life.
        weights_sha256: Digest of a trainer's last weights; empty before.
    """

    def __init__(self, worker: WorkerId, now: float) -> None:
        self.worker = worker
        self.state = "created"
        self.weights_sha256 = ""
        self.incarnation = worker.incarnation
        self._reported = now
        self._counters: dict[str, int] = {}
        self._edges: dict[str, EdgeCount] = {}
        self._past_counters: dict[str, int] = {}
        self._past_edges: dict[str, EdgeCount] = {}
        self._seconds: dict[str, float] = {}
        self._base_seconds: dict[str, float] = {}
        self._window: Window[dict[str, float]] = Window(_WINDOW_SECONDS)

    def add(self, report: WorkerReport, now: float) -> bool:
        """Take a report; False if it is of a superseded incarnation, and then nothing of it counts."""
        if report.incarnation < self.incarnation:
            return False
        if report.incarnation > self.incarnation:
            self._begin(report.incarnation)
        self._reported = now
        self._counters = report.counters
        self._edges = report.edges
        self._seconds = report.seconds
        self.weights_sha256 = report.weights_sha256
        self._window.push(now, report.seconds)
        return True

    def start_clock(self) -> None:
        """Training begins: the time before this is start-up, not idleness."""
        self._base_seconds = dict(self._seconds)

    def counter(self, name: str) -> int:
        """One counter over all incarnations; 0 if it was never reported."""
        return self._combine(name, self._past_counters.get(name, 0), self._counters.get(name, 0))

    def counters(self) -> dict[str, int]:
        """Counters over all incarnations."""
        result = dict(self._past_counters)
        for name, value in self._counters.items():
            result[name] = self._combine(name, result.get(name, 0), value)
        return result

    def edges(self) -> dict[str, EdgeCount]:
        """Edges over all incarnations."""
        return sum_edges([self._past_edges, self._edges])

    def shares(self) -> dict[str, float]:
        """Shares of the whole training time of this incarnation."""
        return shares(self._seconds, self._base_seconds)

    def row(self, now: float) -> WorkerRow:
        """State and shares of the last seconds."""
        baseline = self._window.baseline()
        recent = shares(self._seconds, baseline[1]) if baseline else {}
        return WorkerRow(
            name=self.worker.name,
            kind=self.worker.kind,
            state=self.state,
            incarnation=self.incarnation,
            shares=recent or self.shares(),
            silent_seconds=now - self._reported,
        )

    def _begin(self, incarnation: int) -> None:
        self._past_counters = self.counters()
        self._past_edges = self.edges()
        self._counters, self._edges, self._base_seconds = {}, {}, {}
        self._window = Window(_WINDOW_SECONDS)
        self.incarnation = incarnation

    def _combine(self, name: str, past: int, newest: int) -> int:
        if name.endswith("_max"):
            return max(past, newest)
        if self.worker.kind == "trainer" and name in CONTINUED:
            return newest if name in self._counters else past
        return past + newest


def sum_edges(many: Iterable[Mapping[str, EdgeCount]]) -> dict[str, EdgeCount]:
    """Counts per edge, added up."""
    result: dict[str, EdgeCount] = {}
    for edges in many:
        for name, edge in edges.items():
            total = result.setdefault(name, EdgeCount())
            total.sent += edge.sent
            total.received += edge.received
            for reason, count in edge.dropped.items():
                total.dropped[reason] = total.dropped.get(reason, 0) + count
    return result
