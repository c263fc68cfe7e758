"""``srl-run completion``: a completion script for a shell."""

from __future__ import annotations

import argparse

from srl.commands.parsing import make_parser

_SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "completion",
        "Print a script that completes sub-commands, bundled experiments and options in a shell.",
        "examples:\n"
        '  eval "$(srl-run completion bash)"                                              # this shell\n'
        "  srl-run completion bash > ~/.local/share/bash-completion/completions/srl-run   # every one from now on\n"
        "  srl-run completion zsh > ~/.zfunc/_srl-run                                     # a directory of fpath",
    )
    made.add_argument("shell", choices=_SHELLS, help="the shell")
    return made


def run(options: argparse.Namespace) -> int:
    """Print it."""
    from srl.trials.completion import completion_script

    print(completion_script(options.shell))
    return 0
