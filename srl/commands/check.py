"""``srl-run check``: validate an experiment."""

from __future__ import annotations

import argparse

from srl.api.loading import resolved_yaml
from srl.commands.graph_text import graph_text
from srl.commands.parsing import OVERRIDE_HELP, add_experiment, experiment_of, make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "check",
        "Validate an experiment: keys, options, graph, spaces, memory. Makes one environment to read its\n"
        "spaces, in a process of its own; starts no worker.",
        f"key.path=value: {OVERRIDE_HELP}\n\n"
        "examples:\n"
        "  srl-run check cartpole_ppo\n"
        "  srl-run check ./my_experiment.yaml stop.env_steps=100000\n"
        "  srl-run check cartpole_ppo --resolved > mine.yaml",
    )
    add_experiment(made)
    made.add_argument("--resolved", action="store_true", help="print the experiment with every default as YAML")
    return made


def run(options: argparse.Namespace) -> int:
    """Print the graph, or the resolved experiment."""
    experiment = experiment_of(options)
    text = graph_text(experiment)
    print(resolved_yaml(experiment) if options.resolved else f"{text}\n\n{experiment.name} is valid")
    return 0
