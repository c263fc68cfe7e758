"""The best version, kept by several evaluators in one directory."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from srl.api.errors import ResourceError, WaitTimeout
from srl.system import checkpoint
from srl.system.checkpoint import list_checkpoints, newest_complete
from srl.system.workers import best
from srl.system.workers.best import LOCK, best_so_far, keep_if_best


def keep(root: Path, version: int, mean: float) -> bool:
    weights = {"w": np.full(3, mean, np.float32)}
    return keep_if_best(root, version=version, mean_return=mean, env_steps=version * 10, weights=weights)


def test_only_what_scored_higher_than_everybodys_stays(tmp_path: Path) -> None:
    """Also where an evaluator that took longer comes with an older version."""
    root = tmp_path / "best"
    assert best_so_far(root) == -np.inf
    assert keep(root, 5, 1.0)
    assert not keep(root, 9, 0.5)
    assert not keep(root, 9, 1.0)
    assert keep(root, 3, 2.0)
    (left,) = list_checkpoints(root)
    assert left.name == "version-000000003"
    assert best_so_far(root) == 2.0
    found = newest_complete(root)
    assert found is not None
    assert found.counters == {"env_steps": 30, "mean_return": 2.0}


def evaluator(root: Path, index: int, start: multiprocessing.synchronize.Barrier) -> None:
    start.wait(60)
    for version in range(8):
        keep(root, version, float(version * 2 + index))


def test_evaluators_that_save_at_once_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    root = tmp_path / "best"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    processes = [context.Process(target=evaluator, args=(root, index, start)) for index in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert best_so_far(root) == 15.0
    assert [path.name.partition("-2")[0] for path in list_checkpoints(root)][-1] == "version-000000007"
    assert not list(root.glob(f"{checkpoint._TEMPORARY}*"))


def test_the_wait_for_another_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "LOCK_SECONDS", 0.0)
    keep(tmp_path, 1, 1.0)
    held = os.open(tmp_path / LOCK, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(WaitTimeout, match="another evaluator"):
        keep(tmp_path, 2, 2.0)
    os.close(held)  # as at its death
    assert keep(tmp_path, 2, 2.0)


def test_a_place_that_cannot_be_written_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("a file")
    with pytest.raises(ResourceError, match="cannot keep the best version"):
        keep(tmp_path / "best", 1, 1.0)
