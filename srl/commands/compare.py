"""``srl-run compare``: several trials side by side."""

from __future__ import annotations

import argparse
import json

from srl.commands.parsing import add_trials, make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "compare",
        "What came of several trials, and in which keys their experiments differ.",
        "examples:\n  srl-run compare trials/first trials/second\n  srl-run compare trials/cartpole_ppo-* --json",
    )
    add_trials(made)
    made.add_argument("--json", action="store_true", help="one JSON object")
    return made


def run(options: argparse.Namespace) -> int:
    """Print the two tables."""
    from srl.trials.comparing import COLUMNS, compare
    from srl.trials.running import load_all
    from srl.trials.tables import text_table

    result = compare(load_all(options.trials))
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
        return 0
    print("\n".join(text_table(COLUMNS, [[row[name] for name in COLUMNS] for row in result.rows])))
    if len(result.rows) > 1:
        keys = result.differences
        trials = [row["trial"] for row in result.rows]
        rows = [[key, *(_plain(value) for value in values)] for key, values in keys.items()]
        print()
        print("\n".join(text_table(["key", *trials], rows)) if rows else "The experiments differ in nothing but seeds.")
    return 0


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
