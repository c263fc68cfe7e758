"""``srl-run schema``: the JSON Schema of experiments."""

from __future__ import annotations

import argparse
import json

from srl.commands.parsing import make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    return make_parser(
        "schema",
        "JSON Schema of experiment files, for editors and other programs.",
        "examples:\n  srl-run schema > experiment.schema.json",
    )


def run(_options: argparse.Namespace) -> int:
    """Print it."""
    from srl.api.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0
