"""Control messages between protobuf and our own types: what arrives is checked here, before anything uses it.

What comes in is bounded three times: gRPC refuses messages over :data:`MAX_MESSAGE_BYTES` before they are decoded,
texts are checked against lengths here, JSON is parsed without building anything but plain data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from srl.api.errors import StreamError
from srl.distributed import control_pb2 as pb
from srl.distributed.lifecycle import State
from srl.distributed.trial_events import (
    Beat,
    CommandKind,
    EndpointsBound,
    Registered,
    StateReached,
    WorkerEvent,
    WorkerFailed,
    WorkerFinished,
)
from srl.system.report import WorkerReport
from srl.system.worker import Assignment, WorkerId

METHOD = "/srl.control.Control/Attach"

PROTOCOL = 1
"""Version of ``control.proto``."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Bound on one message, both ways."""

MAX_REPORT_BYTES = 1024 * 1024
"""Longer reports go out in parts."""

MAX_TEXT = 256 * 1024
"""Bound on a traceback, in characters; the middle of a longer one is left out."""

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    # gRPC honours http_proxy even toward this very host, and not every version heeds no_proxy.
    ("grpc.enable_http_proxy", 0),
]

_WORKER = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,63}/\d{1,9}")
_MAX_WORD = 512
_MAX_ENDPOINTS = 100_000


class MalformedMessage(StreamError):
    """A control message that does not have the form it must have."""


def from_worker(message: Any, connection: int) -> tuple[WorkerEvent, WorkerReport | None]:
    """What a worker's message says.

    Args:
        message: A ``FromWorker``.
        connection: The connection it came on.

    Returns:
        The event and, with a heartbeat, the report if there is one.

    Raises:
        MalformedMessage: Anything in it is not as it must be; names what.
    """
    worker = _word("worker", message.worker)
    if not _WORKER.fullmatch(worker):
        raise MalformedMessage("not a worker's name", value=worker, expected="group/index")
    kind = message.WhichOneof("body")
    if kind is None:
        raise MalformedMessage("a message without a body", where=worker)
    body, life = getattr(message, kind), message.incarnation
    match kind:
        case "register":
            return Registered(worker, life, connection, body.pid, _word("host", body.host), _state(body.state)), None
        case "endpoints":
            return EndpointsBound(worker, life, _endpoints(body.addresses)), None
        case "state":
            return StateReached(worker, life, _state(body.state)), None
        case "heartbeat":
            return _heartbeat(worker, life, body)
        case "finished":
            return WorkerFinished(worker, life, _word("reason", body.reason)), None
        case _:
            return WorkerFailed(worker, life, _failure_text(body)), None


def _heartbeat(worker: str, incarnation: int, body: Any) -> tuple[Beat, WorkerReport | None]:
    seconds = body.silent_seconds
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise MalformedMessage("silent_seconds is no duration", where=worker, value=seconds)
    report = parse_report(body.report_json) if body.report_json else None
    if report is not None and (report.worker, report.incarnation) != (worker, incarnation):
        raise MalformedMessage("a report about somebody else", where=worker, value=report.worker)
    return Beat(worker, incarnation, seconds, _word("doing", body.doing)), report


def _failure_text(body: Any) -> str:
    where = f"on host {_word('host', body.host)}, at: {_word('doing', body.doing)}"
    return f"{shorten(body.error)} ({where})\n{shorten(body.traceback)}".rstrip()


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` without its middle where it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"


def _word(name: str, text: str) -> str:
    if len(text) > _MAX_WORD:
        raise MalformedMessage(f"{name} is too long", value=len(text), expected=f"at most {_MAX_WORD} characters")
    return text


def _state(number: int) -> State:
    try:
        return State[pb.State.Name(number)]
    except (KeyError, ValueError) as error:
        raise MalformedMessage("not a state", value=number) from error


def _endpoints(addresses: Mapping[str, str]) -> dict[str, str]:
    if len(addresses) > _MAX_ENDPOINTS:
        raise MalformedMessage("too many endpoints", value=len(addresses), expected=f"at most {_MAX_ENDPOINTS}")
    return {_word("endpoint", name): _word("address", address) for name, address in addresses.items()}


def _parse(what: str, text: bytes) -> dict[str, Any]:
    if len(text) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(
            f"the {what} is too long", value=len(text), expected=f"at most {MAX_MESSAGE_BYTES} bytes"
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"the {what} is not JSON", value=str(error)) from error
    if not isinstance(data, dict):
        raise MalformedMessage(f"the {what} is not an object", value=type(data).__name__)
    return data


def _plain(value: Any) -> Any:
    """Scalars of numpy as the Python numbers they are."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} cannot be sent: not plain data")
    return item()


def report_json(report: WorkerReport) -> list[bytes]:
    """A report as JSON: one part or, where it is long, several, each a report of its own."""
    text = json.dumps(report.to_dict(), default=_plain).encode()
    lists = ("episodes", "updates", "evaluations", "messages")
    if len(text) <= MAX_REPORT_BYTES or all(len(getattr(report, name)) <= 1 for name in lists):
        return [text]
    # Counters are totals: to say them twice does no harm. What is listed is split.
    halves = [{name: getattr(report, name)[: len(getattr(report, name)) // 2] for name in lists}]
    halves.append({name: getattr(report, name)[len(getattr(report, name)) // 2 :] for name in lists})
    return [part for half in halves for part in report_json(replace(report, **half))]


def parse_report(text: bytes) -> WorkerReport:
    """The inverse of one part of :func:`report_json`.

    Raises:
        MalformedMessage: It is no report.
    """
    data = _parse("report", text)
    try:
        report = WorkerReport.from_dict(data)
        tables: list[Mapping[str, Any]] = [report.seconds, report.counters, report.gauges, *report.updates]
        for numbers in tables:
            _check_numbers(numbers)
        for episode in report.episodes:
            _check_numbers(asdict(episode))
        for edge in report.edges.values():
            _check_numbers({"sent": edge.sent, "received": edge.received, **edge.dropped})
    except (TypeError, KeyError, AttributeError) as error:
        raise MalformedMessage("not a report", value=str(error)) from error
    if not all(isinstance(text, str) for text in (report.worker, report.kind, report.weights_sha256)):
        raise MalformedMessage("not a report", value=repr(report.worker)[:_MAX_WORD])
    return report


def _check_numbers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not None and not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {type(value).__name__}, not a number")


def assignment_json(assignment: Assignment) -> bytes:
    """An assignment as JSON.

    Raises:
        StreamError: It is too long for one message.
    """
    text = json.dumps(asdict(assignment), default=_plain).encode()
    if len(text) > MAX_MESSAGE_BYTES - 1024:
        raise StreamError(
            "the assignment is too long for one message",
            where=assignment.worker.name,
            value=len(text),
            expected=f"at most {MAX_MESSAGE_BYTES - 1024} bytes",
        )
    return text


def parse_assignment(text: bytes) -> Assignment:
    """The inverse of :func:`assignment_json`.

    Raises:
        MalformedMessage: It is no assignment.
    """
    data = _parse("assignment", text)
    try:
        return Assignment(**{**data, "worker": WorkerId(**data["worker"])})
    except (TypeError, KeyError) as error:
        raise MalformedMessage("not an assignment", value=str(error)) from error


def command(worker: str, kind: CommandKind) -> Any:
    """A ``ToWorker`` that carries a command."""
    return pb.ToWorker(worker=worker, command=pb.Command(kind=kind.name))


def gone(receiver: str, worker: WorkerId) -> Any:
    """A ``ToWorker`` that says that another worker's process is dead."""
    return pb.ToWorker(worker=receiver, gone=pb.WorkerGone(**asdict(worker)))


def command_kind(number: int) -> CommandKind:
    """The command that a number on the wire stands for.

    Raises:
        MalformedMessage: There is none.
    """
    try:
        return CommandKind[pb.CommandKind.Name(number)]
    except (KeyError, ValueError) as error:
        raise MalformedMessage("not a command", value=number) from error
