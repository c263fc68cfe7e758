"""The completion script, sourced by a real bash: sub-commands, bundled experiments, options and their values."""

import subprocess
import sys

import pytest

from srl import cli
from srl.api.errors import MissingExtraError
from srl.api.loading import bundled_experiments
from srl.commands import COMMANDS
from srl.trials.completion import completion_script


@pytest.fixture(scope="module")
def script():
    return completion_script("bash")


def complete(script, directory, *words):
    """What bash offers for the last of the words."""
    driver = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
spec=$(complete -p srl-run); function=${spec##*-F }; function=${function%% *}
"$function" srl-run "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    path = directory / "completion.bash"
    path.write_text(script)
    done = subprocess.run(
        ["bash", "--norc", "-c", driver, "bash", str(path), "srl-run", *words],
        capture_output=True, text=True, timeout=100, cwd=directory, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return sorted(done.stdout.split())


def test_the_first_word_is_a_command_or_a_bundled_experiment(script, tmp_path):
    assert set(complete(script, tmp_path, "")) == {*COMMANDS, *bundled_experiments()}
    assert complete(script, tmp_path, "ev") == ["evaluate"]
    assert complete(script, tmp_path, "cartpole_p") == ["cartpole_ppo"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--al",), ["--algorithm"]),
        (("cartpole_ppo", "--plac"), ["--placement"]),
        (("cartpole_ppo", "--placement", ""), ["auto", "fused", "processes"]),
        (("cartpole_ppo", "--screen", "l"), ["live"]),
        (("check", "cartpole_p"), ["cartpole_ppo"]),
        (("check", "cartpole_ppo", "--res"), ["--resolved"]),
        (("evaluate", "trials/x", "--ep"), ["--episodes"]),
        (("plot", "trials/x", "--x", "f"), ["frames"]),
        (("export", "trials/x", "--format", "o"), ["onnx"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_options_and_their_values(script, tmp_path, words, expected):
    assert complete(script, tmp_path, *words) == expected


def test_trials_are_directories(script, tmp_path):
    (tmp_path / "trials" / "first").mkdir(parents=True)
    (tmp_path / "try.txt").touch()
    assert complete(script, tmp_path, "evaluate", "tr") == ["trials"]
    assert complete(script, tmp_path, "plot", "trials/first", "trials/f") == ["trials/first"]


def test_the_command_prints_the_script_and_refuses_other_shells(capsys):
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef srl-run")
    assert cli.main(["completion", "cmd"]) == 2


def test_without_shtab_there_is_one_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(MissingExtraError, match=r"srl-dataflow\[screen\]"):
        completion_script("bash")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_in_its_help(command, capsys):
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"srl-run {command}" in out.partition("examples:")[2]
