"""Observations of every kind of space as flat vectors: numbers worked out by hand."""

import numpy as np
import pytest

from srl.algorithms.networks.features import FlatFeatures
from srl.api.spaces import SpaceSpec

BOX = SpaceSpec("box", (2,), "float32")
PIXELS = SpaceSpec("box", (1, 2), "uint8", low=0, high=255)
DISCRETE = SpaceSpec("discrete", (), "int64", n=3, start=5)
CHOICES = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))
GRID = SpaceSpec("multi_discrete", (2, 2), "int64", nvec=(2, 1, 1, 3))
BINARY = SpaceSpec("multi_binary", (3,), "int8")
FLAGS = SpaceSpec("box", (2,), "bool")
SCALAR = SpaceSpec("box", (), "float32")
NESTED = SpaceSpec.nested(
    "dict", {"z": BOX, "pair": SpaceSpec.nested("tuple", {"0": DISCRETE, "1": PIXELS}), "bits": BINARY}
)


@pytest.mark.parametrize(
    ("space", "observation", "expected"),
    [
        (BOX, [[1.5, -2.0]], [[1.5, -2.0]]),
        (SCALAR, [1.5, 2.5], [[1.5], [2.5]]),
        (PIXELS, [[[0, 255]], [[51, 102]]], [[0.0, 1.0], [0.2, 0.4]]),
        (DISCRETE, [0, 2], [[1, 0, 0], [0, 0, 1]]),
        (CHOICES, [[1, 0], [0, 2]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (GRID, [[[1, 0], [0, 2]]], [[0, 1, 1, 1, 0, 0, 1]]),
        (BINARY, [[0, 1, 1]], [[0, 1, 1]]),
        (FLAGS, [[True, False]], [[1, 0]]),
        (SpaceSpec("box", (2,), "int32"), [[-3, 7]], [[-3, 7]]),
        (SpaceSpec("box", (1, 2), "float64"), [[[0.5, 2.0]]], [[0.5, 2.0]]),
    ],
)
def test_each_kind(space, observation, expected):
    features = FlatFeatures(space)
    array = np.array(observation, space.dtype)
    result = features.of(array)
    assert result.dtype == np.float32
    assert result.shape == (len(array), features.size)
    np.testing.assert_allclose(result, expected, rtol=1e-7)
    out = np.full_like(result, np.nan)
    features.write(array, out)
    np.testing.assert_array_equal(out, result)


def test_leaves_of_nested_spaces_follow_each_other_in_order_of_path():
    array = np.zeros(2, NESTED.dtype)
    by_path = {leaf.path: leaf for leaf in NESTED.leaves()}
    by_path["bits"].of(array)[...] = [[1, 0, 0], [0, 1, 1]]
    by_path["pair.0"].of(array)[...] = [2, 1]
    by_path["pair.1"].of(array)[...] = [[[255, 0]], [[51, 255]]]
    by_path["z"].of(array)[...] = [[3, 4], [5, 6]]
    features = FlatFeatures(NESTED)
    assert features.size == 10
    np.testing.assert_allclose(
        features.of(array), [[1, 0, 0, 0, 0, 1, 1, 0, 3, 4], [0, 1, 1, 0, 1, 0, 0.2, 1, 5, 6]], rtol=1e-7
    )


def test_the_order_of_keys_does_not_matter():
    """Field case 32: bit-identical input whatever the order in which spaces and observations were written."""
    one, other = SpaceSpec("box", (1,), "float32"), SpaceSpec("box", (1,), "float32")
    results = []
    for names, values in ((("b", "a"), {"a": 1, "b": 2}), (("a", "b"), {"b": 2, "a": 1})):
        space = SpaceSpec.nested("dict", dict(zip(names, (one, other), strict=True)))
        array = np.zeros(1, space.dtype)
        fields = {leaf.path: leaf for leaf in space.leaves()}
        for name, value in values.items():
            fields[name].of(array)[...] = value
        results.append(FlatFeatures(space).of(array).tolist())
    assert results == [[[1.0, 2.0]], [[1.0, 2.0]]]


def test_bytes_are_numbers_before_anything_is_computed():
    """Field case 42: 10 - 20 is -10 / 255, not 246."""
    features = FlatFeatures(PIXELS).of(np.array([[[10, 20]]], np.uint8))
    assert features[0, 0] - features[0, 1] == pytest.approx(-10 / 255, abs=1e-7)


def test_plain_floats_are_not_copied():
    array = np.zeros((4, 2), np.float32)
    assert np.shares_memory(FlatFeatures(BOX).of(array), array)


def test_no_rows():
    for space in (BOX, DISCRETE, CHOICES, NESTED):
        features = FlatFeatures(space)
        assert features.of(np.zeros((0, *space.shape), space.dtype)).shape == (0, features.size)


def test_what_no_choice_has_is_no_choice():
    """Rows without a transition may hold anything."""
    np.testing.assert_array_equal(FlatFeatures(DISCRETE).of(np.array([-1, 3, 2**62])), np.zeros((3, 3)))
