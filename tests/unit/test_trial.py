"""The trial directory: unique under simultaneous starts, clear about bad disks, whole files only."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from srl.api.errors import ResourceError, UsageError
from srl.api.experiment import Experiment
from srl.system import trial as trial_module
from srl.system.trial import TrialDirectory

EXPERIMENT = Experiment.model_validate(
    {
        "name": "toy",
        "environment": {"type": "toy"},
        "policies": {"main": {"algorithm": {"type": "ppo"}}},
        "workers": {"trainer": {"kind": "trainer", "policy": "main", "samples": "samples"}},
        "stop": {"updates": 1},
    }
)


def test_the_default_name_tells_experiment_and_time(tmp_path):
    trial = TrialDirectory.create(EXPERIMENT, parent=tmp_path / "trials")
    assert re.fullmatch(r"toy-\d{8}-\d{6}", trial.path.name)
    assert trial.path.parent == tmp_path / "trials"
    assert trial.checkpoints.is_dir()
    assert trial.tensorboard.is_dir()
    assert trial.worker_log("actor/0").parent.is_dir()


def test_ten_simultaneous_starts_get_ten_directories(tmp_path):
    script = (
        "import sys; from pathlib import Path; from tests_toy import EXPERIMENT\n"
        "from srl.system.trial import TrialDirectory\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(TrialDirectory.create(EXPERIMENT, parent=Path(sys.argv[1])).path)\n"
    )
    (tmp_path / "tests_toy.py").write_text(
        "from srl.api.experiment import Experiment\n"
        f"EXPERIMENT = Experiment.model_validate_json({EXPERIMENT.model_dump_json()!r})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "trials")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    starts = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    for start in starts:
        assert start.stdout.readline() == "ready\n"
    for start in starts:
        start.stdin.write("\n")
        start.stdin.flush()
    paths = {start.communicate(timeout=100)[0].strip() for start in starts}
    assert len(paths) == 10
    assert all(start.returncode == 0 for start in starts)


def test_a_given_directory_is_used_as_it_is_and_never_twice(tmp_path):
    trial = TrialDirectory.create(EXPERIMENT, tmp_path / "mine")
    assert trial.path == tmp_path / "mine"
    trial.write_experiment("name: toy\n")
    with pytest.raises(UsageError, match="holds a trial already"):
        TrialDirectory.create(EXPERIMENT, tmp_path / "mine")


def test_a_directory_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not empty"):
        TrialDirectory.create(EXPERIMENT, tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        TrialDirectory.create(EXPERIMENT, tmp_path / "thesis.tex")


@pytest.mark.parametrize("code", ["EROFS", "ENOSPC", "EACCES"])
def test_a_bad_disk_is_one_clear_message(tmp_path, monkeypatch, code):
    import errno

    def refuse(*_):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(trial_module.os, "fsync", refuse)
    with pytest.raises(ResourceError) as caught:
        TrialDirectory.create(EXPERIMENT, tmp_path / "mine")
    assert caught.value.where == str(tmp_path / "mine")
    assert caught.value.value == os.strerror(getattr(errno, code))
    assert "--trial-dir" in caught.value.hint
    assert "bytes" in caught.value.expected


def test_proc_is_no_place_for_a_trial():
    with pytest.raises(ResourceError, match="cannot make the trial directory"):
        TrialDirectory.create(EXPERIMENT, parent=trial_module.Path("/proc/trials"))


def test_open_refuses_what_is_no_trial_and_names_the_nearest(tmp_path):
    with pytest.raises(UsageError, match="no such directory"):
        TrialDirectory.open(tmp_path / "nothing")
    trial = TrialDirectory.create(EXPERIMENT, parent=tmp_path)
    with pytest.raises(UsageError, match="is no trial"):
        TrialDirectory.open(trial.path)
    trial.write_experiment("name: toy\n", as_written="name: toy # mine\n")
    assert TrialDirectory.open(trial.path) == trial
    with pytest.raises(UsageError, match=f"no such directory.*Did you mean '{trial.path}'"):
        TrialDirectory.open(trial.path.with_name(trial.path.name[:-1]))
    joint = tmp_path / "both-seeds.json"
    joint.write_text("{}")
    with pytest.raises(UsageError, match=r"this is a file.*name one of them"):
        TrialDirectory.open(joint)
    assert trial.experiment_as_written.read_text() == "name: toy # mine\n"
    with pytest.raises(UsageError) as caught:
        TrialDirectory.open(tmp_path)
    assert str(trial.path) in caught.value.hint


def test_the_summary_is_valid_json_whatever_is_in_it(tmp_path):
    trial = TrialDirectory.create(EXPERIMENT, tmp_path / "mine")
    assert trial.read_summary() is None
    trial.write_summary(
        {
            "nan": float("nan"),
            "deep": [{"inf": np.float32("inf")}],
            "steps": np.int64(3),
            "array": np.arange(2),
            "ä": None,
        }
    )

    def refuse(constant):
        raise AssertionError(constant)

    summary = json.loads(trial.summary.read_text(), parse_constant=refuse)
    assert summary == {"nan": None, "deep": [{"inf": None}], "steps": 3, "array": [0, 1], "ä": None}
    assert trial.read_summary() == summary


def test_a_failed_write_leaves_the_old_summary_and_nothing_else(tmp_path, monkeypatch):
    trial = TrialDirectory.create(EXPERIMENT, tmp_path / "mine")
    trial.write_summary({"updates": 1})
    before = sorted(path.name for path in trial.path.iterdir())

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("srl.system.durable.os.fsync", full)
    with pytest.raises(ResourceError, match=r"cannot write summary\.json"):
        trial.write_summary({"updates": 2})
    assert trial.read_summary() == {"updates": 1}
    assert sorted(path.name for path in trial.path.iterdir()) == before


def test_policies_come_back_with_infinite_bounds(tmp_path):
    trial = TrialDirectory.create(EXPERIMENT, tmp_path / "mine")
    assert trial.read_policies() is None
    environment = {"name": "toy", "observation": {"low": float("-inf"), "high": 1.5, "shape": (4,)}}
    trial.write_policies(environment, {"main": {"network": {"hidden": [64, 64]}}})
    assert trial.read_policies() == (environment, {"main": {"network": {"hidden": [64, 64]}}})
    assert "Infinity" not in trial.policies.read_text()
    trial.policies.write_text("{")
    with pytest.raises(UsageError, match="not a valid file of policies"):
        trial.read_policies()
