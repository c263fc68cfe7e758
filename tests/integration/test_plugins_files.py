"""Plugins in one file, through processes of their own: trained, kept out of processes that need none, and wrong."""

from pathlib import Path

import pytest
import yaml

from srl.commands.new import write_skeleton

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
ONE_FILE = PLUGINS / "one_file.yaml"
IMPORTED = "one_file.py is imported"
OFF = ("--screen", "off")
WORKERS = {
    "actors": {
        "kind": "actor", "environments": 4, "agents": [{"policy": "main", "samples": "samples", "inference": "ask"}]
    },
    "servers": {"kind": "policy", "serves": "ask"},
    "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
}  # fmt: skip


def imported_in(trial_dir: Path) -> set[str]:
    """Groups of the workers whose log says that the file was imported."""
    return {path.stem.rpartition("-")[0] for path in trial_dir.glob("logs/*.log") if IMPORTED in path.read_text()}


def test_what_one_file_brings_is_trained_in_processes_with_the_same_bits_as_fused(trial_run, tmp_path):
    trials = [trial_run(ONE_FILE, "--placement", placement, *OFF).check() for placement in ("processes", "fused")]
    assert trials[0].summary["evaluation"]["mean_return"] == 5.0, "random actions get 1.25"
    assert trials[0].summary["blocks"]["trained"] == 240
    assert len({trial.summary["weights_sha256"] for trial in trials}) == 1
    assert imported_in(trials[0].trial_dir) == {"actors", "trainer", "evaluator"}
    later = trial_run("evaluate", trials[0].trial_dir, "--episodes", "5", without_trial_dir=True, cwd=tmp_path).check()
    assert "mean_return: 5.0" in later.stdout


def test_its_network_serves_ppo_too(trial_run):
    algorithm = "policies.main.algorithm={type: ppo, rows: 8, minibatch_rows: 64, learning_rate: 3.0e-3}"
    done = trial_run(ONE_FILE, algorithm, "stop={updates: 60}", "--placement", "processes", *OFF).check()
    assert done.summary["evaluation"]["mean_return"] == 5.0
    assert done.summary["blocks"]["trained"] == 120


@pytest.mark.parametrize(
    ("provides", "expected"),
    [
        (["algorithm", "network"], {"servers", "trainer"}),
        ([], {"actors", "servers", "trainer"}),
    ],
)
def test_provides_keeps_it_out_of_actors_that_ask_others(trial_run, tmp_path, provides, expected):
    experiment = yaml.safe_load(ONE_FILE.read_text())
    experiment |= {
        "plugins": [{"path": str(PLUGINS / "one_file.py"), "provides": provides}],
        "environment": {"type": "gymnasium", "id": "CartPole-v1"},
        "workers": WORKERS,
        "streams": {"samples": {"kind": "sample"}, "ask": {"kind": "inference", "policy": "main"}},
        "stop": {"updates": 3},
    }
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment))
    done = trial_run(file, "--placement", "processes", *OFF).check()
    assert done.summary["updates"] == 3
    assert imported_in(done.trial_dir) == expected


def test_no_plugins_refuses_the_file_without_importing_it(trial_run):
    done = trial_run("check", ONE_FILE, "--no-plugins", without_trial_dir=True).check(2)
    assert "plugins: --no-plugins forbids plugins" in done.stderr
    assert IMPORTED not in done.output


@pytest.mark.parametrize(
    ("placement", "old", "new", "parts"),
    [
        (
            "processes", 'out.extras["value"][...] =', 'out.extras["value"] =',
            ("put another array in the place of", "writes into it", "Defined at"),
        ),
        ("fused", '"gradient_norm": norm', '"gradient_norm": "small"', ("update() of Update returned", "'small'")),
    ],
    ids=["acting", "update"],
)  # fmt: skip
def test_a_mistake_ends_the_trial_with_one_message(trial_run, tmp_path, placement, old, new, parts):
    code, experiment = write_skeleton("algorithm", "mine", tmp_path)
    code.write_text(code.read_text().replace(old, new))
    done = trial_run(experiment, "stop={updates: 3}", "--placement", placement, *OFF).check(1)
    for part in (*parts, f"{code}:"):
        assert part in done.stderr
