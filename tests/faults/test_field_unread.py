"""Field case 8: no deadlock at the end of a trial whose blocks nobody reads any more."""

from __future__ import annotations

import threading
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


def start(trial_run: Any, algorithm: str, *options: str) -> Any:
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


@pytest.fixture(scope="module")
def ended(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Trials side by side, each held in its first update: two meet Ctrl-C there, the third is let go and is done."""
    places = {**PLACES, "in order": PLACES["shared memory"]}
    held = {}
    for place, options in places.items():
        directory = tmp_path_factory.mktemp("held")
        hold = f"hold_file: {directory / 'go'}, directory: {directory}"
        limit_seconds = 60 if place == "in order" else 8
        stop = ["stop={updates: 1}", f"limits.shutdown_seconds={limit_seconds}"]
        held[place] = (start(shared_trial_run, hold, *stop, *options), directory)
    for trial, directory in held.values():
        trial.wait_for((directory / "update-00000.npz").exists, "the first update", 90)
        trial.wait_for(lambda: stands_still(trial), "every actor to wait")  # noqa: B023 called at once
        assert len(trial.processes()) >= ACTORS + 2
    for place, (trial, directory) in held.items():
        if place == "in order":
            (directory / "go").touch()
        else:
            trial.interrupt_group()
    return {place: trial.finish() for place, (trial, _) in held.items()}


@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_while_the_trainer_reads_nothing(ended: Any, place: str) -> None:
    trial = ended[place].check(130)
    summary = trial.summary
    assert summary["exit_reason"] == "interrupted"
    assert summary["updates"] == 0
    # Only the trainer, which is inside its update, has to be killed.
    killed = [line for line in trial.stderr.splitlines() if "did not stop within" in line]
    assert len(killed) == 1
    assert "trainer/0" in killed[0]


def test_a_stop_in_order_while_blocks_wait_unread(ended: Any) -> None:
    trial = ended["in order"].check(0)
    summary = trial.summary
    assert summary["exit_reason"] == "updates"
    assert summary["blocks"]["in_flight"] > 0
    assert summary["blocks"]["unaccounted"] == 0
    assert "over: updates" in (trial.trial_dir / "main.log").read_text()
    assert "killed" not in trial.stderr
