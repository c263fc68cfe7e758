"""``srl-run new``: what it writes runs as it is, with the commands it prints."""

import re
import shlex
import subprocess
import sys

import pytest

KINDS = ("algorithm", "environment", "experiment")


@pytest.fixture
def new(trial_run, tmp_path):
    """``srl-run new`` in a directory of the test's; returns the run and the commands that it printed."""

    def new(*words, code=0):
        done = trial_run("new", *words, without_trial_dir=True, cwd=tmp_path).check(code)
        commands = re.findall(r"^(?:next)?\s+((?:srl-run|python) .+)$", done.stdout, re.MULTILINE)
        return done, [shlex.split(command) for command in commands]

    return new


@pytest.fixture
def follow(trial_run, tmp_path):
    """Runs a printed command as it is printed, with words added to those that train; returns the finished trial."""

    def follow(command, *added):
        if command[0] == "python":
            done = subprocess.run(
                [sys.executable, *command[1:], "-q", "-p", "no:cacheprovider"],
                cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            return done
        is_check = command[1] == "check"
        return trial_run(
            *command[1:], *(() if is_check else (*added, "--screen", "off")), without_trial_dir=is_check, cwd=tmp_path
        ).check()

    return follow


def test_an_algorithm_learns_as_written_in_processes_with_the_same_bits_as_fused(new, follow, tmp_path):
    _, (command,) = new("algorithm", "my_way")
    assert {path.name for path in tmp_path.iterdir()} == {"my_way.py", "my_way.yaml"}
    long = follow(command, "stop.env_steps=100_000", "lockstep=true", "--placement", "processes").summary
    assert long["evaluation"]["mean_return"] > 195, "not learning: random actions get 20"
    assert long["gradient_steps"] == long["updates"]
    digests = {
        follow(command, "stop={updates: 12}", "lockstep=true", "--placement", placement).summary["weights_sha256"]
        for placement in ("fused", "processes")
    }
    assert len(digests) == 1
    assert follow(command, "stop={updates: 5}", "workers.trainer.count=2").summary["updates"] == 5


def test_an_algorithm_takes_any_network_and_says_which_spaces_it_takes(new, trial_run, tmp_path):
    new("algorithm", "my_way")
    check = ("check", "my_way.yaml")
    options = {"without_trial_dir": True, "cwd": tmp_path}
    trial_run(*check, "policies.main.network={type: mlp, hidden: [8]}", **options).check()
    refused = trial_run(*check, "environment.id=Pendulum-v1", **options).check(2)
    assert "this algorithm cannot act in Pendulum-v1" in refused.stderr
    memory = trial_run(*check, "policies.main.network={recurrent: {type: gru}}", **options).check(2)
    assert "policies.main.network: memory is not trained" in memory.stderr


def test_an_algorithm_has_a_recipe(new, trial_run, tmp_path):
    new("algorithm", "my_way")
    words = ("--algorithm", "./my_way.py:MyWay", "--environment", "Acrobot-v1", "stop={updates: 3}", "--screen", "off")
    assert trial_run(*words, cwd=tmp_path).check().summary["updates"] == 3


def test_an_environment_is_solved_as_written_and_its_own_tests_pass(new, follow, tmp_path):
    _, (train, tests) = new("environment", "falling_ball", "--directory", "with space/deep")
    assert {path.name for path in (tmp_path / "with space/deep").iterdir()} == {
        "falling_ball.py", "falling_ball.yaml", "test_falling_ball.py",
    }  # fmt: skip
    follow(tests)
    summary = follow(train, "stop.env_steps=60_000", "lockstep=true", "--placement", "processes").summary
    assert summary["evaluation"]["mean_return"] > 0.95, "random actions get less than -0.4"


def test_an_experiment_runs_as_written(new, follow):
    _, (check, train) = new("experiment", "first")
    assert "first is valid" in follow(check).stdout
    assert follow(train, "stop={updates: 3}").summary["updates"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_ruff(new, tmp_path, kind):
    """At ruff's own line length and at this project's, with this project's rules."""
    new(kind, "my_thing")
    rules = "E,F,W,I,B,UP,RUF,D,ANN,TID,PT,ERA,G,PLE,C90"
    for words in (
        ["check", "--select", rules, "--ignore", "ANN401,D105,D107", "--config", "lint.pydocstyle.convention='google'"],
        ["format", "--check"],
        ["format", "--check", "--line-length", "120"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", "--no-cache", "."],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(new, tmp_path, kind):
    (tmp_path / "mine.yaml").write_text("precious")
    done, _ = new(kind, "mine", code=2)
    assert "mine.yaml: there is such a file already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    assert (tmp_path / "mine.yaml").read_text() == "precious"


def test_a_directory_that_cannot_be_made(new, tmp_path):
    (tmp_path / "file").touch()
    done, _ = new("experiment", "mine", "--directory", "file/below", code=2)
    assert "cannot write the skeleton: Not a directory" in done.stderr
