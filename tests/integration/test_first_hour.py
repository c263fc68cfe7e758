"""The first hour of a user, on real trials: run, look, film, draw, export; from the shell and from Python."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import srl

SHORT = ("stop.updates=3", "stop.env_steps=null", "stop.evaluation_return=null", "workers.evaluator.episodes=4")


@pytest.fixture(scope="module")
def trials(shared_trial_run, tmp_path_factory):
    """Two seeds of one experiment, run by one command; the directory that holds them."""
    directory = tmp_path_factory.mktemp("seeds")
    done = shared_trial_run(
        "cartpole_ppo", *SHORT, "--seeds", "1,2", "--placement", "fused", "--trial-dir", directory / "first"
    ).check()
    assert done.stdout.count(" is over: all updates are made") == 2
    summary, following = done.stdout.splitlines()[-2:]
    assert summary == f"joint summary: {directory}/first-seeds.json"
    assert following == f"next: srl-run plot {directory}/first-seeds.json"
    return directory


def test_seeds_are_trials_of_their_own_with_a_joint_summary(trials):
    joint = json.loads((trials / "first-seeds.json").read_text())
    assert joint["seeds"] == [1, 2]
    summaries = [srl.load(trials / f"first-seed{seed}").summary for seed in (1, 2)]
    assert [one["seed"] for one in summaries] == [1, 2]
    assert len({one["weights_sha256"] for one in summaries}) == 2
    means = [one["evaluation"]["mean_return"] for one in summaries]
    assert joint["evaluation"]["mean"] == pytest.approx(np.mean(means))
    assert joint["evaluation"]["std"] == pytest.approx(np.std(means, ddof=1))


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "first-seed1", "--episodes", "2"),
        ("plot", "first-seeds.json", "--out", "both.png"),
        ("compare", "first-seed1", "first-seed2"),
        ("video", "first-seed1", "--out", "pole.mp4"),
        ("export", "first-seed2", "--out", "exported"),
    ],
    ids=lambda words: words[0],
)
def test_a_trial_is_looked_at_in_every_way(trials, trial_run, words):
    done = trial_run(*words, without_trial_dir=True, cwd=trials).check()
    assert done.stdout
    assert done.stderr == ""


def test_ctrl_c_ends_all_seeds_and_leaves_nothing(trial_run, tmp_path):
    trial = trial_run.start(
        "cartpole_ppo", "stop.evaluation_return=null", "--seeds", "1,2,3", "--screen", "plain",
        "--trial-dir", tmp_path / "x",
    )  # fmt: skip
    trial.wait_for_output("training  ")
    os.kill(trial.pid, signal.SIGINT)
    done = trial.finish().check(130)
    assert "1 of 3 seeds ran" in done.stdout
    assert json.loads((tmp_path / "x-seeds.json").read_text())["seeds"] == [1]
    assert not (tmp_path / "x-seed2").exists()
    stopped = srl.load(tmp_path / "x-seed1")
    assert stopped.load_policy("newest").version == stopped.summary["policy_version"] > 0


def test_a_notebook_runs_trials_within_its_own_event_loop(tmp_path, capfd):
    """A kernel runs its cells inside a running asyncio loop; its signal handlers are the same afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    async def cell():
        ticks = []
        task = asyncio.create_task(_tick(ticks))
        trial = srl.run("cartpole_ppo", overrides=SHORT, trial_dir=tmp_path / "trial", screen="off")
        await asyncio.sleep(0)
        task.cancel()
        return trial

    trial = asyncio.run(cell())
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert (trial.exit_code, trial.summary["updates"]) == (0, 3)
    assert trial.summary["placement"] == "processes"
    curve = trial.metrics.curve("episode/return")
    assert (np.diff(curve.env_steps) > 0).all()
    assert trial.evaluate(2)["episodes"] == 2
    assert trial.policy.act(np.zeros(4, np.float32)) in (0, 1)
    assert capfd.readouterr().out == ""


async def _tick(ticks):
    while True:
        ticks.append(time.monotonic())
        await asyncio.sleep(0.01)


def test_a_trial_runs_in_a_thread_and_leaves_signals_alone(tmp_path, no_leaks):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    found = []

    def work():
        overrides = [*SHORT, "placement=fused"]
        found.append(srl.run("cartpole_ppo", overrides=overrides, trial_dir=tmp_path / "trial", screen="off"))
        found.append({number: signal.getsignal(number) for number in handlers})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(150)
    assert found[0].summary["updates"] == 3
    assert found[1] == handlers


def test_a_script_needs_no_torch_before_it_runs_something(tmp_path):
    code = (
        "import srl, sys\n"
        "experiment = srl.recipe('ppo', 'CartPole-v1', {'stop.updates': 2})\n"
        "assert 'torch' not in sys.modules\n"
        "trial = srl.run(experiment, trial_dir=sys.argv[1], screen='off')\n"
        "assert 'torch' not in sys.modules, 'the controller needs none either'\n"
        "print(trial.summary['updates'], trial.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, tmp_path / "trial"],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("2 0\n", "")


def test_logs_have_no_line_per_step_or_sample(trial_run):
    """Field case 67: fewer than 200 lines a minute from each worker; here in proportion, whatever the speed."""
    done = trial_run("cartpole_ppo", "stop.wall_seconds=3", "stop.evaluation_return=null", "--screen", "plain").check()
    assert done.summary["env_steps"] > 1_000  # a log with a line for each would be far too long
    minutes = done.summary["wall_seconds"] / 60
    logs = [done.trial_dir / "main.log", *(done.trial_dir / "logs").iterdir()]
    assert len(logs) > 3
    for log in logs:
        # A start and an end have their lines whatever the duration.
        assert len(log.read_text().splitlines()) < 20 + 200 * minutes, log
    rows = [json.loads(line) for line in (done.trial_dir / "metrics.jsonl").read_text().splitlines()]
    training = [row["env_steps"] for row in rows if row["kind"] == "training"]
    assert training == sorted(set(training))
    assert len(training) <= 2 + done.summary["training_seconds"]


def test_a_sink_of_ones_own_fails_and_training_and_the_others_go_on(trial_run, tmp_path):
    (tmp_path / "sink.py").write_text(
        "from srl.api.metrics import MetricsSink, SinkOptions\n"
        "class Options(SinkOptions):\n"
        "    path: str\n"
        "class Mine(MetricsSink):\n"
        "    Options = Options\n"
        "    def write(self, records):\n"
        "        with open(self.options.path, 'a') as file:\n"
        "            file.write(f'{self.trial.name} {records[0].env_steps}\\n')\n"
        "        raise ValueError('boom-42')\n"
        "    def close(self):\n"
        "        pass\n"
    )
    words = [f"sinks.mine.type={tmp_path}/sink.py:Mine", f"sinks.mine.path={tmp_path}/out.txt"]
    others = ["sinks.prometheus={}", "placement=fused", "--screen", "plain"]
    done = trial_run("cartpole_ppo", *SHORT, *words, *others).check()
    failed = done.summary["metrics_sinks_failed"]
    assert list(failed) == ["mine"]
    assert failed["mine"]["error"] == "ValueError: boom-42"
    assert failed["mine"]["records_lost"] >= 2
    assert "Prometheus endpoint: http://127.0.0.1:" in done.stdout
    assert "Prometheus endpoint: http://127.0.0.1:" in (done.trial_dir / "main.log").read_text()
    assert done.stderr.count("boom-42") == 1
    assert (tmp_path / "out.txt").read_text().startswith("cartpole_ppo ")
    missing = trial_run("check", "cartpole_ppo", words[0], without_trial_dir=True).check(2)
    assert "sinks.mine.path: missing key" in missing.stderr
