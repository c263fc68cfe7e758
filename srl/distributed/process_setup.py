"""What a process sets for itself before it works: threads, allocator, descriptor limit, and whose death is its own."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable

from srl.api.errors import ResourceError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

_OPENBLAS_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 1 << 30
_KEEP_BYTES_OLD_LIBC = 32 << 20


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that libraries read when they are loaded."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def set_threads(threads: int) -> None:
    """Bound the threads of this process's libraries: those not loaded yet by variables, the others by a call."""
    os.environ.update(thread_environment(threads))
    _set_loaded_openblas(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _set_loaded_openblas(threads: int) -> None:
    """Numpy brings an OpenBLAS of its own, which read the variables when it was loaded and asks for them never again.

    A second thread of it costs a fused CartPole trial four fifths of its speed as soon as another process is busy.
    """
    for path in _loaded_libraries("openblas"):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS_SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(ctypes.c_int(threads))


def _loaded_libraries(name: str) -> set[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count(" ") >= 5 and "/" in line}
    return {path for path in paths if name in os.path.basename(path)}


def set_affinity(cores: Iterable[int]) -> None:
    """Keep this process on some cores; none = leave it as it is."""
    wanted = set(cores)
    if wanted:
        os.sched_setaffinity(0, wanted)


def tune_allocator() -> bool:
    """Have glibc keep freed memory instead of giving it back and faulting it in again at every batch.

    Activations of a CNN are larger than the threshold above which glibc maps and unmaps each of them: 60 % of the
    training speed. Returns False where there is no ``mallopt`` (another libc), which is no harm.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Older versions of glibc refuse more than 32 MiB.
    kept = mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES) or mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES_OLD_LIBC)
    return bool(kept and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies.

    Args:
        parent: The parent's process id: where it is another one by now, it died before this call.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def raise_descriptor_limit(needed: int) -> int:
    """Raise the soft limit on open files to the hard one, and check it.

    Args:
        needed: Descriptors that one process of the trial will hold.

    Returns:
        The limit.

    Raises:
        ResourceError: It is too low; both numbers are named.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ResourceError(
            "too many workers for the limit on open files",
            value=hard,
            expected=f"at least {needed}",
            hint="Raise it with 'ulimit -Hn' (as root, or in limits.conf), or use fewer workers.",
        )
    return hard


def let_go_of_dead_outputs() -> None:
    """Put ``/dev/null`` in the place of outputs that nobody reads any more: else what is buffered fails at the exit."""
    poller = select.poll()
    for descriptor in (1, 2):
        poller.register(descriptor, 0)
    dead = [descriptor for descriptor, events in poller.poll(0) if events & (select.POLLERR | select.POLLHUP)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in dead:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def count_threads() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))
