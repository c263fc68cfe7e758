"""The README's commands and files, run as written; training commands are cut short by two more words."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
TEXT = (PROJECT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
NEEDS_NO_CUT = ("list", "check", "schema", "evaluate", "video", "plot", "compare", "export")


def files() -> dict[str, str]:
    """Name to text of every code block that begins with a comment naming its file."""
    found = {}
    for _, text in BLOCK.findall(TEXT):
        if match := FILE.match(text):
            found[match[1]] = text
    return found


def commands() -> list[list[str]]:
    """The words of every line of the shell blocks that starts `srl-run`, in order."""
    shell = "".join(text for language, text in BLOCK.findall(TEXT) if language == "sh").replace("\\\n", " ")
    lines = shell.splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "srl-run"]


def test_readme_has_the_two_files_and_their_commands():
    assert set(files()) == {"my_experiment.yaml", "my_algorithm.py"}
    assert len(commands()) >= 8


def test_ten_lines_are_about_ten():
    sizes = {name: len([line for line in text.splitlines()[1:] if line.strip()]) for name, text in files().items()}
    assert sizes["my_experiment.yaml"] <= 10
    assert sizes["my_algorithm.py"] <= 16


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    for name, text in files().items():
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_command(words, directory, trial_run):
    """In file order and one directory, so that a command finds the results of an earlier one."""
    arguments = words[1:]
    if arguments[0] not in NEEDS_NO_CUT:
        arguments += ["stop.updates=3", "--screen", "off"]
    done = trial_run(*arguments, without_trial_dir=True, cwd=directory, timeout_seconds=120).check()
    if arguments[0] in NEEDS_NO_CUT:
        assert done.stdout.strip()
    elif "my_algorithm.py" in " ".join(arguments):
        summary = json.loads(max(directory.glob("trials/*/summary.json"), key=os.path.getmtime).read_text())
        assert summary["gradient_steps"] == summary["updates"] == 3, "not the algorithm of the README ran"


def test_python(directory):
    """The lines for scripts and notebooks, after the commands that make the trial they load."""
    (text,) = [text for language, text in BLOCK.findall(TEXT) if language == "python" and not FILE.match(text)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=directory, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("0", "1")


@pytest.mark.parametrize("target", re.findall(r"^ +make (\w+)", TEXT, re.MULTILINE))
def test_make_target_exists(target):
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_link_leads_somewhere(path):
    assert (PROJECT / path).exists()


def test_bundled_experiments_named_in_the_readme_exist():
    named = set(re.findall(r"`?srl-run (\w+_ppo)", TEXT))
    assert named == {"cartpole_ppo", "atari_pong_ppo"}
    assert all((PROJECT / "srl" / "experiments" / f"{name}.yaml").exists() for name in named)
