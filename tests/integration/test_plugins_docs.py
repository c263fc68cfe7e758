"""Every code block of docs/plugins.md: files are written, experiments loaded, Python executed, commands run."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from srl.api.loading import load_experiment
from srl.api.registry import KINDS, REGISTRY
from srl.commands.new import SKELETONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml|toml))\n")
OFFLINE = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")
MESSAGE = re.compile(r"(?:/[\w.\-]+)+/|\d+")

BLOCKS = BLOCK.findall(PAGE.read_text())


def commands(text: str) -> list[str]:
    """Lines of a shell block; a loop is one."""
    return re.findall(r"^for .*?^done$|^[^\n]+$", text, re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who types the page."""

    def __init__(self, directory, trial_run):
        self.directory = directory
        self.site = directory / "site"
        self._trial_run = trial_run

    def copies(self, text):
        """A block that names its file."""
        path = self.directory / FILE.match(text)[1]
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if path.suffix == ".yaml":
            load_experiment(str(path))

    def executes(self, text):
        """A block of Python without a file."""
        subprocess.run([sys.executable, "-c", text], cwd=self.directory, check=True, timeout=150, env=self._variables())

    def types(self, command):
        """A command; training is cut short."""
        words = shlex.split(command)
        if words[0] != "srl-run":
            words = ["pip", *words[3:4], *OFFLINE, "--target", str(self.site), *words[4:]] if "pip" in words else None
            command = shlex.join([sys.executable, "-m", *words]) if words else command
            subprocess.run(["bash", "-ec", command], cwd=self.directory, check=True, timeout=150)
            return None
        starts_nothing = words[1] in ("new", "check", "list")
        cut = () if starts_nothing else ("stop={updates: 3}", "--screen", "off")
        if not starts_nothing and "everything.yaml" not in words:  # that one shows who imports what
            cut += ("--placement", "fused")
        done = self._trial_run(
            *words[1:], *cut, without_trial_dir=starts_nothing, cwd=self.directory, env=self._variables()
        ).check()
        if not starts_nothing:
            assert done.summary["updates"] == 3
        return done

    def _variables(self):
        path = [str(self.site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}


def test_the_page_has_every_kind_and_skeleton():
    text = PAGE.read_text()
    for kind in KINDS:
        assert f"`{kind}`" in text
    for kind in ("algorithm", "environment"):
        assert kind in SKELETONS
        assert f"srl-run new {kind}" in text


def test_every_block_in_the_order_of_the_page(trial_run, tmp_path, monkeypatch):
    monkeypatch.setattr(REGISTRY, "_entries", {kind: dict(names) for kind, names in REGISTRY._entries.items()})
    monkeypatch.setattr(sys, "path", list(sys.path))
    reader = Reader(tmp_path, trial_run)
    printed = {}
    for language, text in BLOCKS:
        if FILE.match(text):
            reader.copies(text)
        elif language == "python":
            reader.executes(text)
        elif language == "sh":
            printed |= {command: reader.types(command) for command in commands(text)}
        else:
            assert language == "text", f"a block of a language that nothing runs: {language}"
    assert "my_plugins.reinforce:Reinforce" in printed["srl-run list"].stdout
    table = list(csv.reader((printed["srl-run everything.yaml"].trial_dir / "table.csv").read_text().splitlines()))
    assert table[0][0] == "training"
    assert float(table[0][2]) == pytest.approx(0.99, abs=1e-5), "the reward below the wrapper is 1"
    last = [command for command in printed if command.startswith("srl-run everything.yaml ")][-1]
    policies = json.loads((printed[last].trial_dir / "policies.json").read_text())
    assert "my_plugins.waves:Waves" in json.dumps(policies), "the package's network did not run"


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "text"])
def test_a_message_of_the_page_is_what_is_said(text, trial_run, tmp_path):
    mistakes = {
        "lacks methods": ("def requirements(", "def requirement("),
        "another array": ('out.extras["value"][...] =', 'out.extras["value"] ='),
    }
    (mistake,) = (pair for key, pair in mistakes.items() if key in text)
    trial_run("new", "algorithm", "mine", without_trial_dir=True, cwd=tmp_path).check()
    code = tmp_path / "mine.py"
    code.write_text(code.read_text().replace(*mistake))
    done = trial_run("mine.yaml", "stop={updates: 1}", "--placement", "fused", "--screen", "off", cwd=tmp_path)
    assert MESSAGE.sub("", " ".join(text.split())) in MESSAGE.sub("", " ".join(done.stderr.split()))
