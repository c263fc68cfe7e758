"""The version that scored highest, kept by whoever scored it: several evaluators share one directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from srl.api.errors import WaitTimeout
from srl.system.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, prune, save_checkpoint
from srl.system.durable import disk_errors

MEAN_RETURN = "mean_return"
LOCK = ".lock"
LOCK_SECONDS = 10.0
"""Bound on the wait for another evaluator that is just saving."""

LOOK_SECONDS = 0.01
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def keep_if_best(
    root: Path, *, version: int, mean_return: float, env_steps: int, weights: Mapping[str, NDArray[Any]]
) -> bool:
    """Save a version unless one that scored as high is there; what it beats is removed.

    Args:
        root: Directory of the best version; made if absent.
        version: The version that was scored.
        mean_return: Its score.
        env_steps: Env steps that it was trained on.
        weights: Its weights by name.

    Returns:
        Whether it is the best one now.

    Raises:
        ResourceError: It cannot be written.
        WaitTimeout: Another evaluator has been saving for longer than :data:`LOCK_SECONDS`.
    """
    with _alone(root):
        if mean_return <= best_so_far(root):
            return False
        save_checkpoint(
            root,
            version=version,
            weights=weights,
            state={},
            counters={"env_steps": env_steps, MEAN_RETURN: mean_return},
        )
        prune(root, keep=0, pinned=(version,))
        return True


def best_so_far(root: Path) -> float:
    """The highest score of a complete set below ``root``; minus infinity if there is none."""
    best = float("-inf")
    for path in list_checkpoints(root):
        # Half a set is what a kill leaves: it has beaten nothing.
        with contextlib.suppress(CheckpointError):
            best = max(best, float(load_checkpoint(path).counters.get(MEAN_RETURN, best)))
    return best


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the directory's lock, which ends with its holder; where the file system has none, go on without it."""
    with disk_errors("cannot keep the best version", root):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise WaitTimeout(
                    "another evaluator does not finish saving the best version",
                    where=str(root),
                    value=f"{LOCK_SECONDS:g} s",
                )
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
