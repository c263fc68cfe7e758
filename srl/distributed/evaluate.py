"""Scoring a trial's policy after the trial: deterministic actions, statistics read-only, a fixed number of episodes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.experiment import EvaluatorGroup, Experiment
from srl.api.loading import UnreadOptionWarning, load_experiment
from srl.api.policy import ActingPolicy, PolicySpec
from srl.api.registry import environment_factory
from srl.api.suggest import did_you_mean, nearest
from srl.distributed.graph import resolve
from srl.distributed.probing import probe_environment
from srl.system.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, newest_complete
from srl.system.metrics.evaluations import scores
from srl.system.metrics.snapshot import EvaluationResult
from srl.system.seeding import check_seed, environment_seeds
from srl.system.trial import TrialDirectory
from srl.system.workers.acting_check import build_acting
from srl.system.workers.evaluator import run_episodes

DEFAULT_ENVIRONMENTS = 10


@dataclass(frozen=True)
class SavedPolicy:
    """One saved version of a trial's policy, ready to act.

    Attributes:
        directory: The trial directory.
        experiment: The trial's experiment; its plugins are imported.
        spec: The policy as plain data.
        checkpoint: Where the weights come from.
        acting: Loaded with them.
    """

    directory: TrialDirectory
    experiment: Experiment
    spec: PolicySpec
    checkpoint: Checkpoint
    acting: ActingPolicy


def trial_experiment(directory: TrialDirectory) -> Experiment:
    """The resolved experiment of a trial; what nothing reads in it was said when the trial was started."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreadOptionWarning)
        return load_experiment(str(directory.experiment))


def open_policy(trial: Path, checkpoint: str | None = None, policy: str | None = None) -> SavedPolicy:
    """Load a saved version of a policy.

    Args:
        trial: The trial directory.
        checkpoint: As for :func:`evaluate_trial`.
        policy: Policy name; ``None`` = the evaluators' policy, or the first one.

    Raises:
        UsageError: No trial, no checkpoint, an unknown policy, or a checkpoint of another policy.
        CheckpointError: The checkpoint that was named is damaged.
    """
    directory = TrialDirectory.open(trial)
    experiment = trial_experiment(directory)
    group = _evaluators(experiment)
    name = policy or (group.policy if group else next(iter(experiment.policies)))
    saved = _checkpoint(directory, checkpoint)
    spec = _policy_spec(directory, experiment, name)
    weights = saved.weights()
    if saved.path.resolve().parent not in (directory.checkpoints.resolve(), directory.best.resolve()):
        _check_weights(spec, saved, weights)
    acting = build_acting(spec)
    acting.load(weights)
    return SavedPolicy(directory, experiment, spec, saved, acting)


def evaluate_trial(
    trial: Path,
    episodes: int,
    checkpoint: str | None = None,
    *,
    policy: str | None = None,
    environments: int | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Run episodes with a saved version of a policy, in this process.

    Args:
        trial: The trial directory.
        episodes: Number of episodes; they are dealt out over the environments in advance.
        checkpoint: ``best`` (the version that scored highest in the trial), ``newest``, a directory, the name of a
            checkpoint or its policy version; ``None`` = the best where evaluators kept one, else the newest.
        policy: Policy name; ``None`` = the evaluators' policy, or the first one.
        environments: Environments side by side; ``None`` = as many as the trial's evaluators have, or 10.
        seed: Root of the environments' randomness; ``None`` = the experiment's seed.

    Returns:
        ``mean_return``, ``std``, ``min``, ``max``, ``mean_length``, ``episodes``, ``policy``, ``policy_version``,
        ``env_steps``, ``checkpoint``, ``weights_sha256``, ``seconds``, ``returns``.

    Raises:
        UsageError: No trial, no checkpoint, an unknown policy, no episodes or environments asked for, or no seed.
        CheckpointError: The checkpoint that was named is damaged.
    """
    if episodes < 1:
        raise UsageError("nothing to evaluate", value=episodes, expected="at least 1 episode")
    if environments is not None and environments < 1:
        raise UsageError("nothing to evaluate in", where="environments", value=environments, expected="at least 1")
    if seed is not None:
        check_seed(seed)
    opened = open_policy(trial, checkpoint, policy)
    experiment, spec, saved = opened.experiment, opened.spec, opened.checkpoint
    group = _evaluators(experiment)
    count = min(episodes, environments or (group.environments if group else DEFAULT_ENVIRONMENTS))
    began = time.monotonic()
    returns, lengths = run_episodes(
        environment_factory(experiment.model_dump(mode="json")["environment"]),
        opened.acting,
        spec,
        episodes=episodes,
        environments=count,
        seeds=_seeds(experiment.seed if seed is None else seed, count),
    )
    seconds = time.monotonic() - began
    env_steps = int(saved.counters.get("env_steps", 0))
    result = EvaluationResult(spec.name, saved.version, env_steps, tuple(returns), tuple(lengths), seconds)
    return {
        **scores(result),
        "checkpoint": str(saved.path),
        "weights_sha256": saved.weights_sha256,
        "seconds": seconds,
        "returns": returns,
    }


def _evaluators(experiment: Experiment) -> EvaluatorGroup | None:
    return next((one for one in experiment.workers.values() if isinstance(one, EvaluatorGroup)), None)


def _checkpoint(directory: TrialDirectory, wanted: str | None) -> Checkpoint:
    root = directory.checkpoints
    if wanted in (None, "best", "newest"):
        best = newest_complete(directory.best) if wanted != "newest" else None
        found = best if best is not None or wanted == "best" else newest_complete(root)
        if found is None:
            place = directory.best if wanted == "best" else root
            raise UsageError(
                "the trial has no complete checkpoint",
                where=str(place),
                value=", ".join(f"{path.name}, damaged" for path in list_checkpoints(place)) or None,
                hint="A trial writes its first one after checkpoints.interval_seconds and its last one at its end; "
                "its evaluators keep the best one.",
            )
        return found
    assert wanted is not None  # narrowed by the test above
    present = [*list_checkpoints(directory.best), *list_checkpoints(root)]
    version = f"version-{int(wanted):09d}" if wanted.isdecimal() else ""
    # Of several sets of one version the last one counts.
    for path in reversed(present):
        if wanted == path.name or version in (path.name, "-".join(path.name.split("-")[:2])):
            return load_checkpoint(path)
    if Path(wanted).is_dir():
        return load_checkpoint(Path(wanted))
    raise UsageError(
        "there is no such checkpoint",
        where=str(root),
        value=wanted,
        expected=", ".join(["best", "newest", *dict.fromkeys(path.name for path in present), "or a directory"]),
        hint="".join(f"Did you mean '{name}'?" for name in nearest(wanted, ["best", "newest"], count=1)),
    )


def _check_weights(spec: PolicySpec, saved: Checkpoint, weights: Mapping[str, NDArray[Any]]) -> None:
    """Weights from elsewhere must be those of this policy: others may fit it in part, and act without a word."""
    from srl.system.workers.algorithm_check import make_module  # imports torch, which acting need not

    module = make_module(spec)
    wanted = {name: tuple(tensor.shape) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    found = {name: array.shape for name, array in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UsageError(
                f"the checkpoint is of another policy than '{spec.name}' of this trial: '{name}' differs",
                where=str(saved.path),
                value=str(found.get(name, "absent")),
                expected=str(wanted.get(name, "absent")),
            )


def _policy_spec(directory: TrialDirectory, experiment: Experiment, name: str) -> PolicySpec:
    """As the trial resolved it; resolved anew if the trial did not store it."""
    if name not in experiment.policies:
        raise UsageError(
            "there is no such policy",
            value=name,
            hint=did_you_mean(name, experiment.policies, "policies of this trial"),
        )
    stored = directory.read_policies()
    if stored is not None and name in stored[1]:
        return PolicySpec.from_dict(stored[1][name])
    return resolve(experiment, probe_environment(experiment), devices=None).policies[name]


def _seeds(root: int, count: int) -> list[int]:
    # A kind of its own: the episodes of the trial's actors and evaluators are not repeated.
    return environment_seeds(root, kind="evaluate", worker=0, incarnation=0, ring_group=0, count=count)
