"""``srl-run export``: a trial's policy for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from srl.commands.parsing import add_saved_policy, add_trial, make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "export",
        "Write a trial's policy for other programs: deterministic, normalisation and recurrent state included.\n"
        "policy.json beside it says the names, shapes and dtypes of inputs and outputs. What is written was compared\n"
        "with the framework's own decisions.",
        "examples:\n  srl-run export trials/first\n  srl-run export trials/first --format onnx --out deployed",
    )
    add_trial(made)
    add_saved_policy(made)
    made.add_argument("--format", choices=("onnx", "torchscript", "both"), default="both", help="default: both")
    made.add_argument("--out", type=Path, metavar="DIR", help="directory (default: export-VERSION in the trial)")
    return made


def run(options: argparse.Namespace) -> int:
    """Export, and say what to feed and what comes out."""
    from srl.trials.trial import load

    formats = ("onnx", "torchscript") if options.format == "both" else (options.format,)
    result = load(options.trial).export(
        options.out, formats=formats, checkpoint=options.checkpoint, policy=options.policy
    )
    for file in [*result.files.values(), result.directory / "policy.json"]:
        print(file)
    for kind in ("inputs", "outputs"):
        for one in result.description[kind]:
            shape = ", ".join(map(str, one["shape"]))
            print(f"{kind[:-1]:<7} {one['name']}: {one['dtype']}[{shape}]")
    worst = max(result.description["checked"]["largest_difference"].values())
    print(f"equal to the framework's decisions: largest difference {worst:.2g}")
    return 0
