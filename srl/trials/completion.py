"""Scripts that complete ``srl-run``'s sub-commands, bundled experiments and options in a shell."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from srl.api.errors import MissingExtraError, UsageError
from srl.api.loading import bundled_experiments
from srl.commands import COMMANDS, RUN


def completion_script(shell: str) -> str:
    """The script for a shell; complete by itself, nothing of SRL runs when a key is pressed.

    Args:
        shell: ``bash``, ``zsh``, ``tcsh``, ``fish`` or ``powershell``.

    Raises:
        UsageError: Another shell.
        MissingExtraError: shtab is not installed.
    """
    shtab = _shtab()
    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError("no completion for this shell", value=shell, expected=", ".join(shtab.SUPPORTED_SHELLS))
    text: str = shtab.complete(whole_parser(shtab), shell=shell)
    # The first word may also be the path of an experiment: where no name fits, bash completes files.
    return text.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F")


def whole_parser(shtab: Any) -> argparse.ArgumentParser:
    """One parser of everything: ``srl-run`` with its sub-commands, bundled experiments among them."""
    run = importlib.import_module(RUN)
    root = _without_positionals(run.parser())
    root.prog = "srl-run"
    below = root.add_subparsers()
    for name, command in COMMANDS.items():
        parser = importlib.import_module(command.module).parser()
        _mark(parser, shtab)
        below.add_parser(name, parents=[parser], add_help=False, help=command.summary)
    for name in bundled_experiments():
        parser = _without_positionals(run.parser())
        _mark(parser, shtab)
        below.add_parser(name, parents=[parser], add_help=False, help="a bundled experiment")
    _mark(root, shtab)
    return root


def _without_positionals(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for action in list(parser._get_positional_actions()):
        parser._remove_action(action)
        parser._positionals._group_actions.remove(action)
    return parser


def _mark(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Say which arguments are files, directories or bundled experiments."""
    for action in parser._actions:
        if action.dest in ("trial", "trials", "trial_dir") or action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest == "words":
            action.choices = [*bundled_experiments()]
        elif action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _shtab() -> Any:
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError(
            "shell completion needs shtab", hint='Install it: pip install "srl-dataflow[screen]"'
        ) from error
    return shtab
