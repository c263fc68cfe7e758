"""A package beside SRL, installed as one and found through its entry points: trained in processes of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "plugins" / "srl_example"
CORRIDOR = PACKAGE / "corridor.yaml"
OFF = ("--screen", "off")
BEST_RETURN = 1.0 - 0.05
"""Two steps straight to the goal, as ``corridor.py`` pays them."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A directory that the package is installed in, without a network and without a trace in the tree."""
    directory = tmp_path_factory.mktemp("package")
    source, target = directory / "source", directory / "site"
    shutil.copytree(PACKAGE, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
         "--no-build-isolation", "--target", target, source],
        check=True,
        timeout=120,
    )  # fmt: skip
    return target


@pytest.fixture
def installed(site):
    """The variables of a process that finds the package."""
    present = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(site), *([present] if present else [])])}


@pytest.fixture
def run(trial_run, installed):
    """``srl-run`` with the package installed."""

    def run(*words, **options):
        return trial_run(*words, env=installed, **options).check()

    return run


def test_its_names_are_listed(run):
    printed = run("list", without_trial_dir=True).stdout
    assert "example_actor_critic srl_example.plugin:ActorCritic" in " ".join(printed.split())
    assert "example_corridor srl_example.corridor:CorridorFactory" in " ".join(printed.split())


def test_its_algorithm_solves_its_environment_in_processes_with_the_same_bits_as_fused(run, tmp_path):
    trial = tmp_path / "trial"
    in_processes = run(CORRIDOR, "--placement", "processes", *OFF, trial_dir=trial).summary
    fused = run(CORRIDOR, "--placement", "fused", *OFF).summary
    assert in_processes["weights_sha256"] == fused["weights_sha256"]
    assert in_processes["evaluation"]["mean_return"] == pytest.approx(BEST_RETURN, abs=1e-6)
    assert in_processes["evaluation"]["std"] == pytest.approx(0.0, abs=1e-6)
    assert in_processes["gradient_steps"] == in_processes["updates"] == 100
    assert in_processes["blocks"]["trained"] == 200
    printed = run("evaluate", trial, "--episodes", "10", without_trial_dir=True).stdout
    assert float(re.search(r"^mean_return: (.+)$", printed, re.MULTILINE)[1]) == pytest.approx(BEST_RETURN)


def test_without_learning_it_does_not(run):
    options = ("policies.main.algorithm.learning_rate=1e-12", "--placement", "fused", "--screen", "off")
    assert run(CORRIDOR, *options).summary["evaluation"]["mean_return"] < BEST_RETURN - 0.2


def test_actors_load_no_torch_for_it():
    """Its acting policy computes in numpy, and nothing that an actor imports of the package imports torch."""
    code = (
        "import sys, srl_example.plugin, srl_example.corridor, srl_example.acting\n"
        "print('torch' in sys.modules, 'gymnasium' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE / "src")
    assert done.stdout.split() == ["False", "False"]


def test_its_network_serves_ppo(run):
    """With SRL's heads around it, and with a recurrent core between: its class is found in every process."""
    ppo = "policies.main.algorithm={type: ppo, rows: 16, minibatch_rows: 256, learning_rate: 3.0e-3}"
    network = "policies.main.network={type: example_fourier, frequencies: 1"
    options = ("stop={updates: 60}", "--placement", "processes", "--screen", "off")
    assert run(CORRIDOR, ppo, f"{network}}}", *options).summary["evaluation"]["mean_return"] == pytest.approx(
        BEST_RETURN
    )
    recurrent = run(
        CORRIDOR, ppo, f"{network}, recurrent: {{type: gru, size: 8, rows: 8}}}}", "stop={updates: 2}", *OFF
    )
    assert recurrent.summary["updates"] == 2


def test_its_recipe_runs_on_its_environment(run):
    done = run(
        "--algorithm", "example_actor_critic", "--environment", "example_corridor", "stop.env_steps=2000",
        "--screen", "off",
    )  # fmt: skip
    assert done.summary["env_steps"] >= 2000


def test_its_options_are_checked_with_their_key_paths(trial_run, installed):
    done = trial_run(
        "check", CORRIDOR, "policies.main.algorithm.hiden=3", "environment.distance=0", "environment.limits=3",
        without_trial_dir=True, env=installed,
    )  # fmt: skip
    done.check(2)
    assert "- policies.main.algorithm.hiden: no such key" in done.stderr
    assert "Did you mean 'policies.main.algorithm.hidden'?" in done.stderr
    assert "- environment.limits: unknown key (override). Did you mean 'limit'?" in done.stderr
    assert "environment.distance: wrong value" in done.stderr


def test_without_the_package_its_names_are_unknown(trial_run):
    done = trial_run("check", CORRIDOR, without_trial_dir=True).check(2)
    assert "environment.type: unknown environment" in done.stderr
    assert "policies.main.algorithm.type: unknown algorithm" in done.stderr
