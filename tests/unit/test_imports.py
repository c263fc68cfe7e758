"""The import rule of docs/architecture.md, and what importing a module may not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "srl"
ROOMS = ("api", "system", "algorithms", "environments", "distributed", "experiments")
FRONT = ("cli", "commands", "trials", "screen")
ANYTHING = (*ROOMS, *FRONT)

MAY_IMPORT = {
    "api": ("api",),
    "system": ("system", "api"),
    "algorithms": ("algorithms", "api"),
    "environments": ("environments", "api"),
    "distributed": ("distributed", "api", "system"),
    "experiments": ANYTHING,
    "templates": ("api", "algorithms", "environments"),
    **dict.fromkeys(FRONT, ANYTHING),
    "__init__": ("trials",),
}

HEAVY = ("torch", "zmq", "grpc", "gymnasium")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
}  # fmt: skip


def imports_of(source: str, *, type_checking: bool = True) -> list[tuple[int, str]]:
    """(line, full module name) of every import in a source, those inside functions included.

    `from srl import api` counts as `srl.api`; with `type_checking` False, blocks under TYPE_CHECKING do not count.
    """
    found = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and not type_checking and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"srl.{alias.name}" for alias in node.names] if node.module == "srl" else [str(node.module)]
            found.extend((node.lineno, name) for name in names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


def room_of(module: str) -> str:
    """`srl.system.workers.actor` is of the room `system`; `srl` itself of `__init__`; screen_end.py of `screen`."""
    room = module.split(".")[1] if "." in module else "__init__"
    return "screen" if room.startswith("screen_") else room


def offences(module: str, source: str) -> list[str]:
    """Imports in a module's source that the rule forbids."""
    allowed = MAY_IMPORT[room_of(module)]
    found = []
    for line, name in imports_of(source):
        if name in ROOMS or name.split(".")[0] in ROOMS:
            found.append(f"{module}:{line} imports {name}: write srl.{name}")
        elif name.split(".")[0] == "srl" and name not in ("srl", "srl.__version__") and room_of(name) not in allowed:
            found.append(f"{module}:{line} imports {name}; {room_of(module)} may import {allowed or 'nothing of ours'}")
    return found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("srl.api.block", "from srl.system import worker"),
        ("srl.api.block", "def f():\n    import srl.algorithms.ppo.config"),
        ("srl.api.block", "from srl import distributed"),
        ("srl.system.worker", "from srl.distributed.graph import resolve"),
        ("srl.algorithms.ppo.losses", "from srl.system.seeding import seeds"),
        ("srl.environments.atari", "import srl.algorithms"),
        ("srl.distributed.graph", "from srl.algorithms.ppo.config import PPOConfig"),
        ("srl.distributed.graph", "from srl import cli"),
        ("srl.experiments.pong", "from api.experiment import Experiment"),
        ("srl", "from srl.api import errors"),
    ],
)
def test_the_rule_sees_an_offence(module, source):
    assert len(offences(module, source)) == 1


def test_every_room_has_a_rule():
    assert {room_of(module) for module in MODULES} <= set(MAY_IMPORT)
    assert len(MODULES) > len(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_import_rule(module):
    assert not offences(module, MODULES[module].read_text())


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) == "api"])
def test_api_names_no_torch_and_no_socket_library(module):
    names = [name.split(".")[0] for _, name in imports_of(MODULES[module].read_text(), type_checking=False)]
    assert not {"torch", "zmq", "grpc", "socket", "asyncio"} & set(names)


def loaded_by(modules: list[str]) -> dict[str, set[str]]:
    """Which heavy packages a fresh interpreter has loaded after each import, in the given order."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    print(name, *[heavy for heavy in {HEAVY!r} if heavy in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines()}


def test_importing_the_api_loads_nothing_heavy():
    loaded = loaded_by([name for name in MODULES if room_of(name) == "api"])
    assert len(loaded) > 5
    assert {name: heavy for name, heavy in loaded.items() if heavy} == {}


def test_importing_the_package_loads_nothing_of_it():
    code = "import srl, sys; print(*sorted(name for name in sys.modules if name.startswith('srl') or name == 'numpy'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["srl"]


def test_light_modules_load_no_torch():
    """Actors with remote inference, the controller, the command line and the plain-data side of algorithms."""
    light = [
        name
        for name in MODULES
        if room_of(name) in ("cli", "commands", "trials", "environments", "distributed")
        or name.startswith(("srl.system.streams", "srl.system.workers.actor", "srl.system.parameter"))
        or name.rpartition(".")[2] in ("config", "spec", "recipe", "plugin", "numpy_mlp")
        or name in ("srl.algorithms", "srl.algorithms.ppo", "srl.algorithms.networks")
    ]
    loaded = loaded_by(light)
    assert {name: heavy for name, heavy in loaded.items() if "torch" in heavy} == {}
