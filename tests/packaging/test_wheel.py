"""The built wheel: what is in it, and that it works from outside the tree."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=150, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What git tracks, links included, so that neither build folders nor stray files can change the wheel."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    copy.mkdir()
    listing = run("git", "-C", PROJECT, "ls-files", "-z").stdout
    names = [name for name in listing.split("\0") if name and os.path.lexists(PROJECT / name)]
    run("tar", "-C", PROJECT, "-cf", copy / "tree.tar", *names)
    run("tar", "-C", copy, "-xf", copy / "tree.tar")
    (copy / "tree.tar").unlink()
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, source)
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A directory that holds the wheel's contents and nothing of the tree."""
    target = tmp_path_factory.mktemp("installed")
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"),
        *("--target", target, wheel),
    )
    return target


def outside(installed: Path, tmp_path: Path, *arguments: str | Path) -> str:
    """Run Python from an empty directory with the installed copy in front of everything."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return run(sys.executable, *arguments, cwd=tmp_path, env=environment).stdout


def test_wheel_has_one_top_level_package(names):
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"srl"}


def test_wheel_carries_what_the_package_needs(source, names):
    wanted = [path for pattern in ("*.py", "*.yaml", "*.proto", "py.typed") for path in (source / "srl").rglob(pattern)]
    missing = {str(path.relative_to(source)) for path in wanted} - set(names)
    assert not missing
    assert "srl/experiments/cartpole_ppo.yaml" in names
    assert "srl/distributed/control_pb2.py" in names


def test_wheel_carries_the_licence_and_the_command(wheel, names):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "srl-run = srl.cli:main" in archive.read(entry_points).decode()


def test_import_from_outside_the_tree(installed, tmp_path):
    printed = outside(installed, tmp_path, "-c", "import srl; print(srl.__file__, srl.__version__)")
    path, version = printed.split()
    assert Path(path).is_relative_to(installed)
    assert version == "0.1.0"


@pytest.mark.parametrize("arguments", [("check", "cartpole_ppo"), ("check", "atari_pong_ppo"), ("list",), ("schema",)])
def test_command_from_outside_the_tree(installed, tmp_path, arguments):
    printed = outside(installed, tmp_path, installed / "bin" / "srl-run", *arguments)
    assert printed


def test_a_trial_runs_from_outside_the_tree(installed, tmp_path):
    command = installed / "bin" / "srl-run"
    outside(installed, tmp_path, command, "cartpole_ppo", "stop.updates=2", "--screen", "off", "--trial-dir", "trial")
    assert (tmp_path / "trial" / "summary.json").stat().st_size > 0
