"""A signal after the trial directory was made and before any worker runs: the trial has an end like any other."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from srl.api.errors import WaitTimeout
from srl.api.experiment import Experiment
from srl.distributed import controller, process_run
from srl.distributed.controller import run_trial


def experiment() -> Experiment:
    return Experiment.model_validate(
        {
            "name": "small",
            "environment": {"type": "gymnasium", "entry": "srl.environments.toy:Count"},
            "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8, "minibatch_rows": 8}}},
            "streams": {"samples": {"kind": "sample"}},
            "workers": {
                "actors": {
                    "kind": "actor",
                    "environments": 1,
                    "agents": [{"policy": "main", "samples": "samples"}],
                },
                "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
            },
            "stop": {"updates": 1},
            "placement": "fused",
        }
    )


@pytest.mark.parametrize(
    ("number", "code", "reason"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_its_summary_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, reason: str
) -> None:
    def interrupted(graph: Any, run: Any) -> Any:
        signal.raise_signal(number)  # as while gRPC is imported

    monkeypatch.setattr(controller, "run_in_this_thread", interrupted)
    result = run_trial(experiment(), trial_dir=tmp_path / "trial", screen="off")
    assert result.exit_code == code
    summary = json.loads((tmp_path / "trial" / "summary.json").read_text())
    assert (summary["exit_code"], summary["exit_reason"]) == (code, reason)
    assert summary["env_steps"] == 0


def test_an_interrupt_that_no_signal_caused_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(graph: Any, run: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(controller, "run_in_this_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_trial(experiment(), trial_dir=tmp_path / "trial", screen="off")


def test_what_cannot_be_closed_in_time_is_told_and_the_outcome_stays() -> None:
    class Run:
        notes: list[str] = []  # noqa: RUF012

        def note(self, text: str, *, is_warning: bool) -> None:
            assert is_warning
            self.notes.append(text)

    def close(timeout_seconds: float) -> None:
        raise WaitTimeout("the control server did not stop")

    process_run._close(close, Run())
    assert "the control server did not stop" in Run.notes[0]
