"""The resolved graph of an experiment as text; makes one environment, in a process of its own."""

from __future__ import annotations

from srl.api.experiment import Experiment


def graph_text(experiment: Experiment) -> str:
    """The graph as ``srl-run check`` and ``--show-graph`` print it."""
    from srl.distributed.drawing import describe
    from srl.distributed.graph import resolve
    from srl.distributed.probing import probe_environment

    return describe(resolve(experiment, probe_environment(experiment)))
