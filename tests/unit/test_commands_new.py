"""``srl-run new``: which names it takes."""

import pytest

from srl import cli
from srl.commands.new import SKELETONS, write_skeleton


@pytest.mark.parametrize("name", ["cave", "my_cave", "Cave2", "aB_c"])
@pytest.mark.parametrize("kind", SKELETONS)
def test_good_names(tmp_path, kind, name, capsys):
    assert cli.main(["new", kind, name, "--directory", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for path in tmp_path.iterdir():
        assert "skeleton" not in path.read_text().lower()
        assert str(path) in printed


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("algorithm", "my-maze", "a Python identifier"),
        ("environment", "2maze", "a Python identifier"),
        ("experiment", "a b", "a Python identifier"),
        ("experiment", "../x", "a Python identifier"),
        ("experiment", "_x", "a Python identifier"),
        ("experiment", "größe", "a Python identifier"),
        ("experiment", "class", "a Python identifier"),
        ("experiment", "no", "something else in YAML"),
        ("experiment", "x" * 65, "at most 64"),
        ("algorithm", "random", "my_random"),
        ("environment", "torch", "my_torch"),
        ("algorithm", "update", "the skeleton itself uses the name Update"),
        ("algorithm", "policy_spec", "the skeleton itself uses the name PolicySpec"),
        ("environment", "box", "the skeleton itself uses the name Box"),
    ],
)
def test_bad_names(tmp_path, kind, name, text, capsys):
    assert cli.main(["new", kind, name, "--directory", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind(capsys):
    assert cli.main(["new", "policy", "mine"]) == 2
    assert "algorithm" in capsys.readouterr().err


def test_classes_are_called_after_it(tmp_path):
    (code, experiment) = write_skeleton("algorithm", "my_way", tmp_path)
    assert "class MyWay(AlgorithmPlugin)" in code.read_text()
    assert "type: ./my_way.py:MyWay " in experiment.read_text()
