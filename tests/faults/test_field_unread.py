"""Field case 8: no deadlock at the end of a trial whose blocks nobody reads any more."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"
ACTORS = 16
PLACES = {
    "shared memory": ["--placement", "processes", "--transport", "shared_memory"],
    "tcp": ["--placement", "processes", "--transport", "tcp"],
}


def start(trial_run: Any, directory: Path, algorithm: str, *options: str) -> Any:
    """16 actors with observations of 1 MB."""
    return trial_run.start(
        FIELD,
        "environment={type: gymnasium, entry: 'srl.environments.toy:BigObservation', kwargs: {size_bytes: 1000000}}",
        f"policies.main.algorithm={{type: ./recording.py:Recording, rows: 2, {algorithm}}}",
        f"workers.actors.count={ACTORS}",
        "--screen",
        "off",
        *options,
    )


def cpu_seconds(trial: Any) -> float:
    total = 0.0
    for pid in trial.processes():
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def stands_still(trial: Any) -> bool:
    """Nothing is computed for a while: every credit is used up and nobody reads."""
    before = cpu_seconds(trial)
    threading.Event().wait(0.5)
    return cpu_seconds(trial) - before < 0.3


@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_while_the_trainer_reads_nothing(trial_run: Any, tmp_path: Path, place: str) -> None:
    hold = f"hold_file: {tmp_path / 'never'}, directory: {tmp_path}"
    options = ["stop={env_steps: 1000000}", "limits.shutdown_seconds=4", *PLACES[place]]
    trial = start(trial_run, tmp_path, hold, *options)
    trial.wait_for(lambda: (tmp_path / "update-00000.npz").exists(), "the first update", 90)
    trial.wait_for(lambda: stands_still(trial), "every actor to wait")
    assert len(trial.processes()) >= ACTORS + 2
    trial.interrupt_group()
    ended = trial.finish(10).check(130)
    summary = ended.summary
    assert summary["exit_reason"] == "interrupted"
    assert summary["updates"] == 0
    # Only the trainer, which is inside its update, has to be killed.
    killed = [line for line in ended.stderr.splitlines() if "did not stop within" in line]
    assert len(killed) == 1
    assert "trainer/0" in killed[0]


def test_a_stop_in_order_while_blocks_wait_unread(trial_run: Any, tmp_path: Path) -> None:
    slow = "update_seconds: 1.0"
    ended = start(trial_run, tmp_path, slow, "stop={wall_seconds: 3}", *PLACES["shared memory"]).finish(90).check(0)
    summary = ended.summary
    assert summary["exit_reason"] == "wall_seconds"
    assert summary["blocks"]["in_flight"] > 0
    assert summary["blocks"]["unaccounted"] == 0
    lines = (ended.trial_dir / "main.log").read_text().splitlines()
    stopping, over = (moment(lines, text) for text in ("stopping: wall_seconds", "over: wall_seconds"))
    assert (over - stopping).total_seconds() < 10
    assert "killed" not in ended.stderr


def moment(lines: list[str], text: str) -> datetime:
    (line,) = (line for line in lines if text in line)
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")
