"""``srl-run``: exit codes, one message on standard error, and what the commands print; nothing is trained here."""

import json
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml

from srl import cli
from srl.api.errors import WorkerFailure
from srl.api.loading import load_experiment, resolved_yaml
from srl.trials.listing import EXTRAS


@pytest.fixture
def run(capsys):
    def run(*arguments):
        code = cli.main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def calls(monkeypatch):
    """A controller that notes how it was called and ends with ``calls.code``."""
    noted = types.SimpleNamespace(experiment=None, options=None, code=0, raises=None, seeds=[])

    def run_trial(experiment, **options):
        noted.experiment, noted.options = experiment, options
        noted.seeds.append(experiment.seed)
        if noted.raises is not None:
            raise noted.raises
        return types.SimpleNamespace(exit_code=noted.code, summary={}, trial_dir=Path("nowhere"))

    module = types.ModuleType("srl.distributed.controller")
    module.run_trial = run_trial
    monkeypatch.setitem(sys.modules, "srl.distributed.controller", module)
    return noted


def test_run_hands_the_experiment_to_the_controller(run, calls, tmp_path):
    code, _, err = run(
        "cartpole_ppo", "stop.updates=3", "--seed", "7", "policies.main.algorithm.rows=16", "--placement", "fused",
        "--trial-dir", str(tmp_path), "--screen", "off", "--debug",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert calls.experiment.seed == 7
    assert calls.experiment.stop.updates == 3
    assert calls.experiment.placement == "fused"
    assert calls.experiment.policies["main"].algorithm.options["rows"] == 16
    assert calls.options == {"trial_dir": tmp_path, "screen": "off", "debug": True}


@pytest.mark.parametrize("code", [0, 1, 130, 143])
def test_exit_code_is_the_trials(run, calls, code):
    calls.code = code
    assert run("cartpole_ppo")[0] == code


def test_a_failed_run_is_one_message_without_traceback(run, calls):
    calls.raises = WorkerFailure("raised ValueError: boom-42", where="actor/0")
    code, out, err = run("cartpole_ppo")
    assert (code, out) == (1, "")
    assert err == "srl-run: error: actor/0: raised ValueError: boom-42\n"
    assert "Traceback" in run("cartpole_ppo", "--debug")[2]


def test_ctrl_c_before_the_controller_took_over(run, calls):
    calls.raises = KeyboardInterrupt()
    assert run("cartpole_ppo")[0] == 130


def test_recipe_for_an_environment(run, calls):
    assert run("--algorithm", "ppo", "--environment", "CartPole-v1", "stop.updates=3", "--seed", "2")[0] == 0
    assert calls.experiment.environment.type == "gymnasium"
    assert calls.experiment.environment.options["id"] == "CartPole-v1"
    assert (calls.experiment.stop.updates, calls.experiment.seed) == (3, 2)
    mapping = "{type: gymnasium, id: CartPole-v1, kwargs: {sutton_barto_reward: true}}"
    assert run("--algorithm", "ppo", "--environment", mapping)[0] == 0
    assert calls.experiment.environment.options["kwargs"] == {"sutton_barto_reward": True}


def test_an_algorithm_that_inherits_its_recipe_is_the_one_that_runs(run, calls, tmp_path, monkeypatch):
    text = "from srl.algorithms.ppo.plugin import PPO\nclass Mine(PPO):\n    implementation = f'{__file__}:Update'\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run("--algorithm", "./mine.py:Mine", "--environment", "CartPole-v1")[0] == 0
    (policy,) = calls.experiment.policies.values()
    assert policy.algorithm.type == f"{tmp_path}/mine.py:Mine"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "expected EXPERIMENT, or --algorithm and --environment"),
        (["--algorithm", "ppo"], "--environment is missing"),
        (["--environment", "CartPole-v1"], "--algorithm is missing"),
        (["cartpole_ppo", "--algorithm", "ppo", "--environment", "CartPole-v1"], "either EXPERIMENT, or --algorithm"),
        (["--algorithm", "ppo", "--environment", "CartPole-v1", "stop.env_steps"], "of the form key.path=value"),
        (["cartpole_ppo", "second"], "more than one experiment"),
        (["cartpol_ppo"], "Did you mean 'cartpole_ppo'"),
        (["cartpole_ppo", "stop.env_step=3"], "Did you mean 'stop.env_steps'?"),
        (["cartpole_ppo", "--placement", "fused", "--transport", "tcp"], "placement: processes"),
        (["cartpole_ppo", "--placement", "processes", "--transport", "in_process"], "placement: fused"),
        (["--algorithm", "pp0", "--environment", "CartPole-v1"], "Did you mean 'ppo'?"),
        (["--algorithm", "ppo", "--environment", "CartPole-v9"], "CartPole-v1"),
        (["--algorithm", "a.b:C", "--environment", "CartPole-v1", "--no-plugins"], "built-in plugins only"),
        (["cartpole_ppo", "--seed", "-1"], "at least 0"),
        (["cartpole_ppo", "--seeds", "1,x"], "such as 1,2,3"),
        (["cartpole_ppo", "--seeds", "1,1"], "each once"),
        (["cartpole_ppo", "--seeds", "1,-2"], "from 0 to"),
        (["cartpole_ppo", "--seeds", "1,2", "--seed", "3"], "not both"),
        (["evalute", "trials/first"], "Did you mean 'srl-run evaluate'?"),
        (["chek"], "Did you mean 'srl-run check'?"),
        (["evaluate", "somewhere", "--episodes", "0"], "at least 1"),
    ],
)
def test_bad_usage_is_code_2_and_one_message(run, calls, arguments, text):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.startswith("srl-run: error: ")
    assert "Traceback" not in err
    assert calls.experiment is None


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--placment", "fused"], "unrecognized arguments: --placment. Did you mean '--placement'? See srl-run --help"),
        (["cartpole_ppo", "--seed", "x"], "--seed: invalid int value: 'x'. See srl-run --help"),
        (["check", "--nope"], "See srl-run check --help"),
        (["cartpole_ppo", "--stop.env_steps", "3"], "Keys of the experiment have no dashes: stop.env_steps=VALUE."),
        (["cartpole_ppo", "--transport", "tpc"], "Did you mean 'tcp'?"),
        (["evaluate", "somewhere", "--epsiodes=3"], "Did you mean '--episodes'? See srl-run evaluate --help"),
        (["completion", "bsh"], "Did you mean 'bash'?"),
        (["new", "algoritm", "mine"], "Did you mean 'algorithm'?"),
        (["evaluate"], "the following arguments are required: TRIAL. See srl-run evaluate --help"),
    ],
)
def test_bad_options_are_code_2_and_one_line(run, arguments, hint):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("srl-run: error: ")
    assert hint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["help"], ["help", "video"], ["--version"]])
def test_help(run, arguments):
    code, out, _ = run(*arguments)
    assert code == 0
    assert out


def test_check_says_valid_and_shows_the_graph(run):
    code, out, _ = run("check", "cartpole_ppo")
    assert code == 0
    assert out.rstrip().endswith("cartpole_ppo is valid")
    assert "[actors] 1 x actor" in out


def test_check_finds_what_only_the_spaces_tell(run):
    code, _, err = run("check", "cartpole_ppo", "policies.main.network={type: nature_cnn}")
    assert code == 2
    assert "Box(4,) float32" in err


def test_check_prints_the_resolved_experiment(run, tmp_path):
    code, out, _ = run("check", "cartpole_ppo", "--resolved", "seed=4")
    assert code == 0
    path = tmp_path / "resolved.yaml"
    path.write_text(out)
    assert resolved_yaml(load_experiment(str(path))).strip() == out.strip()
    assert yaml.safe_load(out)["seed"] == 4


def test_show_graph_starts_nothing(run, calls):
    code, out, _ = run("cartpole_ppo", "--show-graph", "--placement", "fused")
    assert code == 0
    assert "transport in_process" in out
    assert calls.experiment is None


def test_unread_keys_are_one_warning(run, calls):
    code, _, err = run("cartpole_ppo", "limits.inference_seconds=5")
    assert code == 0
    assert err.startswith("srl-run: warning: nothing reads these keys")
    assert err.count("\n") == 1


def test_list_names_what_there_is(run):
    code, out, _ = run("list")
    assert code == 0
    for name in ("cartpole_ppo", "atari_pong_ppo", "ppo", "gymnasium", "atari"):
        assert name in out


def test_list_names_every_extra_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {extra.name for extra in EXTRAS} == set(project["optional-dependencies"]) - {"dev", "docs"}


def test_schema_is_json(run):
    code, out, _ = run("schema")
    assert code == 0
    assert json.loads(out)["properties"]["stop"]


def test_evaluate_prints_what_comes_back(run, monkeypatch, tmp_path):
    seen = []

    def evaluate_trial(trial, episodes, checkpoint, **options):
        seen.append((trial, episodes, checkpoint, options["seed"]))
        return {"mean_return": 475.5, "std": 46.55692751889883, "episodes": episodes, "returns": [1.0]}

    module = types.ModuleType("srl.distributed.evaluate")
    module.evaluate_trial = evaluate_trial
    monkeypatch.setitem(sys.modules, "srl.distributed.evaluate", module)
    (tmp_path / "experiment.yaml").touch()
    code, out, _ = run("evaluate", str(tmp_path), "--episodes", "5")
    assert (code, out) == (0, "mean_return: 475.5\nstd: 46.5569\nepisodes: 5\n")
    code, out, _ = run("evaluate", str(tmp_path), "--json", "--seed", "4", "--checkpoint", "best")
    assert (json.loads(out)["returns"], json.loads(out)["std"]) == ([1.0], 46.55692751889883)
    assert seen == [(tmp_path, 5, None, None), (tmp_path, 100, "best", 4)]


@pytest.mark.parametrize(
    "arguments", [["list"], ["schema"], ["check", "cartpole_ppo"], ["cartpole_ppo", "--show-graph"]]
)
def test_what_starts_nothing_imports_no_torch(arguments):
    code = f"import sys; from srl.cli import main; sys.exit(main({arguments!r}) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m srl.cli schema | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_a_script_that_starts_srl_run_without_a_guard_says_so(tmp_path, run):
    path = tmp_path / "mine.py"
    path.write_text("from srl.cli import main\ncode = main(['cartpole_ppo'])\ndef experiment(): ...\n")
    code, _, err = run("check", str(path))
    assert code == 2
    assert err.count('__name__ == "__main__"') == 1
