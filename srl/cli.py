"""``srl-run``: finds the sub-command, and turns errors into one message and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from srl.api.errors import SRLError
from srl.api.importing import refuse_while_importing
from srl.commands import COMMANDS, RUN

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: Arguments without the program's name; those of the process if ``None``.

    Returns:
        Exit code: 0 done, 1 the run failed, 2 bad experiment or usage, 130 interrupted, 143 terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    command = COMMANDS.get(arguments[0]) if arguments else None
    module = importlib.import_module(command.module if command else RUN)
    try:
        options = module.parser().parse_intermixed_args(arguments[1:] if command else arguments)
    except SystemExit as end:  # argparse has printed help or the error
        return int(end.code or 0)
    return _guarded(module.run, options)


def _guarded(action: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        refuse_while_importing("starts srl-run")
        return action(options)
    except SRLError as error:
        if getattr(options, "debug", False):
            traceback.print_exc()
        print(f"srl-run: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("srl-run: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: no second error at exit
        return 0


if __name__ == "__main__":
    sys.exit(main())
