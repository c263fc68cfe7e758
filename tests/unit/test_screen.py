"""The screen fits every terminal, says what is going on, and never shows a NaN."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.api.errors import UsageError
from srl.screen import LiveScreen, NoScreen, PlainScreen, make_screen, plain_line
from srl.screen_end import end_lines
from srl.screen_format import ACTIVITIES, ASCII, UNICODE, cells, duration, sparkline, time_bar
from srl.screen_lines import Frame, screen_lines
from srl.system.metrics.snapshot import (
    EdgeRow,
    EvaluationResult,
    GroupRow,
    Message,
    Progress,
    TrialSnapshot,
    WorkerRow,
)
from srl.system.report import Activity

SHARES = {"stepping": 0.5, "waiting_for_credit": 0.3, "idle": 0.2}
EMPTY = TrialSnapshot(
    experiment="toy",
    phase="starting",
    wall_seconds=0.4,
    training_seconds=0,
    env_steps=0,
    frames=0,
    updates=0,
    gradient_steps=0,
    policy_version=0,
    env_steps_per_second=0,
    frames_per_second=0,
    lag_mean=None,
    lag_max=None,
    lag_bound=None,
    episodes=0,
    episode_return=None,
    return_history=(),
    evaluations=(),
    progress=(Progress("env_steps", 0, 1000), Progress("evaluation_return", None, 475)),
    groups=(GroupRow("actor", "actor", {"created": 2}, {}, 0.0),),
    workers=(),
    edges=(),
    bottleneck="",
    messages=(),
)


def full(actors=4):
    workers = [WorkerRow(f"actor/{index}", "actor", "running", 0, SHARES, 0.2) for index in range(actors)]
    evaluations = [EvaluationResult("main", v, 100 * v, (1.0 * v, 3.0 * v), (5, 5), 0.1) for v in range(1, 30)]
    return replace(
        EMPTY,
        phase="training",
        env_steps=500,
        frames=2000,
        updates=5,
        gradient_steps=80,
        policy_version=5,
        env_steps_per_second=100,
        frames_per_second=400,
        lag_mean=0.25,
        lag_max=1,
        lag_bound=1,
        episodes=321,
        episode_return=45.67,
        return_history=tuple((step, float(step)) for step in range(100)),
        evaluations=tuple(evaluations),
        progress=(Progress("env_steps", 500, 1000),),
        groups=(GroupRow("actor", "actor", {"running": actors}, SHARES, 0.5),),
        workers=tuple(workers[:32]),
        edges=(EdgeRow("samples", "sample", 1234, 1200, 30, {"straggler": 4}, 0.3, 0.1),),
        bottleneck="actor is the bottleneck: busy 50% of its time (stepping 50%); trainer waits 10% for blocks",
        messages=tuple(Message("actor/0", f"a warning that is number {n} of its kind", n, 3.0) for n in range(1, 20)),
    )


def text(snapshot, **frame):
    return "\n".join(line.plain for line in screen_lines(snapshot, Frame(**{"width": 120, "height": 40, **frame})))


@given(st.integers(20, 200), st.integers(1, 60), st.integers(1, 200), st.booleans(), st.booleans())
def test_every_frame_fits(width, height, actors, is_unicode, has_colour):
    frame = Frame(width, height, UNICODE if is_unicode else ASCII, has_colour)
    for snapshot in (EMPTY, full(actors)):
        lines = screen_lines(snapshot, frame)
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)


@pytest.mark.parametrize("size", [(80, 23), (120, 39)])
def test_what_matters_is_there_at_usual_sizes(size):
    shown = text(full(), width=size[0], height=size[1])
    for expected in (
        "500 / 1,000",
        "about 0:00:05 left",
        "return      45.7  last 100 of 321 episodes",
        "evaluation  58.0",
        "100 env steps/s",
        "400 frames/s",
        "policy lag  0.25",
        "max 1, bound 1",
        "actor/3",
        "stepping 50%, wait: credit 30%",
        "actor is the bottleneck",
        "1,234",
        "30% for credit",
        "number 19 of its kind",
    ):
        assert expected in " ".join(shown.split()) or expected in shown, expected
    assert "above the bound" not in shown


def test_before_there_is_a_result_nothing_is_invented():
    shown = text(EMPTY)
    assert "nan" not in shown.lower()
    assert "none yet" in shown
    assert "return      -" in shown
    assert "- / 475" in shown


def test_a_lag_above_the_bound_is_said():
    assert "above the bound" in text(replace(full(), lag_max=2))


def test_large_trials_show_groups():
    shown = text(full(actors=500))
    assert "actor x500" in shown
    assert "actor/1" not in shown.replace("actor/0: a warning", "")


def test_without_colours_bars_are_letters():
    shown = text(full(), has_colour=False)
    assert "s" * 20 + "C" * 12 + "." * 8 in shown
    assert "C wait: credit" in shown


def test_ascii_terminals_get_ascii_only():
    assert text(full(), glyphs=ASCII).isascii()


shares = st.dictionaries(st.sampled_from(sorted(ACTIVITIES)), st.floats(0, 1), max_size=9)


@given(shares, st.integers(1, 60))
def test_cells_add_up_and_are_never_off_by_a_cell(of, width):
    counts = cells(of, width)
    total = sum(of.values())
    if total <= 0:
        assert counts == {}
        return
    assert sum(counts.values()) == width
    for name, count in counts.items():
        assert abs(count - of[name] / total * width) < 1 + 1e-9
    assert time_bar(of, width, has_colour=True).cell_len == width


def test_every_activity_has_a_style():
    assert set(ACTIVITIES) == {activity.value for activity in Activity}
    assert len({style.letter for style in ACTIVITIES.values()}) == len(ACTIVITIES)


def test_sparkline_and_duration():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8, UNICODE) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2, UNICODE) == "▁█"
    assert sparkline([3.0], 5, UNICODE) == "▅"
    assert sparkline([], 5, UNICODE) == ""
    assert duration(59.9) == "0:00:59"
    assert duration(90_061) == "1d 1:01:01"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def run(screen, clock, seconds, snapshot):
    for tick in range(int(seconds * 10)):
        clock.now = tick / 10
        if screen.due():
            screen.update(snapshot)


def test_plain_lines_come_every_few_seconds_and_warnings_once():
    clock, stream = Clock(), io.StringIO()
    screen = make_screen("auto", stream, clock)
    assert isinstance(screen, PlainScreen)
    snapshot = replace(full(), messages=(Message("actor/0", "slow", 1, 3.0),), evaluations=full().evaluations[:1])
    run(screen, clock, 60, snapshot)
    lines = stream.getvalue().splitlines()
    assert 13 <= sum("training" in line for line in lines) <= 18
    assert sum("slow" in line for line in lines) == 1
    assert sum("evaluation of version 1 " in line for line in lines) == 1
    run(screen, clock, 10, snapshot)
    clock.now = 100
    screen.update(replace(snapshot, messages=(Message("actor/0", "slow", 12, 3.0),)))
    assert "slow (x12)" in stream.getvalue()


def test_what_came_after_the_last_plain_line_is_printed_before_the_end():
    clock, stream = Clock(), io.StringIO()
    screen = make_screen("plain", stream, clock)
    screen.update(replace(full(), evaluations=full().evaluations[:1]))
    before = len(stream.getvalue().splitlines())
    late = replace(full(), messages=(Message("metrics", "an address", 1, 3.0),), evaluations=full().evaluations[:2])
    screen.update(late)  # not due
    screen.catch_up(late)
    said = stream.getvalue().splitlines()[before:]
    assert ["metrics: an address" in said[0], "evaluation of version 2 " in said[1], len(said)] == [True, True, 2]
    make_screen("off", stream, clock).catch_up(late)
    assert len(stream.getvalue().splitlines()) == before + 2


def test_a_plain_line_says_what_the_start_waits_for_and_no_figure_that_is_not_known():
    groups = (
        GroupRow("actor", "actor", {"created": 1, "ready": 1}, {}, 0.0),
        GroupRow("trainer", "trainer", {"created": 1}, {}, 0.0),
    )
    assert plain_line(replace(EMPTY, groups=groups)) == "0:00:00  starting  workers: 2 created, 1 ready"
    line = plain_line(replace(EMPTY, phase="training"))
    assert "episodes" not in line
    assert "lag" not in line
    assert "return 45.7 (321 episodes)" in plain_line(full())
    assert "lag 0.25 (max 1)" in plain_line(full())
    assert "  updates 3/30  " in plain_line(replace(full(), progress=(Progress("updates", 3, 30),)))


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_the_live_screen_draws_at_most_four_times_a_second_and_gives_the_terminal_back(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    clock, stream = Clock(), Terminal()
    screen = make_screen("auto", stream, clock)
    assert isinstance(screen, LiveScreen)
    with screen:
        run(screen, clock, 3, full())
        assert 3 <= stream.getvalue().count("policy lag") <= 12
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert stream.getvalue().count(hide) == stream.getvalue().count(show) == 1


def test_a_dumb_terminal_gets_lines_and_off_gets_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_screen("auto", Terminal()), PlainScreen)
    stream = io.StringIO()
    screen = make_screen("off", stream)
    assert isinstance(screen, NoScreen)
    screen.update(full())
    screen.finish({}, Path("trials/x"))
    assert stream.getvalue() == ""
    with pytest.raises(UsageError, match="auto, live, plain or off"):
        make_screen("fancy", stream)


def test_no_stream_shows_more_received_than_sent():
    """The ends report at different times; a reader of the screen should not have to know."""
    edge = EdgeRow("samples", "sample", 12, 13, 0, {}, 0.3, 0.1)
    lines = [line.plain for line in screen_lines(replace(full(), edges=(edge,)), Frame(120, 40, UNICODE))]
    (shown,) = [line.split() for line in lines if line.startswith("samples")]
    assert shown[1:4] == ["13", "13", "0"]


SUMMARY = {
    "experiment": "toy",
    "exit_reason": "env_steps",
    "seed": 4,
    "env_steps": 500_000,
    "frames": 2_000_000,
    "training_seconds": 38.25,
    "start_up_seconds": 1.2,
    "env_steps_per_second": 13_071.9,
    "updates": 244,
    "gradient_steps": 3904,
    "policy_lag": {"mean": 0.5, "max": 1},
    "blocks": {"produced": 490, "trained": 488, "in_flight": 0, "dropped": {"stop": 2}, "unaccounted": 0},
    "episodes": {"count": 2113, "return_mean_last_100": 487.2},
    "evaluation": {"mean_return": 492.3, "std": 20.1, "episodes": 100, "policy_version": 244},
    "best_evaluation": {"mean_return": 500.0, "std": 0.0, "episodes": 100, "policy_version": 200},
}


def test_the_end_names_result_files_and_next_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    make_screen("plain", stream).finish(SUMMARY, tmp_path / "trials" / "toy-1")
    shown = stream.getvalue()
    for expected in (
        "the budget of env steps is used up",
        "return 492.3 ± 20.1 over 100 episodes, version 244",
        "return 500.0",
        "500,000 env steps, 2,000,000 frames in 38.2 s of training (13,072 env steps/s)",
        "490 produced = 488 trained + 0 in flight + 2 dropped (stop 2)",
        "srl-run evaluate trials/toy-1 --episodes 100",
        "srl-run video trials/toy-1",
        "srl-run plot trials/toy-1",
        "srl-run trials/toy-1/experiment.yaml --seed 5",
        "tensorboard --logdir trials/toy-1/tensorboard",
    ):
        assert expected in shown, expected


def test_the_end_fits_the_terminal_and_commands_stay_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = tmp_path / "trials" / ("toy-" + 60 * "1")
    lines = [line.plain for line in end_lines(SUMMARY, trial, UNICODE, 80)]
    following = [line[:12].strip() for line in lines].index("next")
    told, commands = lines[2:following], lines[following:]
    assert all(len(line) <= 80 for line in told if str(trial.name) not in line)
    assert f"              srl-run {os.path.join('trials', trial.name, 'experiment.yaml')} --seed 5" in commands
    whole = [line.plain for line in end_lines(SUMMARY, trial, UNICODE)]
    assert [word for line in lines for word in line.split()] == [word for line in whole for word in line.split()]


def test_what_failed_is_read_first_and_nothing_untrained_is_scored(tmp_path):
    failed = [line.plain for line in end_lines({**SUMMARY, "exit_reason": "failed"}, tmp_path / "t", UNICODE)]
    first = next(index for index, line in enumerate(failed) if line.startswith("  next"))
    assert failed[first].endswith("/t/main.log")
    assert any("srl-run evaluate" in line for line in failed)
    early = [
        line.plain for line in end_lines({**SUMMARY, "exit_reason": "failed", "updates": 0}, tmp_path / "t", UNICODE)
    ]
    assert not any(command in line for line in early for command in ("evaluate", "video", "plot", "tensorboard --"))
    assert early[-1].endswith("/t/experiment.yaml")


def test_no_score_or_film_is_offered_of_a_trial_that_left_no_weights(tmp_path):
    """Stopped at once, before its first checkpoint and its first evaluation."""
    summary = {**SUMMARY, "exit_reason": "interrupted", "evaluation": None, "best_evaluation": None}
    text = "\n".join(line.plain for line in end_lines({**summary, "weights_sha256": None}, tmp_path / "t", UNICODE))
    assert not any(command in text for command in ("srl-run evaluate", "srl-run video"))
    assert "srl-run plot" in text
    assert "weights     none: it ended before a checkpoint was complete" in text
    text = "\n".join(line.plain for line in end_lines({**summary, "weights_sha256": "ab"}, tmp_path / "t", UNICODE))
    assert "srl-run evaluate" in text
    assert "weights" not in text


def test_the_end_of_a_trial_that_never_began(tmp_path):
    stream = io.StringIO()
    summary = {"experiment": "toy", "exit_reason": "failed", "evaluation": None, "episodes": {"count": 0}}
    make_screen("plain", stream).finish(summary, tmp_path)
    assert "no episode finished" in stream.getvalue()
    assert "None" not in stream.getvalue()
