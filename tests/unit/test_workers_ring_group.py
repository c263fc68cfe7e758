"""Ring groups fill blocks: validity, final observations, carries, short blocks, non-finite values."""

import math
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest

from srl.api.block import trajectory_schema
from srl.api.errors import NonFiniteError
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.system.streams.interface import Credit, Producer
from srl.system.workers.finite import FiniteGuard
from srl.system.workers.ring_group import RingGroup, RingGroupIdentity


class FaultyPair(gymnasium.Env):
    """The environment with seed 1 has half an observation in its first step."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._bad = seed == 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        bad, self._bad = self._bad, False
        return np.array([5.0, np.nan] if bad else [1.0, 1.0], np.float32), 0.0, False, False, {}


@pytest.fixture
def make_ring_group(policy_spec_for):
    def make(options: dict, columns: int, rows: int, mode: str = "stop", final_rows: int | None = None):
        factory = GymnasiumFactory(options)
        environment_spec = factory.probe()
        policy = policy_spec_for(environment_spec)
        schema = trajectory_schema(
            rows=rows,
            columns=columns,
            observation=policy.observation.array,
            action=policy.action_array,
            extras=policy.extras,
            final_rows=final_rows,
            marks_replaced=mode != "stop",
        )
        guard = FiniteGuard(mode)
        environment = factory.make(columns, list(range(columns)))
        group = RingGroup(RingGroupIdentity(Producer(0, 0, 1), 0, 7), environment, schema, policy, guard)
        group.reset()
        return group, schema, guard

    return make


def fill(group: RingGroup, schema, grant: int, version: int | Callable[[int], int] = 0, rows: int | None = None):
    block = schema.allocate()
    group.begin(Credit(grant, 0, grant, 0, 0), block)
    episodes = []
    while not group.full() and (rows is None or group.row < rows):
        group.views().act_output.action[:] = 0
        episodes += group.step(version(group.row) if callable(version) else version)
    return group.finish(), block, episodes


def transitions(blocks) -> list[list[tuple[float, float]]]:
    """Per column the (observation, successor) pairs of valid rows, by DESIGN's rule for the successor."""
    columns = blocks[0]["valid"].shape[1]
    result: list[list[tuple[float, float]]] = [[] for _ in range(columns)]
    for column in range(columns):
        for block in blocks:
            valid = np.flatnonzero(block["valid"][:, column])
            for position, row in enumerate(valid):
                final = block["final_row"][row, column]
                following = valid[position + 1] if position + 1 < len(valid) else len(block["valid"])
                successor = block["final_observation"][final] if final >= 0 else block["observation"][following, column]
                result[column].append((float(block["observation"][row, column, 0]), float(successor[0])))
    return result


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_per_episode_data_are_the_same_in_every_autoreset_mode(make_ring_group, mode):
    """Field case 1: COUNT(3), whatever the mode: 0>1, 1>2, 2>3, and no transition starts at observation 3."""
    options = {"entry": "srl.environments.toy:CountVector", "kwargs": {"lengths": [3, 5], "autoreset_mode": mode}}
    group, schema, _ = make_ring_group(options, columns=2, rows=6)
    blocks, rewards = [], 0.0
    for grant in range(2):
        header, block, _ = fill(group, schema, grant)
        blocks.append(block)
        rewards += float(block["reward"].sum())
        assert header.valid_rows == np.count_nonzero(block["valid"])
    short, long = transitions(blocks)
    episodes = (3, 2) if mode == "next_step" else (4, 2)  # 12 vector steps, of which a reset query takes one each
    assert short == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)] * episodes[0]
    whole = [(float(step), float(step + 1)) for step in range(5)]
    assert long[:10] == whole * episodes[1]
    assert long[10:] == ([] if mode == "next_step" else [(0.0, 1.0), (1.0, 2.0)])
    assert rewards == len(short) + len(long)
    assert sum(int(block["terminated"].sum()) for block in blocks) == sum(episodes)
    group.close()


def test_row_t_is_row_zero_of_the_next_block(make_ring_group):
    options = {"entry": "srl.environments.toy:Count", "kwargs": {"length": 5}}
    group, schema, _ = make_ring_group(options, columns=2, rows=4)
    _, first, _ = fill(group, schema, 0)
    header, second, _ = fill(group, schema, 1)
    assert header.sequence == 1
    np.testing.assert_array_equal(first["observation"][4], second["observation"][0])
    assert first["observation"][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    group.close()


def test_a_cut_block_is_padded_and_the_next_goes_on(make_ring_group):
    options = {"entry": "srl.environments.toy:Count", "kwargs": {"length": 100}}
    group, schema, _ = make_ring_group(options, columns=1, rows=8)
    header, block, _ = fill(group, schema, 0, rows=3)
    assert (header.length, header.valid_rows) == (3, 3)
    assert block["valid"][:, 0].tolist() == [True] * 3 + [False] * 5
    assert block["observation"][8, 0, 0] == 3
    assert not block["terminated"][3:].any()
    _, following, _ = fill(group, schema, 1)
    assert following["observation"][:, 0, 0].tolist() == list(range(3, 12))
    assert following["valid"].all()
    group.close()


def test_a_full_side_table_ends_the_block_early(make_ring_group):
    options = {"entry": "srl.environments.toy:Count", "kwargs": {"length": 1}}
    group, schema, _ = make_ring_group(options, columns=2, rows=8, final_rows=4)
    header, block, episodes = fill(group, schema, 0)
    assert (header.length, header.finals) == (2, 4)
    assert len(episodes) == 4
    assert np.sort(block["final_row"][:2].reshape(-1)).tolist() == [0, 1, 2, 3]
    group.close()


def test_each_row_carries_the_version_that_chose_its_action(make_ring_group):
    options = {"entry": "srl.environments.toy:Count", "kwargs": {"length": 100}}
    group, schema, _ = make_ring_group(options, columns=2, rows=4)
    header, block, _ = fill(group, schema, 0, version=lambda row: 10 + row // 2)
    assert header.versions == 2
    versions = block["policy_version"][block["policy_index"]]
    assert versions[:, 0].tolist() == [10, 10, 11, 11]
    group.close()


def test_episodes_are_counted_over_blocks(make_ring_group):
    options = {"entry": "srl.environments.toy:Count", "kwargs": {"length": 6}}
    group, schema, _ = make_ring_group(options, columns=1, rows=4)
    episodes = [episode for grant in range(3) for episode in fill(group, schema, grant)[2]]
    assert [(episode.episode_return, episode.length) for episode in episodes] == [(6.0, 6), (6.0, 6)]
    group.close()


@pytest.mark.parametrize("kind", ["nan_reward", "nan_observation", "inf_observation"])
def test_a_value_that_is_not_finite_is_named(make_ring_group, kind):
    """Field case 63: environment, step and field are in the message."""
    options = {"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": kind, "step": 3}}
    group, schema, _ = make_ring_group(options, columns=2, rows=8)
    with pytest.raises(NonFiniteError) as caught:
        fill(group, schema, 0)
    message = str(caught.value)
    assert "environment 0" in message
    assert f"step {group.steps}" in message
    assert kind.split("_")[1] in message
    assert not math.isfinite(caught.value.value)
    group.close()


def test_replace_puts_zero_and_goes_on(make_ring_group):
    options = {"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": "nan_reward", "step": 3}}
    group, schema, guard = make_ring_group(options, columns=1, rows=8, mode="replace")
    _, block, _ = fill(group, schema, 0)
    assert np.isfinite(block["reward"]).all()
    assert guard.replaced >= 1
    assert guard.take_fault() is None
    group.close()


@pytest.mark.parametrize(
    ("kind", "field", "rows"),
    [("nan_observation", "observation_replaced", [4]), ("nan_reward", "reward_replaced", [3])],
)
@pytest.mark.parametrize("cut", [None, 4, 2])
def test_rows_with_a_zero_for_a_value_are_marked(make_ring_group, kind, field, rows, cut):
    """Step 4 ends row 3 and brings row 4: the last and the first of a block, or rows within one."""
    options = {"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": kind, "step": 4}}
    group, schema, _ = make_ring_group(options, columns=2, rows=8 if cut != 4 else 4, mode="replace")
    found = []
    for grant in range(3):
        header, block, _ = fill(group, schema, grant, rows=cut)
        assert not block["observation_replaced" if field == "reward_replaced" else "reward_replaced"].any()
        assert (block[field][:, 0] == block[field][:, 1]).all()
        found += block[field][: header.length, 0].tolist()
    assert np.flatnonzero(found).tolist() == rows
    group.close()


def test_only_the_environment_with_the_bad_value_is_marked(make_ring_group):
    """One of two: the mark is a column's."""
    options = {"entry": f"{__file__}:FaultyPair"}
    group, schema, _ = make_ring_group(options, columns=2, rows=4, mode="replace")
    _, block, _ = fill(group, schema, 0)
    assert block["observation_replaced"].tolist() == [[False, False], [False, True], *[[False, False]] * 3]
    assert block["observation"][1].tolist() == [[1.0, 1.0], [5.0, 0.0]]
    group.close()


def test_a_bad_value_of_a_skipped_block_is_marked_in_the_next(make_ring_group):
    options = {"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": "nan_observation", "step": 4}}
    group, schema, guard = make_ring_group(options, columns=1, rows=8, mode="skip")
    group.begin(Credit(0, 0, 0, 0, 0), schema.allocate())
    for _ in range(4):
        group.views().act_output.action[:] = 0
        group.step(0)
    assert guard.take_fault() is not None
    group.abandon()
    _, block, _ = fill(group, schema, 1)
    assert np.flatnonzero(block["observation_replaced"]).tolist() == [0]
    group.close()


def test_skip_marks_the_block(make_ring_group):
    options = {"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": "nan_observation", "step": 3}}
    group, schema, guard = make_ring_group(options, columns=1, rows=8, mode="skip")
    fill(group, schema, 0)
    fault = guard.take_fault()
    assert fault is not None
    assert "observation" in str(fault)
    group.close()
