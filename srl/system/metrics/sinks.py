"""Where the curves go: sinks by name, written by the controller's process, never in the way of training.

::

    sinks = SinkGroup.open(trial, experiment.sinks)         # those of every trial, and what the experiment names
    for problem in sinks.write(monitor.records()):          # a sink that fails is closed; training goes on
        monitor.warn("metrics", problem)
    sinks.close()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srl.api.errors import MissingExtraError, UsageError
from srl.api.experiment import PluginMapping
from srl.api.metrics import MetricRecord, MetricsSink, TrialInfo
from srl.api.registry import REGISTRY, Registry

ALWAYS = ("json_lines", "tensorboard")
"""Sinks of every trial: files in its directory."""


@dataclass
class Failure:
    """A sink that failed.

    Attributes:
        error: With what.
        records_lost: Records that it did not get, those of the failed call included.
    """

    error: str
    records_lost: int


class SinkGroup:
    """The sinks of one trial.

    Args:
        sinks: Open sinks by name.
        notes: What a person should know, one sentence each, for the log: addresses, and why sinks were left out.

    Attributes:
        notes: As above.
        failures: What failed so far, by sink.
    """

    def __init__(self, sinks: Mapping[str, MetricsSink], notes: Sequence[str] = ()) -> None:
        self._sinks = dict(sinks)
        self.notes = tuple(notes)
        self.failures: dict[str, Failure] = {}

    @classmethod
    def open(
        cls, trial: TrialInfo, sinks: Mapping[str, PluginMapping] | None = None, registry: Registry = REGISTRY
    ) -> SinkGroup:
        """Open the sinks of every trial, and others.

        Args:
            trial: The trial.
            sinks: The experiment's ``sinks``.
            registry: Where their types are looked up.

        Raises:
            PluginError: An unknown type.
            UsageError: One has the name of a sink of every trial.
            SRLError: A sink that the experiment names cannot be opened; the others are closed again.
        """
        for name, one in (sinks or {}).items():
            if name in ALWAYS and one.type != name:  # nobody would write the file that curves are read from
                raise UsageError(
                    "this is the name of a sink that every trial has",
                    where=f"sinks.{name}",
                    value=one.type,
                    expected=f"another name, such as sinks.{one.type.rpartition(':')[2]}",
                )
        wanted = {name: PluginMapping(type=name) for name in ALWAYS}
        # Naming one of those again is no second file.
        wanted |= {name: one for name, one in (sinks or {}).items() if one.type not in ALWAYS}
        opened: dict[str, MetricsSink] = {}
        notes = []
        try:
            for name, mapping in wanted.items():
                try:
                    opened[name] = _open(trial, name, mapping, registry)
                except MissingExtraError as error:
                    if name not in ALWAYS:
                        raise
                    notes.append(str(error))
        except BaseException:
            cls(opened).close()
            raise
        return cls(opened, [*notes, *(sink.announcement for sink in opened.values() if sink.announcement)])

    def write(self, records: Sequence[MetricRecord]) -> list[str]:
        """Write to every sink; one that fails is closed for good, and what it failed with is returned, once."""
        problems: list[str] = []
        if not records:
            return problems
        for failure in self.failures.values():
            failure.records_lost += len(records)
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(records)
            except Exception as error:  # whatever a plugin raises: curves are never a reason to end training
                del self._sinks[name]
                text = f"{type(error).__name__}: {error}"
                self.failures[name] = Failure(text, len(records))
                problems.append(f"metrics sink {name} failed and is closed: {text}")
                problems += _close(name, sink)
        return problems

    def close(self) -> list[str]:
        """Close every sink; returns what failed."""
        problems = [problem for name, sink in self._sinks.items() for problem in _close(name, sink)]
        self._sinks.clear()
        return problems


def _open(trial: TrialInfo, name: str, mapping: PluginMapping, registry: Registry) -> MetricsSink:
    kind: type[MetricsSink] = registry.resolve("metrics_sink", mapping.type, f"sinks.{name}.type")
    return kind(trial, kind.Options.model_validate(mapping.options))


def _close(name: str, sink: MetricsSink) -> list[str]:
    try:
        sink.close()
    except Exception as error:  # as in write
        return [f"metrics sink {name} could not be closed: {type(error).__name__}: {error}"]
    return []


def failures_of(group: SinkGroup) -> dict[str, Any]:
    """What failed, JSON-compatible, for the summary."""
    return {name: {"error": one.error, "records_lost": one.records_lost} for name, one in group.failures.items()}
