"""Several trainer ranks for one policy: equal to one rank, equal to each other, and no rank waits for a lost one."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

PARALLEL = Path(__file__).parents[1] / "plugins" / "parallel.yaml"
UPDATES = 20
LOCKSTEP = {
    "one rank": ["workers.trainer.count=1", "--transport", "shared_memory"],
    "shared memory": ["--transport", "shared_memory"],
    "tcp": ["--transport", "tcp"],
}


def said(directory: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank wrote down in each update."""
    return [json.loads(line) for line in (directory / f"rank-{rank}.jsonl").read_text().splitlines()]


def weights(ended: Any) -> dict[str, Any]:
    newest = max((ended.trial_dir / "checkpoints").iterdir())
    return dict(load_file(newest / "weights.safetensors"))


def digests(ended: Any) -> dict[str, str]:
    workers = ended.summary["workers"]
    return {name: worker["weights_sha256"] for name, worker in workers.items() if "weights_sha256" in worker}


@pytest.fixture(scope="module")
def in_lockstep(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    started = {}
    for name, overrides in LOCKSTEP.items():
        directory = tmp_path_factory.mktemp("said")
        options = [f"policies.main.algorithm.directory={directory}", "lockstep=true", f"stop.updates={UPDATES}"]
        started[name] = (shared_trial_run.start(PARALLEL, *options, *overrides, "--screen", "off"), directory)
    return {name: (trial.finish(120).check(), directory) for name, (trial, directory) in started.items()}


def test_two_ranks_learn_what_one_rank_learns(in_lockstep: Any) -> None:
    one, two = weights(in_lockstep["one rank"][0]), weights(in_lockstep["shared memory"][0])
    assert set(one) == set(two)
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    alone = said(in_lockstep["one rank"][1], 0)
    first, second = (said(in_lockstep["shared memory"][1], rank) for rank in range(2))
    assert len(alone) == len(first) == len(second) == UPDATES
    for whole, part, other in zip(alone, first, second, strict=True):
        # the same global batch: the same blocks, each dealt to one rank
        assert sorted(part["blocks"] + other["blocks"]) == whole["blocks"]
        assert [(actor + sequence) % 2 for actor, _, sequence in part["blocks"]] == [0]
        assert part["rows"] + other["rows"] == whole["rows"]
        assert part["metrics"] == other["metrics"]
        assert part["progress"] == other["progress"] == whole["progress"]
        assert part["metrics"] == pytest.approx(whole["metrics"], rel=1e-4)
    # else a mean of means would pass as well
    assert any(part["rows"] != other["rows"] for part, other in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["shared memory", "tcp"])
def test_ranks_are_equal_bit_for_bit(in_lockstep: Any, name: str) -> None:
    ended, _ = in_lockstep[name]
    found = digests(ended)
    assert set(found) == {"trainer/0", "trainer/1"}
    assert set(found.values()) == {ended.summary["weights_sha256"]}
    assert digests(in_lockstep["tcp"][0]) == digests(in_lockstep["shared memory"][0])


@pytest.mark.parametrize("name", LOCKSTEP)
def test_budgets_and_accounts_are_global_and_counted_once(in_lockstep: Any, name: str) -> None:
    summary = in_lockstep[name][0].summary
    alone = in_lockstep["one rank"][0].summary
    for key in ("env_steps", "frames", "updates", "gradient_steps", "policy_version"):
        assert summary[key] == alone[key], key
    assert (
        summary["env_steps"]
        == summary["rows"]["trained"]
        == sum(line["rows"] for line in said(in_lockstep["one rank"][1], 0))
    )
    assert summary["blocks"]["trained"] == 2 * UPDATES
    assert summary["blocks"]["unaccounted"] == summary["rows"]["unaccounted"] == 0
    assert summary["policy_lag"] == alone["policy_lag"]
    edge = summary["edges"]["samples"]
    assert edge["sent"] == edge["received"] == summary["blocks"]["produced"]
    metrics = [json.loads(line) for line in (in_lockstep[name][0].trial_dir / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["env_steps"] == summary["env_steps"]


def test_so_does_ppo_with_minibatches_epochs_and_normalisers(trial_run: Any) -> None:
    algorithm = "{type: ppo, rows: 64, minibatch_rows: 128, epochs: 2, normalize_observations: true}"
    trials = [
        start(
            trial_run,
            f"policies.main.algorithm={algorithm}",
            "lockstep=true",
            "stop.updates=8",
            f"workers.trainer.count={count}",
        )
        for count in (1, 2)
    ]
    one, two = (trial.finish(90).check() for trial in trials)
    found = weights(two)
    for name, array in weights(one).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert set(digests(two).values()) == {two.summary["weights_sha256"]}
    for key in ("env_steps", "updates", "gradient_steps"):
        assert one.summary[key] == two.summary[key]
    assert one.summary["gradient_steps"] > 2 * 8


def test_without_lockstep_and_with_policy_workers_everything_is_accounted_for(trial_run: Any, tmp_path: Path) -> None:
    """Three actors for two ranks; the first weights come from a generator that is another one in each process."""
    ended = trial_run(
        PARALLEL,
        f"policies.main.algorithm.directory={tmp_path}",
        "policies.main.algorithm.blocks_per_update=4",
        "policies.main.algorithm.odd=true",
        "workers.actors.count=3",
        "workers.actors.ring_groups=2",
        "streams.ask={kind: inference, policy: main}",
        "workers.servers={kind: policy, count: 2, serves: ask}",
        "workers.actors.agents=[{policy: main, samples: samples, inference: ask}]",
        "workers.evaluator={kind: evaluator, policy: main, episodes: 2}",
        "stop={env_steps: 2000}",
        "--screen",
        "off",
    ).check()
    summary = ended.summary
    assert len(set(digests(ended).values())) == 1
    assert summary["exit_reason"] == "env_steps"
    assert 2000 <= summary["env_steps"] < 2000 + 4 * 16 * 2
    assert summary["env_steps"] == summary["rows"]["trained"]
    assert summary["blocks"]["trained"] == 4 * summary["updates"]
    assert summary["blocks"]["unaccounted"] == summary["rows"]["unaccounted"] == 0
    assert summary["policy_lag"]["max"] <= 1
    assert summary["evaluation"]["policy_version"] == summary["updates"]
    for rank in range(2):
        lines = said(tmp_path, rank)
        assert [line["version"] for line in lines] == list(range(summary["updates"]))
        assert {len(line["blocks"]) for line in lines} == {2}
        assert {actor for line in lines for actor, _, _ in line["blocks"]} == {0, 1, 2}


def start(trial_run: Any, *overrides: str) -> Any:
    return trial_run.start(PARALLEL, *overrides, "--screen", "off")


def test_what_is_not_finite_on_one_rank_is_skipped_by_all(trial_run: Any, tmp_path: Path) -> None:
    ended = start(
        trial_run,
        "policies.main.algorithm.fault=nan",
        f"policies.main.algorithm.directory={tmp_path}",
        "on_non_finite=skip",
    )
    ended = ended.finish(90).check()
    summary = ended.summary
    assert summary["non_finite"]["updates_skipped"] == 1
    assert summary["blocks"]["dropped"] == {"non_finite_update": 2}
    assert summary["blocks"]["unaccounted"] == 0
    assert summary["updates"] == UPDATES
    assert len(set(digests(ended).values())) == 1
    draws = [[line["metrics"]["draw"] for line in said(tmp_path, rank)] for rank in range(2)]
    assert draws[0] == draws[1]
    assert all(np.isfinite(array).all() for array in weights(ended).values())


def test_what_one_rank_finds_ends_the_run_and_is_named(trial_run: Any) -> None:
    ended = start(trial_run, "policies.main.algorithm.fault=nan_agreed").finish(90).check(1)
    assert "a target is not finite" in ended.output
    texts = {failure["worker"]: failure["text"] for failure in ended.summary["failures"]}
    assert "row 3" in texts.get("trainer/1", "row 3")
    assert "trainer rank 1 found" in texts.get("trainer/0", "trainer rank 1 found")
    assert ended.summary["updates"] == 2


@pytest.mark.parametrize(
    ("fault", "text"), [("raise", "boom-47"), ("diverge", "the trainer ranks are not in the same state any more")]
)
def test_a_fault_of_one_rank_ends_the_trial_with_its_cause(trial_run: Any, fault: str, text: str) -> None:
    ended = start(trial_run, f"policies.main.algorithm.fault={fault}", "stop.updates=1000000").finish(90).check(1)
    assert text in ended.output
    assert text in ended.summary["failures"][0]["text"]


def wait_for_updates(trial: Any, directory: Path, number: int = 3) -> None:
    file = directory / "rank-0.jsonl"
    trial.wait_for(lambda: file.exists() and file.read_text().count("\n") >= number, f"{number} updates", 60)


def pid_of(trial: Any, worker: str) -> int:
    text = (trial.trial_dir / "logs" / f"{worker}.log").read_text()
    found = re.search(r"pid (\d+), incarnation", text)
    assert found is not None
    return int(found[1])


def test_a_killed_rank_ends_the_trial_in_time_and_the_other_writes_the_last_checkpoint(
    trial_run: Any, tmp_path: Path
) -> None:
    limits = ["limits.heartbeat_seconds=300", "limits.shutdown_seconds=30"]  # far beyond the time that this may take
    trial = start(trial_run, "stop.updates=1000000", f"policies.main.algorithm.directory={tmp_path}", *limits)
    wait_for_updates(trial, tmp_path)
    os.kill(pid_of(trial, "trainer-1"), signal.SIGKILL)
    ended = trial.finish().check(1)
    (cause,) = ended.summary["failures"]
    assert cause["worker"] == "trainer/1"
    assert "signal KILL" in cause["text"]
    checkpoints = list((ended.trial_dir / "checkpoints").iterdir())
    assert len(checkpoints) == 1
    assert digests(ended) == {"trainer/0": ended.summary["weights_sha256"]}


def test_a_hanging_rank_is_the_one_that_is_named(trial_run: Any, tmp_path: Path) -> None:
    trial = start(
        trial_run,
        "stop.updates=1000000",
        "policies.main.algorithm.fault=hang",
        f"policies.main.algorithm.directory={tmp_path}",
        "limits.heartbeat_seconds=4",
    )
    wait_for_updates(trial, tmp_path, 2)
    ended = trial.finish().check(1)
    (cause,) = ended.summary["failures"]
    assert cause["worker"] == "trainer/1"
    assert "no heartbeat" in cause["text"]


def test_ctrl_c_ends_all_ranks_in_order(trial_run: Any, tmp_path: Path) -> None:
    trial = start(trial_run, "stop.updates=1000000", f"policies.main.algorithm.directory={tmp_path}")
    wait_for_updates(trial, tmp_path)
    trial.interrupt_group()
    ended = trial.finish().check(130)
    assert ended.summary["failures"] == []
    assert len(set(digests(ended).values())) == 1
    assert digests(ended)["trainer/0"] == ended.summary["weights_sha256"]
    assert ended.summary["blocks"]["unaccounted"] == 0
