"""Field cases 1, 3, 11, 29, 54: what a trainer really receives and computes, wherever the workers are.

Every column of the environment plays a script, and the values are a table, so that transitions and targets have closed
forms; the plugin ``tests/plugins/recording.py`` writes down the batches that arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file

PLUGINS = Path(__file__).parents[1] / "plugins"
FIELD = PLUGINS / "field.yaml"
ROWS, UPDATES = 12, 2
PROXY = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")

Script = list[dict[str, Any]]
Transition = tuple[float, float, float, bool, bool]
"""Observation, reward, successor (NaN = the value of row T is that of the next valid row), terminated, truncated."""


def episode(first: int, rewards: Sequence[float], end: str) -> dict[str, Any]:
    return {"first": first, "rewards": list(rewards), "end": end}


COUNT_3, COUNT_5, COUNT_7, TIME_LIMIT, TERMINAL_AFTER, LAMBDA_TERMINATED, LAMBDA_TRUNCATED, BOTH = range(8)
COLUMNS: list[Script] = [
    [episode(0, [1] * 3, "terminated")],
    [episode(10, [1] * 5, "terminated")],
    [episode(20, [1] * 7, "truncated")],
    [episode(30, [1] * 3, "truncated")],
    [episode(40, [1] * 3, "truncated"), episode(44, [1], "terminated")],
    [episode(50, [0, 0, 1], "terminated")],
    [episode(60, [0, 0, 1], "truncated")],
    [episode(70, [1] * 3, "both")],
]
TARGETS = [(0.99, 0.95), (0.9, 0.0), (0.9, 1.0)]


def table() -> list[float]:
    values = [0.5] * 80
    values[33] = values[43] = values[73] = 10.0
    for first in (50, 60):
        values[first : first + 4] = [0.2, 0.4, 0.6, 0.8]
    return values


REMOTE = [
    "streams.ask={kind: inference, policy: main}",
    "workers.servers={kind: policy, serves: ask}",
    "workers.actors.agents=[{policy: main, samples: samples, inference: ask}]",
]
TWO = ["workers.actors.count=2"]
VARIANTS: dict[str, tuple[str, str, str, list[str]]] = {
    "fused, next step": ("fused", "in_process", "next_step", []),
    "fused, same step": ("fused", "in_process", "same_step", ["workers.actors.count=2"]),
    "fused, disabled": ("fused", "in_process", "disabled", []),
    "shared memory, next step": ("processes", "shared_memory", "next_step", TWO),
    "shared memory, remote, same step": ("processes", "shared_memory", "same_step", TWO + REMOTE),
    "tcp, disabled": ("processes", "tcp", "disabled", []),
    "tcp, remote, next step, no_proxy": ("processes", "tcp", "next_step", TWO + REMOTE),
}


@pytest.fixture(scope="module")
def recorded(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The batches of every variant; the trials run side by side.

    Field case 54: all processes have proxy variables that lead nowhere, without ``no_proxy`` but for one trial.
    """
    trials = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in NO_PROXY:
            patch.delenv(name, raising=False)
        for variant, (placement, transport, mode, overrides) in VARIANTS.items():
            directory = tmp_path_factory.mktemp("batches")
            environment = {
                "type": "gymnasium",
                "entry": f"{PLUGINS / 'field_environments.py'}:Scripts",
                "kwargs": {"columns": COLUMNS, "autoreset_mode": mode},
            }
            algorithm = {"rows": ROWS, "values": table(), "targets": TARGETS, "directory": str(directory)}
            proxies = PROXY if placement == "processes" else {}
            trial = shared_trial_run.start(
                FIELD,
                f"environment={as_value(environment)}",
                *(f"policies.main.algorithm.{key}={as_value(value)}" for key, value in algorithm.items()),
                f"workers.actors.environments={len(COLUMNS)}",
                f"stop.updates={UPDATES}",
                "streams.samples.on_straggler=wait",  # a block cut short has fewer rows
                *overrides,
                *("--screen", "off", "--placement", placement, "--transport", transport),
                env=proxies | ({"no_proxy": "localhost,127.0.0.1"} if "no_proxy" in variant else {}),
            )
            trials[variant] = (trial, directory)
        return {variant: batches(trial, directory) for variant, (trial, directory) in trials.items()}


def as_value(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()


def batches(trial: Any, directory: Path) -> list[dict[str, Any]]:
    summary = trial.finish(170).check().summary
    assert summary["updates"] == UPDATES
    found = [dict(np.load(path)) for path in sorted(directory.glob("update-*.npz"))]
    assert len(found) == UPDATES
    assert summary["env_steps"] == sum(int(batch["valid"].sum()) for batch in found)
    return found


def scripted(script: Script) -> Iterator[Transition]:
    """The transitions of a script, without end."""
    while True:
        for one in script:
            for index, reward in enumerate(one["rewards"]):
                last = index + 1 == len(one["rewards"])
                terminated = last and one["end"] in ("terminated", "both")
                truncated = last and one["end"] in ("truncated", "both")
                position = float(one["first"] + index)
                yield position, float(reward), position + 1, terminated, truncated


def transitions(batch: Mapping[str, NDArray[Any]], column: int) -> list[Transition]:
    """The transitions of one column of a batch, read as the block's contract says."""
    rows = np.flatnonzero(batch["valid"][:, column])
    found = []
    for row in rows:
        later = rows[rows > row]
        ended = bool(batch["terminated"][row, column]), bool(batch["truncated"][row, column])
        successor = batch["observation"][later[0] if len(later) else ROWS, column]
        if any(ended):
            successor = batch["final_observation"][batch["final_row"][row, column]]
        position = float(batch["observation"][row, column, 0])
        found.append((position, float(batch["reward"][row, column]), float(successor[0]), *ended))
    return found


def columns_of(found: Sequence[Mapping[str, NDArray[Any]]]) -> Iterator[tuple[int, list[Transition]]]:
    """Script number and transitions of every column of every actor, its blocks one after the other."""
    columns: dict[tuple[int, int], list[Transition]] = {}
    for batch in found:
        for block, actor in enumerate(batch["header_actor"]):
            for script in range(len(COLUMNS)):
                column = block * len(COLUMNS) + script
                columns.setdefault((int(actor), script), []).extend(transitions(batch, column))
    assert columns
    for (_, script), of_column in columns.items():
        yield script, of_column


@pytest.mark.parametrize("variant", VARIANTS)
def test_case_1_only_real_transitions_arrive_and_all_of_them(recorded: Any, variant: str) -> None:
    mode = VARIANTS[variant][2]
    for script, found in columns_of(recorded[variant]):
        expected = scripted(COLUMNS[script])
        assert found == [next(expected) for _ in found]
    batch = recorded[variant][0]
    count_3 = transitions(batch, COUNT_3)
    if mode == "next_step":
        assert len(count_3) == 9  # 12 vector steps: after each end one that only resets
        assert sum(reward for _, reward, *_ in count_3) == 9
        assert sum(terminated for *_, terminated, _ in count_3) == 3
        assert len(transitions(batch, COUNT_5)) == 10
        assert batch["valid"].sum() < batch["valid"].size
    else:
        assert batch["valid"].all()
    assert all(position != 3 for position, *_ in count_3)


def test_case_1_all_autoreset_modes_give_the_same_episodes(recorded: Any) -> None:
    episodes: dict[int, list[list[Transition]]] = {}
    for variant in VARIANTS:
        for script, found in columns_of(recorded[variant]):
            shorter = min(len(found), len(episodes.setdefault(script, [found])[0]))
            assert found[:shorter] == episodes[script][0][:shorter]
            assert shorter >= 9


def expected_advantages(
    found: Sequence[Transition], last_value: float, gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """GAE of a column by its definition, episode by episode, in float64."""
    values = np.float32(table()).astype(np.float64)
    result = np.zeros(len(found))
    following = 0.0
    for index in reversed(range(len(found))):
        position, reward, successor, terminated, truncated = found[index]
        if terminated or truncated:
            following = 0.0
        bootstrap = 0.0 if terminated else values[int(successor)] if truncated else last_value
        if not (terminated or truncated) and index + 1 < len(found):
            bootstrap = values[int(found[index + 1][0])]
        following = reward + gamma * bootstrap - values[int(position)] + gamma * gae_lambda * following
        result[index] = following
    return result


def advantages(batch: Mapping[str, NDArray[Any]], target: int, column: int) -> NDArray[Any]:
    return batch[f"advantages_{target}"][batch["valid"][:, column], column]


@pytest.mark.parametrize("variant", VARIANTS)
def test_advantages_of_every_column_and_fragment(recorded: Any, variant: str) -> None:
    for batch in recorded[variant]:
        for column in range(batch["valid"].shape[1]):
            found = transitions(batch, column)
            last_value = table()[int(batch["observation"][ROWS, column, 0])]
            for target, (gamma, gae_lambda) in enumerate(TARGETS):
                expected = expected_advantages(found, last_value, gamma, gae_lambda)
                np.testing.assert_allclose(advantages(batch, target, column), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_case_3_a_time_limit_bootstraps_from_the_final_observation_and_cuts(recorded: Any, variant: str) -> None:
    batch = recorded[variant][0]
    expected = [11.130016, 10.7762, 10.4]
    np.testing.assert_allclose(advantages(batch, 0, TIME_LIMIT)[:3], expected, atol=1e-5)
    np.testing.assert_allclose(advantages(batch, 0, TIME_LIMIT)[3:6], expected, atol=1e-5)
    np.testing.assert_allclose(advantages(batch, 0, TERMINAL_AFTER)[:4], [*expected, 0.5], atol=1e-5)
    terminal = [2.373068, 1.46525, 0.5]
    np.testing.assert_allclose(advantages(batch, 0, COUNT_3)[:3], terminal, atol=1e-5)
    np.testing.assert_allclose(advantages(batch, 0, BOTH)[:3], terminal, atol=1e-5)  # terminated wins


@pytest.mark.parametrize("variant", VARIANTS)
def test_case_11_value_targets_at_both_ends_of_lambda(recorded: Any, variant: str) -> None:
    batch = recorded[variant][0]

    def value_targets(target: int, column: int) -> NDArray[Any]:
        valid = batch["valid"][:, column]
        return (advantages(batch, target, column) + batch["value"][valid, column])[:3]

    one_step, monte_carlo = 1, 2
    np.testing.assert_allclose(value_targets(one_step, LAMBDA_TERMINATED), [0.36, 0.54, 1.0], atol=1e-6)
    np.testing.assert_allclose(value_targets(one_step, LAMBDA_TRUNCATED), [0.36, 0.54, 1.72], atol=1e-6)
    np.testing.assert_allclose(value_targets(monte_carlo, LAMBDA_TERMINATED), [0.81, 0.9, 1.0], atol=1e-6)
    np.testing.assert_allclose(value_targets(monte_carlo, LAMBDA_TRUNCATED), [1.3932, 1.548, 1.72], atol=1e-6)


def test_case_29_a_minibatch_of_one_and_advantages_that_are_all_equal(trial_run: Any) -> None:
    """5 samples in minibatches of at most 2; then one observation and one reward, so that advantages do not vary."""
    options = ("stop.updates=3", "--screen", "off")
    trials = [
        trial_run.start(
            FIELD,
            "policies.main.algorithm={type: ppo, rows: 5, minibatch_rows: 2}",
            *options,
            *("--placement", "processes"),
        ),
        trial_run.start(
            FIELD,
            "environment.kwargs={length: 1}",
            "policies.main.algorithm={type: ppo, rows: 5, gamma: 0}",
            *options,
            *("--placement", "fused"),
        ),
    ]
    one_sample, equal = (trial.finish(120).check() for trial in trials)
    for ended in (one_sample, equal):
        summary = ended.summary
        assert summary["updates"] == 3
        (checkpoint,) = (ended.trial_dir / "checkpoints").iterdir()
        weights = load_file(checkpoint / "weights.safetensors")
        assert all(np.isfinite(array).all() for array in weights.values())
    assert one_sample.summary["gradient_steps"] == 3 * 4 * 3
    assert "minibatch_rows 2 cuts the 5 transitions of an update" in one_sample.stderr
    assert equal.stderr == ""
