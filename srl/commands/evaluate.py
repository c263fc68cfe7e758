"""``srl-run evaluate``: score a trial's policy."""

from __future__ import annotations

import argparse
import json

from srl.commands.parsing import add_saved_policy, add_trial, at_least_one, make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "evaluate",
        "Score a trial's policy: deterministic actions, statistics read-only.",
        "examples:\n"
        "  srl-run evaluate trials/first\n"
        "  srl-run evaluate trials/first --episodes 20 --checkpoint newest --json",
    )
    add_trial(made)
    made.add_argument("--episodes", type=int, default=100, metavar="N", help="number of episodes (default: 100)")
    add_saved_policy(made)
    made.add_argument("--seed", type=int, metavar="N", help="of the environments (default: the experiment's)")
    made.add_argument("--json", action="store_true", help="one JSON object, the return of every episode included")
    return made


def run(options: argparse.Namespace) -> int:
    """Print the scores."""
    at_least_one(options.episodes, "--episodes", "nothing to evaluate")
    from srl.trials.trial import load

    result = load(options.trial).evaluate(
        options.episodes, options.checkpoint, policy=options.policy, seed=options.seed
    )
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    for key, value in result.items():
        if not isinstance(value, list):  # one number per episode is for programs
            print(f"{key}: {float(f'{value:.6g}') if isinstance(value, float) else value}")  # all digits: --json
    return 0
