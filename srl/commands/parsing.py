"""What the parsers of several sub-commands share."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from srl.api.errors import UsageError
from srl.api.experiment import Experiment
from srl.api.loading import UnreadOptionWarning, bundled_experiments
from srl.api.suggest import nearest
from srl.api.yaml_text import parse_value
from srl.commands import COMMANDS
from srl.trials.experiments import as_experiment, recipe

EXPERIMENT_HELP = "a bundled name (srl-run list), a YAML file, or a Python file with 'def experiment() -> Experiment'"
OVERRIDE_HELP = "value in YAML for one key of the experiment; null removes a policy, stream or worker group"
USAGE = 2
"""Exit code of a mistake on the command line."""
CHECKPOINT_HELP = "best, newest, or a checkpoint's name or version (default: the best, else the newest)"


class Parser(argparse.ArgumentParser):
    """One line for a mistake, with the nearest word, in place of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with exit code 2."""
        hint = self._hint(message)
        self.exit(USAGE, f"srl-run: error: {message}.{f' {hint}' if hint else ''} See {self.prog} --help\n")

    def _hint(self, message: str) -> str:
        unknown = re.fullmatch(r"unrecognized arguments: (-\S+).*", message)
        choice = re.fullmatch(r".*invalid choice: '?(.*?)'? \(choose from (.*)\)", message)
        word, known = "", list[str]()
        if unknown:
            word, known = unknown[1].partition("=")[0], list(self._option_string_actions)
            if "." in word:  # a key of the experiment, written as an option
                return f"Keys of the experiment have no dashes: {word.lstrip('-')}=VALUE."
        elif choice:
            word, known = choice[1], re.findall(r"[\w-]+", choice[2])
        close = nearest(word, known, count=1) if word else []
        return f"Did you mean '{close[0]}'?" if close else ""


def make_parser(name: str, description: str, epilog: str = "") -> Parser:
    """A parser in the style of all of them; the epilog is shown as it is written."""
    return Parser(
        prog=f"srl-run {name}".strip(),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Everything that says which experiment, with which changes."""
    parser.add_argument("words", nargs="*", metavar="EXPERIMENT [key.path=value ...]", help=EXPERIMENT_HELP)
    parser.add_argument("--algorithm", metavar="NAME", help="in place of EXPERIMENT: this algorithm's own recipe ...")
    parser.add_argument(
        "--environment",
        metavar="ID",
        help="... for this environment: a Gymnasium id, ./file.py:Class, or a mapping in YAML with 'type'",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="root of all randomness (default: as in the experiment)")
    parser.add_argument(
        "--transport",
        choices=("auto", "in_process", "shared_memory", "tcp"),
        help="how blocks move between workers (default: as in the experiment; auto = fastest that the placement has)",
    )
    parser.add_argument(
        "--placement",
        choices=("auto", "fused", "processes"),
        help="fused = one process and thread; processes = one per worker (default: as in the experiment)",
    )
    parser.add_argument(
        "--no-plugins", action="store_true", help="refuse Python experiments and every plugin that is not built in"
    )


def add_trial(parser: argparse.ArgumentParser) -> None:
    """The directory of one trial."""
    parser.add_argument("trial", type=Path, metavar="TRIAL", help="directory of the trial")


def add_trials(parser: argparse.ArgumentParser) -> None:
    """The directories of several trials."""
    parser.add_argument(
        "trials",
        type=Path,
        nargs="+",
        metavar="TRIAL",
        help="directories of trials; the -seeds.json of a run with --seeds stands for all of its trials",
    )


def add_saved_policy(parser: argparse.ArgumentParser) -> None:
    """Which saved version of which policy."""
    parser.add_argument("--checkpoint", metavar="NAME", help=CHECKPOINT_HELP)
    parser.add_argument("--policy", metavar="NAME", help="policy (default: the evaluators', or the first one)")


def experiment_of(options: argparse.Namespace) -> Experiment:
    """The experiment that the arguments name, with their changes; warnings go to standard error."""
    source, overrides = _words(options.words)
    for key in ("seed", "transport", "placement"):
        if getattr(options, key) is not None:
            overrides.append(f"{key}={getattr(options, key)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        experiment = _load(options, source, overrides)
    for warning in caught:
        if not issubclass(warning.category, UnreadOptionWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        print(f"srl-run: warning: {warning.message}", file=sys.stderr)
    return experiment


def at_least_one(value: int, option: str, what: str) -> None:
    """Refuse a number below 1.

    Raises:
        UsageError: It is below 1.
    """
    if value < 1:
        raise UsageError(what, where=option, value=value, expected="at least 1")


def _load(options: argparse.Namespace, source: str | None, overrides: list[str]) -> Experiment:
    allow_plugins = not options.no_plugins
    recipe_wanted = options.algorithm is not None or options.environment is not None
    if source is not None and not recipe_wanted:
        _refuse_misspelt_command(source)
        return as_experiment(source, overrides, allow_plugins=allow_plugins)
    if source is not None or options.algorithm is None or options.environment is None:
        raise _which(options, source)
    environment = options.environment
    if environment.lstrip().startswith("{"):
        environment = parse_value(environment)
    return recipe(options.algorithm, environment, overrides, allow_plugins=allow_plugins)


def _which(options: argparse.Namespace, source: str | None) -> UsageError:
    """Too little or too much names the experiment."""
    see = "See srl-run list and srl-run --help."
    if source is None:
        missing = [f"--{name}" for name in ("algorithm", "environment") if getattr(options, name) is None]
        if len(missing) == 2:
            return UsageError(
                "no experiment is named", expected="EXPERIMENT, or --algorithm and --environment", hint=see
            )
        return UsageError(
            f"{missing[0]} is missing", expected="--algorithm and --environment together, which name a recipe", hint=see
        )
    return UsageError(
        "a recipe takes no experiment beside it",
        value=source,
        expected="either EXPERIMENT, or --algorithm and --environment",
        hint="Overrides are words of the form key.path=value.",
    )


def _words(words: list[str]) -> tuple[str | None, list[str]]:
    sources = [word for word in words if "=" not in word]
    if len(sources) > 1:
        _refuse_misspelt_command(sources[0])
        raise UsageError(
            "more than one experiment is named",
            value=" ".join(sources),
            expected="one, and key.path=value without spaces",
        )
    return (sources[0] if sources else None), [word for word in words if "=" in word]


def _refuse_misspelt_command(word: str) -> None:
    """A word that is nearer to a sub-command than to any bundled experiment was meant as one."""
    names = bundled_experiments()
    close = nearest(word, [*COMMANDS, *names], count=1)
    if word not in names and close and close[0] in COMMANDS:
        raise UsageError("neither an experiment nor a command", value=word, hint=f"Did you mean 'srl-run {close[0]}'?")
