"""The metrics sink ``wandb``: a run of Weights & Biases per trial (extra ``wandb``).

::

    sinks:
      wandb: {project: pong, mode: offline}

The axis of every curve is env steps. W&B's own step counts the records: it refuses points behind the last one, and the
evaluation of a version ends after the training that followed it. After a restart from a checkpoint a new run of the
same group begins, because a run takes nothing back.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from srl.api.errors import MissingExtraError, ResourceError, SRLError
from srl.api.metrics import MetricRecord, MetricsSink, SinkOptions, TrialInfo

AXIS = "env_steps"
_BEGIN_SECONDS = 30.0
_END_SECONDS = 5.0
"""What is not uploaded by then stays in the trial directory for ``wandb sync``; Ctrl-C must not wait for a network."""


class WandbOptions(SinkOptions):
    """Options of the sink ``wandb``."""

    project: str | None = Field(default=None, min_length=1, description="Project; null = the experiment's name.")
    entity: str | None = Field(default=None, min_length=1, description="User or team; null = the account's default.")
    group: str | None = Field(
        default=None, min_length=1, description="Runs that belong together; null = the experiment's name."
    )
    name: str | None = Field(default=None, min_length=1, description="Name of the run; null = the trial directory's.")
    tags: tuple[str, ...] = Field(default=(), description="Tags of the run.")
    mode: Literal["online", "offline"] = Field(
        default="online", description="offline = files in the trial directory, for wandb sync; no network is used."
    )


class WandbSink(MetricsSink):
    """One run of Weights & Biases; its files lie in ``wandb/`` of the trial directory."""

    Options = WandbOptions
    options: WandbOptions

    def __init__(self, trial: TrialInfo, options: WandbOptions) -> None:
        super().__init__(trial, options)
        if options.mode == "offline":
            # W&B reports its own errors and timings to its server, offline too; it looks at this when it is imported.
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        self._wandb: Any = wandb
        self._segment = 0
        self._run: Any = self._begin()
        sync = f"wandb sync {trial.directory / 'wandb'}/offline-run-*"
        where = sync if options.mode == "offline" else self._run.url
        self.announcement = f"W&B, {options.mode}: {where}"

    @classmethod
    def check(cls, options: WandbOptions) -> Sequence[SRLError]:
        """Whether the package is there."""
        if importlib.util.find_spec("wandb") is not None:
            return ()
        return [
            MissingExtraError(
                "the package wandb is not installed", hint='Install it: pip install "srl-dataflow[wandb]"'
            )
        ]

    def write(self, records: Sequence[MetricRecord]) -> None:
        """Log one row per record."""
        for record in records:
            if record.kind == "restart":
                self._end()
                self._segment += 1
                self._run = self._begin()
                continue
            numbers = {name: value for name, value in record.values.items() if value is not None}
            self._run.log(
                {
                    **{name: value for name, value in numbers.items() if math.isfinite(value)},
                    AXIS: record.env_steps,
                    "progress/frames": record.frames,
                    "progress/training_seconds": record.seconds,
                    "progress/policy_version": record.policy_version,
                }
            )

    def close(self) -> None:
        """Finish the run and end W&B's process."""
        if self._run is not None:
            self._end()
            self._wandb.teardown()

    def _begin(self) -> Any:
        options, trial = self.options, self.trial
        name = options.name or trial.directory.name
        try:
            run = self._wandb.init(
                project=options.project or trial.name,
                entity=options.entity,
                group=options.group or trial.name,
                name=name if self._segment == 0 else f"{name}-restart{self._segment}",
                tags=[*options.tags],
                mode=options.mode,
                dir=trial.directory,
                config={"trial": str(trial.directory), **trial.experiment},
                reinit="create_new",
                settings=self._settings(),
            )
        except self._wandb.Error as error:
            raise ResourceError(
                f"W&B did not begin a run: {error}",
                where="sinks.wandb",
                hint="Without a network or an account: sinks.wandb.mode=offline",
            ) from error
        run.define_metric(AXIS, hidden=True)
        run.define_metric("*", step_metric=AXIS)
        return run

    def _settings(self) -> Any:
        """Nothing of the terminal, the machine or the code is taken, and nothing is printed."""
        return self._wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            init_timeout=_BEGIN_SECONDS,
            finish_timeout=_END_SECONDS,
        )

    def _end(self) -> None:
        run, self._run = self._run, None
        run.finish()
