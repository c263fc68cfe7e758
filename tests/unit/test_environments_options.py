"""What is found before anything starts: keys, ids, entries, modules and extras."""

import sys
import types

import gymnasium
import numpy as np
import pytest

from srl.api.errors import EnvironmentFault, ExperimentError, MissingExtraError, SRLError
from srl.environments.atari import AtariFactory
from srl.environments.environment_list import EnvironmentList
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.toy import Count, CountVector
from srl.environments.vector_adapter import VectorAdapter


def problem(options: dict) -> SRLError:
    (found,) = GymnasiumFactory.check(options)
    return found


def test_a_wrong_value_is_told_as_everywhere():
    found = problem({"id": "CartPole-v1", "action_mask": "inf"})
    assert str(found) == (
        "action_mask: wrong value (got 'inf'); expected 'info', 'observation' or 'method'. Did you mean 'info'?"
    )


@pytest.fixture
def module(monkeypatch):
    """An importable module named ``toy_plugin``."""
    made = types.ModuleType("toy_plugin")
    monkeypatch.setitem(sys.modules, "toy_plugin", made)
    before = dict(gymnasium.registry)
    yield made
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.fixture
def broken_module(tmp_path, monkeypatch):
    """A module ``broken_plugin`` that imports a package nobody has, on its line 2."""
    (tmp_path / "broken_plugin.py").write_text("import sys\nimport no_such_simulator\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)


@pytest.mark.parametrize(
    "options",
    [
        {"id": "CartPole-v1"},
        {"id": "CartPole-v1", "kwargs": {"max_episode_steps": 100}},
        {"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}, "vectorization": "sync"},
        {"id": "FrozenLake-v1", "kwargs": {"map_name": "8x8"}},
        {"entry": "srl.environments.toy:Count", "kwargs": {"length": 7}},
        {"class": "srl.environments.toy:CountVector", "kwargs": {"lengths": [3, 5]}},
        {"id": "Pendulum-v1", "modules": ["json"]},
    ],
)
def test_good_options_have_no_problem_and_a_spec(options):
    assert GymnasiumFactory.check(options) == []
    assert GymnasiumFactory(options).probe().slots == 1


def test_an_argument_of_make_that_a_native_vector_does_not_take_makes_single_environments():
    for kwargs in ({"max_episode_steps": 3}, {"disable_env_checker": True}):
        options = {"id": "srl/Recall-v0", "kwargs": kwargs}
        assert GymnasiumFactory.check(options) == []
        assert isinstance(GymnasiumFactory(options).make(2, [1, 2]), EnvironmentList)
        assert problem({**options, "vectorization": "vector_entry_point"}).where == f"kwargs.{next(iter(kwargs))}"
    taken = GymnasiumFactory({"id": "CartPole-v1", "kwargs": {"max_episode_steps": 3}})
    assert isinstance(taken.make(1, [1]), VectorAdapter)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_refused(number):
    found = problem({"id": "CartPole-v1", "wrappers": [{"type": "reward_scale", "scale": number}]})
    assert (found.where, found.expected) == ("wrappers.0.scale", "a finite number")


def test_the_members_of_a_union_are_no_keys():
    wrapper = {"type": "normalize_observation", "mean": "x", "standard_deviation": 1}
    found = problem({"id": "CartPole-v1", "wrappers": [wrapper]})
    assert (found.where, found.value, found.expected) == ("wrappers.0.mean", "x", "a number or a list")


def test_unknown_keys_and_bad_values_are_found_together():
    found = GymnasiumFactory.check({"id": "CartPole-v1", "kwarg": {}, "vectorization": "async", "frames_per_step": 0})
    assert {one.where for one in found} == {"kwarg", "vectorization", "frames_per_step"}
    assert {one.where: one.hint for one in found}["kwarg"] == "Did you mean 'kwargs'?"
    with pytest.raises(ExperimentError, match="3 problems"):
        GymnasiumFactory({"id": "CartPole-v1", "kwarg": {}, "vectorization": "async", "frames_per_step": 0}).probe()


@pytest.mark.parametrize("options", [{}, {"id": "CartPole-v1", "entry": "a:B"}, {"entry": "a:B", "class": "a:B"}])
def test_exactly_one_source_is_needed(options):
    assert "'entry'" in problem(options).what


@pytest.mark.parametrize(
    ("identifier", "near"),
    [
        ("CartPol-v1", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("CartPole-v7", "'CartPole-v1'"),
        ("CartPole", "'CartPole-v1'"),
        ("MountanCarContinous-v0", "'MountainCarContinuous-v0'"),
    ],
)
def test_an_unknown_id_gets_near_matches(identifier, near):
    found = problem({"id": identifier})
    assert (found.where, found.value) == ("id", identifier)
    assert near in found.hint


def test_an_unknown_namespace_is_named():
    found = problem({"id": "Maze/Big-v0"})
    assert "namespace 'Maze'" in found.what
    assert "module:Name-v0" in found.hint


def test_an_id_with_a_module_is_registered_by_importing_it(module):
    gymnasium.register("ToyPlugin-v0", "srl.environments.toy:Count", kwargs={"length": 2})
    assert GymnasiumFactory.check({"id": "toy_plugin:ToyPlugin-v0"}) == []
    assert GymnasiumFactory({"id": "toy_plugin:ToyPlugin-v0"}).probe().name == "ToyPlugin-v0"


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"id": "broken_plugin:Maze-v0"}, "id"),
        ({"entry": "broken_plugin:Maze"}, "entry"),
        ({"id": "CartPole-v1", "modules": ["json", "broken_plugin"]}, "modules.1"),
    ],
)
def test_the_inner_import_error_is_shown_with_its_place(broken_module, options, where):
    found = problem(options)
    assert found.where == where
    assert "ModuleNotFoundError: No module named 'no_such_simulator'" in found.what
    assert "broken_plugin.py:2" in found.hint


def test_a_registered_id_whose_package_is_missing_shows_the_cause(module):
    gymnasium.register("ToyPlugin-v0", "no_such_package.maze:Maze")
    found = problem({"id": "ToyPlugin-v0"})
    assert "No module named 'no_such_package'" in found.what


@pytest.mark.parametrize(
    ("missing", "identifier", "command"),
    [
        ("ale_py", "ALE/Pong-v5", 'pip install "srl-dataflow[atari]"'),
        ("mujoco", "Ant-v5", 'pip install "srl-dataflow[mujoco]"'),
        ("jax", "phys2d/CartPole-v1", 'pip install "gymnasium[jax]"'),
    ],
)
def test_a_missing_extra_comes_with_the_command_that_installs_it(monkeypatch, missing, identifier, command):
    users = (missing, "gymnasium.envs.mujoco", "gymnasium.envs.phys2d.cartpole")  # other tests may have loaded them
    for name in [name for name in sys.modules if f"{name}.".startswith(tuple(f"{user}." for user in users))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(
        gymnasium.envs.registration,
        "registry",
        kept := {name: spec for name, spec in gymnasium.registry.items() if spec.namespace != "ALE"},
    )
    monkeypatch.setattr(gymnasium, "registry", kept)
    found = problem({"id": identifier})
    assert isinstance(found, MissingExtraError)
    assert command in str(found)


def test_the_atari_type_without_ale_py_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    (found,) = AtariFactory.check({"game": "Pong"})
    assert isinstance(found, MissingExtraError)
    assert 'pip install "srl-dataflow[atari]"' in found.hint


@pytest.mark.parametrize(
    ("kwargs", "near"), [({"lenght": 3}, "length"), ({"End": "truncated"}, "end"), ({"zzz": 1}, "")]
)
def test_unknown_arguments_of_the_environment_are_found_before_the_start(kwargs, near):
    found = problem({"entry": "srl.environments.toy:Count", "kwargs": kwargs})
    assert found.where == f"kwargs.{next(iter(kwargs))}"
    assert near in found.hint


def test_the_number_of_environments_is_not_an_argument_to_give():
    found = problem({"entry": "srl.environments.toy:CountVector", "kwargs": {"num_envs": 3}})
    assert (found.where, "itself" in found.what) == ("kwargs.num_envs", True)


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("srl.environments.toy", "not the name of a Python object"),
        ("srl.environments.toy:Coun", "has no 'Coun'"),
        ("json:decoder", "neither an environment class"),
        ("collections:OrderedDict", "neither an environment class"),
    ],
)
def test_a_wrong_entry_is_explained(entry, part):
    assert part in problem({"entry": entry}).what


def test_entries_may_be_functions_single_or_vector(module):
    module.single = lambda: Count(2)
    module.vector = lambda num_envs, lengths=(4,): CountVector(num_envs, lengths)
    assert not isinstance(GymnasiumFactory({"entry": "toy_plugin:single"}).make(3, [1, 2, 3]), VectorAdapter)
    environment = GymnasiumFactory({"entry": "toy_plugin:vector"}).make(3, [1, 2, 3])
    assert isinstance(environment, VectorAdapter)
    assert environment.count == 3


def test_an_entry_may_be_in_a_file(tmp_path):
    (tmp_path / "maze.py").write_text("from srl.environments.toy import Count\n\nclass Maze(Count):\n    pass\n")
    options = {"entry": f"{tmp_path}/maze.py:Maze", "kwargs": {"length": 4}}
    assert GymnasiumFactory.check(options) == []
    assert GymnasiumFactory(options).probe().observation.shape == (1,)


@pytest.mark.parametrize("name", ["single", "vector"])
def test_a_function_that_returns_something_else_is_named(module, name):
    module.single = lambda: object()
    module.vector = lambda num_envs: Count()
    with pytest.raises(EnvironmentFault, match="did not return an environment of its kind") as caught:
        GymnasiumFactory({"entry": f"toy_plugin:{name}"}).make(1, [1])
    assert caught.value.where == f"toy_plugin:{name}"


@pytest.mark.parametrize(
    "options",
    [
        {"id": "MountainCar-v0", "vectorization": "vector_entry_point"},
        {"entry": "srl.environments.toy:Count", "vectorization": "vector_entry_point"},
        {"entry": "srl.environments.toy:CountVector", "vectorization": "sync"},
    ],
)
def test_a_vectorization_that_the_environment_does_not_have_is_refused(options):
    assert problem(options).where == "vectorization"


def test_arguments_reach_the_environment():
    environment = GymnasiumFactory({"id": "CartPole-v1", "kwargs": {"max_episode_steps": 3}}).make(1, [1])
    assert environment._env.max_episode_steps == 3
    single = GymnasiumFactory({"id": "CartPole-v1", "kwargs": {"max_episode_steps": 3}, "vectorization": "sync"})
    env = single.make(1, [1])._envs[0]
    env.reset(seed=1)
    assert [env.step(np.int64(k % 2))[3] for k in range(3)] == [False, False, True]


def test_the_spec_survives_json():
    spec = GymnasiumFactory({"id": "Pendulum-v1"}).probe()
    assert type(spec).from_dict(spec.to_dict()) == spec
    assert (spec.action.low, spec.action.high) == (-2.0, 2.0)
    assert spec.observation.low == (-1.0, -1.0, -8.0)
