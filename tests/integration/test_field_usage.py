"""Field cases 25, 52, 58: wrong keys, many trials at once, environments that other processes must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PLUGINS = Path(__file__).parents[1] / "plugins"
FIELD = PLUGINS / "field.yaml"
GRAPH = """
streams: {samples: {kind: sample}}
workers:
  actors: {kind: actor, environments: 1, agents: [{policy: main, samples: samples}]}
  trainer: {kind: trainer, policy: main, samples: samples}
stop: {updates: 1}
"""


# Case 25

PATHS = {
    "policies.main.algorithm.gama": ".gamma'",
    "policies.main.algorithm.prioritized_replay_alpha": "unknown key",
    "streams.samples.max_polcy_lag": ".max_policy_lag'",
}


def test_case_25_wrong_keys_are_named_with_path_and_nearest_name_before_anything_starts(
    trial_run: Any, tmp_path: Path
) -> None:
    file = tmp_path / "typos.yaml"
    file.write_text(
        "name: typos\n"
        "environment: {type: gymnasium, id: CartPole-v1}\n"
        "policies: {main: {algorithm: {type: ppo, gama: .9, prioritized_replay_alpha: .6}}}\n"
        + GRAPH.replace("{kind: sample}", "{kind: sample, max_polcy_lag: 1}")
    )
    ended = trial_run(file).check(2)
    assert not ended.trial_dir.exists()
    assert ended.stderr.count("srl-run: error:") == 1
    lines = {path: line for line in ended.stderr.splitlines() for path in PATHS if path in line}
    assert set(lines) == set(PATHS)
    for path, nearest in PATHS.items():
        assert nearest in lines[path]
    assert "Traceback" not in ended.stderr


def test_case_25_an_unread_key_is_one_warning_and_a_resolved_experiment_has_none(trial_run: Any) -> None:
    options = ("--screen", "off", "--placement", "fused")
    ended = trial_run(FIELD, "limits.inference_seconds=5", "lockstep=true", "checkpoints.interval_seconds=7", *options)
    (warning,) = ended.check().stderr.splitlines()
    assert "limits.inference_seconds" in warning
    assert "checkpoints.interval_seconds" in warning
    again = trial_run("check", ended.trial_dir / "experiment.yaml", "limits.inference_seconds=60", "lockstep=false",
                      without_trial_dir=True)  # fmt: skip
    assert again.check().stderr == ""


# Case 52


def test_case_52_ten_trials_at_once_know_nothing_of_each_other(trial_run: Any, tmp_path: Path) -> None:
    """Same experiment, working directory and directory for temporary files; two of them with ports."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp")) / f"st{os.getpid()}"  # short, as paths of sockets must be
    temporary.mkdir()
    tcp = ["--placement", "processes", "--transport", "tcp"]
    trials = [
        trial_run.start(
            FIELD,
            *("--screen", "off"),
            *(tcp if index < 2 else ["--placement", "fused"]),
            without_trial_dir=True,
            cwd=tmp_path,
            env={"TMPDIR": str(temporary)},
        )
        for index in range(10)
    ]
    for trial in trials:
        trial.finish(150).check()
    directories = sorted((tmp_path / "trials").iterdir())
    assert len(directories) == 10
    for directory in directories:
        summary = json.loads((directory / "summary.json").read_text())
        assert summary["exit_reason"] == "updates"
        assert summary["updates"] == 1
        assert summary["control_messages_refused"] == {}
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


# Case 58

REGISTERED = """
import threading
import gymnasium
from srl.api.experiment import *
from srl.environments.toy import Count

class Mine(Count):
    def __init__(self, length):
        super().__init__(length)
        self._lock = threading.Lock()

    def step(self, action):
        with self._lock:
            return super().step(action)

gymnasium.register("FieldCount-v0", entry_point=lambda length: Mine(length), kwargs={"length": 4})

def experiment():
    return Experiment(
        name="registered",
        environment={"type": "gymnasium", "id": "FieldCount-v0"},
        policies={"main": {"algorithm": {"type": "ppo", "rows": 8}}},
        streams={"samples": SampleStream()},
        workers={
            "actors": ActorGroup(count=2, environments=2, agents=({"policy": "main", "samples": "samples"},)),
            "trainer": TrainerGroup(policy="main", samples="samples"),
            "evaluator": EvaluatorGroup(policy="main", episodes=2),
        },
        stop={"updates": 2},
        placement="processes",
    )
"""


def test_case_58_what_the_experiment_file_registers_exists_in_every_worker(trial_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "registered.py"
    file.write_text(REGISTERED)
    summary = trial_run(file, "--screen", "off").check().summary
    assert summary["updates"] == 2
    assert summary["evaluation"]["mean_return"] == 4


UNREACHABLE = """
from srl.api.experiment import Experiment
from srl.environments.toy import Count

def local():
    class Local(Count):
        pass
    return Local

def experiment():
    return Experiment(
        name="unreachable",
        environment={"type": "gymnasium", "entry": local(), "kwargs": {"make": lambda: None}},
        policies={"main": {"algorithm": {"type": "ppo"}}},
        workers={"trainer": {"kind": "trainer", "policy": "main", "samples": "samples"}},
        stop={"updates": 1},
    )
"""


def test_case_58_lambdas_and_local_classes_are_named_by_their_path(trial_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "unreachable.py"
    file.write_text(UNREACHABLE)
    ended = trial_run(file).check(2)
    (entry,) = (line for line in ended.stderr.splitlines() if "environment.entry" in line)
    (make,) = (line for line in ended.stderr.splitlines() if "environment.kwargs.make" in line)
    assert "local.<locals>.Local" in entry
    assert "<lambda>" in make
    for line in (entry, make):
        assert "cannot be found by other processes" in line
        assert "top level of a module or file" in line


SCRIPT = """
from pathlib import Path
from srl.api.loading import experiment_from_mapping
from srl.environments.toy import Count

class InMain(Count):
    pass

def start():
    from srl.distributed.controller import run_trial
    experiment = experiment_from_mapping({
        "name": "script",
        "environment": {"type": "gymnasium", "entry": InMain, "kwargs": {"length": 4}},
        "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
        "streams": {"samples": {"kind": "sample"}},
        "workers": {
            "actors": {"kind": "actor", "environments": 2, "agents": [{"policy": "main", "samples": "samples"}]},
            "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        },
        "stop": {"updates": 2},
        "placement": "processes",
    })
    raise SystemExit(run_trial(experiment, trial_dir=Path("trial"), screen="off").exit_code)
"""
GUARD = '\nif __name__ == "__main__":\n    start()\n'


def run_script(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    file = directory / "script.py"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, str(file)], cwd=directory, capture_output=True, text=True, timeout=90, check=False
    )


def test_case_58_a_class_of_the_main_module(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT + GUARD)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "trial" / "summary.json").exists()


def test_case_58_a_script_without_a_main_guard_gets_one_message_and_no_storm(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT + "\nstart()\n")
    assert done.returncode != 0
    message = 'Put what starts a trial under: if __name__ == "__main__":'
    assert done.stderr.count(message) == 1
    assert str(tmp_path / "script.py") in done.stderr
    assert not (tmp_path / "trial").exists()
