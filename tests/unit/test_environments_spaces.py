"""Spaces of every kind: specs, observations into records by path, records into actions (field cases 18, 32, 42)."""

import json
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from srl.api.errors import EnvironmentFault
from srl.api.spaces import SpaceSpec
from srl.environments.spaces import space_spec, unbounded
from srl.environments.values import ActionReader, ObservationWriter

NESTED = Dict(
    b=Tuple([Discrete(3, start=5), Box(0, 255, (2, 2), np.uint8)]),
    a=Dict(flags=MultiBinary([2, 2]), speed=Box(-1.0, 1.0, (), np.float64)),
    digits=MultiDiscrete([2, 4], start=[1, -1]),
)
VALUE = {
    "digits": np.array([2, -1]),
    "b": (6, np.array([[1, 2], [3, 255]], np.uint8)),
    "a": {"speed": np.float64(0.25), "flags": np.array([[1, 0], [0, 1]], np.int8)},
}


def spec(space):
    return space_spec(space, "observation", "test")


def zeros(space: SpaceSpec, count: int) -> np.ndarray:
    return np.zeros((count, *space.shape), space.dtype)


def by_path(space: SpaceSpec, array: np.ndarray) -> dict:
    return {leaf.path: leaf.of(array).tolist() for leaf in space.leaves()}


def place() -> str:
    return "test, environment 1, step 7"


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Box(-2.0, 2.0, (3,), np.float32), SpaceSpec("box", (3,), "float32", low=-2.0, high=2.0)),
        (Box(-2.0, 2.0, (3,), np.float64), SpaceSpec("box", (3,), "float32", low=-2.0, high=2.0)),
        (Box(0, 255, (4, 84, 84), np.uint8), SpaceSpec("box", (4, 84, 84), "uint8", low=0.0, high=255.0)),
        (Box(-5, 5, (2,), np.int16), SpaceSpec("box", (2,), "int16", low=-5.0, high=5.0)),
        (Box(0, 1, (2,), np.bool_), SpaceSpec("box", (2,), "bool", low=0.0, high=1.0)),
        (
            Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
            SpaceSpec("box", (2,), "float32", low=(-1.0, 0.0), high=(1.0, np.inf)),
        ),
        (
            Box(np.array([-np.inf, -3], np.float32), np.array([np.inf, np.inf], np.float32)),
            SpaceSpec("box", (2,), "float32", low=(-np.inf, -3.0), high=None),
        ),
        (
            Box(0.0, np.finfo(np.float32).max, (1,), np.float32),
            SpaceSpec("box", (1,), "float32", low=0.0, high=None),
        ),
        (Discrete(3, start=5), SpaceSpec("discrete", (), "int64", n=3, start=5)),
        (MultiDiscrete([2, 4]), SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 4))),
        (
            MultiDiscrete([[2, 4]], start=[[0, 7]]),
            SpaceSpec("multi_discrete", (1, 2), "int64", nvec=(2, 4), starts=(0, 7)),
        ),
        (MultiBinary(3), SpaceSpec("multi_binary", (3,), "int8")),
        (MultiBinary([2, 3]), SpaceSpec("multi_binary", (2, 3), "int8")),
    ],
    ids=str,
)
def test_plain_spaces(space, expected):
    assert spec(space) == expected
    assert SpaceSpec.from_dict(json.loads(json.dumps(spec(space).to_dict()))) == expected


def test_nested_spaces_are_records_of_their_leaves():
    found = spec(NESTED)
    assert found.shape == ()
    assert [leaf.path for leaf in found.leaves()] == ["a.flags", "a.speed", "b.0", "b.1", "digits"]
    assert np.dtype(found.dtype).isalignedstruct or np.dtype(found.dtype).itemsize % 8 == 0
    assert SpaceSpec.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_order_in_which_a_space_is_written_does_not_matter():
    """Field case 32, the space."""
    one = Dict({"b": Box(0, 1, (1,)), "a": Box(0, 1, (1,))})
    other = Dict(OrderedDict([("b", Box(0, 1, (1,))), ("a", Box(0, 1, (1,)))]), sort_keys=False)
    assert list(other.spaces) == ["b", "a"]
    assert spec(one) == spec(other)
    action = np.zeros(1, spec(other).dtype)
    spec(other).leaves()[0].of(action)[...] = 1.0
    assert ActionReader(spec(other), other).each(action)[0] == {"a": [1.0], "b": [0.0]}


def test_the_order_in_which_an_observation_is_written_does_not_matter():
    """Field case 32: {"a": 1, "b": 2} and {"b": 2, "a": 1} are the same record, bit for bit."""
    space = spec(Dict(b=Box(0, 9, (1,)), a=Box(0, 9, (1,))))
    one, two = np.array([1], np.float32), np.array([2], np.float32)
    rows = zeros(space, 2)
    writer = ObservationWriter(space)
    writer.write({"a": one, "b": two}, rows, 0, place)
    writer.write({"b": two, "a": one}, rows, 1, place)
    assert rows[0].tobytes() == rows[1].tobytes()
    assert by_path(space, rows) == {"a": [[1.0], [1.0]], "b": [[2.0], [2.0]]}


def test_a_nested_observation_goes_into_its_row_and_no_other():
    space = spec(NESTED)
    rows = zeros(space, 3)
    ObservationWriter(space).write(VALUE, rows, 1, place)
    found = by_path(space, rows)
    assert found["b.0"] == [0, 1, 0]  # counted from 0 inside
    assert found["digits"][1] == [1, 0]
    assert found["a.flags"] == [[[0, 0], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [0, 0]]]
    assert found["a.speed"] == [0.0, 0.25, 0.0]
    assert found["b.1"][1] == [[1, 2], [3, 255]]


def batched(values: list) -> dict:
    return {
        "a": {key: np.stack([value["a"][key] for value in values]) for key in ("flags", "speed")},
        "b": tuple(np.stack([value["b"][index] for value in values]) for index in (0, 1)),
        "digits": np.stack([value["digits"] for value in values]),
    }


def test_a_batch_is_the_rows_of_its_single_observations():
    space = spec(NESTED)
    other = {**VALUE, "digits": np.array([1, 2])}
    one_by_one, at_once = zeros(space, 2), zeros(space, 2)
    writer = ObservationWriter(space)
    writer.write(VALUE, one_by_one, 0, place)
    writer.write(other, one_by_one, 1, place)
    writer.write_batch(batched([VALUE, other]), at_once, place)
    assert one_by_one.tobytes() == at_once.tobytes()


def changed(path: str, value) -> dict:
    copy = {**VALUE, "a": dict(VALUE["a"])}
    target = copy
    *keys, last = path.split(".")
    for key in keys:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return copy


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (changed("a.speed", None), "observation at 'a' does not have the entries"),
        (changed("a.more", 1.0), "observation at 'a' does not have the entries"),
        (changed("c", 1.0), "observation does not have the entries"),
        (changed("a.flags", np.zeros(4, np.int8)), "observation at 'a.flags' does not have the shape"),
        (changed("a.speed", "fast"), "observation at 'a.speed' does not have the shape"),
        (changed("b", (6,)), "observation at 'b' does not have the entries"),
        (changed("b", (6, np.zeros((2, 2), np.float32))), "observation at 'b.1' does not have the shape"),
        (changed("b", (8, VALUE["b"][1])), "observation at 'b.0' is outside the space"),
        (changed("digits", np.array([0, 0])), "observation at 'digits' is outside the space"),
        (changed("digits", np.array([1.0, 0.0])), "observation at 'digits' does not have the shape"),
        (changed("a.flags", np.array([[2, 0], [0, 0]])), "observation at 'a.flags' is outside the space"),
        (np.zeros(3), "observation does not have the entries"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_does_not_belong_to_the_space_is_named_by_its_path(value, name):
    space = spec(NESTED)
    with pytest.raises(EnvironmentFault, match=name) as caught:
        ObservationWriter(space).write(value, zeros(space, 2), 1, place)
    assert caught.value.where == "test, environment 1, step 7"


@given(st.lists(st.sampled_from(["a", "b", "c", "zz", "A", "0"]), min_size=1, max_size=6, unique=True), st.randoms())
def test_any_order_of_keys_gives_the_same_bits(keys, random):
    shuffled = random.sample(keys, len(keys))
    space = spec(Dict({key: Box(-9, 9, (index + 1,)) for index, key in enumerate(keys)}))
    values = {key: np.full(index + 1, index, np.float32) for index, key in enumerate(keys)}
    rows = zeros(space, 2)
    writer = ObservationWriter(space)
    writer.write(values, rows, 0, place)
    writer.write({key: values[key] for key in shuffled}, rows, 1, place)
    assert rows[0].tobytes() == rows[1].tobytes()


@pytest.mark.parametrize("space", [Dict(), Tuple([]), Box(0, 1, (0,)), Dict(a=Box(0, 1, (2, 0)))], ids=str)
def test_spaces_without_content_are_refused(space):
    with pytest.raises(EnvironmentFault, match="the observation space holds nothing"):
        spec(space)


def test_two_entries_with_one_path_are_refused():
    with pytest.raises(EnvironmentFault, match="have the same path") as caught:
        spec(Dict({"a.b": Discrete(2), "a": Dict(b=Discrete(2))}))
    assert caught.value.value == "a.b"


def test_uint8_stays_uint8_and_float64_becomes_float32():
    """Field case 42: 28,224 bytes of four frames, not four or eight times as many."""
    space = spec(Dict(image=Box(0, 255, (4, 84, 84), np.uint8), speed=Box(-1, 1, (2,), np.float64)))
    assert space.array.size_bytes() == 4 * 84 * 84 + 2 * 4
    assert np.dtype(space.dtype)["f1"].base == np.uint8


ACTIONS = Dict(
    turn=Discrete(3, start=-1),
    push=Box(np.array([-0.4, 0.0]), np.array([0.4, 0.1]), dtype=np.float64),
    rest=Tuple([MultiDiscrete([2, 3], start=[1, 0]), MultiBinary(2)]),
)


def some_actions() -> tuple[SpaceSpec, np.ndarray]:
    space = space_spec(ACTIONS, "action", "test")
    action = zeros(space, 2)
    values = {
        "turn": [0, 2],
        "push": np.array([[-0.4, 0.05], [0.4, 0.1]], np.float32),
        "rest.0": [[0, 2], [1, 0]],
        "rest.1": [[1, 0], [0, 1]],
    }
    for leaf in space.leaves():
        leaf.of(action)[...] = values[leaf.path]
    return space, action


def test_actions_get_their_starts_dtypes_and_nesting_back():
    space, action = some_actions()
    first, second = ActionReader(space, ACTIONS).each(action)
    for one in (first, second):
        assert ACTIONS.contains(one)  # 0.4 in float32 is more than 0.4: the bound itself comes out
    assert (first["turn"], second["turn"]) == (-1, 1)
    assert first["push"].dtype == np.float64
    assert second["push"].tolist() == [0.4, 0.1]
    assert [entry.tolist() for entry in first["rest"]] == [[1, 2], [1, 0]]
    batch = ActionReader(space, ACTIONS).batch(action)
    assert batch["turn"].tolist() == [-1, 1]
    assert batch["rest"][0].tolist() == [[1, 2], [2, 0]]


@pytest.mark.parametrize("how", ["each", "batch"])
def test_an_environment_that_writes_into_its_action_changes_no_array_of_the_caller(how):
    """Field case 18, every leaf."""
    space, action = some_actions()
    before = action.tobytes()
    given = getattr(ActionReader(space, ACTIONS), how)(action)
    for one in given if how == "each" else [given]:
        one["push"][...] = 99
        for entry in one["rest"]:
            entry[...] = 9
    assert action.tobytes() == before
    if how == "each":
        assert given[0]["push"] is not given[1]["push"]
        assert not np.shares_memory(given[0]["push"], action)


def test_wrong_bounds_of_a_source_can_be_left_out():
    space = unbounded(spec(Dict(a=Box(1e-38, 1.0, (2,), np.float32), b=Box(0, 255, (2,), np.uint8))))
    a, b = (leaf.space for leaf in space.leaves())
    assert (a.low, a.high) == (None, None)
    assert (b.low, b.high) == (0.0, 255.0)
