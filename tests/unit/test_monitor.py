"""The monitor against sums worked out by hand; no process, no file."""

import json

import pytest

from srl.api.experiment import Experiment
from srl.system.metrics.monitor import TrialMonitor
from srl.system.report import EdgeCount, Episode, Evaluation, WorkerReport
from srl.system.worker import WorkerId


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def experiment(stop=None, evaluators=4, episodes=6):
    return Experiment.model_validate(
        {
            "name": "toy",
            "environment": {"type": "toy"},
            "policies": {"main": {"algorithm": {"type": "ppo"}}},
            "streams": {"samples": {"kind": "sample", "max_policy_lag": 1}},
            "workers": {
                "actor": {"kind": "actor", "count": 2, "agents": [{"policy": "main", "samples": "samples"}]},
                "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
                "evaluator": {"kind": "evaluator", "policy": "main", "count": evaluators, "episodes": episodes},
            },
            "stop": stop or {"env_steps": 1000},
        }
    )


def workers(evaluators=4):
    return [
        WorkerId("actor", "actor", 0),
        WorkerId("actor", "actor", 1),
        WorkerId("trainer", "trainer", 0),
        *(WorkerId("evaluator", "evaluator", index) for index in range(evaluators)),
    ]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def monitor(clock):
    return TrialMonitor(experiment(), workers(), clock, frames_per_step=4)


def trainer(incarnation=0, metrics=(), seconds=None, gauges=None, **counters):
    return WorkerReport(
        "trainer/0", "trainer", incarnation, seconds or {}, counters, gauges or {}, updates=list(metrics)
    )


def actor(index=0, incarnation=0, episodes=(), edges=None, seconds=None, **counters):
    return WorkerReport(
        f"actor/{index}",
        "actor",
        incarnation,
        seconds or {},
        counters,
        edges=edges or {},
        episodes=[Episode(value, 10, 40, 0) for value in episodes],
    )


def evaluator(index, returns, version=3):
    part = Evaluation("main", version, 300, list(returns), [10] * len(returns), 0.5)
    return WorkerReport(f"evaluator/{index}", "evaluator", 0, evaluations=[part])


def test_budget_and_rates_follow_from_the_trainers_counters(monitor, clock):
    clock.now += 5
    monitor.training_started()
    clock.now += 10
    monitor.add(trainer(env_steps=400, updates=4, gradient_steps=64, policy_version=4))
    monitor.add(actor(env_steps=999, frames=9999))
    snapshot = monitor.snapshot()
    assert (snapshot.env_steps, snapshot.frames) == (400, 1600)
    assert (snapshot.updates, snapshot.gradient_steps, snapshot.policy_version) == (4, 64, 4)
    assert (snapshot.env_steps_per_second, snapshot.frames_per_second) == (40, 160)
    assert (snapshot.wall_seconds, snapshot.training_seconds) == (15, 10)


def test_a_stalled_trainer_is_shown_by_a_falling_rate(monitor, clock):
    monitor.training_started()
    for step in range(1, 21):
        clock.now += 1
        monitor.add(trainer(env_steps=10 * step))
    assert monitor.snapshot().env_steps_per_second == pytest.approx(10)
    clock.now += 90
    assert monitor.snapshot().env_steps_per_second < 1.5


def test_policy_lag_is_the_exact_mean_over_rows_and_the_largest_of_the_trial(monitor, clock):
    monitor.training_started()
    clock.now += 1
    monitor.add(trainer(policy_lag_sum=30, policy_lag_rows=40, policy_lag_max=2))
    monitor.add(trainer(incarnation=1, policy_lag_sum=10, policy_lag_rows=40, policy_lag_max=1))
    assert monitor.summary(exit_reason="env_steps")["policy_lag"] == {"mean": 0.5, "max": 2}


def test_blocks_and_rows_are_accounted_end_to_end(monitor):
    monitor.add(
        actor(0, blocks_produced=7, rows_produced=70, **{"blocks_dropped/straggler": 1, "rows_dropped/straggler": 3})
    )
    monitor.add(actor(1, blocks_produced=5, rows_produced=50))
    monitor.add(trainer(blocks_trained=8, rows_trained=80, blocks_in_flight=2, **{"blocks_dropped/stale": 1}))
    summary = monitor.summary(exit_reason="env_steps")
    assert summary["blocks"] == {
        "produced": 12,
        "trained": 8,
        "in_flight": 2,
        "dropped": {"straggler": 1, "stale": 1},
        "unaccounted": 0,
    }
    assert summary["rows"]["in_flight"] == 120 - 80 - 3


def test_a_lost_block_is_unaccounted(monitor):
    monitor.add(actor(0, blocks_produced=7))
    monitor.add(trainer(blocks_trained=4, blocks_in_flight=2))
    assert monitor.summary(exit_reason="env_steps")["blocks"]["unaccounted"] == 1


def test_a_new_incarnation_adds_to_the_counters_and_the_superseded_one_is_refused(monitor):
    monitor.add(actor(0, blocks_produced=7, edges={"samples": EdgeCount(7, 0, {"cut": 1})}))
    monitor.add(actor(0, incarnation=1, blocks_produced=2, edges={"samples": EdgeCount(2, 0, {})}))
    assert not monitor.add(actor(0, incarnation=0, blocks_produced=100))
    assert monitor.summary(exit_reason="x")["blocks"]["produced"] == 9
    edge = monitor.snapshot().edges[0]
    assert (edge.sent, edge.dropped, edge.in_flight) == (9, {"cut": 1}, 8)
    assert "refused" in monitor.snapshot().messages[-1].text


def test_a_stream_never_shows_more_blocks_in_flight_than_it_has_slots(clock):
    """Its ends report at different times: the trainer here last spoke 14 blocks ago."""
    flow = {"samples": {"slots": 3, "ranks": 1, "max_policy_lag": 1}}
    monitor = TrialMonitor(experiment(), workers(), clock, flow=flow)
    monitor.add(actor(0, edges={"samples": EdgeCount(536, 0, {"cut": 1})}))
    monitor.add(trainer())
    monitor.add(WorkerReport("trainer/0", "trainer", 0, edges={"samples": EdgeCount(0, 521, {})}))
    edge = monitor.snapshot().edges[0]
    assert (edge.sent, edge.received, edge.in_flight) == (536, 532, 3)
    last = monitor.summary(exit_reason="env_steps")["edges"]["samples"]
    assert (last["received"], last["in_flight"]) == (521, 14)  # counts as they are: nobody will report any more


def test_a_restarted_trainer_goes_on_from_its_checkpoint(monitor, clock):
    monitor.training_started()
    monitor.add(trainer(env_steps=212, metrics=[{"version": 2, "env_steps": 212, "loss": 1.0}]))
    monitor.records(final=True)
    monitor.add(trainer(incarnation=1, env_steps=200))
    assert monitor.env_steps == 200
    assert [(record.kind, record.env_steps) for record in monitor.records()] == [("restart", 200)]
    clock.now += 2
    monitor.add(trainer(incarnation=1, env_steps=220, metrics=[{"version": 3, "env_steps": 220, "loss": 1.0}]))
    assert [(record.kind, record.env_steps) for record in monitor.records()] == [("training", 220)]


def test_six_episodes_on_four_evaluators_twice_are_six_and_six(monitor):
    quotas = [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0]]
    for index in (2, 0, 3):
        monitor.add(evaluator(index, quotas[index]))
    # The second evaluation of the same version begins before the last part of the first one is there.
    monitor.add(evaluator(0, [10.0, 10.0]))
    assert monitor.evaluations == []
    monitor.add(evaluator(1, quotas[1]))
    assert [result.returns for result in monitor.evaluations] == [(1, 2, 3, 4, 5, 6)]
    for index in (1, 2, 3):
        monitor.add(evaluator(index, [10.0] * len(quotas[index])))
    assert [len(result.returns) for result in monitor.evaluations] == [6, 6]
    summary = monitor.summary(exit_reason="env_steps")
    assert summary["evaluation"]["mean_return"] == 10
    assert summary["evaluation"]["episodes"] == 6
    assert summary["evaluation"]["policy_version"] == 3
    assert summary["evaluations"] == 2


def test_too_many_episodes_are_no_evaluation(monitor):
    monitor.add(evaluator(0, [1.0] * 4))
    monitor.add(evaluator(1, [1.0] * 4))
    assert monitor.evaluations == []
    assert "8 episodes were reported, 6 were asked for" in monitor.snapshot().messages[-1].text


def test_the_summarys_evaluation_is_that_of_the_newest_version_however_late_others_end(monitor):
    for index, version in ((1, 20), (0, 30), (2, 25)):
        monitor.add(evaluator(index, [1.0] * 6, version))
    assert monitor.summary(exit_reason="updates")["evaluation"]["policy_version"] == 30


def test_evaluation_statistics_against_closed_forms():
    monitor = TrialMonitor(experiment(evaluators=1, episodes=4), workers(1), Clock())
    monitor.add(evaluator(0, [1.0, 1.0, 3.0, 7.0]))
    monitor.add(evaluator(0, [2.0] * 4, version=4))
    summary = monitor.summary(exit_reason="updates")
    best = summary["best_evaluation"]
    assert (best["mean_return"], best["std"], best["min"], best["max"]) == (3, pytest.approx(6**0.5), 1, 7)
    assert summary["evaluation"]["policy_version"] == 4


def test_only_the_last_hundred_episodes_enter_the_mean(monitor):
    monitor.add(actor(0, episodes=[-1000.0] * 7))
    monitor.add(actor(1, episodes=[1.0] * 50))
    monitor.add(actor(0, episodes=[3.0] * 50))
    assert monitor.snapshot().episode_return == 2
    assert monitor.snapshot().episodes == 107


@pytest.mark.parametrize(
    ("stop", "report", "seconds", "reason"),
    [
        ({"env_steps": 1000}, trainer(env_steps=999), 1e6, None),
        ({"env_steps": 1000}, trainer(env_steps=1000), 0, "env_steps"),
        ({"updates": 3, "env_steps": 10_000}, trainer(updates=3), 0, "updates"),
        ({"wall_seconds": 60}, trainer(), 59.9, None),
        ({"wall_seconds": 60}, trainer(), 60, "wall_seconds"),
        ({"evaluation_return": 3.5}, evaluator(0, [3.0] * 6), 0, None),
        ({"evaluation_return": 3.5}, evaluator(0, [3.5] * 6), 0, "evaluation_return"),
        ({"evaluation_return": 3.5}, trainer(), 1e6, None),
    ],
)
def test_stop_conditions(stop, report, seconds, reason, clock):
    monitor = TrialMonitor(experiment(stop), workers(), clock)
    clock.now += 1000
    monitor.training_started()
    clock.now += seconds
    monitor.add(report)
    assert monitor.stop_reason() == reason


def test_start_up_is_not_training_time_and_training_ends_where_the_budget_does(monitor, clock):
    clock.now += 7
    monitor.training_started()
    clock.now += 20
    monitor.add(trainer(env_steps=1000))
    clock.now += 5
    monitor.add(evaluator(0, [1.0] * 6))
    summary = monitor.summary(exit_reason="env_steps", weights_sha256="ab", command=["srl-run", "toy"])
    assert (summary["start_up_seconds"], summary["training_seconds"], summary["wall_seconds"]) == (7, 20, 32)
    assert summary["env_steps_per_second"] == 50
    assert summary["weights_sha256"] == "ab"
    assert summary["versions"]["numpy"]


def test_the_summary_of_nothing_is_valid_json_with_null(monitor):
    def refuse(constant):
        raise AssertionError(constant)

    text = json.dumps(monitor.summary(exit_reason="interrupted", extra_number=float("nan")))
    summary = json.loads(text, parse_constant=refuse)
    assert summary["evaluation"] is None
    assert summary["best_evaluation"] is None
    assert summary["episodes"]["count"] == 0
    assert [value for key, value in summary["episodes"].items() if key != "count"] == [None] * 3
    assert summary["policy_lag"] == {"mean": None, "max": None}
    assert summary["env_steps_per_second"] is None
    assert summary["extra_number"] is None
    assert monitor.snapshot().episode_return is None


def test_shares_are_of_the_last_seconds_and_the_busiest_group_is_the_bottleneck(monitor, clock):
    monitor.add(trainer(seconds={"idle": 50.0}))
    monitor.training_started()
    clock.now += 10
    monitor.add(trainer(seconds={"idle": 51.0, "training": 8.0, "publishing": 1.0}))
    monitor.add(actor(0, seconds={"stepping": 3.0, "inferring": 1.0, "waiting_for_credit": 6.0}))
    monitor.add(actor(1, seconds={"stepping": 5.0, "inferring": 1.0, "waiting_for_credit": 4.0}))
    snapshot = monitor.snapshot()
    rows = {group.name: group for group in snapshot.groups}
    assert rows["trainer"].shares == pytest.approx({"idle": 0.1, "training": 0.8, "publishing": 0.1})
    assert rows["actor"].shares == pytest.approx({"stepping": 0.4, "inferring": 0.1, "waiting_for_credit": 0.5})
    assert snapshot.bottleneck.startswith("trainer is the bottleneck: busy 90%")
    assert snapshot.bottleneck.endswith("actor waits 50% for credit")
    assert snapshot.edges[0].producers_wait == pytest.approx(0.5)
    assert snapshot.edges[0].consumers_wait == pytest.approx(0.1)
    assert monitor.summary(exit_reason="x")["workers"]["trainer/0"]["shares"]["idle"] == 0.1


def test_records_are_at_most_one_a_second_and_average_what_lies_between(monitor, clock):
    monitor.training_started()
    written = []
    for step in range(1, 101):
        clock.now += 0.1
        monitor.add(trainer(env_steps=step, metrics=[{"version": step, "env_steps": step, "loss": float(step)}]))
        written += monitor.records()
    written += monitor.records(final=True)
    assert 10 <= len(written) <= 12
    assert written[-1].env_steps == 100
    axis = [record.env_steps for record in written]
    assert axis == sorted(axis)
    means = [record.values["loss"] for record in written]
    gaps = [0, *axis]
    assert means == pytest.approx([(low + 1 + high) / 2 for low, high in zip(gaps, axis, strict=False)])


def test_the_last_record_waits_for_what_workers_report_last(monitor, clock):
    """The trainer's report reaches the budget; the actor's last episodes come a moment later."""
    monitor.training_started()
    monitor.add(actor(0, episodes=[10.0]))
    clock.now += 2
    monitor.add(trainer(env_steps=1000, metrics=[{"version": 5, "env_steps": 1000}]))
    clock.now += 2
    assert monitor.records() == []
    monitor.add(actor(0, episodes=[30.0]))
    clock.now += 60
    (last,) = monitor.records(final=True)
    summary = monitor.summary(exit_reason="env_steps")
    assert last.values["episode/return"] == summary["episodes"]["return_mean_last_100"] == 20
    assert last.values["rate/env_steps_per_second"] == 500, "until training stopped"
    assert monitor.snapshot().env_steps_per_second == 500, "on the screen too"


def test_an_evaluation_becomes_one_record_at_its_versions_env_steps(monitor):
    monitor.add(trainer(env_steps=900))
    monitor.add(evaluator(0, [1.0] * 6))
    (record,) = monitor.records()
    assert (record.kind, record.env_steps, record.frames, record.policy_version) == ("evaluation", 300, 1200, 3)
    assert record.values["evaluation/return_mean"] == 1


def test_equal_warnings_are_counted(monitor):
    for _ in range(1000):
        monitor.warn("actor/0", "reward is NaN")
        monitor.warn("actor/1", "reward is NaN")
    assert [(message.worker, message.count) for message in monitor.snapshot().messages] == [
        ("actor/0", 1000),
        ("actor/1", 1000),
    ]


def test_the_return_history_is_bounded_and_keeps_both_ends(monitor):
    for step in range(1, 10_001):
        monitor.add(actor(0, episodes=[float(step)]))
        monitor.add(trainer(env_steps=step, metrics=[{"version": step, "env_steps": step}]))
    history = monitor.snapshot().return_history
    assert 40 <= len(history) <= 120
    assert history[0][0] < 400
    assert history[-1][0] == 10_000
    assert [point[0] for point in history] == sorted(point[0] for point in history)


@pytest.mark.parametrize(("flow", "bound"), [(None, 1), ({"samples": {"max_policy_lag": 3}}, 3)])
def test_the_lag_bound_is_what_workers_are_told(clock, flow, bound):
    assert TrialMonitor(experiment(), workers(), clock, flow=flow).snapshot().lag_bound == bound
