"""The sinks that every trial has: files in its directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from srl.api.metrics import MetricRecord, MetricsSink, TrialInfo
from srl.system.metrics.json_lines import JsonLinesFile
from srl.system.metrics.tensorboard import EventFile
from srl.system.trial import TrialDirectory


class JsonLinesSink(MetricsSink):
    """``metrics.jsonl``: one JSON object a line, ``null`` where there is no number."""

    def __init__(self, trial: TrialInfo, options: Any) -> None:
        super().__init__(trial, options)
        self._file = JsonLinesFile(TrialDirectory(trial.directory).metrics)

    def write(self, records: Sequence[MetricRecord]) -> None:
        """Append one line per record."""
        for record in records:
            if record.kind == "restart":
                self._file.cut(record.env_steps)
                continue
            self._file.append(
                {
                    "kind": record.kind,
                    "env_steps": record.env_steps,
                    "frames": record.frames,
                    "seconds": round(record.seconds, 3),
                    "policy_version": record.policy_version,
                    **record.values,
                }
            )
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardSink(MetricsSink):
    """Event files for TensorBoard; step = env steps."""

    def __init__(self, trial: TrialInfo, options: Any) -> None:
        super().__init__(trial, options)
        self._file = EventFile(TrialDirectory(trial.directory).tensorboard)

    def write(self, records: Sequence[MetricRecord]) -> None:
        """Append one event per record."""
        for record in records:
            if record.kind == "restart":
                self._file.restart(record.env_steps)
            else:
                self._file.scalars(record.env_steps, {**record.values, "progress/frames": float(record.frames)})
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
