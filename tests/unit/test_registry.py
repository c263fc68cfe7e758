"""Names of plugins: nearest names, duplicates, inner causes, files and packages, the same in every process."""

import json
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from srl.api import importing, registry
from srl.api.errors import PluginError, UsageError
from srl.api.importing import absolute, import_target, refuse_while_importing, target_of
from srl.api.registry import BUILT_IN, REGISTRY, Registry, load_plugins

FACTORY = """
from srl.api.environment import EnvironmentFactory
from srl.api.registry import register

class Grid(EnvironmentFactory):
    @classmethod
    def check(cls, options):
        return []

    def probe(self):
        raise NotImplementedError

    def make(self, count, seeds):
        raise NotImplementedError

register("environment", "grid", Grid)
"""


class Nested:
    class Inner:
        pass


@pytest.fixture
def plugin_file(tmp_path, monkeypatch):
    """Writes a plugin file; the process's registry and search path are as before afterwards."""
    monkeypatch.setattr(REGISTRY, "_entries", {kind: dict(names) for kind, names in REGISTRY._entries.items()})
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text, name="plugin.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_unknown_name_gets_the_nearest():
    with pytest.raises(PluginError) as caught:
        Registry().resolve("algorithm", "pp0", "policies.main.algorithm.type")
    assert caught.value.where == "policies.main.algorithm.type"
    assert "'ppo'" in caught.value.hint
    assert caught.value.exit_code == 2


def test_built_in_targets_are_not_imported_by_looking_them_up():
    assert Registry().target("environment", "atari") == BUILT_IN["environment"]["atari"]
    code = "import sys, srl.api.registry as r; r.REGISTRY.names('algorithm'); print('srl.algorithms' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_duplicates_are_errors_that_name_both():
    table = Registry()
    with pytest.raises(PluginError, match="registered twice") as caught:
        table.register("algorithm", "ppo", "other.module:PPO", source="package other")
    assert "other.module:PPO" in str(caught.value)
    assert BUILT_IN["algorithm"]["ppo"] in str(caught.value)
    table.register("algorithm", "ppo", BUILT_IN["algorithm"]["ppo"])  # the same again is no conflict


def test_unknown_kind_and_malformed_target():
    with pytest.raises(PluginError, match="unknown kind") as caught:
        Registry().register("enviroment", "x", "a.b:C")
    assert "'environment'" in caught.value.hint
    with pytest.raises(PluginError, match="malformed target"):
        Registry().register("algorithm", "x", "no-colon-here")


def test_target_of_the_wrong_kind():
    with pytest.raises(PluginError, match="not a plugin of kind 'algorithm'") as caught:
        Registry().resolve("algorithm", "json:JSONDecoder")
    assert "srl.api.algorithm.AlgorithmPlugin" in caught.value.expected


def test_failed_import_shows_type_message_and_place(plugin_file):
    path = plugin_file("x = 1\n\nraise RuntimeError('boom-42')\n")
    with pytest.raises(PluginError) as caught:
        load_plugins([str(path)])
    assert "RuntimeError: boom-42" in str(caught.value)
    assert f"{path}:3" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("import a_module_that_is_not_there\n", "No module named"),
        ("def f(:\n", "SyntaxError"),
        ("import sys; sys.exit(3)\n", "SystemExit: 3"),
    ],
)
def test_other_ways_to_fail(plugin_file, text, inner):
    path = plugin_file(text)
    with pytest.raises(PluginError, match=inner) as caught:
        load_plugins([str(path)])
    assert f"{path}:1" in str(caught.value)
    with pytest.raises(PluginError, match=inner):  # a half-imported module does not stay behind
        load_plugins([str(path)])


def test_missing_attribute_gets_the_nearest():
    with pytest.raises(PluginError) as caught:
        import_target("json:JSONDecodr")
    assert "'JSONDecoder'" in caught.value.hint


def test_plugin_file_registers_and_is_imported_once(plugin_file):
    path = plugin_file(FACTORY)
    load_plugins([str(path)])
    load_plugins([str(path)])
    factory = REGISTRY.resolve("environment", "grid")
    assert factory.__name__ == "Grid"
    assert REGISTRY.target("environment", "grid") == f"{path}:Grid"
    assert import_target(f"{path}:Grid") is factory
    assert "grid" in REGISTRY.names("environment")


def test_registry_travels_to_a_process_that_imported_nothing(plugin_file):
    path = plugin_file(FACTORY)
    load_plugins([str(path)])
    code = (
        "import json, sys\nfrom srl.api.registry import Registry\n"
        "print(Registry.from_dict(json.load(sys.stdin)).resolve('environment', 'grid').__qualname__)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(REGISTRY.to_dict()), capture_output=True, text=True, check=True
    )
    assert done.stdout == "Grid\n"


def test_plugin_imports_what_lies_beside_it(plugin_file):
    plugin_file("VALUE = 7\n", "beside_the_plugin.py")
    path = plugin_file("import beside_the_plugin\nvalue = beside_the_plugin.VALUE\n")
    assert import_target(f"{path}:value") == 7


def test_entry_points_are_names_without_import(monkeypatch):
    def points(**_):
        return EntryPoints([EntryPoint("algorithm.other", "not_there.module:Other", registry.ENTRY_POINT_GROUP)])

    monkeypatch.setattr(registry, "entry_points", points)
    table = Registry()
    assert table.names("algorithm") == ("other", "ppo")
    with pytest.raises(PluginError, match="No module named 'not_there'"):
        table.resolve("algorithm", "other")


@pytest.mark.parametrize("name", ["other", "algorithms.other", "algorithm."])
def test_malformed_entry_point(monkeypatch, name):
    points = EntryPoints([EntryPoint(name, "a.b:C", registry.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **_: points)
    with pytest.raises(PluginError, match="malformed entry point"):
        Registry().names("algorithm")


def test_entry_point_that_takes_a_built_in_name(monkeypatch):
    points = EntryPoints([EntryPoint("algorithm.ppo", "a.b:C", registry.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **_: points)
    with pytest.raises(PluginError, match="registered twice"):
        Registry().names("environment")


def test_target_of_classes_that_other_processes_can_find():
    assert target_of(Path) == f"{Path.__module__}:Path"
    assert import_target(target_of(Nested.Inner)) is Nested.Inner


def test_target_of_what_no_other_process_can_find():
    class Local:
        pass

    for value in (Local, lambda: None):
        with pytest.raises(PluginError, match="cannot be found by other processes") as caught:
            target_of(value, "environment.type")
        assert caught.value.where == "environment.type"


def test_target_of_an_interactive_session():
    code = (
        "from srl.api.importing import target_of\n"
        "class Typed: pass\n"
        "try:\n    target_of(Typed, 'environment.type')\nexcept Exception as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("environment.type: what is defined in an interactive session")
    assert "%%writefile" in out


def test_starting_a_trial_while_being_imported_is_refused_once(plugin_file):
    path = plugin_file(
        "from srl.api.importing import refuse_while_importing\nrefuse_while_importing('starts a trial')\n"
    )
    with pytest.raises(UsageError, match="__main__") as caught:
        load_plugins([str(path)])
    assert caught.value.where == str(path)
    refuse_while_importing("starts a trial")  # nothing is being imported any more
    assert importing._loading == []


def test_absolute():
    base = Path("/base")
    assert absolute("./a.py", base) == "/base/a.py"
    assert absolute("../a.py:Attr", base) == "/a.py:Attr"
    assert absolute("/x/a.py:Attr", base) == "/x/a.py:Attr"
    assert absolute("package.module:Attr", base) == "package.module:Attr"
    assert absolute("CartPole-v1", base) == "CartPole-v1"
