"""Where the time goes: shares per activity, and which kind of worker the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from srl.system.metrics.snapshot import GroupRow
from srl.system.report import Activity

BUSY = (
    Activity.STEPPING,
    Activity.INFERRING,
    Activity.ASSEMBLING,
    Activity.TRAINING,
    Activity.PUBLISHING,
    Activity.EVALUATING,
)
_WAITS = {
    ("actor", Activity.WAITING_FOR_CREDIT): "for credit",
    ("actor", Activity.WAITING_FOR_INFERENCE): "for inference",
    ("trainer", Activity.IDLE): "for blocks",
    ("trainer", Activity.WAITING_FOR_RANKS): "for other ranks",
    ("policy", Activity.IDLE): "for requests",
}
_MIN_SHARE = 0.02


def shares(seconds: Mapping[str, float], since: Mapping[str, float] | None = None) -> dict[str, float]:
    """Shares (sum 1) of the seconds per activity, of those after ``since`` if given; empty if no time has passed."""
    spent = {name: max(0.0, value - (since or {}).get(name, 0.0)) for name, value in seconds.items()}
    total = sum(spent.values())
    return {name: value / total for name, value in spent.items()} if total > 0 else {}


def busy(of: Mapping[str, float]) -> float:
    """The share of time that is spent on work, not on waiting."""
    return sum(of.get(activity, 0.0) for activity in BUSY)


def mean_shares(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of the shares of several workers; workers without any are left out."""
    total: dict[str, float] = {}
    count = 0
    for row in rows:
        if row:
            count += 1
            for name, share in row.items():
                total[name] = total.get(name, 0.0) + share
    return {name: share / count for name, share in total.items()}


def bottleneck(groups: Sequence[GroupRow]) -> str:
    """One sentence: the group with the largest share of work, and what the others wait for; empty without figures.

    Evaluators are left out: nobody waits for them.
    """
    candidates = [group for group in groups if group.kind != "evaluator" and group.shares]
    if not candidates:
        return ""
    slowest = max(candidates, key=lambda group: group.busy)
    parts = sorted(((slowest.shares.get(activity, 0.0), activity.value) for activity in BUSY), reverse=True)
    detail = ", ".join(f"{name} {share:.0%}" for share, name in parts if share >= _MIN_SHARE)
    sentence = f"{slowest.name} is the bottleneck: busy {slowest.busy:.0%} of its time" + (
        f" ({detail})" if detail else ""
    )
    waits = {group.name: _waits_of(group) for group in candidates if group is not slowest}
    return sentence + "".join(f"; {name} waits {' and '.join(of)}" for name, of in waits.items() if of)


def _waits_of(group: GroupRow) -> list[str]:
    return [
        f"{group.shares.get(activity, 0.0):.0%} {what}"
        for (kind, activity), what in _WAITS.items()
        if kind == group.kind and group.shares.get(activity, 0.0) >= _MIN_SHARE
    ]
