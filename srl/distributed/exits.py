"""How a process ended, in words a person understands."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_TAIL_BYTES = 16 * 1024

_HINTS = {
    signal.SIGKILL: ", possibly out of memory",
    signal.SIGBUS: ", possibly a full /dev/shm or a file cut short under a mapping",
}


def describe_exit(code: int) -> str:
    """Words for an exit code.

    Args:
        code: As ``os.waitstatus_to_exitcode`` and ``subprocess`` give it: negative = number of the signal.

    Returns:
        ``exit code 3``, ``signal SEGV`` or ``signal KILL, possibly out of memory``.
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"signal {-code}"
    return f"signal {number.name.removeprefix('SIG')}{_HINTS.get(number, '')}"


def describe_status(status: int) -> str:
    """Words for a status of ``waitpid``."""
    return describe_exit(os.waitstatus_to_exitcode(status))


def describe_halt(pid: int) -> str:
    """Why a living process of this host runs no code at all; empty if it could run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return {
        "T": f"process {pid} is stopped by a signal (SIGSTOP, SIGTSTP)",
        "t": f"process {pid} is stopped by a debugger",
        "D": f"process {pid} waits in the kernel, for a disk or a network file system",
    }.get(state, "")


def log_tail(path: Path, lines: int = 30) -> str:
    """The last lines of a log; empty if there is none. Never reads more than its last 16 KiB."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - _TAIL_BYTES)
            file.seek(start)
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    rows = text.splitlines()[1 if start else 0 :]
    return "\n".join(rows[-lines:])
