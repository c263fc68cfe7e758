"""``srl.run``: what it takes, what it returns and raises; the controller is replaced, nothing is trained here."""

import json
import sys
import types

import pytest

import srl
from srl import cli
from srl.api.errors import EnvironmentFault, ExperimentError, PluginError, UsageError, WorkerFailure
from srl.api.experiment import Experiment, PluginMapping, Stop
from srl.api.loading import load_experiment, resolved_yaml
from srl.distributed.trial_run import TrialResult
from srl.system.trial import TrialDirectory
from srl.trials.experiments import as_experiment, environment_mapping


@pytest.fixture
def controller(monkeypatch, tmp_path):
    """Writes the files of a trial; its exit code is ``codes[seed]``, its evaluation ten times the seed."""
    noted = types.SimpleNamespace(codes={}, calls=[])

    def run_trial(experiment, *, trial_dir, screen, debug):
        code = noted.codes.get(experiment.seed, 0)
        trial = TrialDirectory.create(experiment, trial_dir, parent=tmp_path / "trials")
        trial.write_experiment(resolved_yaml(experiment))
        reason = {0: "updates", 1: "failed", 130: "interrupted"}[code]
        summary = {
            "experiment": experiment.name, "seed": experiment.seed, "exit_code": code, "exit_reason": reason,
            "evaluation": {"mean_return": 10.0 * experiment.seed}, "env_steps": 100,
            "failures": [{"worker": "actors/0", "text": "boom-42"}] if code == 1 else [],
        }  # fmt: skip
        trial.write_summary(summary)
        noted.calls.append((experiment, screen, debug))
        return TrialResult(code, summary, trial.path)

    module = types.ModuleType("srl.distributed.controller")
    module.run_trial = run_trial
    monkeypatch.setitem(sys.modules, "srl.distributed.controller", module)
    monkeypatch.chdir(tmp_path)
    return noted


def test_a_name_with_overrides_and_a_seed(controller):
    trial = srl.run("cartpole_ppo", overrides={"stop.env_steps": 100, "stop.evaluation_return": None}, seed=7)
    assert isinstance(trial, srl.Trial)
    assert (trial.exit_code, trial.experiment.seed, trial.experiment.stop.env_steps) == (0, 7, 100)
    assert trial.summary["evaluation"] == {"mean_return": 70.0}
    ((experiment, screen, debug),) = controller.calls
    assert (experiment.stop.evaluation_return, screen, debug) == (None, "auto", False)
    assert srl.load(trial.path).summary == trial.summary


def test_a_file_a_mapping_and_an_object_are_the_same_experiment(controller, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(resolved_yaml(load_experiment("cartpole_ppo")))
    expected = load_experiment("cartpole_ppo", ["stop.updates=3"])
    mapping = load_experiment("cartpole_ppo").model_dump(mode="json")
    for source in ("cartpole_ppo", path, str(path), mapping, Experiment.model_validate(mapping)):
        assert as_experiment(source, ["stop.updates=3"]) == expected
        srl.run(source, overrides=["stop.updates=3"])
        assert controller.calls[-1][0] == expected


def test_an_object_is_checked_as_a_file_is():
    experiment = load_experiment("cartpole_ppo")
    wrong = experiment.model_copy(update={"environment": PluginMapping(type="gymnasium", id="CartPol-v1")})
    with pytest.raises(ExperimentError, match="Did you mean 'CartPole-v1'"):
        srl.run(wrong)
    endless = experiment.model_copy(update={"stop": Stop()})
    with pytest.raises(ExperimentError, match="stop"):
        srl.run(endless)


def test_a_recipe_is_an_experiment():
    experiment = srl.recipe("ppo", "CartPole-v1", {"stop.updates": 2})
    assert (experiment.environment.options["id"], experiment.stop.updates) == ("CartPole-v1", 2)
    mapping = {"type": "gymnasium", "id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}}
    assert srl.recipe("ppo", mapping).environment.options["kwargs"] == {"sutton_barto_reward": True}


def test_a_recipe_sees_the_environment_that_the_overrides_make_of_it():
    frames = {"environment.wrappers": [{"type": "frame_stack", "frames": 2}]}
    assert srl.recipe("ppo", "CartPole-v1", frames).policies["learner"].algorithm.options["rows"] == 128
    other = srl.recipe("ppo", "CartPole-v1", ["environment.id=Pendulum-v1", "policies.learner.algorithm.gamma=0.9"])
    chosen = other.policies["learner"].algorithm.options
    assert (other.name, other.environment.options["id"]) == ("ppo-Pendulum-v1", "Pendulum-v1")
    assert (chosen["rows"], chosen["gamma"]) == (256, 0.9), "continuous control, and what was asked for"


def test_an_ale_id_is_an_atari_game_with_its_sticky_actions():
    game = {"type": "atari", "game": "ALE/Pong-v5", "repeat_action_probability": 0.25}
    assert environment_mapping("ALE/Pong-v5") == game
    assert environment_mapping({"type": "gymnasium", "id": "ALE/Pong-v5"})["type"] == "gymnasium"
    with pytest.raises(ExperimentError, match=r"environment\.game: .*Did you mean 'pong'"):
        srl.recipe("ppo", "ALE/Pung-v5")


MAZES = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from srl.environments.gymnasium_adapter import GymnasiumFactory

class Maze(CartPoleEnv):
    pass

def make():
    return Maze()

class Factory(GymnasiumFactory):
    pass
"""


def test_a_recipe_takes_the_file_and_class_of_an_environment_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mazes.py").write_text(MAZES)
    monkeypatch.chdir(tmp_path)
    for entry in ("mazes.py:Maze", "./mazes.py:make", f"{tmp_path}/mazes.py:Maze"):
        assert environment_mapping(entry) == {"type": "gymnasium", "entry": entry}
    assert environment_mapping("./mazes.py:Factory") == {"type": "./mazes.py:Factory"}
    assert environment_mapping("./mazes.py:Maze", allow_plugins=False) == {"type": "./mazes.py:Maze"}
    experiment = srl.recipe("ppo", "./mazes.py:Maze")
    assert experiment.name == "ppo-Maze"
    assert experiment.environment.options["entry"] == f"{tmp_path}/mazes.py:Maze"
    with pytest.raises(ExperimentError, match="Did you mean 'Maze'"):
        srl.recipe("ppo", "./mazes.py:Mase")
    with pytest.raises(UsageError, match=r"\./mazes\.py:Maze"):
        srl.recipe("ppo", "./mazes.py")
    with pytest.raises(ExperimentError, match="--no-plugins"):
        srl.recipe("ppo", "./mazes.py:Maze", allow_plugins=False)


RECIPES = """
from srl.algorithms.ppo.plugin import PPO
class Old(PPO):
    @classmethod
    def recipe(cls, environment, cores):
        return {}
class Empty(PPO):
    @classmethod
    def recipe(cls, environment, spec, cores):
        return {"name": spec.name}
class Same(PPO):
    pass
"""


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        ("Old", "takes 3 positional arguments but 4 were given; expected recipe\\(environment, spec, cores\\)"),
        ("Empty", r"recipe\(\) of '.*Empty' raised KeyError: 'policies'"),
    ],
)
def test_a_recipe_that_fails_is_named(algorithm, text, tmp_path):
    (tmp_path / "recipes.py").write_text(RECIPES)
    with pytest.raises(PluginError, match=text):
        srl.recipe(f"{tmp_path}/recipes.py:{algorithm}", "CartPole-v1")


def test_an_inherited_recipe_bears_the_name_of_the_algorithm_that_was_asked_for(tmp_path):
    (tmp_path / "recipes.py").write_text(RECIPES)
    experiment = srl.recipe(f"{tmp_path}/recipes.py:Same", "CartPole-v1")
    assert experiment.name == "Same-CartPole-v1"
    assert experiment.policies["learner"].algorithm.type == f"{tmp_path}/recipes.py:Same"


def test_a_recipe_of_an_environment_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import gymnasium\nclass Maze(gymnasium.Env):\n    def __init__(self):\n"
                                        "        raise RuntimeError('boom-42')\n")  # fmt: skip
    with pytest.raises(EnvironmentFault, match="boom-42"):
        srl.recipe("ppo", {"type": "gymnasium", "entry": f"{tmp_path}/broken.py:Maze"})


def test_a_recipe_is_not_asked_for_by_a_file_that_is_being_imported(tmp_path):
    """Every worker imports the file: each would make an environment, in a process that imports it again."""
    (tmp_path / "eager.py").write_text("import srl\nEXPERIMENT = srl.recipe('ppo', 'CartPole-v1')\n")
    with pytest.raises(UsageError, match="asks for a recipe, which makes an environment, while it is being imported"):
        as_experiment(tmp_path / "eager.py")
    lazy = "import srl\ndef experiment():\n    return srl.recipe('ppo', 'CartPole-v1')\n"
    (tmp_path / "lazy.py").write_text(lazy)
    assert as_experiment(tmp_path / "lazy.py") == srl.recipe("ppo", "CartPole-v1", {"plugins": [f"{tmp_path}/lazy.py"]})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"experiment": "cartpol_ppo"}, "Did you mean 'cartpole_ppo'"),
        ({"experiment": 3}, "not an experiment"),
        ({"experiment": "cartpole_ppo", "overrides": "stop.updates=3"}, "overrides are a list"),
        ({"experiment": "cartpole_ppo", "seed": -1}, "not a seed"),
        ({"experiment": "cartpole_ppo", "seed": 1, "seeds": [1]}, "not both"),
        ({"experiment": "cartpole_ppo", "seeds": []}, "each once"),
        ({"experiment": "cartpole_ppo", "seeds": [1, 1]}, "each once"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_runs(controller, arguments, text):
    with pytest.raises(UsageError, match=text):
        srl.run(**arguments)
    assert controller.calls == []


def test_a_failed_trial_raises_with_its_cause_unless_told_otherwise(controller):
    controller.codes = {1: 1}
    with pytest.raises(WorkerFailure, match=r"actors/0: boom-42\. More is in .*main\.log"):
        srl.run("cartpole_ppo", seed=1)
    assert srl.run("cartpole_ppo", seed=1, check=False).exit_code == 1


def test_an_interrupted_trial_raises_after_it_was_stopped(controller):
    controller.codes = {1: 130}
    with pytest.raises(KeyboardInterrupt, match="trials"):
        srl.run("cartpole_ppo", seed=1)
    assert srl.run("cartpole_ppo", seed=1, check=False).summary["exit_reason"] == "interrupted"


def test_one_trial_per_seed_and_a_joint_summary(controller, tmp_path):
    group = srl.run("cartpole_ppo", seeds=[1, 2, 6], trial_dir="new/first", screen="off")
    assert [trial.path.name for trial in group] == ["first-seed1", "first-seed2", "first-seed6"]
    assert [call[0].seed for call in controller.calls] == [1, 2, 6]
    summary = group.summary
    assert summary["evaluation"] == {"mean": 30.0, "std": pytest.approx(26.4575131106459), "count": 3}
    assert summary["best_evaluation"] == {"mean": None, "std": None, "count": 0}
    assert json.loads((tmp_path / "new" / "first-seeds.json").read_text())["seeds"] == [1, 2, 6]
    assert group.exit_code == 0
    assert "mean" in repr(group)
    assert group._repr_html_().startswith("<table>")
    with pytest.raises(UsageError, match="first-seed2"):
        srl.run("cartpole_ppo", seeds=[7, 2], trial_dir="new/first")
    assert not (tmp_path / "new" / "first-seed7").exists()


def test_seeds_on_the_command_line_end_with_the_joint_result(controller, capsys, tmp_path):
    assert cli.main(["cartpole_ppo", "--seeds", "1,3"]) == 0
    out = capsys.readouterr().out
    assert "SRL cartpole_ppo: 2 seeds" in out
    (line,) = [line for line in out.splitlines() if line.lstrip().startswith("mean")]
    assert line.split()[1] == "20.0"
    (file,) = (tmp_path / "trials").glob("cartpole_ppo-*-seeds.json")
    assert f"trials/{file.name}" in out
    assert cli.main(["compare", str(file)]) == 0
    assert "differ in nothing but seeds" in capsys.readouterr().out
    assert cli.main(["cartpole_ppo", "--seeds", "1,3", "--screen", "off"]) == 0
    assert capsys.readouterr().out == ""
    assert len(list((tmp_path / "trials").glob("cartpole_ppo-*-seed1"))) == 2


def test_a_failed_seed_does_not_stop_the_others_but_a_signal_does(controller, capsys):
    controller.codes = {1: 1}
    assert cli.main(["cartpole_ppo", "--seeds", "1,2,3", "--trial-dir", "failed"]) == 1
    assert len(controller.calls) == 3
    controller.codes, controller.calls = {2: 130}, []
    assert cli.main(["cartpole_ppo", "--seeds", "1,2,3", "--trial-dir", "stopped"]) == 130
    assert [call[0].seed for call in controller.calls] == [1, 2]
    assert "2 of 3 seeds ran" in capsys.readouterr().out


def test_what_ends_a_seed_without_a_result_leaves_that_of_those_before(controller, monkeypatch, tmp_path, capsys):
    """Ctrl-C between two trials, or a full disk as the next one begins."""
    run_trial = sys.modules["srl.distributed.controller"].run_trial

    def second_is_interrupted(experiment, **arguments):
        if experiment.seed == 2:
            raise KeyboardInterrupt
        return run_trial(experiment, **arguments)

    monkeypatch.setattr(sys.modules["srl.distributed.controller"], "run_trial", second_is_interrupted)
    assert cli.main(["cartpole_ppo", "--seeds", "1,2,3", "--trial-dir", "cut"]) == 130
    assert capsys.readouterr().err == "srl-run: interrupted\n"
    joint = json.loads((tmp_path / "cut-seeds.json").read_text())
    assert (joint["seeds"], joint["evaluation"]["mean"]) == ([1], 10.0)


def test_files_that_are_no_joint_summary_are_refused(controller, tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    assert cli.main(["compare", str(tmp_path / "x.json")]) == 2
    assert "neither a trial directory nor a joint summary" in capsys.readouterr().err
