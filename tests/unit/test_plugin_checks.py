"""Mistakes of plugin authors: each one message that names the plugin, its file and line, and what is expected.

Each test changes one thing in the skeleton that ``srl-run new algorithm`` writes.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, PluginError
from srl.api.importing import import_target
from srl.api.loading import experiment_from_mapping
from srl.api.plugin_checks import requirements_of
from srl.api.policy import ActingPolicy, NoiseSpec
from srl.api.registry import REGISTRY, Registry
from srl.api.spaces import SpaceSpec
from srl.commands.new import write_skeleton
from srl.distributed.graph import resolve
from srl.distributed.policy_checks import policy_spec_of, spec_problems
from srl.system.workers.acting_check import build_acting, load_checked
from srl.system.workers.algorithm_check import build_algorithm, metrics_of
from srl.system.workers.training import Training

CARTPOLE = EnvironmentSpec("CartPole-v1", SpaceSpec("box", (4,), "float32"), SpaceSpec("discrete", (), "int64", n=2))


class Author:
    """Somebody who writes an algorithm, with a mistake."""

    def __init__(self, path):
        self.path = path
        self.text = path.read_text()

    def writes(self, old, new):
        """Something else in the place of what the skeleton has."""
        assert self.text.count(old) >= 1, old
        self.text = self.text.replace(old, new)
        self.path.write_text(self.text)
        return self

    def line(self, text):
        """Number of the line that begins with a text."""
        return 1 + next(i for i, line in enumerate(self.text.splitlines()) if line.strip().startswith(text))

    def place(self, text):
        """As messages name it."""
        return f"{self.path}:{self.line(text)}"

    def plugin(self, registry=REGISTRY):
        return registry.resolve("algorithm", f"{self.path}:Mine", "policies.main.algorithm.type")

    def spec(self, environment=CARTPOLE):
        plugin = self.plugin()
        return policy_spec_of(plugin, "main", plugin.config(), {}, environment)

    def training(self):
        return Training(self.spec(), seed=1)

    def acts(self):
        """As an actor does first of all."""
        spec = self.spec()
        acting = build_acting(spec)
        training = Training(spec, seed=1)
        load_checked(acting, spec, training.layout.views(training.flat_weights()))


@pytest.fixture
def author(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Author(write_skeleton("algorithm", "mine", tmp_path)[0])


def message(action, *parts):
    """The one error that an action ends with; all parts must be in it."""
    with pytest.raises(PluginError) as caught:
        action()
    text = str(caught.value)
    for part in parts:
        assert part in text, text
    return text


def test_the_skeleton_itself_has_no_mistake(author):
    author.acts()
    plugin = author.plugin()
    training = author.training()
    assert build_algorithm(plugin, plugin.config(), training, "main").state() == {}
    assert list(spec_problems(author.spec(), CARTPOLE)) == []
    assert requirements_of(plugin, plugin.config(), "").rows == 16


def test_another_base_class(author):
    author.writes("class Mine(AlgorithmPlugin)", "class Mine")
    message(
        author.plugin, "not a plugin of kind 'algorithm'", f"{author.path}:Mine",
        "a subclass of srl.api.algorithm.AlgorithmPlugin", author.place("class Mine:"),
    )  # fmt: skip


def test_a_missing_method_and_what_it_may_be_called_instead(author):
    author.writes("def policy_spec(", "def policy_specs(").writes("def requirements(", "def needs(")
    message(
        author.plugin, "lacks methods", "policy_spec(), requirements()", "Is 'policy_specs' meant as 'policy_spec'?",
        author.place("class Mine("),
    )  # fmt: skip


def test_a_method_that_is_no_classmethod(author):
    author.writes("    @classmethod\n    def requirements(cls,", "    def requirements(self,")
    message(author.plugin, "requirements() is called on the class", "@classmethod", author.place("class Mine("))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('name = "mine"', "name = None", "'name' is None"),
        ("config = MineConfig", "config = dict", "'config' is <class 'dict'>"),
        ('implementation = f"{__file__}:Update"', 'implementation = "Update"', "'implementation' is 'Update'"),
    ],
)
def test_an_attribute_of_the_wrong_form(author, old, new, text):
    author.writes(old, new)
    message(author.plugin, text, author.place("class Mine("))


def test_an_import_error_inside(author):
    author.writes("import numpy as np", "import numpyy as np")
    message(author.plugin, "No module named 'numpyy'", author.place("import numpyy"))


def test_an_environment_factory_without_a_method(tmp_path):
    file = tmp_path / "grid.py"
    file.write_text(
        "from srl.api.environment import EnvironmentFactory\n\n\n"
        "class Grid(EnvironmentFactory):\n    def make(self, count, seeds): ...\n"
    )
    message(lambda: Registry().resolve("environment", f"{file}:Grid"), "check(), probe() as described in", f"{file}:4")


def test_policy_spec_raises(author):
    author.writes("resolved = resolve_network(", "resolved = resolve_network(nowhere, ")
    message(author.spec, "policy_spec() of Mine raised NameError", "policies.main", author.place("resolved ="))


def test_policy_spec_returns_something_else(author):
    author.writes("        return PolicySpec(", "        return dict(")
    message(author.spec, "policy_spec() of Mine returned something else", "'dict'", "srl.api.policy.PolicySpec")


def test_requirements_return_something_else(author):
    plugin = author.writes("return DataRequirements(rows=config.rows)", "return config.rows").plugin()
    message(
        lambda: requirements_of(plugin, plugin.config(), "policies.main.algorithm"),
        "requirements() of Mine returned something else", "'int'", author.place("class Mine("),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("returned", "parts"),
    [
        ("rows=0", ("rows=0", "'rows' a whole number, at least 1")),
        ("rows=16.0", ("rows=16.0", "'rows' a whole number")),
        ("rows=16, blocks_per_update=0", ("blocks_per_update=0", "at least 1, or None")),
        ("rows=16, default_lag_versions=-1", ("default_lag_versions=-1", "at least 0, or None")),
        ("rows=16, mode='episode'", ("mode='episode'", "expected mode='fragment'")),
    ],
)
def test_requirements_that_nothing_can_be_made_of(author, returned, parts):
    plugin = author.writes("DataRequirements(rows=config.rows)", f"DataRequirements({returned})").plugin()
    message(
        lambda: requirements_of(plugin, plugin.config(), "policies.main.algorithm"),
        "policies.main.algorithm", "requirements() of Mine", *parts, author.place("class Mine("),
    )  # fmt: skip


REQUIREMENTS = "    @classmethod\n    def requirements("


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("unread(cls, config): return config.gama", ("unread() of Mine raised AttributeError", "'gama'")),
        ("unread(cls, config): return ('gama',)", ("unread() of Mine", "got 'gama'", "fields of MineConfig")),
        ("unread(cls, config): return 'gamma'", ("unread() of Mine", "a list or tuple of texts")),
        ("cautions(cls, config, rows): return 1 / 0", ("cautions() of Mine raised ZeroDivisionError",)),
        ("cautions(cls, config, rows): return 'few rows'", ("cautions() of Mine", "a list or tuple of texts")),
    ],
)
def test_what_a_plugin_says_about_options(author, method, parts):
    author.writes(REQUIREMENTS, f"    @classmethod\n    def {method}\n\n{REQUIREMENTS}")
    message(lambda: graph(author), "policies.main.algorithm", *parts, str(author.path))


def test_requirements_that_raise_while_the_experiment_is_read(author):
    author.writes("DataRequirements(rows=config.rows)", "DataRequirements(rows=config.row)")
    message(lambda: graph(author, max_policy_lag=2), "requirements() of Mine raised", author.place("return DataReq"))


def test_states_that_do_not_divide_a_block(author):
    author.writes("network=resolved,", "network=resolved, state_size=3, state_rows=5,")
    with pytest.raises(ExperimentError, match=r"policies\.main: .*do not divide a block \(got 5\).* the 16 rows"):
        graph(author)


def test_a_policy_of_another_name(author):
    author.writes("name=name,", 'name="learner",')
    message(author.spec, "policy_spec() of Mine", "name='learner'", "the name that it was given, 'main'")


def graph(author, **stream):
    """As the controller resolves it before anything starts."""
    experiment = {
        "name": "author",
        "environment": {"type": "gymnasium", "id": "CartPole-v1"},
        "policies": {"main": {"algorithm": {"type": f"{author.path}:Mine"}}},
        "streams": {"samples": {"kind": "sample", **stream}},
        "workers": {
            "actors": {"kind": "actor", "agents": [{"policy": "main", "samples": "samples"}]},
            "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        },
        "stop": {"updates": 1},
    }
    return resolve(experiment_from_mapping(experiment), CARTPOLE)


MASKED = replace(CARTPOLE, action_mask=True)


@pytest.mark.parametrize(("environment", "mask", "expected"), [(CARTPOLE, 2, "0: CartPole"), (MASKED, 3, "2, as")])
def test_a_mask_that_the_environment_does_not_give(author, environment, mask, expected):
    (problem,) = spec_problems(replace(author.spec(), action_mask=mask), environment)
    assert f"(got {mask}); expected {expected}" in str(problem)
    assert not list(spec_problems(replace(author.spec(), action_mask=0), environment))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"module": "Module"}, ("'module' names no class", "'Module'")),
        ({"action_array": SpaceSpec("box", (2,), "float32").array}, ("stores actions", "float32[2]", "int64[]")),
        ({"action_array": SpaceSpec("box", (), "float32").array}, ("stores actions", "float32[]", "int64[]")),
        ({"action_transform": "tanh"}, ("action transform is unknown", "tanh_affine")),
        ({"noise": "uniform"}, ("noise is of no known form", "NoiseSpec")),
        ({"noise": NoiseSpec("normal", (-2,))}, ("noise is of no known form", "(-2,)")),
        ({"extras": ("value",)}, ("no FieldSpec", "'value'")),
        ({"extras": [FieldSpec("value", (), "float32")]}, ("no tuple",)),
        ({"extras": (FieldSpec("value", (-1,), "float32"),)}, ("'value' has a shape", "(-1,)")),
        ({"extras": (FieldSpec("value", (), "object"),)}, ("'value' has a dtype", "'object'")),
        ({"extras": (FieldSpec("version", (), "int64"),)}, ("name of another block field", "'version'")),
        ({"state_size": 3}, ("recurrent state", "state_size=3, state_rows=0")),
        ({"state_size": -3, "state_rows": 8}, ("recurrent state", "state_size=-3")),
        ({"backend": "tourch"}, ("'backend' is unknown", "numpy or torch")),
        ({"acting_dtype": "float"}, ("'acting_dtype' is unknown", "float32 or bfloat16")),
        ({"options": {"scale": np.float32(1)}}, ("'options' cannot be sent", "float32 is not JSON", "item()")),
        ({"options": {"sizes": (1, 2)}}, ("'options' cannot be sent", "(1, 2)", "A tuple would arrive as a list")),
    ],
)
def test_a_spec_that_does_not_fit(author, change, parts):
    (problem,) = spec_problems(replace(author.spec(), **change), CARTPOLE)
    for part in ("policies.main", *parts):
        assert part in str(problem)


def test_float64_parameters(author):
    author.writes(
        "        self.network = build_network(spec.network, spec.observation, spec.action.n)\n",
        "        self.network = build_network(spec.network, spec.observation, spec.action.n)\n"
        "        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))\n",
    )
    message(author.training, "scale torch.float64", "expected float32", author.place("class Module("))


def test_a_module_without_parameters(author):
    author.writes("self.network = build_network(spec.network, spec.observation, spec.action.n)", "self.layers = []")
    message(author.training, "has no parameters", author.place("class Module("))


def test_a_module_that_cannot_be_built(author):
    author.writes("spec.action.n)", "spec.actions.n)")
    message(author.training, "building the module", "no attribute 'actions'", author.place("self.network ="))


def test_a_module_that_is_none(author):
    author.writes("class Module(nn.Module):", "class Module:").writes(
        "        super().__init__()\n        self.network", "        self.network"
    )
    message(author.training, "is something else", "a torch.nn.Module", author.place("class Module:"))


def test_an_implementation_without_update(author):
    author.writes("def update(", "def updat(")
    plugin = author.plugin()
    message(
        lambda: build_algorithm(plugin, plugin.config(), author.training(), "main"),
        "policies.main.algorithm", "lacks methods", "update()", "Is 'updat' meant as 'update'?",
        author.place("class Update("),
    )  # fmt: skip


def test_an_implementation_that_cannot_be_built(author):
    author.writes("learning_rate=config.learning_rate", "learning_rate=config.rate")
    plugin = author.plugin()
    message(
        lambda: build_algorithm(plugin, plugin.config(), author.training(), "main"),
        "building the algorithm", "no attribute 'rate'", author.place("learning_rate=config.rate"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("returned", "part"),
    [
        (None, "no dict"),
        ({"loss": "high"}, "a metric 'loss' that is no number (got 'high')"),
        ({"loss": None}, "a metric 'loss' that is no number"),
        ({"losses": np.ones(3)}, "a metric 'losses' that is no number"),
        ({"env_steps": 3.0}, "a name it cannot have (got 'env_steps')"),
        ({3: 3.0}, "a name it cannot have"),
    ],
)
def test_metrics_that_are_none(author, returned, part):
    plugin = author.plugin()
    algorithm = build_algorithm(plugin, plugin.config(), author.training(), "main")
    message(lambda: metrics_of(returned, algorithm), "update() of Update returned", part, author.place("def update("))


def test_numbers_of_numpy_and_torch_are_metrics(author):
    plugin = author.plugin()
    algorithm = build_algorithm(plugin, plugin.config(), author.training(), "main")
    given = {"a": 1, "b": np.float32(2), "c": torch.tensor(3.0), "d": np.array(4), "e": float("nan")}
    metrics = metrics_of(given, algorithm)
    assert [metrics[name] for name in "abcd"] == [1.0, 2.0, 3.0, 4.0]
    assert all(type(value) is float for value in metrics.values())


VALUE = '        out.extras["value"][...] = value.cpu().numpy()'
ASK = "        logits, value = self.module(batch.observation, self.placed)"


@pytest.mark.parametrize(
    ("old", "new", "parts", "line"),
    [
        (VALUE, VALUE.replace("value.", "logits."), ("(7,2)", "extras.value float32[7]"), 'out.extras["value"]'),
        # numpy would cut it off
        (
            VALUE,
            f"        out.action[...] = logits.cpu().numpy()[:, 0]\n{VALUE}",
            ("float32 is written into an array of int64",),
            "out.action[...]",
        ),
        # the block's array would stay as it was
        (
            VALUE,
            VALUE.replace("[...]", ""),
            ('another array in the place of out.extras["value"]', 'out.extras["value"][...] ='),
            "class Acting(",
        ),
        (f"{VALUE}\n", "", ("left extras.value unwritten", "float32[7]"), "class Acting("),
        (VALUE, VALUE.replace("value.cpu().numpy()", 'float("nan")'), ("not finite",), "class Acting("),
        (ASK, f"        batch.observation[...] = 1\n{ASK}", ("changed its input: batch.observation",), "class Acting("),
        (
            VALUE,
            f"        out.action[...] += 5\n{VALUE}",
            ("chose action", "Discrete(2) does not have"),
            "class Acting(",
        ),
        (ASK, ASK.replace("module", "modul"), ("no attribute 'modul'",), "logits, value = self.modul("),
        ("parameters[name]", "parameters['w']", ("load() of the acting", "KeyError", "network."), "tensor.copy_("),
        ("class Acting(ActingPolicy)", "class Acting(object)", ("not an acting policy",), "class Acting("),
        ("Module(spec).requires", "Module(3).requires", ("building the acting policy",), "self.network ="),
    ],
)
def test_acting_policies(author, old, new, parts, line):
    author.writes(old, new)
    message(author.acts, "policies.main", *parts, author.place(line))


def test_acting_that_only_fails_when_it_is_deterministic(author):
    author.writes("            deterministic=deterministic,", "            deterministic=1 / (1 - deterministic) > 2,")
    message(author.acts, "act(deterministic=True) of the acting policy", "ZeroDivisionError")


@pytest.mark.parametrize("action", [CARTPOLE.action, SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))])
def test_a_policy_that_passes_over_its_mask(action):
    plugin = import_target("srl.algorithms.ppo.plugin:PPO")
    environment = replace(CARTPOLE, action=action, action_mask=True)
    spec = policy_spec_of(plugin, "main", plugin.config(), {}, environment)
    training = Training(spec, seed=1)
    weights = training.layout.views(training.flat_weights())
    load_checked(build_acting(spec), spec, weights)

    class Careless(type(build_acting(spec))):
        def act(self, batch, out, *, deterministic=False):
            super().act(replace(batch, action_mask=None), out, deterministic=deterministic)

    for extra in (action, SpaceSpec.nested("dict", {"gear": action, "push": SpaceSpec("box", (3,), "float32")})):
        spec = policy_spec_of(plugin, "main", plugin.config(), {}, replace(environment, action=extra))
        training = Training(spec, seed=1)
        with pytest.raises(PluginError, match=r"chose action \d, which batch\.action_mask forbids"):
            load_checked(Careless(spec), spec, training.layout.views(training.flat_weights()))


def test_records_are_looked_into():
    space = SpaceSpec.nested("dict", {"gear": CARTPOLE.action, "push": SpaceSpec("box", (3,), "float32")})

    class Half(ActingPolicy):
        def load(self, parameters):
            pass

        def act(self, batch, out, *, deterministic=False):
            for leaf in space.leaves():
                if leaf.path == "gear" or not deterministic:
                    leaf.of(out.action)[...] = 1

    spec = replace(spec_of_cartpole(), action=space, action_array=space.array, extras=())
    with pytest.raises(PluginError, match="left action unwritten"):
        load_checked(Half(spec), spec, {})


def spec_of_cartpole():
    plugin = import_target("srl.algorithms.ppo.plugin:PPO")
    return policy_spec_of(plugin, "main", plugin.config(), {}, CARTPOLE)
