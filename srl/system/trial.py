"""The trial directory: what one run of an experiment leaves behind, and where each part lies.

::

    trials/cartpole-20260731-142501/
        experiment.yaml             the resolved experiment; can be run as it is
        experiment.as_written       the file that was started from, if there was one
        metrics.jsonl               one JSON object a line
        tensorboard/                event files
        checkpoints/                newest complete sets (srl.system.checkpoint)
        best/                       the version that scored highest in an evaluation, weights only
        logs/                       one log per worker
        main.log                    the controller's log
        summary.json                the result
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from srl.api.errors import ResourceError, UsageError
from srl.api.experiment import Experiment
from srl.api.suggest import nearest
from srl.system.durable import disk_errors, write_file
from srl.system.metrics.json_values import dump_json
from srl.system.structure import StructureError, flatten, unflatten

_PROBE_BYTES = 64 * 1024
_MAX_NAMES = 10_000


CHECKPOINTS = "checkpoints"
BEST = "best"


@dataclass(frozen=True, slots=True)
class TrialDirectory:
    """Paths of one trial.

    Attributes:
        path: The directory, absolute.
    """

    path: Path

    @classmethod
    def create(
        cls, experiment: Experiment, trial_dir: Path | None = None, *, parent: Path = Path("trials")
    ) -> TrialDirectory:
        """Make the directory of a new trial; safe against others that start at the same moment.

        Args:
            experiment: The experiment; its name begins the directory's name.
            trial_dir: The directory itself: new or empty. ``None`` = ``parent/NAME-YYYYmmdd-HHMMSS[-n]``.
            parent: Where directories are made if ``trial_dir`` is ``None``.

        Raises:
            UsageError: ``trial_dir`` holds something already.
            ResourceError: Disk full, read-only or not permitted.
        """
        path = _claim(trial_dir) if trial_dir is not None else _claim_first(_names(parent, experiment.name))
        trial = cls(path.absolute())
        with disk_errors("cannot write into the trial directory", trial.path, _PROBE_BYTES):
            for directory in (trial.tensorboard, trial.checkpoints, trial.logs):
                try:
                    directory.mkdir()
                except FileExistsError:
                    raise UsageError("another trial took this directory just now", where=str(trial.path)) from None
            _probe(trial.path)
        return trial

    @classmethod
    def open(cls, path: Path) -> TrialDirectory:
        """The directory of a trial that ran or runs.

        Raises:
            UsageError: ``path`` does not exist or is no trial; names the newest trial beside it, if there is one.
        """
        trial = cls(path.absolute())
        if trial.experiment.is_file():
            return trial
        nearby = sorted(path.glob("*/experiment.yaml"), key=lambda file: file.stat().st_mtime)
        hint = f"The newest trial in it is {nearby[-1].parent}" if nearby else ""
        what = "this directory is no trial: it has no experiment.yaml"
        if path.is_file():
            what = "this is a file"
            hint = "It stands for several trials: name one of them." if path.name.endswith("-seeds.json") else ""
        elif not path.is_dir():
            what = "no such directory"
            names = [file.parent.name for file in path.parent.glob("*/experiment.yaml")]
            hint = "".join(f"Did you mean '{path.parent / name}'?" for name in nearest(path.name, names, count=1))
        raise UsageError(what, where=str(path), expected="a trial directory, as srl-run makes below trials/", hint=hint)

    @property
    def experiment(self) -> Path:
        """The resolved experiment."""
        return self.path / "experiment.yaml"

    @property
    def experiment_as_written(self) -> Path:
        """A copy of the file that the trial was started from; absent for generated experiments."""
        return self.path / "experiment.as_written"

    @property
    def policies(self) -> Path:
        """The resolved policy specs and the environment's spec."""
        return self.path / "policies.json"

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def best(self) -> Path:
        """Checkpoint of the version that scored highest in an evaluation; weights only."""
        return self.path / BEST

    @property
    def logs(self) -> Path:
        """Logs of the workers."""
        return self.path / "logs"

    @property
    def main_log(self) -> Path:
        """The controller's log."""
        return self.path / "main.log"

    @property
    def summary(self) -> Path:
        """The result."""
        return self.path / "summary.json"

    def worker_log(self, worker: str) -> Path:
        """The log of a worker such as ``actor/0``."""
        return self.logs / f"{worker.replace('/', '-')}.log"

    def write_experiment(self, resolved: str, as_written: str | None = None) -> None:
        """Store the resolved experiment's YAML text, and the file it came from.

        Raises:
            ResourceError: Disk full or read-only.
        """
        if as_written is not None:
            write_file(self.experiment_as_written, as_written.encode())
        write_file(self.experiment, resolved.encode())

    def write_policies(self, environment: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the specs that the trial was resolved to, so that others can act without probing the environment.

        Args:
            environment: ``EnvironmentSpec.to_dict()``.
            policies: Policy name to ``PolicySpec.to_dict()``.

        Raises:
            ResourceError: Disk full or read-only.
        """
        # Bounds of spaces may be infinite, for which JSON has no number: the structure keeps them.
        structure, _ = flatten({"environment": environment, "policies": policies})
        write_file(self.policies, (json.dumps(structure, allow_nan=False, indent=2) + "\n").encode())

    def read_policies(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]] | None:
        """What :meth:`write_policies` stored: the environment, and policies by name; ``None`` if it stored nothing.

        Raises:
            UsageError: The file is damaged.
        """
        try:
            stored = unflatten(json.loads(self.policies.read_text()), {})
            return dict(stored["environment"]), dict(stored["policies"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, StructureError) as error:
            raise UsageError("not a valid file of policies", where=str(self.policies), value=str(error)) from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace ``summary.json``, whole or not at all; NaN and infinity become ``null``.

        Raises:
            ResourceError: Disk full or read-only.
        """
        write_file(self.summary, (dump_json(summary, indent=2) + "\n").encode())

    def read_summary(self) -> dict[str, Any] | None:
        """The summary; ``None`` if the trial has none (yet).

        Raises:
            UsageError: The file is not valid JSON.
        """
        try:
            return dict(json.loads(self.summary.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise UsageError("not a valid summary", where=str(self.summary), value=str(error)) from error


def _names(parent: Path, name: str) -> Iterator[Path]:
    first = parent / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    yield first
    for number in count(2):
        yield first.with_name(f"{first.name}-{number}")


def _claim_first(paths: Iterator[Path]) -> Path:
    for attempt, path in enumerate(paths):
        with disk_errors("cannot make the trial directory", path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # mkdir is atomic: of several trials that start in one second, each gets a name of its own.
                path.mkdir()
            except FileExistsError:
                if path.exists() and attempt < _MAX_NAMES:
                    continue
                raise
            return path
    raise ResourceError("no free name for the trial directory")


def _claim(path: Path) -> Path:
    """Make ``path`` ours: new, or an empty directory (the caller claims it by making folders in it)."""
    with disk_errors("cannot make the trial directory", path):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise UsageError("the trial directory is a file", where=str(path)) from None
        is_empty = not any(path.iterdir())
    if not is_empty:
        has_trial = (path / "experiment.yaml").exists()
        raise UsageError(
            "the trial directory holds a trial already" if has_trial else "the trial directory is not empty",
            where=str(path),
            expected="a new or empty directory",
            hint="Choose another --trial-dir.",
        )
    return path


def _probe(path: Path) -> None:
    """Write a little and make it durable: a full disk shows before anything is started, not at the first checkpoint."""
    probe = path / ".tmp-probe"
    try:
        with open(probe, "wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)
