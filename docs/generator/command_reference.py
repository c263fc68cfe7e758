"""The page of `srl-run`'s commands, made from the parsers that read them."""

from __future__ import annotations

import argparse
import html
import importlib
import textwrap

from srl.commands import COMMANDS, RUN


def commands_page() -> str:
    """The whole page: `srl-run EXPERIMENT` first, then every command in the order of its help."""
    parts = [INTRODUCTION, _command("", importlib.import_module(RUN).parser())]
    parts += [_command(name, importlib.import_module(command.module).parser()) for name, command in COMMANDS.items()]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
# Commands

Generated from the parsers of `srl-run`. `srl-run COMMAND --help` prints the same.

| Exit code | Meaning |
| --- | --- |
| 0 | done |
| 1 | the run failed |
| 2 | bad experiment or usage; nothing was started |
| 130 | interrupted (Ctrl-C) |
| 143 | terminated (SIGTERM) |

The exit code says how the command ended, not how well the policy acts."""


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    title = f"srl-run {name}".strip() if name else "srl-run EXPERIMENT"
    usage = textwrap.dedent(parser.format_usage().replace("usage: ", "       ", 1)).strip()
    parts = [f"## `{title}`", _escaped(parser.description or ""), f"```text\n{usage}\n```"]
    rows = [_row(action, parser) for action in _actions(parser)]
    if rows:
        parts.append("\n".join(["| Argument | Default | Meaning |", "| --- | --- | --- |", *rows]))
    if name:  # the end of `srl-run --help` itself is the list of the others
        parts += [_part_of_epilog(part) for part in (parser.epilog or "").split("\n\n")]
    return "\n\n".join(part for part in parts if part)


def _part_of_epilog(text: str) -> str:
    """A paragraph; examples as a shell block."""
    head, _, below = text.strip("\n").partition("\n")
    if head.strip() == "examples:":
        return f"```sh\n{textwrap.dedent(below).strip()}\n```"
    return _escaped(text)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [one for one in parser._actions if not isinstance(one, hidden) and one.help != argparse.SUPPRESS]


def _row(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    metavar = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if isinstance(metavar, tuple):
        metavar = " ".join(metavar)
    value = f" {metavar}" if action.nargs != 0 else ""
    words = ", ".join(_code(f"{option}{value}") for option in action.option_strings) or _code(metavar)
    default = "" if action.default in (None, False, argparse.SUPPRESS, []) else _code(str(action.default))
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%(prog)s", parser.prog)
    return f"| {words} | {default} | {_escaped(text)} |"


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")
