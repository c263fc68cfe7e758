"""Metrics sinks: the contract of whatever takes the curves of a trial, and the records it is given.

A sink lives in the controller's process and is called a few times a second at most::

    sink = Kind(trial, Kind.Options(**options))
    sink.write(records)         # again and again; must return soon
    sink.close()

It is named in an experiment, under the name of a registered plugin or with a ``type``::

    sinks:
      wandb: {mode: offline}
      mine: {type: ./mine.py:Sink, path: curves.csv}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from srl.api.errors import SRLError


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One point of the curves.

    Attributes:
        kind: ``training`` (means over the updates since the last such record), ``evaluation``, or ``restart``
            (training went back to ``env_steps``; later points of before are void).
        env_steps: The axis; ascending within a kind, but for what a ``restart`` takes back.
        frames: Frames under ``env_steps``.
        seconds: Training seconds.
        policy_version: Newest version in the record.
        values: Numbers by name, such as ``loss/policy``; ``None`` where there is none.
    """

    kind: Literal["training", "evaluation", "restart"]
    env_steps: int
    frames: int
    seconds: float
    policy_version: int
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class TrialInfo:
    """The trial whose metrics a sink gets.

    Attributes:
        name: Name of the experiment.
        directory: The trial directory, absolute.
        seed: Seed of the trial.
        experiment: The resolved experiment, JSON-compatible.
    """

    name: str
    directory: Path
    seed: int = 0
    experiment: Mapping[str, Any] = field(default_factory=dict)


class SinkOptions(BaseModel):
    """Base of the options models: frozen, unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class MetricsSink(ABC):
    """One place that records are written to.

    Whatever :meth:`write` raises closes the sink for good, is said once and counted; training goes on. What the
    constructor raises ends the trial before it has begun.

    Args:
        trial: The trial.
        options: The options under the sink's name in the experiment, as its ``Options`` model.

    Attributes:
        Options: Model of the options.
        announcement: What a person should know now, such as an address; empty if nothing.
    """

    Options: ClassVar[type[SinkOptions]] = SinkOptions
    announcement: str = ""

    def __init__(self, trial: TrialInfo, options: Any) -> None:
        self.trial = trial
        self.options = options

    @classmethod
    def check(cls, options: Any) -> Sequence[SRLError]:
        """What keeps the sink from working and can be told without opening it, such as a missing package.

        ``where`` is the option at fault, below the sink's own key.
        """
        return ()

    @abstractmethod
    def write(self, records: Sequence[MetricRecord]) -> None:
        """Write records and make them visible to readers. A ``restart`` record takes back what lies behind it."""

    @abstractmethod
    def close(self) -> None:
        """Release what the sink holds; may be called twice."""
