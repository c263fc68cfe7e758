"""``srl-run EXPERIMENT``: train as an experiment declares."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from srl import __version__
from srl.api.errors import UsageError
from srl.commands import COMMANDS
from srl.commands.graph_text import graph_text
from srl.commands.parsing import add_experiment, experiment_of, make_parser

_EXAMPLES = """\

examples:
  srl-run cartpole_ppo
  srl-run cartpole_ppo stop.env_steps=100000 policies.main.algorithm.learning_rate=1e-3 --seed 3
  srl-run cartpole_ppo --seeds 1,2,3 --trial-dir trials/first
  srl-run ./my_experiment.yaml --placement fused --show-graph
  srl-run --algorithm ppo --environment CartPole-v1

exit codes: 0 done, 1 the run failed, 2 bad experiment or usage, 130 interrupted (Ctrl-C), 143 terminated
"""


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"  {command.usage:<{width}}  {command.summary}" for command in COMMANDS.values()]
    epilog = "\n".join(["other commands (srl-run COMMAND --help):", *lines]) + "\n" + _EXAMPLES
    made = make_parser("", "Train as an experiment declares.", epilog)
    made.add_argument("--version", action="version", version=f"srl {__version__}")
    add_experiment(made)
    made.add_argument(
        "--seeds", metavar="N,N,...", help="one trial per seed, one after the other; the joint result at the end"
    )
    made.add_argument("--trial-dir", type=Path, metavar="DIR", help="new directory for results (default: trials/...)")
    made.add_argument("--show-graph", action="store_true", help="print the resolved graph and start nothing")
    made.add_argument("--debug", action="store_true", help="no time limits on waits; tracebacks with errors")
    made.add_argument(
        "--screen",
        choices=("auto", "live", "plain", "off"),
        default="auto",
        help="live screen, plain lines or nothing (default: live in a terminal, else plain)",
    )
    return made


def run(options: argparse.Namespace) -> int:
    """Run one trial, or one per seed."""
    seeds = _seeds(options)
    experiment = experiment_of(options)
    if options.show_graph:
        print(graph_text(experiment))
        return 0
    from srl.trials.running import run_one, run_seeds

    if seeds is None:
        trial = run_one(experiment, trial_dir=options.trial_dir, screen=options.screen, debug=options.debug)
        return trial.exit_code or 0
    group = run_seeds(experiment, seeds, trial_dir=options.trial_dir, screen=options.screen, debug=options.debug)
    if options.screen != "off":
        missing = len(seeds) - len(group)
        print(
            f"\nSRL {experiment.name}: {len(group)} of {len(seeds)} seeds ran"
            if missing
            else f"\nSRL {experiment.name}: {len(seeds)} seeds"
        )
        print(repr(group))
        print(f"joint summary: {group.file}")
        print(f"next: srl-run plot {shlex.quote(str(group.file))}")
    return group.exit_code


def _seeds(options: argparse.Namespace) -> list[int] | None:
    if options.seeds is None:
        return None
    if options.seed is not None:
        raise UsageError("give --seed or --seeds, not both", value=f"--seed {options.seed} --seeds {options.seeds}")
    try:
        return [int(part) for part in options.seeds.split(",")]
    except ValueError:
        raise UsageError(
            "not a list of seeds", where="--seeds", value=options.seeds, expected="whole numbers, such as 1,2,3"
        ) from None
