"""Ends of processes in words (field case 23)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from srl.distributed.exits import describe_exit, describe_status, log_tail


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGSEGV, "signal SEGV"),
        (-signal.SIGABRT, "signal ABRT"),
        (-signal.SIGKILL, "signal KILL, possibly out of memory"),
        (-63, "signal 63"),
    ],
)
def test_codes_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_status_of_waitpid_in_words() -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "kill -SEGV $$"], {})
    assert describe_status(os.waitpid(pid, 0)[1]) == "signal SEGV"


def test_the_tail_of_a_log_is_bounded_and_starts_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert log_tail(log) == ""
    log.write_text("one\ntwo\nthree\n")
    assert log_tail(log, lines=2) == "two\nthree"
    log.write_bytes(b"x" * 20_000 + b"\n" + b"\xffy" * 10 + b"\nlast\n")
    tail = log_tail(log).splitlines()
    assert tail[-1] == "last"
    assert len(tail) == 2
