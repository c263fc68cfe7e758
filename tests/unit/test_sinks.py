"""The curves on disk: valid JSON, one ascending axis, readable by TensorBoard; a failing sink never stops training."""

import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import types
import urllib.error
import urllib.request

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from srl.api.errors import ExperimentError, PluginError, ResourceError, UsageError
from srl.api.experiment import PluginMapping
from srl.api.loading import experiment_from_object, load_experiment, resolved_yaml
from srl.api.metrics import MetricRecord, MetricsSink, TrialInfo
from srl.api.registry import BUILT_IN, Registry
from srl.system.metrics.log_limit import LogFloodFilter, LogLimit
from srl.system.metrics.sinks import ALWAYS, SinkGroup, failures_of
from srl.system.trial import TrialDirectory


@pytest.fixture
def trial(tmp_path):
    for name in ("tensorboard", "checkpoints", "logs"):
        (tmp_path / name).mkdir()
    return TrialDirectory(tmp_path)


def info(trial):
    return TrialInfo("cartpole", trial.path, 3, {"name": "cartpole", "stop": {"env_steps": 100}})


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
    sinks = SinkGroup.open(info(trial))
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
    first = SinkGroup.open(info(trial))
    first.write([training(step, loss=float(step)) for step in (100, 200, 206, 212)])
    first.close()
    with open(trial.metrics, "a") as file:
        file.write('{"kind": "training", "env_st')
    second = SinkGroup.open(info(trial))
    second.write([restart(200), training(206, loss=-1.0), training(220, loss=-2.0)])
    second.close()
    expected = [(100, 100.0), (200, 200.0), (206, -1.0), (220, -2.0)]
    assert [(entry["env_steps"], entry["loss"]) for entry in lines(trial)] == expected
    assert curve(trial, "loss") == expected


class Full(MetricsSink):
    """Fails as a plugin may: with any exception, also when it is closed."""

    def write(self, records):
        raise RuntimeError("No space left")

    def close(self):
        raise RuntimeError("nor for closing")


def test_a_failing_sink_is_closed_with_one_message_counted_and_the_others_go_on(trial):
    registry = Registry({"metrics_sink": {**BUILT_IN["metrics_sink"], "full": f"{__name__}:Full"}})
    sys.modules[__name__] = sys.modules.get(__name__) or types.ModuleType(__name__)
    sys.modules[__name__].Full = Full
    sinks = SinkGroup.open(info(trial), {"mine": PluginMapping(type="full")}, registry)
    failed, closed = sinks.write([training(1)])
    assert failed == "metrics sink mine failed and is closed: RuntimeError: No space left"
    assert "could not be closed: RuntimeError: nor for closing" in closed
    assert sinks.write([training(2), training(3)]) == []
    assert failures_of(sinks) == {"mine": {"error": "RuntimeError: No space left", "records_lost": 3}}
    sinks.close()
    assert [entry["env_steps"] for entry in lines(trial)] == [1, 2, 3]


def test_without_the_package_there_is_one_note_with_the_command_that_installs_it(trial, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    sinks = SinkGroup.open(info(trial))
    (note,) = sinks.notes
    assert "pip install" in note
    assert sinks.write([training(1)]) == []
    sinks.close()
    assert len(lines(trial)) == 1
    assert list(trial.tensorboard.iterdir()) == []


def test_an_unknown_sink_is_refused(trial):
    with pytest.raises(PluginError, match="Did you mean 'wandb'"):
        SinkGroup.open(info(trial), {"mine": PluginMapping(type="wandbb")})
    with pytest.raises(ExperimentError, match=r"sinks\.wndb\.type: unknown metrics_sink.*'wandb'"):
        load_experiment("cartpole_ppo", ["sinks.wndb={}"])


def test_the_names_of_the_sinks_of_every_trial_are_theirs(trial, no_leaks):
    with pytest.raises(UsageError, match=r"sinks\.json_lines.*every trial has.*sinks\.prometheus"):
        SinkGroup.open(info(trial), {"json_lines": PluginMapping(type="prometheus")})


def test_an_address_of_ipv6_is_in_brackets(trial, monkeypatch):
    server = types.SimpleNamespace(server_port=9, shutdown=lambda: None, server_close=lambda: None)
    thread = types.SimpleNamespace(join=lambda seconds: None)
    monkeypatch.setattr("prometheus_client.start_http_server", lambda *arguments: (server, thread))
    sinks = SinkGroup.open(info(trial), {"prometheus": PluginMapping(type="prometheus", address="::1")})
    assert sinks.notes[-1] == "Prometheus endpoint: http://[::1]:9/metrics"
    sinks.close()


def test_sinks_in_the_experiment_take_their_type_from_their_name_and_options_from_the_command_line():
    experiment = load_experiment("cartpole_ppo", ["sinks.wandb.mode=offline", "sinks.live={type: prometheus, port: 9}"])
    assert {name: (sink.type, sink.options) for name, sink in experiment.sinks.items()} == {
        "wandb": ("wandb", {"mode": "offline"}),
        "live": ("prometheus", {"port": 9}),
    }
    without = experiment_from_object(experiment, ["sinks.wandb=null"])
    assert list(without.sinks) == ["live"]
    text = resolved_yaml(experiment)
    assert "sinks:\n  wandb:\n    type: wandb\n    mode: offline" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sinks.wandb.mode=ofline"], "sinks.wandb.mode: wrong value.*Did you mean 'offline'"),
        (["sinks.wandb.projet=x"], "unknown key.*Did you mean 'sinks.wandb.project'"),
        (["sinks.prometheus.port=99999"], "sinks.prometheus.port: wrong value.*at most 65535"),
        (["sinks=[wandb]"], "sinks: wrong value.*a mapping"),
    ],
)
def test_wrong_options_of_sinks_are_named(words, text):
    with pytest.raises(ExperimentError, match=text):
        load_experiment("cartpole_ppo", words)


@pytest.mark.parametrize(("name", "package"), [("wandb", "wandb"), ("prometheus", "prometheus_client")])
def test_a_missing_package_is_found_before_the_start(name, package, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda one, *rest: None if one == package else find(one, *rest))
    with pytest.raises(ExperimentError, match=rf'sinks\.{name}: .*pip install "srl-dataflow\[{name}\]"'):
        load_experiment("cartpole_ppo", [f"sinks.{name}={{}}"])


def test_no_plugins_admits_built_in_sinks_only():
    load_experiment("cartpole_ppo", ["sinks.prometheus={}"], allow_plugins=False)
    with pytest.raises(ExperimentError, match="built-in plugins only"):
        load_experiment("cartpole_ppo", ["sinks.mine={type: a.b:C}"], allow_plugins=False)


def read(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_prometheus_serves_the_newest_values_on_loopback_until_it_is_closed(trial, no_leaks):
    sinks = SinkGroup.open(info(trial), {"prometheus": PluginMapping(type="prometheus")})
    (note,) = sinks.notes
    url = note.removeprefix("Prometheus endpoint: ")
    assert url.startswith("http://127.0.0.1:")
    assert sinks.write([training(10, **{"loss/policy": 0.5}), training(20, **{"loss/policy": None})]) == []
    sinks.write([training(30, **{"loss/policy": 0.25})])
    text = read(url)
    assert 'srl_loss_policy{experiment="cartpole",seed="3"} 0.25' in text
    assert 'srl_env_steps{experiment="cartpole",seed="3"} 30.0' in text
    assert sinks.close() == []
    with pytest.raises(urllib.error.URLError):
        read(url)


def test_a_used_port_is_one_error_that_names_it_and_nothing_stays_open(trial, no_leaks):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"127.0.0.1:{port}.*Address already in use|Address.*127.0.0.1:{port}"):
            SinkGroup.open(info(trial), {"prometheus": PluginMapping(type="prometheus", port=port)})


def wandb_history(directory):
    """Rows of every offline run, oldest run first: what is in the files that ``wandb sync`` would send."""
    script = """
import json, pathlib, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
for path in sorted(pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime_ns):
    data, rows, position, part = path.read_bytes(), [], 7, b""
    name = group = None
    axes = {}
    while position + 7 <= len(data):  # blocks of 32 KiB, records with header: checksum, length, kind
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record.FromString(part)
            part = b""
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
            if record.HasField("run"):
                name, group = record.run.display_name, record.run.run_group
            if record.HasField("metric") and record.metric.step_metric:
                axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
    print(json.dumps({"name": name, "group": group, "rows": rows, "axes": axes}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)], capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


WANDB_RUN = """
import sys, pathlib
from srl.api.experiment import PluginMapping
from srl.api.metrics import MetricRecord, TrialInfo
from srl.system.metrics import wandb_sink
from srl.system.metrics.sinks import SinkGroup
wandb_sink._BEGIN_SECONDS = wandb_sink._END_SECONDS = 60.0  # a busy machine is no problem of a sink's
def record(kind, env_steps, **values):
    return MetricRecord(kind, env_steps, 4 * env_steps, 1.5, env_steps // 10, values)
directory = pathlib.Path(sys.argv[1])
sinks = SinkGroup.open(TrialInfo("cartpole", directory, 3, {"stop": {"env_steps": 9}}),
                       {"wandb": PluginMapping(type="wandb", mode="offline")})
print(*sinks.notes)
problems = sinks.write([record("training", 200, loss=2.0), record("training", 212, loss=2.12)])
problems += sinks.write([record("evaluation", 100, score=5.0), record("training", 220, loss=float("nan"))])
problems += sinks.write([record("restart", 200), record("training", 206, loss=-1.0)])
problems += sinks.close() + sinks.close()
assert not problems, problems
import threading
print([thread.name for thread in threading.enumerate()])
"""


def test_wandb_offline_holds_every_point_over_env_steps_and_a_restart_begins_a_new_run(trial):
    """Field case 67: W&B's own step would hide what goes back; here nothing does, and no connection is made."""
    environment = {**os.environ, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WANDB_RUN, str(trial.path)],
        capture_output=True, text=True, timeout=100, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    note, threads = done.stdout.splitlines()
    assert note.startswith("W&B, offline: wandb sync ")
    assert threads == "['MainThread']"
    first, second = wandb_history(trial.path)
    assert (first["name"], first["group"]) == (trial.path.name, "cartpole")
    assert (second["name"], second["group"]) == (f"{trial.path.name}-restart1", "cartpole")
    assert first["axes"] == second["axes"] == {"*": "env_steps"}
    points = [(row["env_steps"], row.get("loss"), row.get("score")) for row in first["rows"]]
    assert points == [(200, 2.0, None), (212, 2.12, None), (100, None, 5.0), (220, None, None)]
    assert [(row["env_steps"], row["loss"], row["progress/frames"]) for row in second["rows"]] == [(206, -1.0, 824)]


def test_the_controller_loads_neither_torch_nor_tensorflow_for_its_sinks(tmp_path):
    script = (
        "import sys; from pathlib import Path; "
        "from srl.system.metrics.sinks import SinkGroup\n"
        "for name in ('tensorboard', 'checkpoints', 'logs'): Path(sys.argv[1], name).mkdir()\n"
        "from srl.api.metrics import TrialInfo\n"
        "SinkGroup.open(TrialInfo('x', Path(sys.argv[1]))).close()\n"
        "print(sorted({'torch', 'tensorflow', 'gymnasium'} & set(sys.modules)))\n"
        "import threading; print(threading.active_count())\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n1\n", result.stderr


def test_the_sinks_of_every_trial_are_built_in():
    assert set(ALWAYS) <= set(BUILT_IN["metrics_sink"])


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
