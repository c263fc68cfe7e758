"""Field cases 13, 30, 32, 42: records, action masks and recurrent states from the environment to the trainer, over
every transport.

The environment and the algorithm are ``tests/plugins/data_path.py``: what a column shows is a function of its count,
and the policy writes down what it saw, so that the recorded batches say whether anything was lost, moved or mixed.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

PLUGINS = Path(__file__).parents[1] / "plugins"
EXPERIMENT = PLUGINS / "data_path.yaml"
ROWS, COLUMNS, STATE_ROWS = 4, 3, 2

_found = importlib.util.spec_from_file_location("data_path_plugin", PLUGINS / "data_path.py")
assert _found is not None
assert _found.loader is not None
plugin = importlib.util.module_from_spec(_found)
_found.loader.exec_module(plugin)

REMOTE = [
    "streams.ask={kind: inference, policy: main}",
    "workers.actors.agents=[{policy: main, samples: samples, inference: ask}]",
    "workers.servers={kind: policy, serves: ask}",
]
PROCESSES = ["--placement", "processes"]
PLACES: dict[str, list[str]] = {
    "inline": ["--placement", "fused"],
    "in process": [*REMOTE, "--placement", "fused"],
    "shared memory": [*REMOTE, *PROCESSES],
    "tcp": [*REMOTE, *PROCESSES, "--transport", "tcp"],
}
Batch = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def recorded(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Batch]]:
    """The batches of every place; the trials run side by side."""
    trials = {}
    for place, overrides in PLACES.items():
        directory = tmp_path_factory.mktemp("batches")
        words = (f"policies.main.algorithm.directory={directory}", *overrides, "--screen", "off")
        trials[place] = (shared_trial_run.start(EXPERIMENT, *words), directory)
    found = {}
    for place, (trial, directory) in trials.items():
        trial.finish(120).check()
        found[place] = [dict(np.load(path)) for path in sorted(directory.glob("update-*.npz"))]
    return found


def columns_of(batches: list[Batch]) -> Iterator[tuple[int, list[Batch]]]:
    """Every column of every ring group with its blocks one after the other: fields without the axis of columns."""
    columns: dict[tuple[int, int, int], list[tuple[int, Batch]]] = {}
    for batch in batches:
        for block, actor in enumerate(batch["header_actor"]):
            who = (int(actor), int(batch["header_ring_group"][block]))
            for column in range(COLUMNS):
                place = block * COLUMNS + column
                own = {
                    name: array[:, place]
                    for name, array in batch.items()
                    if not name.startswith("header_") and name != "final_observation"
                }
                own["final_observation"] = batch["final_observation"]
                own["length"] = batch["header_length"][block]
                columns.setdefault((*who, column), []).append((int(batch["header_sequence"][block]), own))
    assert len(columns) == 4 * COLUMNS
    for (_, _, column), blocks in columns.items():
        yield column, [block for _, block in sorted(blocks, key=lambda item: item[0])]


def timeline(column: int) -> Iterator[tuple[int, bool, bool]]:
    """What a column goes through, row by row: (count, valid, first of an episode)."""
    while True:
        for count in range(plugin.LENGTHS[column % len(plugin.LENGTHS)]):
            yield count, True, count == 0
        if column % 2:
            yield plugin.LENGTHS[column % len(plugin.LENGTHS)], False, False


def rows_of(blocks: list[Batch], column: int) -> Iterator[tuple[Batch, int, int, bool, bool]]:
    """Each row that counts: its block and number, and what the column goes through there."""
    times = timeline(column)
    for block in blocks:
        for row in range(int(block["length"])):
            yield (block, row, *next(times))


@pytest.mark.parametrize("place", PLACES)
def test_records_arrive_bit_for_bit_and_are_what_the_policy_saw(recorded: Any, place: str) -> None:
    for column, blocks in columns_of(recorded[place]):
        last = None
        for block, row, count, valid, starts in rows_of(blocks, column):
            assert (block["valid"][row], block["episode_start"][row]) == (valid, starts)
            expected = plugin.observation(column, count).tobytes()
            assert block["observation"][row].tobytes() == expected
            assert block["seen_observation"][row].tobytes() == expected
            if block["terminated"][row]:
                final = block["final_observation"][block["final_row"][row]]
                assert final.tobytes() == plugin.observation(column, count + 1).tobytes()
            last = block
        assert last is not None
        image = plugin.leaf(plugin.OBSERVATION, "image", last["observation"])
        assert (image.dtype, image.shape) == (np.uint8, (ROWS + 1, 3, 2))


@pytest.mark.parametrize("place", PLACES)
def test_case_30_the_trainer_has_the_mask_of_decision_time(recorded: Any, place: str) -> None:
    for column, blocks in columns_of(recorded[place]):
        for block, row, count, valid, _ in rows_of(blocks, column):
            expected = plugin.mask(column, count) & valid  # a reset query has no legal action, and nobody asks for one
            assert (block["action_mask"][row] == expected).all()
            assert (block["seen_mask"][row] == expected).all()
            choice = plugin.leaf(plugin.ACTION, "choice", block["action"])[row]
            switches = plugin.leaf(plugin.ACTION, "switches", block["action"])[row]
            assert not valid or expected[[choice, 3 + switches[0], 5 + switches[1]]].all()
            push = plugin.leaf(plugin.ACTION, "push", block["action"])[row]
            np.testing.assert_array_equal(push, block["seen_noise"][row, :2] - np.float32(0.5))
        for before, after in itertools.pairwise(blocks):
            end = int(before["length"])
            assert (before["action_mask"][end:] == after["action_mask"][0]).all()
            assert before["observation"][ROWS].tobytes() == after["observation"][0].tobytes()


def expected_outputs(blocks: list[Batch], column: int) -> Iterator[tuple[Batch, int, float, float, bool]]:
    """Block, row, and by the cell's definition: output, sum of counts seen before the row, valid."""
    state, seen = 0.5, 0
    for block, row, count, valid, starts in rows_of(blocks, column):
        state, seen = (0.5, 0) if starts else (state, seen)
        yield block, row, state + 1, seen, valid
        if valid:
            state, seen = state + 1, seen + count


@pytest.mark.parametrize("place", PLACES)
def test_case_13_the_state_begins_with_every_episode_and_goes_on_over_fragments(recorded: Any, place: str) -> None:
    for column, blocks in columns_of(recorded[place]):
        for block, row, output, seen, _ in expected_outputs(blocks, column):
            assert block["output"][row] == output
            assert block["used"][row].tolist() == [output - 1, seen]
            if row % STATE_ROWS == 0:
                assert block["state"][row // STATE_ROWS].tolist() == [output - 1, seen]
        if column == 0:
            assert [block["output"].tolist() for block in blocks[:2]] == [[1.5, 2.5, 3.5, 1.5], [2.5, 3.5, 1.5, 2.5]]
            assert blocks[1]["state"][0, 0] == 1.5
        if column == 1:
            assert not all(block["valid"].all() for block in blocks)  # reset queries, which advance no state


@pytest.mark.parametrize("place", PLACES)
def test_case_13_the_trainer_recomputes_the_same_from_stored_states(recorded: Any, place: str) -> None:
    """From any stored state on, by episode starts and validity alone: what a trainer that replays rows has."""
    for _, blocks in columns_of(recorded[place]):
        for block in blocks:
            for stored in range(ROWS // STATE_ROWS):
                state = block["state"][stored]
                for row in range(stored * STATE_ROWS, min((stored + 1) * STATE_ROWS, int(block["length"]))):
                    state = np.float32([0.5, 0]) if block["episode_start"][row] else state
                    assert block["output"][row] == state[0] + 1
                    count = np.floor(plugin.leaf(plugin.OBSERVATION, "count", block["observation"])[row, 0])
                    state = state + np.float32([1, count]) if block["valid"][row] else state


def test_every_place_has_several_whole_blocks_of_every_column(recorded: Any) -> None:
    for batches in recorded.values():
        assert len(batches) == 6
        for _, blocks in columns_of(batches):
            assert len(blocks) >= 2
            assert {int(block["length"]) for block in blocks} == {ROWS}


def test_case_30_nothing_legal_is_named(trial_run: Any, tmp_path: Path) -> None:
    ended = trial_run(
        EXPERIMENT,
        f"policies.main.algorithm.directory={tmp_path}",
        "environment.illegal=[1, 6]",
        "workers.actors.count=1",
        *PLACES["shared memory"],
        *("--screen", "plain"),
    ).check(1)
    (failure,) = ended.summary["failures"]
    assert failure["worker"] == "actors/0"
    assert "no action is legal in environment 1, action 'switches', element 1" in failure["text"]
    assert "of actor 0, step 6" in failure["text"]
    assert "no action is legal" in ended.stderr


def test_a_value_in_a_leaf_that_is_not_finite_is_named_by_its_path(trial_run: Any, tmp_path: Path) -> None:
    ended = trial_run(
        EXPERIMENT,
        f"policies.main.algorithm.directory={tmp_path}",
        "environment.nan=[2, 5]",
        *("--screen", "plain", "--placement", "fused"),
    ).check(1)
    (failure,) = ended.summary["failures"]
    assert "the observation 'inner.1' of environment 2 is not finite" in failure["text"]
    assert "step 4" in failure["text"]
