"""Curves, pictures and tables of trials, from files alone."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.axes
import numpy as np
import pytest

import srl
from srl import cli
from srl.api.errors import MissingExtraError, UsageError
from srl.api.loading import load_experiment, resolved_yaml
from srl.system.trial import TrialDirectory
from srl.trials.comparing import compare, short_names
from srl.trials.metrics import Metrics
from srl.trials.plotting import grouped, over_seeds, plot_trials
from srl.trials.tables import html_table, text_table

PNG = b"\x89PNG\r\n\x1a\n"


def row(kind, env_steps, **values):
    return {
        "kind": kind, "env_steps": env_steps, "frames": 4 * env_steps, "seconds": env_steps / 1000,
        "policy_version": env_steps // 100, **values,
    }  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """A trial with a curve; ``make("a", seed=2, ["stop.updates=3"])``."""

    def make(name, seed=1, overrides=(), rows=None, summary=None):
        experiment = load_experiment("cartpole_ppo", [f"seed={seed}", *overrides])
        trial = TrialDirectory.create(experiment, tmp_path / name)
        trial.write_experiment(resolved_yaml(experiment))
        if rows is None:
            rows = [row("training", step, **{"episode/return": seed * step / 10}) for step in range(100, 1100, 100)]
            rows += [row("evaluation", step, **{"evaluation/return_mean": float(step)}) for step in (500, 1000)]
        trial.metrics.write_text("".join(json.dumps(one) + "\n" for one in rows))
        trial.write_summary(
            {"exit_reason": "updates", "exit_code": 0, "env_steps": 1000, "env_steps_per_second": 250.0,
             "evaluation": {"mean_return": 10.0 * seed}, "best_evaluation": {"mean_return": 20.0 * seed},
             "episodes": {"return_mean_last_100": 5.0}, "wall_seconds": 4.0, "experiment": experiment.name,
             "seed": seed} if summary is None else summary
        )  # fmt: skip
        return srl.load(trial.path)

    return make


def test_rows_columns_and_curves(make):
    rows = [
        row("training", 100, loss=1.0, entropy=None),
        row("training", 200, loss=None, entropy=0.5),
        row("evaluation", 150, **{"evaluation/return_mean": 9.0}),
    ]
    trial = make("a", rows=rows)
    metrics = trial.metrics
    assert metrics.rows == rows
    assert metrics.names() == ["loss", "entropy", "evaluation/return_mean"]
    columns = metrics.columns()
    assert columns["env_steps"].tolist() == [100, 200]
    assert columns["env_steps"].dtype == np.int64
    np.testing.assert_array_equal(columns["loss"], [1.0, np.nan])
    assert "evaluation/return_mean" not in columns
    curve = metrics.curve("entropy")
    assert (curve.env_steps.tolist(), curve.frames.tolist(), curve.values.tolist()) == ([200], [800], [0.5])
    assert metrics.columns("evaluation")["evaluation/return_mean"].tolist() == [9.0]
    with pytest.raises(UsageError, match="Did you mean 'entropy'"):
        metrics.curve("entropi")
    for axis in ("env_steps", "kind"):
        with pytest.raises(UsageError, match="no such metric"):
            metrics.curve(axis)


def test_a_line_that_is_being_written_is_left_out_and_a_damaged_one_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert len(Metrics.read(path)) == 0
    path.write_text(json.dumps(row("training", 1)) + '\n{"kind": "tr')
    assert len(Metrics.read(path)) == 1
    for damaged, why in (
        ("{nonsense}", "Expecting"),
        ("3", "not iterable"),
        ('{"kind": "training"}', "no seconds, env"),
    ):
        path.write_text(f"{json.dumps(row('training', 1))}\n{damaged}\n")
        with pytest.raises(UsageError, match=f"line 2: a damaged line.*{why}"):
            Metrics.read(path)


def test_trials_are_grouped_by_their_experiment_up_to_the_seed(make):
    trials = [make("a", 1), make("b", 2), make("c", 1, ["policies.main.algorithm.gamma=0.5"]), make("d", 3)]
    groups = grouped(trials)
    assert [[trial.path.name for trial in group.trials] for group in groups] == [["a", "b", "d"], ["c"]]
    assert [group.label for group in groups] == ["cartpole_ppo (gamma=0.98)", "cartpole_ppo (gamma=0.5)"]
    assert [group.label for group in grouped(trials[:2])] == ["cartpole_ppo"]


def test_mean_and_band_over_seeds():
    lines = [
        (np.array([0.0, 10.0]), np.array([0.0, 10.0])),
        (np.array([2.0, 10.0]), np.array([4.0, 12.0])),
        (np.array([0.0, 8.0]), np.array([4.0, 12.0])),
    ]
    x, mean, low, high = over_seeds(lines, "std")
    assert (x[0], x[-1]) == (2.0, 8.0)  # where all of them have values
    np.testing.assert_allclose(mean, x + 2 * 2 / 3 + 2 / 3 * 1)  # of x, x + 2, x + 4
    np.testing.assert_allclose(high - low, 2 * 2.0)  # std of a sample of 0, 2, 4
    x, mean, low, high = over_seeds(lines, "minmax")
    np.testing.assert_allclose(low, x)
    np.testing.assert_allclose(high, x + 4)
    assert over_seeds([lines[0], (np.array([11.0, 12.0]), np.zeros(2))], "std") is None
    x, mean, *_ = over_seeds(lines[:2], "std", by_point=True)
    assert (x.tolist(), mean.tolist()) == ([1.0, 10.0], [2.0, 11.0])


def test_a_picture_of_one_trial_and_of_several(make, tmp_path, capsys):
    first, second = make("a", 1), make("b", 2)
    path = first.plot()
    assert path == first.path / "plot.png"
    assert path.read_bytes().startswith(PNG)
    both = tmp_path / "new" / "both.png"
    assert cli.main(["plot", str(first.path), str(second.path), "--out", str(both), "--band", "minmax"]) == 0
    assert capsys.readouterr().out.strip() == str(both)
    assert both.read_bytes().startswith(PNG)
    assert both.read_bytes() != path.read_bytes()
    for x in ("frames", "seconds"):
        plot_trials([first, second], both, x=x, metric="episode/return")


@pytest.mark.parametrize(
    ("name", "text"), [("curves.pdf", r"expected \.png"), ("curves", "no ending"), (".", "directory")]
)
def test_a_name_that_promises_something_else_than_a_png_is_refused(make, tmp_path, name, text):
    trial = make("trial")
    with pytest.raises(UsageError, match=text):
        plot_trials([trial], tmp_path / name)
    assert not (tmp_path / "one.pdf").exists()


def test_a_picture_of_several_trials_lies_beside_them(make, tmp_path, monkeypatch, capsys):
    first, second = make("a", 1), make("b", 2)
    drawn = []
    monkeypatch.setattr("srl.trials.plotting.plot_trials", lambda trials, path, **_: drawn.append(path) or path)
    assert cli.main(["plot", str(first.path)]) == 0
    assert cli.main(["plot", str(first.path), str(second.path)]) == 0
    joint = tmp_path / "a-seeds.json"
    joint.write_text(json.dumps({"trials": [{"trial": str(first.path)}, {"trial": str(second.path)}]}))
    assert cli.main(["plot", str(joint)]) == 0
    assert drawn == [first.path / "plot.png", tmp_path / "plot.png", tmp_path / "a-seeds.png"]


def test_lines_of_one_point_are_seen(make, tmp_path, monkeypatch):
    trials = [
        make(f"t{at}", seed, rows=[row("training", at, **{"episode/return": 5.0})]) for seed, at in ((1, 9), (2, 7))
    ]
    drawn = []
    plot = matplotlib.axes.Axes.plot
    monkeypatch.setattr("matplotlib.axes.Axes.plot", lambda *line, **style: drawn.append(style) or plot(*line, **style))
    plot_trials(trials[:1], tmp_path / "one.png")
    plot_trials(trials, tmp_path / "two.png")
    assert [style["marker"] for style in drawn] == ["o"] * 4
    assert drawn[-1]["label"] == "cartpole_ppo: training, single seeds"


def test_the_mean_of_seeds_that_share_one_point_is_seen(make, tmp_path, monkeypatch):
    """A seed that ended at its first record, within the curve of another: there is one mean, at that place."""
    curves = {1: [(10, 4.0), (30, 8.0)], 2: [(20, 2.0)]}
    trials = [
        make(f"s{seed}", seed, rows=[row("training", at, **{"episode/return": value}) for at, value in points])
        for seed, points in curves.items()
    ]
    drawn = []
    plot = matplotlib.axes.Axes.plot
    monkeypatch.setattr(
        "matplotlib.axes.Axes.plot", lambda *line, **style: drawn.append((line, style)) or plot(*line, **style)
    )
    plot_trials(trials, tmp_path / "joint.png")
    (_, x, mean), style = drawn[-1]
    assert (x.tolist(), mean.tolist(), style["marker"]) == ([20.0], [4.0], "o")
    assert "mean of 2 seeds" in style["label"]


def test_nothing_to_draw_is_said(make, tmp_path, monkeypatch):
    empty = make("a", rows=[])
    with pytest.raises(UsageError, match="no such points yet"):
        plot_trials([empty], tmp_path / "x.png")
    with pytest.raises(UsageError, match="no such metric"):
        plot_trials([empty], tmp_path / "x.png", metric="loss")
    with pytest.raises(UsageError, match="at least one trial"):
        plot_trials([], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"srl-dataflow\[screen\]"):
        plot_trials([make("b")], tmp_path / "x.png")


def test_a_metric_that_one_trial_has_not_is_drawn_of_the_others(make, tmp_path):
    whole = make("a")
    begun = make("b", seed=2, rows=[row("training", 100, **{"episode/return": 1.0})])
    metric = "evaluation/return_mean"
    assert plot_trials([begun, whole], tmp_path / "x.png", metric=metric).stat().st_size
    with pytest.raises(UsageError, match=f"Did you mean '{metric}'"):
        plot_trials([begun, whole], tmp_path / "y.png", metric="evaluation/retrun_mean")


def test_a_summary_that_is_no_object_is_named(make):
    trial = make("a")
    (trial.path / "summary.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"summary\.json: not a valid summary"):
        assert trial.summary


def test_a_comparison_has_what_came_out_and_what_differs(make, capsys):
    first, second = make("a", 1), make("b", 2, ["policies.main.algorithm.gamma=0.5", "placement=fused"])
    result = compare([first, second])
    assert result.rows[1] == {
        "trial": "b", "seed": 2, "ended": "updates", "env steps": 1000, "steps/s": 250.0, "final evaluation": 20.0,
        "best evaluation": 40.0, "training return": 5.0, "wall s": 4.0,
    }  # fmt: skip
    assert result.differences == {
        "policies.main.algorithm.gamma": [0.98, 0.5],
        "placement": ["auto", "fused"],
    }
    assert cli.main(["compare", str(first.path), str(second.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result.to_dict()
    assert cli.main(["compare", str(first.path), str(second.path)]) == 0
    out = capsys.readouterr().out
    assert "policies.main.algorithm.gamma  0.98  0.5" in out
    assert cli.main(["compare", str(first.path), str(make("c", 5).path)]) == 0
    assert "differ in nothing but seeds" in capsys.readouterr().out


def test_a_trial_that_runs_is_compared_with_what_is_there(make):
    trial = make("a", summary={})
    assert compare([trial]).rows[0]["ended"] == "runs, or was killed"
    assert "runs, or ended without a summary" in repr(trial)
    assert trial.exit_code is None


def test_short_names_tell_keys_apart():
    assert short_names(["a.x", "b.x", "c.y", "y"]) == {"a.x": "a.x", "b.x": "b.x", "c.y": "c.y", "y": "y"}
    assert short_names(["policies.main.algorithm.gamma"]) == {"policies.main.algorithm.gamma": "gamma"}


def test_notebooks_show_a_short_table(make):
    trial = make("a")
    assert "cartpole_ppo, seed 1" in repr(trial)
    assert trial._repr_html_().startswith("<table>")
    assert "&lt;b&gt;" in html_table(["x"], [["<b>"]])
    assert text_table(["n", "t"], [[1234.5, "a"], [None, "bb"]]) == ["    n  t", "1,234  a", "    -  bb"]


def test_plots_take_no_global_state_of_matplotlib_and_no_torch(make):
    path = make("a").path
    code = "import sys, srl; srl.load(sys.argv[1]).plot(); print({'torch', 'matplotlib.pyplot'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
    assert Path(path, "plot.png").exists()
