"""Several trials side by side: what came of them, and in which keys their experiments differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srl.trials.trial import Trial

COLUMNS = (
    "trial", "seed", "ended", "env steps", "steps/s", "final evaluation", "best evaluation", "training return",
    "wall s",
)  # fmt: skip
ABSENT = "(absent)"


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`.

    Attributes:
        rows: One per trial, by :data:`COLUMNS`; ``None`` where there is no number.
        differences: Key path to one value per trial, for keys whose values differ; the seed is in the rows.
    """

    rows: list[dict[str, Any]]
    differences: dict[str, list[Any]]

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {"trials": self.rows, "differences": self.differences}


def compare(trials: Sequence[Trial]) -> Comparison:
    """Compare trials; those that still run have what is there so far."""
    return Comparison([_row(trial) for trial in trials], differences([settings(trial) for trial in trials]))


def settings(trial: Trial) -> dict[str, Any]:
    """The resolved experiment without its seed, by key path."""
    experiment = trial.experiment.model_dump(mode="json")
    del experiment["seed"]
    return _flat(experiment)


def differences(many: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Keys whose values differ, with one value per experiment, in order of first appearance."""
    keys = dict.fromkeys(key for one in many for key in one)
    found = {key: [one.get(key, ABSENT) for one in many] for key in keys}
    return {key: values for key, values in found.items() if len({json.dumps(value) for value in values}) > 1}


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Key paths by the fewest last parts that tell them apart."""
    result = {}
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            tail = ".".join(parts[-count:])
            if sum(other == tail or other.endswith(f".{tail}") for other in keys) == 1:
                break
        result[key] = tail
    return result


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {
            key: entry
            for name, inner in value.items()
            for key, entry in _flat(inner, f"{path}.{name}" if path else str(name)).items()
        }
    if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        return _flat({str(index): entry for index, entry in enumerate(value)}, path)
    return {path: value}


def _row(trial: Trial) -> dict[str, Any]:
    summary = trial.summary
    final, best = summary.get("evaluation") or {}, summary.get("best_evaluation") or {}
    values = (
        trial.path.name, trial.experiment.seed, summary.get("exit_reason", "runs, or was killed"),
        summary.get("env_steps"), summary.get("env_steps_per_second"), final.get("mean_return"),
        best.get("mean_return"), (summary.get("episodes") or {}).get("return_mean_last_100"),
        summary.get("wall_seconds"),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
