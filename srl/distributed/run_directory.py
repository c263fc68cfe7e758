"""The run directory: where the sockets and keys of one run lie, mode 0700, gone at its end.

Its name says whose it is: user, PID namespace, process and the process's start time. So the next start can tell what a
killed run left behind from what belongs to a run that lives, whoever's it is, and removes only the former.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from srl.api.errors import ResourceError

MAX_PARENT_CHARACTERS = 40
"""A unix socket's path has at most 107 bytes; longer temporary directories are left for ``/tmp``."""

_NAME = re.compile(r"srl-(\d+)-(\d+)-(\d+)-(\d+)-\w+")


@contextlib.contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """A new run directory, removed at the end; what dead runs left is removed first.

    Args:
        parent: Where; ``None`` = the system's temporary directory.

    Raises:
        ResourceError: It cannot be made.
    """
    where = parent or _parent()
    for leftover in leftovers(where):
        shutil.rmtree(leftover, ignore_errors=True)
    prefix = f"srl-{os.getuid()}-{_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-"
    try:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    except OSError as error:
        raise ResourceError(
            f"cannot make the directory of the run's sockets: {error.strerror}",
            where=str(where),
            hint="Set TMPDIR to a directory on a local disk that can be written.",
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def leftovers(parent: Path) -> list[Path]:
    """Run directories of this user and PID namespace whose process is dead."""
    found = []
    for path in parent.glob("srl-*"):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        user, namespace, pid, started = (int(part) for part in match.groups())
        # Another namespace (a container that shares the directory) has other processes: not ours to judge.
        if (user, namespace) == (os.getuid(), _namespace()) and _start_time(pid) != started:
            found.append(path)
    return found


def _parent() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= MAX_PARENT_CHARACTERS else Path("/tmp")


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none (process ids are used again)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
