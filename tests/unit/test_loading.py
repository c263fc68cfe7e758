"""Experiments from YAML, Python and names: every problem at once, with key path, value and nearest name."""

import copy
import math
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import yaml

from srl.api.errors import ExperimentError, PluginError, UsageError
from srl.api.experiment import (
    ActorGroup,
    AgentGroup,
    Experiment,
    PluginMapping,
    Policy,
    SampleStream,
    Stop,
    TrainerGroup,
)
from srl.api.loading import (
    UnreadOptionWarning,
    bundled_experiments,
    experiment_from_mapping,
    load_experiment,
    resolved_yaml,
)
from srl.api.registry import REGISTRY
from srl.api.schema import json_schema
from srl.api.yaml_text import parse, parse_value

BASE = {
    "name": "small",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
    "streams": {"samples": {"kind": "sample"}},
    "workers": {
        "actors": {"kind": "actor", "environments": 4, "agents": [{"policy": "main", "samples": "samples"}]},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
    },
    "stop": {"updates": 3},
}

PYTHON = """
from srl.api.experiment import *

def experiment():
    return Experiment(
        name="made",
        environment=PluginMapping(type="gymnasium", id="CartPole-v1"),
        policies={"main": Policy(algorithm=PluginMapping(type="ppo", rows=8))},
        streams={"samples": SampleStream()},
        workers={
            "actors": ActorGroup(agents=(AgentGroup(policy="main", samples="samples"),)),
            "trainer": TrainerGroup(policy="main", samples="samples"),
        },
        stop=Stop(updates=3),
    )
"""

ALGORITHM = """
from pydantic import BaseModel, ConfigDict
from srl.algorithms.ppo.plugin import PPO
from srl.api.registry import register

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    replay: bool = False
    priority_exponent: float = 0.6

class Other(PPO):
    config = Config

    @classmethod
    def unread(cls, config):
        return () if config.replay else ("priority_exponent",)

    @classmethod
    def requirements(cls, config):
        from srl.api.algorithm import DataRequirements
        return DataRequirements(rows=8, on_policy=False)

register("algorithm", "other", Other)
"""


@pytest.fixture
def fresh(monkeypatch):
    """What a plugin registers is gone afterwards."""
    monkeypatch.setattr(REGISTRY, "_entries", {kind: dict(names) for kind, names in REGISTRY._entries.items()})
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text) if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False))
        return str(path)

    return write


def changed(**sections):
    raw = copy.deepcopy(BASE)
    for key, value in sections.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) and isinstance(raw.get(key), dict) else value
    return raw


def problems(call, *args, **kwargs):
    with pytest.raises(ExperimentError) as caught:
        call(*args, **kwargs)
    assert caught.value.exit_code == 2
    return {problem.where: problem for problem in caught.value.problems}


def test_a_valid_mapping_has_all_defaults():
    experiment = experiment_from_mapping(BASE)
    assert experiment.workers["actors"].ring_groups == 1
    assert experiment.policies["main"].algorithm.options["gamma"] == 0.99
    assert experiment.policies["main"].algorithm.options["rows"] == 8


def test_field_case_25_typos_with_path_and_nearest_name():
    raw = changed(
        policies={"main": {"algorithm": {"type": "ppo", "rows": 8, "gama": 0.9}}},
        workers={
            **BASE["workers"],
            "actors": {"kind": "actor", "enviroments": 4, "agents": [{"policy": "main", "sample": "samples"}]},
        },
        sede=3,
    )
    found = problems(experiment_from_mapping, raw)
    assert "'policies.main.algorithm.gamma'" in found["policies.main.algorithm.gama"].hint
    assert "'workers.actors.environments'" in found["workers.actors.enviroments"].hint
    assert "'workers.actors.agents.0.samples'" in found["workers.actors.agents.0.sample"].hint
    assert found["workers.actors.agents.0.samples"].what.startswith("missing key")
    assert "receives the blocks" in found["workers.actors.agents.0.samples"].expected
    assert "'seed'" in found["sede"].hint
    assert len(found) == 5


def test_a_key_at_the_wrong_level_is_pointed_to_its_place():
    found = problems(experiment_from_mapping, {**BASE, "gamma": 0.9})
    assert "'policies.main.algorithm.gamma'" in found["gamma"].hint


@pytest.mark.parametrize("extra", ["ignore", "forbid"])
def test_a_typo_among_a_plugins_options_is_named_whatever_its_author_left_to_pydantic(extra, tmp_path):
    file = tmp_path / "plugin.py"
    file.write_text(
        "from pydantic import BaseModel, ConfigDict, Field\n"
        "from srl.algorithms.ppo.plugin import PPO\n\n\n"
        "class Options(BaseModel):\n"
        f'    model_config = ConfigDict(extra="{extra}")\n'
        "    gamma: float = 0.9\n"
        '    rate: float = Field(default=0.1, alias="learning-rate")\n\n\n'
        "class Mine(PPO):\n    config = Options\n"
    )
    options = {"type": f"{file}:Mine", "gama": 0.5, "gamma": 0.5, "learning-rate": 0.2}
    found = problems(experiment_from_mapping, changed(policies={"main": {"algorithm": options}}))
    assert "'policies.main.algorithm.gamma'" in found["policies.main.algorithm.gama"].hint
    assert len(found) == 1


@pytest.mark.parametrize("given", [None, [], "cartpole_ppo", 3])
def test_what_is_no_mapping_is_said_to_be_none(given):
    with pytest.raises(ExperimentError, match="not a mapping"):
        experiment_from_mapping(given)


def test_numbers_that_no_machine_has_are_refused():
    workers = {
        "actors": {"kind": "actor", "environments": 10**30, "agents": [{"policy": "main", "samples": "samples"}]},
        "trainer": {"kind": "trainer", "count": 10**30, "threads": 10**30, "policy": "main", "samples": "samples"},
        "judge": {"kind": "evaluator", "policy": "main", "episodes": 10**30},
    }
    found = problems(experiment_from_mapping, changed(workers=workers))
    assert found["workers.actors.environments"].expected == "at most 1000000"
    assert found["workers.trainer.count"].expected == found["workers.trainer.threads"].expected == "at most 1024"
    assert found["workers.judge.episodes"].expected == "at most 1000000"


def test_wrong_values_show_value_and_expectation():
    raw = changed(
        policies={"main": {"algorithm": {"type": "ppo", "rows": 0, "precision": "fp23"}}},
        streams={
            "samples": {"kind": "sample", "max_policy_lag": "some", "on_straggler": "cutt"},
            "others": {"kind": "sample", "max_policy_lag": -1},
        },
        workers={**BASE["workers"], "policy": {"kind": "policy", "serves": "asked", "device": "cuda:01"}},
        stop={"updates": "three", "wall_seconds": -1},
        checkpoints={"keep": 0},
        placement="process",
        lockstep="perhaps",
    )
    found = problems(experiment_from_mapping, raw)
    assert found["policies.main.algorithm.rows"].value == 0
    assert found["policies.main.algorithm.rows"].expected == "at least 1"
    assert "'fp32'" in found["policies.main.algorithm.precision"].hint
    assert found["streams.samples.max_policy_lag"].expected == "a whole number or 'default'"
    assert found["streams.others.max_policy_lag"].expected == "at least 0 or 'default'"
    assert found["workers.policy.device"].value == "cuda:01"
    assert "'cut'" in found["streams.samples.on_straggler"].hint
    assert (found["stop.updates"].value, found["stop.updates"].expected) == ("three", "a whole number")
    assert found["stop.wall_seconds"].expected == "more than 0"
    assert found["checkpoints.keep"].expected == "at least 1"
    assert "'processes'" in found["placement"].hint
    assert found["lockstep"].expected == "true or false"
    assert len(found) == 11


def test_kinds_of_groups_and_streams():
    raw = changed(
        streams={"samples": {"kind": "sampel"}, "other": {"max_policy_lag": 1}},
        workers={**BASE["workers"], "actors": {"environments": 4}},
    )
    found = problems(experiment_from_mapping, raw)
    assert "'sample'" in found["streams.samples.kind"].hint
    assert found["streams.other.kind"].expected == "kind: sample or inference"
    assert found["workers.actors.kind"].expected == "kind: actor, policy, trainer or evaluator"


def test_problems_of_keys_options_and_structure_come_together():
    raw = changed(
        policies={"main": {"algorithm": {"type": "ppo", "gama": 0.9}}},
        environment={"type": "gymnasium", "id": "CartPole-v9"},
        streams={"samples": {"kind": "sample"}, "unused": {"kind": "sample"}},
        stopp=1,
    )
    found = problems(experiment_from_mapping, raw)
    assert set(found) == {"policies.main.algorithm.gama", "environment.id", "streams.unused", "stopp"}
    assert "CartPole-v1" in found["environment.id"].hint


def test_unknown_types():
    raw = changed(environment={"type": "gymnasim"}, policies={"main": {"algorithm": {"type": "pp"}}})
    found = problems(experiment_from_mapping, raw)
    assert "'gymnasium'" in found["environment.type"].hint
    assert "'ppo'" in found["policies.main.algorithm.type"].hint


def test_what_is_not_plain_data_is_named_by_path():
    class Local:
        pass

    raw = changed(
        environment={
            "type": "gymnasium",
            "id": "CartPole-v1",
            "kwargs": {"make": lambda: None, "parts": [1, {"lock": threading.Lock()}], "kind": Local, "x": math.nan},
        }
    )
    found = problems(experiment_from_mapping, raw)
    assert "lambda" in found["environment.kwargs.make"].what
    assert "a lock cannot be written" in found["environment.kwargs.parts.1.lock"].what
    assert "inside a function" in found["environment.kwargs.kind"].what
    assert "not a finite number" in found["environment.kwargs.x"].what


def test_errors_survive_pickling():
    with pytest.raises(ExperimentError) as caught:
        experiment_from_mapping({**BASE, "sede": 1}, source="here")
    again = copy.deepcopy(caught.value)  # goes the way of pickle
    assert str(again) == str(caught.value)


def test_yaml_lines_duplicates_and_numbers(write):
    path = write(
        "a.yaml",
        """\
        name: a
        environment: {type: gymnasium, id: CartPole-v1}
        policies:
          main:
            algorithm:
              type: ppo
              gama: 1e-3
              rows: 8
              rows: 9
        streams: {samples: {kind: sample}}
        workers:
          actors: {kind: actor, agents: [{policy: main, samples: samples}]}
          trainer: {kind: trainer, policy: main, samples: samples}
        stop: {updates: 3}
        """,
    )
    found = problems(load_experiment, path)
    assert found["policies.main.algorithm.gama"].what == "unknown key (line 7)"
    assert found["policies.main.algorithm.rows"].what == "key given twice, on lines 8 and 9"
    assert len(found) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("2.5e-4", 0.00025), ("1E6", 1e6), ("-.5e1", -5.0), ("1_000", 1000), ("e3", "e3"), ("", None)],
)
def test_yaml_numbers(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: [1", "line"),
        ("a: !!python/object/apply:os.system ['true']", "constructor"),
        ("a: 1\n---\nb: 2", "document"),
        ("? [1, 2]\n: 3", "a key must be text"),
        ("a: &x [*x]", "recursive|deeply|anchor"),
    ],
)
def test_what_is_not_safe_plain_yaml(text, what):
    with pytest.raises(ExperimentError, match=what):
        parse(text)


def test_yaml_aliases_cannot_explode():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ExperimentError, match="too large"):
        parse("\n".join(lines))


def test_merge_keys_are_no_duplicates():
    document = parse("base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  x: 3\n")
    assert document.value["other"] == {"x": 3, "y": 2}
    assert document.problems == []


@pytest.mark.parametrize("text", ["", "- a\n", "just text"])
def test_yaml_that_is_no_mapping(write, text):
    assert "not a mapping" in problems(load_experiment, write("a.yaml", text))[""].what


def test_resolved_yaml_runs_as_it_is(write):
    experiment = load_experiment(write("a.yaml", BASE), ["seed=7"])
    text = resolved_yaml(experiment)
    again = load_experiment(write("b.yaml", text))
    assert again == experiment
    assert resolved_yaml(again) == text
    written = yaml.safe_load(text)
    assert written["policies"]["main"]["algorithm"]["gae_lambda"] == 0.95
    assert set(written) == set(Experiment.model_fields)


def test_bundled_experiments_load_and_equal_their_resolved_form(write):
    names = bundled_experiments()
    assert {"cartpole_ppo", "atari_pong_ppo"} <= set(names)
    for name in names:
        experiment = load_experiment(name)
        assert experiment.name == name
        assert load_experiment(write(f"{name}.yaml", resolved_yaml(experiment))) == experiment


def test_unknown_sources(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_experiment("cartpol_ppo")
    assert "'cartpole_ppo'" in caught.value.hint
    (tmp_path / "mine.yaml").write_text("")
    with pytest.raises(UsageError) as caught:
        load_experiment(str(tmp_path / "mine.yml"))
    assert "mine.yaml" in caught.value.hint


def test_python_experiment(write):
    path = write("made.py", PYTHON)
    experiment = load_experiment(path, ["workers.actors.environments=8"])
    assert experiment.workers["actors"].environments == 8
    assert experiment.plugins == (path,)  # every worker imports the file, for what it defines and registers
    assert load_experiment(write("again.yaml", resolved_yaml(experiment))) == experiment


def test_python_and_yaml_become_the_same(write):
    made = load_experiment(write("made.py", PYTHON))
    raw = changed(name="made", workers={**BASE["workers"]})
    del raw["workers"]["actors"]["environments"]
    assert made.model_copy(update={"plugins": ()}) == experiment_from_mapping(raw)


def test_python_experiments_that_fail(write):
    with pytest.raises(PluginError, match="does not define an experiment"):
        load_experiment(write("a.py", "x = 1"))
    with pytest.raises(PluginError, match="returned something else"):
        load_experiment(write("b.py", "def experiment():\n    return {}\n"))
    path = write("c.py", "def experiment():\n    raise KeyError('boom-42')\n")
    with pytest.raises(PluginError, match="KeyError: 'boom-42'") as caught:
        load_experiment(path)
    assert f"{path}:2" in caught.value.hint
    broken = PYTHON.replace("Stop(updates=3)", "Stop(update=3)")
    assert "Stop.update" in problems(load_experiment, write("d.py", broken))


def test_classes_in_python_experiments_become_names():
    assert PluginMapping(type=Experiment).type == "srl.api.experiment:Experiment"


def test_plugin_file_beside_the_experiment(write, fresh):
    write("other.py", ALGORITHM)
    raw = changed(plugins=["./other.py"], policies={"main": {"algorithm": {"type": "other"}}})
    experiment = load_experiment(write("a.yaml", raw))
    assert experiment.policies["main"].algorithm.options == {"replay": False, "priority_exponent": 0.6}
    assert experiment.plugin_paths() == experiment.plugins
    assert experiment.plugins[0].startswith("/")
    direct = changed(policies={"main": {"algorithm": {"type": "./other.py:Other", "repaly": True}}})
    found = problems(load_experiment, write("b.yaml", direct))
    assert "'policies.main.algorithm.replay'" in found["policies.main.algorithm.repaly"].hint


def test_plugins_that_say_what_they_provide_stay_out_of_other_processes():
    files = [{"path": "/a.py", "provides": ["algorithm"]}, {"path": "/b.py", "provides": ["environment"]}, "/c.py"]
    experiment = Experiment.model_validate({**BASE, "plugins": files})
    assert experiment.plugin_paths({"environment"}) == ("/b.py", "/c.py")
    assert experiment.plugin_paths() == ("/a.py", "/b.py", "/c.py")


def test_failing_plugin_is_one_problem_among_others(write):
    path = write("broken.py", "raise RuntimeError('boom-42')")
    found = problems(load_experiment, write("a.yaml", {**BASE, "plugins": ["./broken.py"], "sede": 1}))
    assert "RuntimeError: boom-42" in found["plugins.0"].what
    assert path in found["plugins.0"].hint
    assert "sede" in found


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"plugins": ["./plugin.py"]}, "plugins"),
        ({"environment": {"type": "gymnasium", "id": "some_module:CartPole-v1"}}, "environment.id"),
        ({"environment": {"type": "gymnasium", "id": "CartPole-v1", "modules": ["os"]}}, "environment.modules"),
        ({"environment": {"type": "some.module:Factory"}}, "environment.type"),
        ({"policies": {"main": {"algorithm": {"type": "./x.py:Attr"}}}}, "policies.main.algorithm.type"),
    ],
)
def test_no_plugins_runs_no_foreign_code(write, change, where):
    marker = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    ran = write("plugin.py", marker).replace("plugin.py", "ran")
    found = problems(load_experiment, write("a.yaml", changed(**change)), allow_plugins=False)
    assert "--no-plugins" in found[where].what
    assert not Path(ran).exists()


def test_no_plugins_refuses_python_experiments(write):
    with pytest.raises(UsageError, match="--no-plugins"):
        load_experiment(write("a.py", PYTHON), allow_plugins=False)
    assert experiment_from_mapping(BASE, allow_plugins=False).name == "small"


def test_unread_keys_are_named_in_one_warning(write, fresh):
    write("other.py", ALGORITHM)
    raw = changed(
        plugins=["./other.py"],
        policies={"main": {"algorithm": {"type": "other", "priority_exponent": 0.7}}},
        streams={"samples": {"kind": "sample", "max_policy_lag": 3}},
        limits={"inference_seconds": 5},
    )
    with pytest.warns(UnreadOptionWarning) as caught:
        experiment = load_experiment(write("a.yaml", raw))
    assert len(caught) == 1
    text = str(caught[0].message)
    for key in (
        "policies.main.algorithm.priority_exponent",
        "streams.samples.max_policy_lag",
        "limits.inference_seconds",
    ):
        assert key in text
    assert experiment.limits.inference_seconds == 5


def test_no_warning_where_the_feature_is_used_or_the_default_is_written_out(write, fresh):
    write("other.py", ALGORITHM)
    used = {"type": "other", "replay": True, "priority_exponent": 0.7}
    raw = changed(plugins=["./other.py"], policies={"main": {"algorithm": used}})
    experiment = load_experiment(write("a.yaml", raw))  # warnings are errors
    load_experiment(write("b.yaml", resolved_yaml(experiment)))


def test_experiment_made_in_place():
    experiment = Experiment(
        name="made",
        environment=PluginMapping(type="gymnasium", id="CartPole-v1"),
        policies={"main": Policy(algorithm=PluginMapping(type="ppo"))},
        streams={"samples": SampleStream()},
        workers={
            "actors": ActorGroup(agents=(AgentGroup(policy="main", samples="samples"),)),
            "trainer": TrainerGroup(policy="main", samples="samples"),
        },
        stop=Stop(updates=3),
    )
    with pytest.raises(ValueError, match="frozen"):
        experiment.seed = 2


def test_json_schema_has_descriptions_and_options_of_algorithms():
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"]["seed"]["description"]
    choice = schema["$defs"]["Policy"]["properties"]["algorithm"]["allOf"][0]
    assert choice["if"]["properties"]["type"]["const"] == "ppo"
    options = schema["$defs"][choice["then"]["$ref"].rpartition("/")[2]]
    assert options["properties"]["gamma"]["maximum"] == 1.0
    assert options["additionalProperties"] is False
