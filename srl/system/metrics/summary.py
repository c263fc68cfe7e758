"""The content of ``summary.json``."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import srl
from srl.system.metrics.evaluations import scores
from srl.system.metrics.json_values import json_safe
from srl.system.metrics.snapshot import EvaluationResult
from srl.system.worker import WorkerId

if TYPE_CHECKING:
    from srl.system.metrics.monitor import TrialMonitor

Counters = Sequence[tuple[WorkerId, Mapping[str, int]]]


def build_summary(
    *,
    monitor: TrialMonitor,
    counters: Counters,
    worker_shares: Mapping[str, Mapping[str, float]],
    edges: Mapping[str, Mapping[str, Any]],
    incarnations: Mapping[str, int],
    digests: Mapping[str, str],
    episode_count: int,
    entries: Mapping[str, Any],
) -> dict[str, Any]:
    """Put the summary together; valid as JSON.

    Args:
        monitor: Totals.
        counters: Counters of every worker over all its incarnations.
        worker_shares: Shares of the whole training time, by worker.
        edges: Counts and waits of every stream.
        incarnations: Newest incarnation, by worker.
        digests: Digest of the last weights, by trainer worker (of every rank: they are equal).
        episode_count: Finished training episodes.
        entries: What only the caller knows: exit reason, seconds, digest, command.
    """
    trainer = _total(counters, "trainer")
    seconds = monitor.training_seconds
    lag_rows = trainer.get("policy_lag_rows", 0)
    evaluations = monitor.evaluations
    summary = {
        "experiment": monitor.experiment.name,
        "exit_reason": entries["exit_reason"],
        "seed": monitor.experiment.seed,
        "env_steps": monitor.env_steps,
        "frames": monitor.frames,
        "wall_seconds": entries["wall_seconds"],
        "start_up_seconds": entries["start_up_seconds"],
        "training_seconds": seconds,
        "env_steps_per_second": monitor.env_steps / seconds if seconds > 0 else None,
        "frames_per_second": monitor.frames / seconds if seconds > 0 else None,
        "updates": monitor.updates,
        "gradient_steps": _largest(counters, "gradient_steps"),
        "policy_version": monitor.policy_version,
        "policy_lag": {
            "mean": trainer.get("policy_lag_sum", 0) / lag_rows if lag_rows else None,
            "max": _largest(counters, "policy_lag_max") if lag_rows else None,
        },
        "blocks": _account(counters, "blocks"),
        "rows": _account(counters, "rows"),
        "block_lengths": _lengths(trainer),
        "stragglers": trainer.get("stragglers", 0),
        "non_finite": {
            "environment_values": _total(counters, "actor").get("non_finite", 0),
            "updates_skipped": trainer.get("updates_skipped", 0),
        },
        "episodes": {
            "count": episode_count,
            "return_mean_last_100": monitor.episode_return,
            "env_steps_mean_last_100": monitor.episode_env_steps,
            "frames_mean_last_100": frames_of(monitor.episode_env_steps, monitor.frames_per_env_step),
        },
        "evaluation": _scores(_deciding(monitor, entries["exit_reason"]), monitor) if evaluations else None,
        "best_evaluation": _scores(max(evaluations, key=lambda one: one.mean), monitor) if evaluations else None,
        "evaluations": len(evaluations),
        "workers": {
            name: {
                "incarnations": incarnations[name] + 1,
                "shares": {k: round(v, 4) for k, v in shares.items()},
                **({"weights_sha256": digests[name]} if name in digests else {}),
            }
            for name, shares in worker_shares.items()
        },
        "edges": dict(edges),
        **entries,
        "versions": versions(),
    }
    return dict(json_safe(summary))


def frames_of(env_steps: float | None, frames_per_env_step: float) -> float | None:
    """Frames under so many env steps; ``None`` of ``None``."""
    return None if env_steps is None else env_steps * frames_per_env_step


def _scores(result: EvaluationResult, monitor: TrialMonitor) -> dict[str, Any]:
    found = scores(result)
    return {**found, "mean_frames": frames_of(found["mean_length"], monitor.frames_per_env_step)}


def _deciding(monitor: TrialMonitor, exit_reason: Any) -> EvaluationResult:
    """The evaluation that ended the trial, where one did; else that of the newest version.

    Evaluators work side by side: one that began earlier may end after the last version was scored.
    """
    target = monitor.experiment.stop.evaluation_return
    if exit_reason == "evaluation_return" and target is not None:
        return next(result for result in monitor.evaluations if result.mean >= target)
    return max(reversed(monitor.evaluations), key=lambda one: one.policy_version)


def versions() -> dict[str, str | None]:
    """Versions of SRL, of what decides results, and of the platform; ``None`` where a package is not installed."""
    result: dict[str, str | None] = {
        "srl": srl.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for package in ("torch", "gymnasium"):
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = None
    result["platform"] = platform.platform()
    return result


def _total(counters: Counters, kind: str | None = None) -> dict[str, int]:
    result: dict[str, int] = {}
    for worker, values in counters:
        if kind is None or worker.kind == kind:
            for name, value in values.items():
                result[name] = result.get(name, 0) + value
    return result


def _largest(counters: Counters, name: str) -> int:
    return max((values.get(name, 0) for worker, values in counters if worker.kind == "trainer"), default=0)


def _account(counters: Counters, unit: str) -> dict[str, Any]:
    """``produced = trained + in_flight + dropped + unaccounted``; the last is 0 where nothing was lost from sight.

    Where the trainer reports what it holds, a block that is with neither end is still on its way only while the trial
    runs; in the last reports it is ``unaccounted``.
    """
    total = _total(counters)
    prefix = f"{unit}_dropped/"
    dropped = {name.removeprefix(prefix): value for name, value in total.items() if name.startswith(prefix)}
    produced, trained = total.get(f"{unit}_produced", 0), total.get(f"{unit}_trained", 0)
    rest = produced - trained - sum(dropped.values())
    in_flight = total.get(f"{unit}_in_flight", rest)
    return {
        "produced": produced,
        "trained": trained,
        "in_flight": in_flight,
        "dropped": dropped,
        "unaccounted": rest - in_flight,
    }


def _lengths(trainer: Mapping[str, int]) -> dict[str, Any]:
    """Blocks by their number of rows, in classes of powers of two: a bias in what is dropped shows here."""
    result: dict[str, Any] = {"trained": {}, "dropped": {}}
    for name, number in sorted(trainer.items()):
        kind, _, rest = name.partition("/")
        if kind == "lengths_trained":
            result["trained"][rest] = number
        elif kind == "lengths_dropped":
            reason, _, length = rest.rpartition("/")
            result["dropped"].setdefault(reason, {})[length] = number
    return result
