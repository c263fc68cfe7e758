"""One trial as an object: ``srl.load(path)``, and what ``srl.run`` returns."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srl.api.experiment import Experiment
from srl.system.trial import TrialDirectory
from srl.trials.metrics import Metrics
from srl.trials.tables import html_table, text_table

if TYPE_CHECKING:
    from srl.trials.exporting import Exported
    from srl.trials.policy import LoadedPolicy


def load(path: str | Path) -> Trial:
    """A trial that ran, or runs now.

    Args:
        path: Its directory.

    Raises:
        UsageError: There is no trial; names the newest one below ``path``, if there is one.
    """
    return Trial(TrialDirectory.open(Path(path).expanduser()).path)


class Trial:
    """One run of an experiment, with its directory.

    Args:
        path: The directory.
        exit_code: How it ended, if that is known better than from its summary.

    Attributes:
        path: The directory.
    """

    def __init__(self, path: Path, *, exit_code: int | None = None) -> None:
        self.path = path
        self._directory = TrialDirectory(path)
        self._exit_code = exit_code

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment.

        Raises:
            ExperimentError: It cannot be read any more, such as where a plugin is gone.
        """
        from srl.distributed.evaluate import trial_experiment

        return trial_experiment(self._directory)

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``; empty while the trial runs."""
        return self._directory.read_summary() or {}

    @property
    def exit_code(self) -> int | None:
        """0 done, 1 failed, 130 interrupted, 143 terminated; ``None`` while it runs."""
        code = self.summary.get("exit_code") if self._exit_code is None else self._exit_code
        return None if code is None else int(code)

    @property
    def metrics(self) -> Metrics:
        """The curves, as far as they are written."""
        return Metrics.read(self._directory.metrics)

    @cached_property
    def policy(self) -> LoadedPolicy:
        """The best version's policy where evaluators kept one, else the newest; see :meth:`load_policy`."""
        return self.load_policy()

    def load_policy(self, checkpoint: str | None = None, name: str | None = None) -> LoadedPolicy:
        """A policy that acts.

        Args:
            checkpoint: ``best``, ``newest``, a checkpoint's name, version or directory; ``None`` = best, else newest.
            name: Policy name; ``None`` = the evaluators' policy, or the first one.

        Raises:
            UsageError: There is no such checkpoint or policy.
            CheckpointError: The checkpoint is damaged.
        """
        from srl.trials.policy import LoadedPolicy

        return LoadedPolicy.open(self.path, checkpoint, name)

    def evaluate(
        self,
        episodes: int = 100,
        checkpoint: str | None = None,
        *,
        policy: str | None = None,
        environments: int | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Score a saved version: deterministic actions, statistics read-only.

        Args and errors: :func:`srl.distributed.evaluate.evaluate_trial`.
        """
        from srl.distributed.evaluate import evaluate_trial

        return evaluate_trial(self.path, episodes, checkpoint, policy=policy, environments=environments, seed=seed)

    def video(
        self,
        path: str | Path | None = None,
        *,
        episodes: int = 1,
        checkpoint: str | None = None,
        policy: str | None = None,
        seed: int | None = None,
    ) -> Path:
        """Film episodes; arguments and errors: :func:`srl.trials.video.make_video`.

        Returns:
            The file, by default ``video-VERSION.mp4`` in the trial directory.
        """
        from srl.trials.video import make_video

        return make_video(self.path, path, episodes=episodes, checkpoint=checkpoint, policy=policy, seed=seed).path

    def export(
        self,
        directory: str | Path | None = None,
        *,
        formats: tuple[str, ...] = ("onnx", "torchscript"),
        checkpoint: str | None = None,
        policy: str | None = None,
    ) -> Exported:
        """Write the policy for other programs; arguments and errors: :func:`srl.trials.exporting.export_policy`.

        Returns:
            The files, by default in ``export-VERSION`` in the trial directory.
        """
        from srl.trials.exporting import export_policy

        return export_policy(self.path, directory, formats=formats, checkpoint=checkpoint, policy=policy)

    def plot(self, path: str | Path | None = None, **options: Any) -> Path:
        """Draw the curves into a PNG; arguments and errors: :func:`srl.trials.plotting.plot_trials`.

        Returns:
            The file, by default ``plot.png`` in the trial directory.
        """
        from srl.trials.plotting import plot_trials

        return plot_trials([self], path or self.path / "plot.png", **options)

    def __repr__(self) -> str:
        """What it is and how it went, in a few lines."""
        return f"Trial {self.path}\n" + "\n".join(text_table(*self._table())[1:])

    def _repr_html_(self) -> str:
        return html_table(*self._table(), caption=str(self.path))

    def _table(self) -> tuple[list[str], list[list[Any]]]:
        summary = self.summary
        if not summary:
            return ["", ""], [["state", "runs, or ended without a summary"]]
        evaluation = summary.get("best_evaluation") or {}
        rows: list[list[Any]] = [
            ["experiment", f"{summary.get('experiment')}, seed {summary.get('seed')}"],
            ["ended", summary.get("exit_reason")],
            ["env steps", summary.get("env_steps")],
            ["env steps/s", summary.get("env_steps_per_second")],
            ["training return", (summary.get("episodes") or {}).get("return_mean_last_100")],
            ["best evaluation", evaluation.get("mean_return")],
        ]
        return ["", ""], rows
