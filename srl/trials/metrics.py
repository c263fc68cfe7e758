"""The curves of a trial, read from ``metrics.jsonl``: rows, and tidy columns in numpy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.suggest import did_you_mean

AXIS = ("env_steps", "frames", "policy_version")
_NO_CURVE = frozenset({*AXIS, "kind", "seconds"})


@dataclass(frozen=True)
class Curve:
    """One metric over a trial; points without a number are left out.

    Attributes:
        name: Metric.
        env_steps: ``int64[N]``, ascending.
        frames: ``int64[N]``, emulator frames under them.
        seconds: ``float64[N]``, training seconds.
        policy_version: ``int64[N]``.
        values: ``float64[N]``.
    """

    name: str
    env_steps: NDArray[np.int64]
    frames: NDArray[np.int64]
    seconds: NDArray[np.float64]
    policy_version: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        """Number of points."""
        return len(self.values)


class Metrics(Sequence[dict[str, Any]]):
    """Everything that was written, in order: one dict per row; ``pandas.DataFrame(metrics.columns())`` works too.

    Args:
        rows: ``kind`` (``training`` or ``evaluation``), ``env_steps``, ``frames``, ``seconds``, ``policy_version``
            and the numbers by name.
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = list(rows)

    @classmethod
    def read(cls, path: Path) -> Metrics:
        """Read a file; one that is not there is empty, and a last line that is still being written is left out.

        Raises:
            UsageError: A line is damaged.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls([])
        whole = text[: text.rfind("\n") + 1]
        rows = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = dict(json.loads(line))
                if absent := [name for name in ("kind", "seconds", *AXIS) if name not in row]:
                    raise ValueError(f"no {', '.join(absent)}")
                rows.append(row)
            except (ValueError, TypeError) as error:
                raise UsageError("a damaged line", where=f"{path}, line {number}", value=str(error)) from error
        return cls(rows)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        """One row, or several."""
        return self.rows[index]

    def __repr__(self) -> str:
        """Number of rows and the names."""
        return f"<Metrics: {len(self.rows)} rows of {', '.join(self.names())}>"

    def names(self) -> list[str]:
        """Names of all metrics, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name not in _NO_CURVE))

    def columns(self, kind: str = "training") -> dict[str, NDArray[Any]]:
        """All rows of one kind as columns of equal length, NaN where there is no number.

        Args:
            kind: ``training`` or ``evaluation``.
        """
        rows = [row for row in self.rows if row["kind"] == kind]
        names = [*AXIS, "seconds", *Metrics(rows).names()]
        return {
            name: np.array([row[name] for row in rows], np.int64)
            if name in AXIS
            else np.array([_number(row.get(name)) for row in rows], np.float64)
            for name in names
        }

    def curve(self, name: str) -> Curve:
        """One metric.

        Raises:
            UsageError: There is no such metric, with the nearest names.
        """
        rows = [row for row in self.rows if name not in _NO_CURVE and row.get(name) is not None]
        if not rows and name not in self.names():
            raise UsageError(
                "there is no such metric", value=name, hint=did_you_mean(name, self.names(), "metrics of this trial")
            )
        return Curve(
            name,
            env_steps=np.array([row["env_steps"] for row in rows], np.int64),
            frames=np.array([row["frames"] for row in rows], np.int64),
            seconds=np.array([row["seconds"] for row in rows], np.float64),
            policy_version=np.array([row["policy_version"] for row in rows], np.int64),
            values=np.array([row[name] for row in rows], np.float64),
        )


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
