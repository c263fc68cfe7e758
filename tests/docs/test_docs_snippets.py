"""What a reader of the site would copy: YAML is loaded and resolved, commands are parsed, Python files are run."""

from __future__ import annotations

import copy
import importlib
import re
import shlex
import subprocess
import sys

import docs_pages
import pytest
import yaml

from srl.api.loading import bundled_experiments, load_experiment
from srl.api.registry import BUILT_IN, REGISTRY, environment_factory
from srl.commands import COMMANDS, RUN
from srl.distributed.graph import resolve

FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
BESIDE = re.compile(r"# beside (\S+\.py)\n")

BASE = {
    "name": "snippet",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 16}}},
    "streams": {"samples": {"kind": "sample"}},
    "workers": {
        "actors": {"kind": "actor", "environments": 8, "agents": [{"policy": "main", "samples": "samples"}]},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        "evaluator": {"kind": "evaluator", "policy": "main", "interval_env_steps": 10_000},
    },
    "stop": {"env_steps": 100_000},
}
"""What the snippets are parts of: the names of the bundled experiments."""

EXPORT = ["-m", "srl.cli", "export", "trials/python", "--out", "deployed"]
"""The page on results tells it with another trial."""

WHOLE = {"name", "environment", "policies", "streams", "workers", "stop"}

YAML = docs_pages.code_blocks("yaml")
SHELL = docs_pages.code_blocks("sh")
PYTHON = docs_pages.code_blocks("python")


def merged(base: dict, part: dict) -> dict:
    """The part on top of the base; a mapping with another type (or kind) replaces the one below it."""
    result = copy.deepcopy(base)
    for key, value in part.items():
        below = result.get(key)
        same = isinstance(below, dict) and isinstance(value, dict) and key != "environment"
        result[key] = merged(below, value) if same else value
    return result


def files() -> dict[str, str]:
    """Python files that pages show, by name."""
    return {match[1]: block.text for block in PYTHON if (match := FILE.match(block.text))}


def test_pages_have_snippets():
    assert len(YAML) > 15
    assert len(SHELL) > 5
    assert len(files()) >= 4


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_is_a_valid_experiment_or_part_of_one(block, tmp_path):
    """Resolved against the real spaces, so that networks and masks are checked too; nothing is started."""
    written = yaml.safe_load(block.text)
    experiment = written if set(written) >= WHOLE else merged(BASE, written)
    if match := BESIDE.match(block.text):
        (tmp_path / match[1]).write_text(files()[match[1]])
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(experiment))
    loaded = load_experiment(str(path))
    factory = environment_factory(loaded.model_dump(mode="json")["environment"])
    graph = resolve(loaded, factory.probe())
    assert set(graph.policies) == set(experiment["policies"])


def commands() -> list[tuple[str, list[str]]]:
    """Page and words of every line that starts `srl-run`."""
    found = []
    for block in SHELL:
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["srl-run"]:
                found.append((str(block), words[1:]))
    return found


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_command_is_one(page, words):
    """Its options exist; where it names a bundled experiment, its overrides do too."""
    name = words[0]
    command = COMMANDS.get(name)
    parser = importlib.import_module(command.module if command else RUN).parser()
    options = parser.parse_intermixed_args(words[1:] if command else words)
    words_given = getattr(options, "words", [])
    overrides = [word for word in words_given if "=" in word]
    for source in set(words_given) - set(overrides):
        if source in bundled_experiments():
            load_experiment(source, overrides)
        else:
            assert source.endswith(".yaml"), f"{page}: {source}"


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_is_python(block):
    compile(block.text, str(block), "exec")


def test_python_page_runs(tmp_path):
    """The scripts, one after the other, as files in one directory; the last one acts with what was exported."""
    for words in (["run.py"], ["load.py"], EXPORT, ["deployed.py"]):
        if words[0] in files():
            (tmp_path / words[0]).write_text(files()[words[0]])
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.strip()


COMPARISON = docs_pages.pages()["comparison.md"]
NOT_OURS = {"n"}


def ours() -> list[str]:
    """Code in the last column of the comparison's tables."""
    rows = [line for line in COMPARISON.splitlines() if line.startswith("| ") and "---" not in line]
    cells = [re.split(r"(?<!\\) \| ", row.strip("| "))[-1] for row in rows]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def known_words() -> set[str]:
    """Every key of experiments and options, every built-in name, every value of a choice."""
    generator = str(docs_pages.DOCS / "generator")
    sys.path.insert(0, generator)
    try:
        reference = importlib.import_module("experiment_reference")
    finally:
        sys.path.remove(generator)
    pages = [reference.experiment_page()]
    builders = ("algorithms_page", "networks_page", "environments_page", "sinks_page")
    pages += [getattr(reference, name)("") for name in builders]
    text = "\n".join(pages)
    anchors = re.findall(r'id="([^"]+)"', text)
    words = set(re.findall(r"`(\w+)`", text)) | {part for anchor in anchors for part in re.split(r"[.-]", anchor)}
    return words | {name for kind in BUILT_IN for name in BUILT_IN[kind]} | set(COMMANDS)


def words_of(code: str) -> set[str]:
    """Keys, and values that name something, of a flow mapping or a single word; a command's name."""
    if code.startswith("srl"):
        return set(re.findall(r"^srl-run ([a-z]+)", code))
    if not re.fullmatch(r"\w+|[\w.]+: .+|\{.*\}", code):
        return set()
    mapping = code if ":" in code else f"{code}: 1"
    value = yaml.safe_load((mapping if mapping.startswith("{") else f"{{{mapping}}}").replace("...", "1"))
    found: set[str] = set()

    def walk(part: object) -> None:
        for key, below in part.items() if isinstance(part, dict) else ():
            found.update(str(key).split(".") if key is not None else ())
            if key in ("type", "kind") and ":" not in str(below):
                found.add(str(below))
            walk(below)

    walk(value)
    return found


def test_what_the_comparison_calls_ours_exists():
    words = {word for code in ours() for word in words_of(code)}
    assert {"rows", "minibatch_rows", "value_coefficient", "frame_stack", "video"} <= words
    known = known_words()
    assert words - known - NOT_OURS == set()
    assert REGISTRY.names("wrapper")
