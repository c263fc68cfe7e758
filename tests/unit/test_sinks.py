"""The curves on disk: valid JSON, one ascending axis, readable by TensorBoard; a failing sink never stops training."""

import json
import logging
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from srl.api.errors import UsageError
from srl.system.metrics.log_limit import LogFloodFilter, LogLimit
from srl.system.metrics.sinks import BUILT_IN, DEFAULT_SINKS, MetricsSink, SinkGroup
from srl.system.metrics.snapshot import MetricRecord
from srl.system.trial import TrialDirectory


@pytest.fixture
def trial(tmp_path):
    for name in ("tensorboard", "checkpoints", "logs"):
        (tmp_path / name).mkdir()
    return TrialDirectory(tmp_path)


def training(env_steps, **values):
    return MetricRecord("training", env_steps, 4 * env_steps, 1.5, env_steps // 10, values)


def restart(env_steps):
    return MetricRecord("restart", env_steps, 4 * env_steps, 1.5, env_steps // 10, {})


def lines(trial):
    def refuse(constant):
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in trial.metrics.read_text().splitlines()]


def curve(trial, tag):
    accumulator = EventAccumulator(str(trial.tensorboard))
    accumulator.Reload()
    return [(point.step, point.value) for point in accumulator.Scalars(tag)]


def test_records_are_valid_json_lines_and_tensorboard_scalars(trial):
    sinks = SinkGroup.open(trial)
    assert sinks.notes == ()
    assert sinks.write([training(10, loss=0.5, **{"episode/return": None})]) == []
    assert sinks.write([training(20, loss=float("nan")), training(30, loss=0.25)]) == []
    assert [entry["loss"] for entry in lines(trial)] == [0.5, None, 0.25]
    assert lines(trial)[0] == {
        "kind": "training",
        "env_steps": 10,
        "frames": 40,
        "seconds": 1.5,
        "policy_version": 1,
        "loss": 0.5,
        "episode/return": None,
    }
    assert curve(trial, "loss") == [(10, 0.5), (30, 0.25)]
    assert curve(trial, "progress/frames") == [(10, 40), (20, 80), (30, 120)]
    assert sinks.close() == []


def test_a_crash_at_212_and_a_resume_at_200_is_one_ascending_curve(trial):
    first = SinkGroup.open(trial)
    first.write([training(step, loss=float(step)) for step in (100, 200, 206, 212)])
    first.close()
    with open(trial.metrics, "a") as file:
        file.write('{"kind": "training", "env_st')
    second = SinkGroup.open(trial)
    second.write([restart(200), training(206, loss=-1.0), training(220, loss=-2.0)])
    second.close()
    expected = [(100, 100.0), (200, 200.0), (206, -1.0), (220, -2.0)]
    assert [(entry["env_steps"], entry["loss"]) for entry in lines(trial)] == expected
    assert curve(trial, "loss") == expected


def test_a_failing_sink_is_closed_with_one_message_and_the_others_go_on(trial, monkeypatch):
    class Full(MetricsSink):
        def write(self, records):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    sinks = SinkGroup.open(trial, ("full", "json_lines"), {"full": Full}.get)
    (problem,) = sinks.write([training(1)])
    assert "metrics sink full failed and is closed" in problem
    assert "No space left" in problem
    assert sinks.write([training(2)]) == []
    sinks.close()
    assert [entry["env_steps"] for entry in lines(trial)] == [1, 2]


def test_without_the_package_there_is_one_note_with_the_command_that_installs_it(trial, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    sinks = SinkGroup.open(trial)
    (note,) = sinks.notes
    assert "pip install" in note
    assert sinks.write([training(1)]) == []
    sinks.close()
    assert len(lines(trial)) == 1
    assert list(trial.tensorboard.iterdir()) == []


def test_an_unknown_sink_is_refused(trial):
    with pytest.raises(UsageError, match="json_lines, tensorboard"):
        SinkGroup.open(trial, ("jsonlines",))


def test_the_controller_loads_neither_torch_nor_tensorflow_for_its_sinks(tmp_path):
    script = (
        "import sys; from pathlib import Path; from srl.system.trial import TrialDirectory\n"
        "from srl.system.metrics.sinks import SinkGroup\n"
        "for name in ('tensorboard', 'checkpoints', 'logs'): Path(sys.argv[1], name).mkdir()\n"
        "SinkGroup.open(TrialDirectory(Path(sys.argv[1]))).close()\n"
        "print(sorted({'torch', 'tensorflow', 'gymnasium'} & set(sys.modules)))\n"
        "import threading; print(threading.active_count())\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n1\n", result.stderr


def test_defaults_are_built_in():
    assert set(DEFAULT_SINKS) <= set(BUILT_IN)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_flood_of_one_warning_is_six_lines_a_minute_and_nothing_is_lost_from_the_count():
    clock = Clock()
    limit = LogLimit(clock)
    shown = []
    for tick in range(60_000):
        clock.now = tick / 1000
        if (held_back := limit.admit("reward is NaN")) is not None:
            shown.append(held_back)
    assert len(shown) == 6
    clock.now = 100
    shown.append(limit.admit("reward is NaN"))
    assert sum(shown) + len(shown) == 60_001


def test_many_kinds_of_messages_stay_below_200_lines_a_minute():
    clock = Clock()
    limit = LogLimit(clock)
    passed = []
    for tick in range(12_000):
        clock.now = tick / 100
        if limit.admit(f"kind {tick}") is not None:
            passed.append(clock.now)
    assert all(sum(start <= time < start + 60 for time in passed) < 200 for start in passed)
    assert passed[-1] > 60


def test_the_filter_tells_how_many_were_held_back_and_lets_errors_through(caplog):
    clock = Clock()
    flood = LogFloodFilter(LogLimit(clock))
    logger = logging.getLogger("srl.tests.flood")
    caplog.handler.addFilter(flood)
    try:
        with caplog.at_level(logging.INFO, "srl.tests.flood"):
            for step in range(10):
                logger.warning("slow step %d", step)
            clock.now = 11
            logger.warning("slow step %d", 10)
            for _ in range(3):
                logger.error("failed")
    finally:
        caplog.handler.removeFilter(flood)
    assert [record.getMessage() for record in caplog.records] == [
        "slow step 0",
        "slow step 10 (9 more like this since the last one shown)",
        *["failed"] * 3,
    ]
