"""Running experiments from Python: ``srl.run``; one trial, or one after the other with several seeds."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, overload

from srl.api.errors import UsageError, WorkerFailure
from srl.api.experiment import Experiment
from srl.api.importing import refuse_while_importing
from srl.system.durable import write_file
from srl.system.metrics.json_values import dump_json
from srl.trials.experiments import ExperimentLike, Overrides, as_experiment, with_seed
from srl.trials.tables import html_table, text_table
from srl.trials.trial import Trial, load

STOPPED = (130, 143)
"""Exit codes of a trial that a signal ended: no further seed is begun."""


class TrialGroup(Sequence[Trial]):
    """Trials of one experiment with several seeds, in the order in which they ran.

    Attributes:
        trials: The trials; fewer than seeds where a signal ended them all.
        file: The joint summary on disk; ``None`` if it was not written.
    """

    def __init__(self, trials: Sequence[Trial], file: Path | None = None) -> None:
        self.trials = tuple(trials)
        self.file = file

    def __len__(self) -> int:
        """Number of trials."""
        return len(self.trials)

    def __getitem__(self, index: Any) -> Any:
        """One trial, or a tuple of some."""
        return self.trials[index]

    @property
    def exit_code(self) -> int:
        """That of the trial that a signal ended, else 1 if one failed, else 0."""
        codes = [trial.exit_code or 0 for trial in self.trials]
        return next((code for code in codes if code in STOPPED), max(codes, default=0))

    @property
    def summary(self) -> dict[str, Any]:
        """One entry per trial, and mean and std over the trials; std is that of a sample (n - 1), ``None`` for one."""
        rows = [_row(trial) for trial in self.trials]
        return {
            "experiment": self.trials[0].experiment.name if self.trials else None,
            "seeds": [row["seed"] for row in rows],
            "exit_code": self.exit_code,
            **{name: _over_seeds([row[name] for row in rows]) for name in _OVER_SEEDS},
            "trials": rows,
        }

    def __repr__(self) -> str:
        """A short table."""
        return "\n".join(text_table(*self._table()))

    def _repr_html_(self) -> str:
        return html_table(*self._table())

    def _table(self) -> tuple[list[str], list[list[Any]]]:
        summary = self.summary
        names = ["seed", *_OVER_SEEDS, "env_steps", "exit_reason", "trial"]
        shown = [{**row, "trial": _shortest(row["trial"])} for row in summary["trials"]]
        rows = [[row[name] for name in names] for row in shown]
        means = [summary[name]["mean"] for name in _OVER_SEEDS]
        stds = [summary[name]["std"] for name in _OVER_SEEDS]
        return names, [*rows, ["mean", *means, None, "", ""], ["std", *stds, None, "", ""]]


_OVER_SEEDS = ("evaluation", "best_evaluation", "training_return", "env_steps_per_second")


@overload
def run(
    experiment: ExperimentLike,
    *,
    overrides: Overrides = ...,
    trial_dir: str | Path | None = ...,
    seed: int | None = ...,
    seeds: None = ...,
    screen: str = ...,
    debug: bool = ...,
    allow_plugins: bool = ...,
    check: bool = ...,
) -> Trial: ...
@overload
def run(
    experiment: ExperimentLike,
    *,
    overrides: Overrides = ...,
    trial_dir: str | Path | None = ...,
    seed: None = ...,
    seeds: Sequence[int],
    screen: str = ...,
    debug: bool = ...,
    allow_plugins: bool = ...,
    check: bool = ...,
) -> TrialGroup: ...
def run(
    experiment: ExperimentLike,
    *,
    overrides: Overrides = (),
    trial_dir: str | Path | None = None,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    screen: str = "auto",
    debug: bool = False,
    allow_plugins: bool = True,
    check: bool = True,
) -> Trial | TrialGroup:
    """Run an experiment to its end; what ``srl-run`` does.

    Works in scripts, notebooks and threads. In a script that is started by its file name put the call under
    ``if __name__ == "__main__":`` if the same file defines the environment or the algorithm.

    Args:
        experiment: A bundled name, the path of a YAML or Python file, a mapping, or an ``Experiment``.
        overrides: ``{"stop.env_steps": 100_000}``, or ``["stop.env_steps=100000"]`` as on the command line.
        trial_dir: New or empty directory for results; ``None`` = ``trials/NAME-TIME``. With ``seeds`` each trial's
            directory is this with ``-seed1``, ... behind it.
        seed: Root of all randomness; ``None`` = the experiment's.
        seeds: Several seeds, one trial after the other.
        screen: ``auto`` (live in a terminal, else plain lines), ``live``, ``plain`` or ``off``.
        debug: Suspend the bounds on waits.
        allow_plugins: False refuses Python experiments and every plugin that is not built in.
        check: Raise if a trial failed or was interrupted; else the trial says so in its ``exit_code``.

    Returns:
        The trial; with ``seeds`` a group of them.

    Raises:
        SRLError: The experiment is wrong, or something it needs is not there; no worker was started.
        WorkerFailure: ``check`` and a trial failed.
        KeyboardInterrupt: ``check`` and Ctrl-C (or SIGTERM) stopped it; its last checkpoint is written.
    """
    refuse_while_importing("starts a trial")
    if seed is not None and seeds is not None:
        raise UsageError("give one seed or several, not both", value=f"seed={seed}, seeds={list(seeds)}")
    valid = as_experiment(experiment, overrides, allow_plugins=allow_plugins)
    if seed is not None:
        valid = with_seed(valid, seed)
    directory = Path(trial_dir) if trial_dir is not None else None
    if seeds is not None:
        group = run_seeds(valid, seeds, trial_dir=directory, screen=screen, debug=debug)
        if check:
            for one in group:
                _raise_if_bad(one)
        return group
    trial = run_one(valid, trial_dir=directory, screen=screen, debug=debug)
    if check:
        _raise_if_bad(trial)
    return trial


def run_one(
    experiment: Experiment, *, trial_dir: Path | None = None, screen: str = "auto", debug: bool = False
) -> Trial:
    """Run a valid experiment; arguments as for :func:`run`."""
    from srl.distributed.controller import run_trial

    result = run_trial(experiment, trial_dir=trial_dir, screen=screen, debug=debug)
    return Trial(result.trial_dir, exit_code=result.exit_code)


def run_seeds(
    experiment: Experiment,
    seeds: Sequence[int],
    *,
    trial_dir: Path | None = None,
    screen: str = "auto",
    debug: bool = False,
) -> TrialGroup:
    """Run a valid experiment once per seed; arguments as for :func:`run`.

    A failed trial does not keep the others from running; a signal ends them all. The joint summary is written beside
    the trials after each of them.

    Raises:
        UsageError: No seed, a seed twice, or a directory that is taken.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise UsageError("seeds must be some, each once", where="seeds", value=list(seeds))
    experiments = [with_seed(experiment, seed) for seed in seeds]
    base = trial_dir if trial_dir is not None else _free_base(experiment.name, seeds)
    directories = [_of_seed(base, seed) for seed in seeds]
    for directory in directories:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError("the directory of one seed's trial is taken", where=str(directory))
    file = base.with_name(f"{base.name}-seeds.json")
    group = TrialGroup((), file)
    for one, directory in zip(experiments, directories, strict=True):
        trial = run_one(one, trial_dir=directory, screen=screen, debug=debug)
        group = TrialGroup((*group, trial), file)
        # After each: whatever ends the next one early, Ctrl-C between two of them included, these have a result.
        write_file(file, (dump_json(group.summary, indent=2) + "\n").encode())
        if trial.exit_code in STOPPED:
            break
    return group


def load_all(paths: Sequence[Path]) -> list[Trial]:
    """Trials from their directories; the file of a joint summary stands for all its trials; each counts once.

    Raises:
        UsageError: A path is neither.
    """
    found: dict[Path, Trial] = {}
    for path in paths:
        for directory in _members(path) if path.is_file() else [path]:
            trial = load(directory)
            found.setdefault(trial.path.resolve(), trial)
    return list(found.values())


def _members(file: Path) -> list[Path]:
    try:
        return [file.parent / Path(row["trial"]).name for row in json.loads(file.read_text())["trials"]]
    except (ValueError, KeyError, TypeError):
        raise UsageError("neither a trial directory nor a joint summary of several seeds", where=str(file)) from None


def _of_seed(base: Path, seed: int) -> Path:
    return base.with_name(f"{base.name}-seed{seed}")


def _free_base(name: str, seeds: Sequence[int]) -> Path:
    """``trials/NAME-TIME``, with a number behind it where trials of the same second are there already."""

    def candidates() -> Iterator[Path]:
        first = Path("trials") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        yield first
        for number in count(2):
            yield first.with_name(f"{first.name}-{number}")

    return next(base for base in candidates() if not any(_of_seed(base, seed).exists() for seed in seeds))


def _row(trial: Trial) -> dict[str, Any]:
    summary = trial.summary
    return {
        "seed": trial.experiment.seed,
        "evaluation": (summary.get("evaluation") or {}).get("mean_return"),
        "best_evaluation": (summary.get("best_evaluation") or {}).get("mean_return"),
        "training_return": (summary.get("episodes") or {}).get("return_mean_last_100"),
        "env_steps": summary.get("env_steps"),
        "env_steps_per_second": summary.get("env_steps_per_second"),
        "wall_seconds": summary.get("wall_seconds"),
        "exit_code": trial.exit_code,
        "exit_reason": summary.get("exit_reason"),
        "trial": str(trial.path),
    }


def _shortest(path: str) -> str:
    """Relative to the current directory where it lies below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    numbers = [value for value in values if value is not None]
    mean = sum(numbers) / len(numbers) if numbers else None
    std = None
    if mean is not None and len(numbers) > 1:
        std = math.sqrt(sum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1))
    return {"mean": mean, "std": std, "count": len(numbers)}


def _raise_if_bad(trial: Trial) -> None:
    if trial.exit_code in STOPPED:
        raise KeyboardInterrupt(f"the trial was {trial.summary.get('exit_reason')}; what there is of it: {trial.path}")
    if trial.exit_code:
        failures = trial.summary.get("failures") or [{"worker": "", "text": "the trial failed"}]
        raise WorkerFailure(
            failures[0]["text"],
            where=failures[0]["worker"],
            hint=f"More is in {trial.path / 'main.log'}, and in logs/ beside it.",
        )
