"""Every message of the troubleshooting page, made by doing the wrong thing; paths and numbers may differ."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import docs_pages
import pytest

from srl import cli

PAGE = "troubleshooting.md"
MISTAKES = Path(__file__).with_name("docs_mistakes.py")

TYPO = """\
name: typo
environment: {type: gymnasium, id: Acrobat-v1}
policies:
  main: {algorithm: {type: ppo, learning_rat: 1e-3}}
streams:
  samples: {kind: sample}
workers:
  actors: {kind: actor, agents: [{policy: main, samples: sample}]}
  trainer: {kind: trainer, policy: main, samples: samples}
stop: {env_steps: 200_000}
"""
NO_GUARD = "import srl\nsrl.run('cartpole_ppo')\ndef experiment(): ...\n"
FILES = {
    "typo.yaml": TYPO,
    "broken.yaml": "name: x\n  environment: 3\n",
    "broken.py": "import nothere\n",
    "noguard.py": NO_GUARD,
    "taken/notes.txt": "mine",
}

STARTS_NOTHING = {
    "experiment": ["atari_pong"],
    "command": ["chekc", "cartpole_ppo"],
    "typos": ["check", "typo.yaml"],
    "override": ["cartpole_ppo", "stop.env_step=3"],
    "value": ["cartpole_ppo", "policies.main.algorithm.epochs=0"],
    "yaml": ["check", "broken.yaml"],
    "unread": ["check", "cartpole_ppo", "limits.inference_seconds=5"],
    "endless": ["cartpole_ppo", "stop.env_steps=null", "stop.evaluation_return=null"],
    "lockstep": ["cartpole_ppo", "lockstep=true", "stop.env_steps=null"],
    "transport": ["cartpole_ppo", "placement=fused", "transport=tcp"],
    "ring_groups": ["cartpole_ppo", "workers.actors.ring_groups=3"],
    "ranks": ["check", "cartpole_ppo", "workers.trainer.count=2"],
    "fused ranks": ["check", "cartpole_ppo", "workers.trainer.count=2", "placement=fused"],
    "no GPU's memory": ["check", "cartpole_ppo", "workers.trainer.gpu_memory_fraction=0.5"],
    "memory": ["cartpole_ppo", "limits.memory_bytes=100000"],
    "network": ["check", "cartpole_ppo", "policies.main.network.type=nature_cnn"],
    "algorithm": ["cartpole_ppo", "policies.main.algorithm.type=sac"],
    "wrapper": [
        "check", "--algorithm", "ppo", "--environment",
        "{type: gymnasium, id: CartPole-v1, wrappers: [{type: frame_stak, frames: 2}]}",
    ],
    "plugin file": ["check", "cartpole_ppo", "plugins=[./nothere.py]"],
    "plugin import": ["check", "cartpole_ppo", "plugins=[{directory}/broken.py]"],
    "no plugins": ["--no-plugins", "--algorithm", "./mine.py:Mine", "--environment", "CartPole-v1"],
    "guard": ["check", "noguard.py"],
    "space": ["check", "--algorithm", "ppo", "--environment", f"{{type: gymnasium, entry: '{MISTAKES}:Graph'}}"],
    "taken": ["cartpole_ppo", "--trial-dir", "taken"],
    "no trial": ["evaluate", "nowhere"],
}  # fmt: skip

FAILS_HERE = {"NaN": [], "Raises": [], "WrongShape": [], "NothingLegal": ["environment.action_mask=info"]}
"""In one thread, which is this one; with further words of the command."""

FAILS_ELSEWHERE = {"Killed": [], "Hangs": ["limits.heartbeat_seconds=4"]}
"""In processes of their own."""


def normal(text: str) -> str:
    """A message without what differs between machines: directories, numbers, the host, line breaks."""
    text = re.sub(r"(?:\.?/[\w.+\-]+)*/(?=[\w.+\-])", "", text)
    text = re.sub(r"on host \S+", "on host HOST", text)
    text = re.sub(r"\d[\d,.]*", "0", text)
    return " ".join(text.split())


def message(stderr: str) -> str:
    """The message that begins with the command's name, without what is behind it (tracebacks, ends of logs)."""
    lines = stderr[stderr.index("srl-run: ") :].splitlines()
    return "\n".join([lines[0], *(line for line in lines[1:] if line.startswith("  - "))])


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """The messages of the page."""
    return {normal(block.text) for block in docs_pages.code_blocks("text") if block.page == PAGE}


@pytest.fixture(scope="module")
def produced() -> set[str]:
    """Filled by the tests, in file order; read by the last one."""
    return set()


@pytest.fixture
def directory(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_normal_keeps_what_a_person_reads():
    assert normal("a: /x/y.z/b.py:12 failed (got 1,234.5)") == normal("a: b.py:7 failed (got 3)")
    assert normal("a: b.py failed") != normal("a: c.py failed")


@pytest.mark.parametrize("name", STARTS_NOTHING)
def test_message_before_the_start(name, directory, capsys, shown, produced):
    cli.main([word.replace("{directory}", str(directory)) for word in STARTS_NOTHING[name]])
    text = normal(message(capsys.readouterr().err))
    produced.add(text)
    assert text in shown


def test_message_of_a_missing_package(directory, capsys, monkeypatch, shown, produced):
    class Absent:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "ale_py":
                raise ModuleNotFoundError("No module named 'ale_py'", name="ale_py")

    for name in [one for one in sys.modules if one.partition(".")[0] == "ale_py"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    cli.main(["check", "atari_pong_ppo"])
    text = normal(message(capsys.readouterr().err))
    produced.add(text)
    assert text in shown


def trial_of(name: str, words: list[str]) -> list[str]:
    environment = f"{{type: gymnasium, entry: '{MISTAKES}:{name}'}}"
    few = ["workers.actor.count=1", "policies.learner.algorithm.rows=16", "stop.updates=3", "--screen", "off"]
    return ["--algorithm", "ppo", "--environment", environment, *few, *words]


def test_message_of_a_missing_device(directory, capsys, monkeypatch, shown, produced):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    cli.main(["check", "cartpole_ppo", "workers.trainer.device=cuda"])
    text = normal(message(capsys.readouterr().err))
    produced.add(text)
    assert text in shown


@pytest.mark.parametrize("name", FAILS_HERE)
def test_message_of_a_failed_trial(name, directory, capsys, shown, produced):
    assert cli.main([*trial_of(name, FAILS_HERE[name]), "--placement", "fused", "--trial-dir", "trial"]) == 1
    text = normal(message(capsys.readouterr().err))
    produced.add(text)
    assert text in shown


@pytest.mark.parametrize("name", FAILS_ELSEWHERE)
def test_message_of_a_failed_process(name, shared_trial_run, shown, produced):
    done = shared_trial_run(*trial_of(name, FAILS_ELSEWHERE[name]), "--placement", "processes").check(1)
    text = normal(message(done.stderr))
    produced.add(text)
    assert text in shown


def test_message_about_a_checkpoint(directory, capsys, shown, produced):
    short = [
        "policies.main.algorithm.rows=16",
        "stop.updates=2",
        "workers.evaluator=null",
        "stop.evaluation_return=null",
    ]
    assert cli.main(["cartpole_ppo", *short, "--placement", "fused", "--screen", "off", "--trial-dir", "trial"]) == 0
    cli.main(["evaluate", "trial", "--checkpoint", "99"])
    text = normal(message(capsys.readouterr().err))
    produced.add(text)
    assert text in shown


def test_every_message_of_the_page_was_made(shown, produced):
    assert len(produced) == len(STARTS_NOTHING) + len(FAILS_HERE) + len(FAILS_ELSEWHERE) + 3, "run the whole file"
    assert shown - produced == set()
