"""The metrics reference against what trials write: every name is listed, and nothing is listed that no trial writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import docs_pages as pages
import pytest

from srl.cli import main

TEXT = pages.pages()["reference/metrics.md"]
PLACEHOLDER = re.compile(r"\b(?:NAME|REASON|LENGTH)\b")

# Written only where something rare happened; the test's trials are sound and inline.
RARE = re.compile(
    r"(block_lengths|blocks|rows|edges\.NAME)\.dropped\..*|control_messages_refused\..*|"
    r"metrics_sinks_failed\..*|workers\.NAME\.shares\.waiting_for_(inference|ranks)"
)


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def flat(value: object, prefix: str = "") -> set[str]:
    """Key paths of a JSON object's leaves; an empty mapping is no leaf."""
    if not isinstance(value, dict):
        return {prefix}
    return {path for key, below in value.items() for path in flat(below, f"{prefix}.{key}" if prefix else key)}


def unlisted(names: set[str], listed: set[str]) -> set[str]:
    """Names that no listed name stands for; placeholders stand for one name each."""
    patterns = [re.compile(PLACEHOLDER.sub("[^.]+", re.escape(name)) + r"\Z") for name in listed]
    return {name for name in names if not any(pattern.match(name) for pattern in patterns)}


def unwritten(listed: set[str], names: set[str]) -> set[str]:
    """Listed names that no name was an example of."""
    return {name for name in listed if unlisted(names, {name}) == names}


@pytest.fixture(scope="module")
def trial(shared_trial_run) -> Path:
    """A short trial with an evaluator."""
    few = ("workers.evaluator.episodes=4", "workers.evaluator.environments=4", "stop.evaluation_return=null")
    return shared_trial_run("cartpole_ppo", "stop.env_steps=8000", *few, "--screen", "off").check().trial_dir


@pytest.fixture(scope="module")
def names_with_options(tmp_path_factory) -> set[str]:
    """Names that PPO writes only with some of its options; they exclude each other."""
    found = set()
    for option in ("popart", "normalize_returns"):
        path = tmp_path_factory.mktemp("trial") / option
        scales = ("rows=16", "normalize_observations=true", "normalize_returns=false", f"{option}=true")
        options = [f"policies.learner.algorithm.{key}" for key in scales]
        words = ["--algorithm", "ppo", "--environment", "Pendulum-v1", *options, "stop.updates=2", "--screen", "off"]
        assert main([*words, "--placement", "fused", "--trial-dir", str(path)]) == 0
        found |= {name for line in (path / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}
    return found


def test_matching_can_fail():
    assert unlisted({"edges.samples.sent", "edges.a.b.sent"}, {"edges.NAME.sent"}) == {"edges.a.b.sent"}
    assert unwritten({"edges.NAME.sent", "loss/policy"}, {"edges.samples.sent"}) == {"loss/policy"}


def test_every_metric_is_listed(trial, names_with_options):
    lines = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
    written = {name for line in lines for name in line} | names_with_options
    listed = pages.listed_names(section("metrics.jsonl"))
    assert {line["kind"] for line in lines} == {"training", "evaluation"}
    assert unlisted(written, listed) == set()
    assert unwritten(listed, written) == set()


def test_every_tensorboard_tag_is_listed(trial):
    from tensorboard.compat.proto.event_pb2 import Event

    (file,) = (trial / "tensorboard").iterdir()
    tags = {value.tag for event in events(file.read_bytes(), Event) for value in event.summary.value}
    listed = pages.listed_names(section("metrics.jsonl")) | pages.listed_names(section("TensorBoard and other sinks"))
    assert "progress/frames" in tags
    assert unlisted(tags, listed) == set()


def events(data: bytes, kind: type) -> list:
    """The records of an event file: length (8 bytes), its checksum (4), the record, its checksum (4)."""
    found, position = [], 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 8], "little")
        found.append(kind.FromString(data[position + 12 : position + 12 + length]))
        position += 16 + length
    return found


def test_every_entry_of_the_summary_is_listed(trial):
    written = flat(json.loads((trial / "summary.json").read_text()))
    listed = pages.listed_names(section("summary.json").partition("### Why blocks")[0])
    assert unlisted(written, listed) == set()
    missing = unwritten(listed, written) - CONTAINERS
    assert {name for name in missing if not RARE.fullmatch(name)} == set()


CONTAINERS = {"evaluation", "best_evaluation"}
"""Listed for the word that they may be null."""


def test_every_file_of_the_trial_directory_is_listed(trial):
    listed = {name.rstrip("/") for name in pages.listed_names(section("The trial directory"))}
    assert {path.name for path in trial.iterdir()} <= listed


def test_every_reason_for_a_refusal_is_listed():
    from srl.system.flow.ledger import Refusal

    listed = pages.listed_names(section("summary.json").partition("### Why blocks")[2])
    assert {reason.value for reason in Refusal} <= listed
