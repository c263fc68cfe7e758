"""``srl-run new``: a skeleton that runs as it is, to be made into something of one's own."""

from __future__ import annotations

import argparse
import importlib.resources
import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from srl.api.errors import UsageError
from srl.api.yaml_text import parse_value
from srl.commands.parsing import make_parser

TEMPLATES = "srl.templates"
LONGEST_NAME = 64


@dataclass(frozen=True)
class Skeleton:
    """What one kind of skeleton consists of; ``{name}`` stands for the name asked for.

    Attributes:
        files: File to write, to the template it is made of.
        commands: What to type next, with ``{directory}`` where the files are.
    """

    files: Mapping[str, str]
    commands: tuple[str, ...]


SKELETONS: Mapping[str, Skeleton] = {
    "algorithm": Skeleton(
        {"{name}.py": "algorithm.py", "{name}.yaml": "algorithm.yaml"}, ("srl-run {directory}{name}.yaml",)
    ),
    "environment": Skeleton(
        {"{name}.py": "environment.py", "{name}.yaml": "environment.yaml", "test_{name}.py": "test_environment.py"},
        ("srl-run {directory}{name}.yaml", "python -m pytest {directory}test_{name}.py"),
    ),
    "experiment": Skeleton(
        {"{name}.yaml": "experiment.yaml"}, ("srl-run check {directory}{name}.yaml", "srl-run {directory}{name}.yaml")
    ),
}


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "new",
        "Write a skeleton that runs as it is: an algorithm (one file and an experiment on CartPole-v1), an\n"
        "environment (one file, an experiment that trains PPO on it, and a test of its contract), or a commented\n"
        "experiment. Files that exist are never overwritten.",
        "examples:\n  srl-run new algorithm my_algorithm\n  srl-run new environment my_maze --directory mazes",
    )
    made.add_argument("kind", choices=tuple(SKELETONS), help="what to write")
    made.add_argument("name", metavar="NAME", help="a Python identifier; files and classes are called after it")
    made.add_argument(
        "--directory", type=Path, default=Path(), metavar="DIR", help="where (default: here); made if it is not there"
    )
    return made


def run(options: argparse.Namespace) -> int:
    """Write the files and print what to type next."""
    _check_name(options.name, options.kind)
    written = write_skeleton(options.kind, options.name, options.directory)
    for path in written:
        print(f"written  {path}")
    directory = "" if options.directory == Path() else shlex.quote(f"{options.directory}/")
    for index, command in enumerate(SKELETONS[options.kind].commands):
        lacks_pytest = "pytest" in command and importlib.util.find_spec("pytest") is None
        note = "    (needs: pip install pytest)" if lacks_pytest else ""
        print(f"{'' if index else 'next':7}  {command.format(name=options.name, directory=directory)}{note}")
    return 0


def write_skeleton(kind: str, name: str, directory: Path) -> list[Path]:
    """Write the files of a skeleton.

    Args:
        kind: A key of :data:`SKELETONS`.
        name: Takes the place of the templates' own names.
        directory: Made if it is not there.

    Returns:
        The files.

    Raises:
        UsageError: One of the files exists, or cannot be written.
    """
    templates = importlib.resources.files(TEMPLATES)
    texts = {
        directory / file.format(name=name): _named(templates.joinpath(template).read_text(encoding="utf-8"), name)
        for file, template in SKELETONS[kind].files.items()
    }
    present = [str(path) for path in texts if path.exists()]
    if present:
        raise UsageError(
            "there is such a file already, and nothing is overwritten",
            where=", ".join(present),
            hint="Choose another name, or another --directory.",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the skeleton: {error.strerror}", where=str(error.filename)) from None
    return list(texts)


def _named(text: str, name: str) -> str:
    """A template under another name: ``my_maze``, and ``MyMaze`` for classes."""
    return text.replace("Skeleton", _class_name(name)).replace("skeleton", name)


def _class_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _check_name(name: str, kind: str) -> None:
    if not (name.isidentifier() and name.isascii() and name[0] != "_") or keyword.iskeyword(name):
        raise _refusal(
            name, f"this cannot be the name of an {kind}",
            "a Python identifier: letters, digits and underscores, a letter first, and no keyword",
        )  # fmt: skip
    if len(name) > LONGEST_NAME:
        raise _refusal(name, "the name is too long", f"at most {LONGEST_NAME} letters")
    if parse_value(name) != name:
        raise _refusal(name, "this word means something else in YAML", f"another name, such as my_{name}")
    if kind == "experiment":
        return
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        what = "a module of this name exists already; a file of this name would hide it, or be hidden by it"
        raise _refusal(name, what, f"another name, such as my_{name}")
    templates = importlib.resources.files(TEMPLATES)
    texts = [templates.joinpath(template).read_text(encoding="utf-8") for template in SKELETONS[kind].files.values()]
    if any(re.search(rf"\b{_class_name(name)}(Config)?\b", text) for text in texts):
        what = f"the skeleton itself uses the name {_class_name(name)}"
        raise _refusal(name, what, f"another name, such as my_{name}")


def _refusal(name: str, what: str, expected: str) -> UsageError:
    return UsageError(what, where="NAME", value=name, expected=expected)
