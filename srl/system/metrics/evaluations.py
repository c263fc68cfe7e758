"""Evaluations put together from the parts that several evaluators report: exactly the asked number of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from srl.system.metrics.snapshot import EvaluationResult
from srl.system.report import Evaluation

_MAX_OPEN = 64


class EvaluationMerger:
    """Merges parts of one evaluator group. Pure.

    The n-th part that a worker reports for a version belongs to the n-th evaluation of that version, so a second
    evaluation of the same version never takes up episodes of the first.

    Args:
        episodes: Episodes of one whole evaluation, over all workers of the group.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._rounds: dict[tuple[str, int, str], int] = {}
        self._open: dict[tuple[str, int, int], dict[str, Evaluation]] = {}

    def add(self, worker: str, part: Evaluation) -> tuple[EvaluationResult | None, str | None]:
        """Take one part.

        Returns:
            The evaluation if this part completes it, and a warning if something does not fit.
        """
        counter = (part.policy, part.policy_version, worker)
        number = self._rounds.get(counter, 0)
        self._rounds[counter] = number + 1
        key = (part.policy, part.policy_version, number)
        parts = self._open.setdefault(key, {})
        parts[worker] = part
        count = sum(len(one.returns) for one in parts.values())
        if count == self._episodes:
            del self._open[key]
            return _merge(parts), None
        if count > self._episodes:
            del self._open[key]
            return None, (
                f"evaluation of version {part.policy_version} discarded: {count} episodes were reported, "
                f"{self._episodes} were asked for"
            )
        return None, self._discard_oldest()

    def _discard_oldest(self) -> str | None:
        """Keep memory bounded when a part never comes."""
        if len(self._open) <= _MAX_OPEN:
            return None
        key = next(iter(self._open))
        parts = self._open.pop(key)
        count = sum(len(one.returns) for one in parts.values())
        return f"evaluation of version {key[1]} discarded: only {count} of {self._episodes} episodes were reported"


def scores(result: EvaluationResult) -> dict[str, Any]:
    """An evaluation in numbers, as it stands in ``summary.json`` and as ``srl-run evaluate`` gives it."""
    return {
        "mean_return": result.mean,
        "std": result.std,
        "min": min(result.returns),
        "max": max(result.returns),
        "mean_length": sum(result.lengths) / len(result.lengths),
        "episodes": len(result.returns),
        "policy": result.policy,
        "policy_version": result.policy_version,
        "env_steps": result.env_steps,
    }


def _merge(parts: Mapping[str, Evaluation]) -> EvaluationResult:
    ordered = [parts[worker] for worker in sorted(parts, key=_natural)]
    return EvaluationResult(
        policy=ordered[0].policy,
        policy_version=ordered[0].policy_version,
        env_steps=ordered[0].env_steps,
        returns=tuple(value for part in ordered for value in part.returns),
        lengths=tuple(value for part in ordered for value in part.lengths),
        wall_seconds=max(part.wall_seconds for part in ordered),
    )


def _natural(worker: str) -> tuple[str, int]:
    group, _, index = worker.rpartition("/")
    return group, int(index) if index.isdigit() else 0
