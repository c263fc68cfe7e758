"""``srl-run plot``: curves of trials as a PNG."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from srl.commands.parsing import add_trials, make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "plot",
        "Return against env steps as a PNG, with the evaluations. Trials whose experiments differ in nothing but\n"
        "the seed become one line: their mean, with a band.",
        "examples:\n"
        "  srl-run plot trials/first\n"
        "  srl-run plot trials/cartpole_ppo-* --out curves.png\n"
        "  srl-run plot trials/first --metric entropy --x seconds",
    )
    add_trials(made)
    made.add_argument(
        "--out", type=Path, metavar="FILE", help="the PNG (default: plot.png in the trial, or beside several)"
    )
    made.add_argument("--x", choices=("env_steps", "frames", "seconds"), default="env_steps", help="the axis")
    made.add_argument("--metric", metavar="NAME", help="another metric than the return, such as loss/policy")
    made.add_argument(
        "--band", choices=("std", "minmax"), default="std", help="over seeds: mean plus and minus std, or min to max"
    )
    return made


def run(options: argparse.Namespace) -> int:
    """Draw, and say where."""
    from srl.trials.plotting import plot_trials
    from srl.trials.running import load_all

    trials = load_all(options.trials)
    out = options.out or _default_path(options.trials, trials[0].path)
    print(plot_trials(trials, out, x=options.x, metric=options.metric, band=options.band))
    return 0


def _default_path(named: Sequence[Path], first: Path) -> Path:
    """In the trial; a picture of several trials belongs to none of them, and lies beside them."""
    if len(named) == 1 and named[0].is_file():
        return named[0].with_suffix(".png")
    return first / "plot.png" if len(named) == 1 else first.parent / "plot.png"
