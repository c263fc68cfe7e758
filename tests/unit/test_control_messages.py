"""Control messages: what goes in comes out, what is too long is split or refused."""

from __future__ import annotations

import numpy as np
import pytest

from srl.api.errors import StreamError
from srl.distributed.messages import (
    MAX_REPORT_BYTES,
    MAX_TEXT,
    MalformedMessage,
    assignment_json,
    parse_assignment,
    parse_report,
    report_json,
    shorten,
)
from srl.system.report import EdgeCount, Episode, Evaluation, WorkerReport
from srl.system.worker import Assignment, WorkerId


def report(**fields: object) -> WorkerReport:
    return WorkerReport("actor/0", "actor", 1, **fields)


def assignment(policies: dict) -> Assignment:
    return Assignment(
        worker=WorkerId("actor", "actor", 0, 1),
        experiment={},
        environment={},
        policies=policies,
        schemas={},
        flow={},
        trial_dir="/t",
        transport="tcp",
        descriptors={"segment": 7},
    )


def test_a_report_survives_the_wire_and_numpy_scalars_become_numbers() -> None:
    sent = report(
        seconds={"idle": 0.5},
        counters={"env_steps": np.int64(3)},
        gauges={"queue": np.float32(0.5), "loss": float("nan")},
        edges={"samples": EdgeCount(1, 2, {"late": 3})},
        updates=[{"version": 1, "loss": np.float64(0.25)}],
        evaluations=[Evaluation("p", 1, 2, [1.0], [2], 0.5)],
    )
    (part,) = report_json(sent)
    got = parse_report(part)
    assert got.counters == {"env_steps": 3}
    assert got.edges == sent.edges
    assert got.evaluations == sent.evaluations
    assert np.isnan(got.gauges["loss"])


def test_what_is_no_plain_data_is_an_error_of_the_sender() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        report_json(report(gauges={"x": object()}))


def test_a_long_report_goes_out_in_parts_that_lose_and_double_nothing() -> None:
    episodes = [Episode(float(number), number, number, 0) for number in range(60_000)]
    parts = report_json(report(counters={"env_steps": 9}, episodes=episodes, messages=["a", "b", "c"]))
    assert len(parts) > 1
    assert max(map(len, parts)) <= MAX_REPORT_BYTES
    got = [parse_report(part) for part in parts]
    assert [episode for one in got for episode in one.episodes] == episodes
    assert sorted(message for one in got for message in one.messages) == ["a", "b", "c"]
    assert {one.counters["env_steps"] for one in got} == {9}


@pytest.mark.parametrize(
    "fields",
    [
        {"counters": {"env_steps": "many"}},
        {"counters": [1]},
        {"episodes": [{"episode_return": "x", "length": 1, "frames": 1, "policy_version": 0}]},
        {"unknown": 1},
        {"kind": 3},
        {"edges": {"e": {"sent": 1}, "f": None}},
    ],
)
def test_reports_of_the_wrong_form_are_refused(fields: dict) -> None:
    import json

    with pytest.raises(MalformedMessage):
        parse_report(json.dumps({**report().to_dict(), **fields}).encode())


def test_an_assignment_survives_the_wire() -> None:
    sent = assignment({"p": {"network": [1, 2]}})
    assert parse_assignment(assignment_json(sent)) == sent
    with pytest.raises(MalformedMessage):
        parse_assignment(b'{"worker": {"group": "a"}}')
    with pytest.raises(StreamError, match="too long for one message"):
        assignment_json(assignment({"p": {"x": "y" * 5_000_000}}))


def test_a_long_text_loses_its_middle() -> None:
    text = "head" + "x" * (2 * MAX_TEXT) + "tail"
    short = shorten(text)
    assert short.startswith("head")
    assert short.endswith("tail")
    assert len(short) < MAX_TEXT + 100
