"""``srl-run list``: what can be named in an experiment."""

from __future__ import annotations

import argparse

from srl.commands.parsing import make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    return make_parser(
        "list",
        "Bundled experiments, registered plugins of every kind with where they come from, and the packages that\n"
        "environments need.",
        "examples:\n  srl-run list",
    )


def run(_options: argparse.Namespace) -> int:
    """Print everything."""
    from srl.trials.listing import listing

    print("\n".join(listing()))
    return 0
