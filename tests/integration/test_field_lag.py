"""Field case 46: policy lag is measured, bounded by making actors wait, and no filter on the length of episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

PLUGINS = Path(__file__).parents[1] / "plugins"
FIELD = PLUGINS / "field.yaml"
REMOTE = [
    "streams.ask={kind: inference, policy: main}",
    "workers.servers={kind: policy, serves: ask}",
    "workers.actors.agents=[{policy: main, samples: samples, inference: ask}]",
]
LAG = 2
UPDATES = 10
VARIANTS = {
    "shared memory": ["--placement", "processes", "--transport", "shared_memory"],
    "tcp, remote": [*REMOTE, "--placement", "processes", "--transport", "tcp"],
}


def batches(directory: Path) -> list[dict[str, NDArray[Any]]]:
    return [dict(np.load(path)) for path in sorted(directory.glob("update-*.npz"))]


def resident_bytes(trial: Any) -> int:
    total = 0
    for pid in trial.processes():
        try:
            total += psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def number_of(directory: Path) -> int:
    return len(list(directory.glob("update-*.npz")))


@pytest.fixture(scope="module")
def slowed(
    shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, list[Any], list[int]]]:
    """Trials whose updates take long and whose actors are at full speed: (end, batches, resident bytes over time).

    After each update every value of the policy is the number of its version, so that a row's value tells which weights
    decided.
    """
    trials = {}
    for name, overrides in VARIANTS.items():
        directory = tmp_path_factory.mktemp("batches")
        options = (
            f"{{type: ./recording.py:Recording, rows: 64, directory: {directory}, stamp: true, update_seconds: 0.4}}"
        )
        trial = shared_trial_run.start(
            FIELD,
            f"policies.main.algorithm={options}",
            "environment={type: gymnasium, entry: 'srl.environments.toy:BigObservation', kwargs: {size_bytes: 10000}}",
            "workers.actors.count=3",
            "workers.actors.environments=4",
            f"streams.samples.max_policy_lag={LAG}",
            f"stop.updates={UPDATES}",
            *("--screen", "off"),
            *overrides,
        )
        trials[name] = (trial, directory)
    sizes: dict[str, list[int]] = {name: [] for name in trials}
    for update in (LAG + 1, UPDATES):
        for name, (trial, directory) in trials.items():
            trial.wait_for(lambda: number_of(directory) >= update, f"update {update}", 90)  # noqa: B023 called at once
            sizes[name].append(resident_bytes(trial))
    return {
        name: (trial.finish(90).check(), batches(directory), sizes[name]) for name, (trial, directory) in trials.items()
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_row_carries_the_version_of_the_weights_that_decided(slowed: Any, variant: str) -> None:
    _, found, _ = slowed[variant]
    assert len(found) == UPDATES
    for batch in found:
        np.testing.assert_array_equal(batch["value"][batch["valid"]], batch["version"][batch["valid"]])
    assert len(np.unique(np.concatenate([batch["version"].ravel() for batch in found]))) > UPDATES // 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_lag_is_at_most_the_bound_and_reaches_it(slowed: Any, variant: str) -> None:
    ended, found, _ = slowed[variant]
    lags = [version - batch["version"][batch["valid"]] for version, batch in enumerate(found)]
    assert max(int(lag.max()) for lag in lags) == LAG
    assert min(int(lag.min()) for lag in lags) >= 0
    every = np.concatenate(lags)
    assert ended.summary["policy_lag"] == {"mean": pytest.approx(every.mean()), "max": LAG}


@pytest.mark.parametrize("variant", VARIANTS)
def test_actors_wait_for_credit_instead_of_piling_up(slowed: Any, variant: str) -> None:
    ended, _, (early, late) = slowed[variant]
    summary = ended.summary
    blocks = summary["blocks"]
    per_update = 3
    assert blocks["trained"] == UPDATES * per_update
    assert 0 <= blocks["in_flight"] <= (LAG + 1) * per_update
    assert blocks["unaccounted"] == 0
    assert blocks["dropped"] == {}
    shares = [summary["workers"][f"actors/{index}"]["shares"] for index in range(3)]
    for share in shares:
        assert share["waiting_for_credit"] == max(share.values())
        assert share["waiting_for_credit"] > 0.5
    assert early > 100e6
    # An update's blocks are 7.7 MB. Without a bound, actors make more than that every tenth of a second.
    assert late - early < 60e6


STRAGGLERS = ["cut", "drop"]


@pytest.fixture(scope="module")
def beside_a_slow_actor(
    shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, list[Any]]]:
    """Two fast actors and a slow one; half of the episodes have 10 steps, half 200."""
    trials = {}
    for mode in STRAGGLERS:
        directory = tmp_path_factory.mktemp("batches")
        kwargs = f"{{lengths: [10, 200], slow_file: {directory / 'slow'}, slow_seconds: 0.002}}"
        trial = shared_trial_run.start(
            FIELD,
            f"environment={{type: gymnasium, entry: ./field_environments.py:TwoLengths, kwargs: {kwargs}}}",
            f"policies.main.algorithm={{type: ./recording.py:Recording, rows: 100, directory: {directory}}}",
            "workers.actors.count=3",
            "workers.actors.environments=8",
            f"streams.samples.on_straggler={mode}",
            "stop={wall_seconds: 6}",
            *("--screen", "off", "--placement", "processes"),
        )
        trials[mode] = (trial, directory)
    return {mode: (trial.finish(90).check(), batches(directory)) for mode, (trial, directory) in trials.items()}


def share_of_long_episodes(found: list[dict[str, NDArray[Any]]]) -> tuple[float, int]:
    starts = [batch["observation"][:-1][batch["episode_start"] & batch["valid"]] for batch in found]
    lengths = np.concatenate(starts)[:, 0]
    assert set(np.unique(lengths)) == {10.0, 200.0}
    return float((lengths == 200).mean()), len(lengths)


@pytest.mark.parametrize("mode", STRAGGLERS)
def test_a_slow_actor_does_not_hold_up_the_others(beside_a_slow_actor: Any, mode: str) -> None:
    ended, found = beside_a_slow_actor[mode]
    summary = ended.summary
    assert summary["stragglers"] > 0
    assert summary["policy_lag"]["max"] <= 1
    assert summary["blocks"]["unaccounted"] == summary["rows"]["unaccounted"] == 0
    # A block of the slow actor takes 1.6 s: waiting for it, there would be one update in that time, whatever the speed.
    assert summary["updates"] > 2 * summary["training_seconds"] / 1.6
    assert len(found) >= summary["updates"]


def test_cut_blocks_lose_no_row(beside_a_slow_actor: Any) -> None:
    ended, found = beside_a_slow_actor["cut"]
    summary = ended.summary
    assert summary["blocks"]["dropped"] == {}
    assert summary["rows"]["produced"] == summary["rows"]["trained"] + summary["rows"]["in_flight"]
    assert summary["rows"]["trained"] == sum(int(batch["valid"].sum()) for batch in found[: summary["updates"]])
    short = sum(count for length, count in summary["block_lengths"]["trained"].items() if int(length) < 64)
    assert 0 < short <= summary["stragglers"]
    assert sum(summary["block_lengths"]["trained"].values()) == summary["blocks"]["trained"]
    lengths = np.concatenate([batch["header_length"] for batch in found])
    assert (lengths < 100).any()


def test_dropped_blocks_are_counted_by_length(beside_a_slow_actor: Any) -> None:
    summary = beside_a_slow_actor["drop"][0].summary
    dropped = summary["block_lengths"]["dropped"]
    assert summary["blocks"]["dropped"]["straggler"] > 0
    assert {reason: sum(lengths.values()) for reason, lengths in dropped.items()} == summary["blocks"]["dropped"]


@pytest.mark.parametrize("mode", STRAGGLERS)
def test_long_episodes_keep_their_share(beside_a_slow_actor: Any, mode: str) -> None:
    share, count = share_of_long_episodes(beside_a_slow_actor[mode][1])
    assert count > 100
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(count)
