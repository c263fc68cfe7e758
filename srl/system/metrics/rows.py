"""Rows per worker group and per stream, from what the workers report and what the experiment declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from srl.api.experiment import ActorGroup, Experiment, PolicyGroup, SampleStream, TrainerGroup
from srl.system.metrics.ledger import WorkerLedger, sum_edges
from srl.system.metrics.snapshot import EdgeRow, GroupRow, WorkerRow
from srl.system.metrics.time_shares import busy, mean_shares
from srl.system.report import Activity, EdgeCount


def group_rows(
    experiment: Experiment, ledgers: Iterable[WorkerLedger], rows: Sequence[WorkerRow]
) -> tuple[GroupRow, ...]:
    """One row per worker group, in the order of the experiment."""
    members: dict[str, list[WorkerRow]] = {name: [] for name in experiment.workers}
    for ledger, row in zip(ledgers, rows, strict=True):
        members[ledger.worker.group].append(row)
    result = []
    for name, group in experiment.workers.items():
        mean = mean_shares(row.shares for row in members[name])
        states = Counter(row.state for row in members[name])
        result.append(GroupRow(name, group.kind, dict(states), mean, busy(mean)))
    return tuple(result)


def edge_rows(
    experiment: Experiment,
    edges: Iterable[Mapping[str, EdgeCount]],
    groups: Sequence[GroupRow],
    flow: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[EdgeRow, ...]:
    """One row per stream, in the order of the experiment.

    Args:
        experiment: The declared graph.
        edges: Every worker's counts.
        groups: What the groups' time goes to.
        flow: Flow-control parameters by sample stream, while the trial runs: the ends report at different times then,
            and what no longer fits into the slots was received, even if its receiver has not said so yet. ``None`` =
            the counts are the last ones.
    """
    counts = sum_edges(edges)
    shares = {group.name: group.shares for group in groups}
    result = []
    for name, stream in experiment.streams.items():
        count = counts.get(name, EdgeCount())
        producers, consumers = _ends(experiment, name)
        left = count.sent - sum(count.dropped.values())
        room = _room((flow or {}).get(name, {}))
        received = count.received if room is None else max(count.received, left - room)
        waiting = Activity.WAITING_FOR_CREDIT if stream.kind == "sample" else Activity.WAITING_FOR_INFERENCE
        result.append(
            EdgeRow(
                name=name,
                kind=stream.kind,
                sent=count.sent,
                received=received,
                in_flight=max(0, left - received),
                dropped=dict(count.dropped),
                producers_wait=_mean_share(shares, producers, waiting),
                consumers_wait=_mean_share(shares, consumers, Activity.IDLE),
            )
        )
    return tuple(result)


def whole_run_edges(
    experiment: Experiment, edges: Iterable[Mapping[str, EdgeCount]], shares: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, Any]]:
    """The streams of a finished trial for its summary: counts, and shares of the whole training time.

    Args:
        experiment: The declared graph.
        edges: Every worker's counts.
        shares: Shares of time by worker name.
    """
    groups = []
    for name, group in experiment.workers.items():
        mean = mean_shares(own for worker, own in shares.items() if worker.rpartition("/")[0] == name)
        groups.append(GroupRow(name, group.kind, {}, mean, busy(mean)))
    keep = ("kind", "sent", "received", "in_flight", "dropped", "producers_wait", "consumers_wait")
    rows = edge_rows(experiment, edges, groups)
    return {row.name: {field: getattr(row, field) for field in keep} for row in rows}


def lag_bound(experiment: Experiment, flow: Mapping[str, Mapping[str, Any]] | None = None) -> int | None:
    """The smallest bound on the policy lag of any sample stream; ``None`` = no bound.

    Args:
        experiment: The experiment.
        flow: Flow-control parameters by stream, with the bound that ``default`` stands for.
    """
    declared = {
        name: stream.max_policy_lag for name, stream in experiment.streams.items() if isinstance(stream, SampleStream)
    }
    bounds = [(flow or {}).get(name, {}).get("max_policy_lag", bound) for name, bound in declared.items()]
    return min((bound for bound in bounds if isinstance(bound, int)), default=None)


def _room(flow: Mapping[str, Any]) -> int | None:
    """How many blocks a stream holds; ``None`` where nobody knows."""
    return int(flow["slots"] * flow["ranks"]) if "slots" in flow else None


def _ends(experiment: Experiment, stream: str) -> tuple[list[str], list[str]]:
    """Names of the groups at a stream's two ends."""
    producers, consumers = [], []
    for name, group in experiment.workers.items():
        if isinstance(group, ActorGroup):
            if any(stream in (agents.samples, agents.inference) for agents in group.agents):
                producers.append(name)
        elif (isinstance(group, TrainerGroup) and group.samples == stream) or (
            isinstance(group, PolicyGroup) and group.serves == stream
        ):
            consumers.append(name)
    return producers, consumers


def _mean_share(shares: Mapping[str, Mapping[str, float]], groups: Sequence[str], activity: Activity) -> float:
    present = [shares[name].get(activity, 0.0) for name in groups if shares.get(name)]
    return sum(present) / len(present) if present else 0.0
