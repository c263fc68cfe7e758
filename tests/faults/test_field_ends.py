"""Field case 60: what the other tests of signals leave open."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"


def test_case_60_a_batch_system_terminates_every_process_at_once(trial_run: Any) -> None:
    trial = trial_run.start(
        FIELD,
        "streams.ask={kind: inference, policy: main}",
        "workers.servers={kind: policy, serves: ask, count: 2}",
        "workers.actors.agents=[{policy: main, samples: samples, inference: ask}]",
        "workers.actors.count=3",
        "workers.evaluator={kind: evaluator, policy: main}",
        "stop={env_steps: 100000000}",
        *("--screen", "off", "--placement", "processes"),
    )
    metrics = trial.trial_dir / "metrics.jsonl"
    trial.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, "training")
    for pid in trial.processes():
        with suppress(ProcessLookupError):  # one that ended because of the one before
            os.kill(pid, signal.SIGTERM)
    ended = trial.finish().check(143)
    summary = ended.summary
    assert summary["exit_reason"] == "terminated"
    assert summary["failures"] == []
    (newest,) = sorted(path.name for path in (ended.trial_dir / "checkpoints").iterdir())[-1:]
    assert int(newest.rpartition("-")[2]) == summary["policy_version"] > 0
