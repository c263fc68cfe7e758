import dataclasses
import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from srl.api.errors import UsageError
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import SpaceSpec, stored_action, stored_space
from srl.environments.spaces import space_spec
from srl.system.actions import ActionTransformer

BOX = SpaceSpec("box", (2,), "float32", low=-1.0, high=3.0)


def spec(transform, action=BOX):
    return PolicySpec(
        name="learner",
        module="m:M",
        acting="m:A",
        backend="numpy",
        observation=SpaceSpec("box", (4,), "float32"),
        action=action,
        action_array=stored_action(action),
        extras=(),
        noise=NoiseSpec("normal", (2,)),
        action_transform=transform,
    )


STORED = np.array([[-5.0, 1.0], [0.0, 0.5], [7.0, -1.0]], np.float32)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ("none", STORED),
        ("clip", [[-1.0, 1.0], [0.0, 0.5], [3.0, -1.0]]),
        ("affine", [[-1.0, 3.0], [1.0, 2.0], [3.0, -1.0]]),
        ("tanh_affine", 1.0 + 2.0 * np.tanh(STORED)),
    ],
)
def test_transforms(transform, expected):
    result = ActionTransformer(spec(transform))(STORED)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert result.dtype == np.float32
    assert result.min() >= BOX.low or transform == "none"


@pytest.mark.parametrize("transform", ["none", "clip", "affine", "tanh_affine"])
def test_the_stored_action_is_never_the_environments(transform):
    """Field case 18: an environment that writes to its action changes nothing that was stored."""
    stored = STORED.copy()
    for_environment = ActionTransformer(spec(transform))(stored)
    for_environment[:] = 99.0
    np.testing.assert_array_equal(stored, STORED)


def test_discrete_actions_get_the_dtype_of_the_space():
    space = SpaceSpec("discrete", (), "int64", n=3)
    stored = np.array([0, 2, 1], np.int64)
    result = ActionTransformer(spec("none", space))(stored)
    assert result.dtype == np.int64
    assert not np.shares_memory(result, stored)


@pytest.mark.parametrize("transform", ["none", "clip", "affine", "tanh_affine"])
@pytest.mark.parametrize(
    "space",
    [
        SpaceSpec("discrete", (), "int64", n=3),
        SpaceSpec("multi_discrete", (2, 2), "int64", nvec=(3, 3, 3, 3)),
        SpaceSpec("multi_binary", (4,), "int8"),
    ],
)
def test_choices_are_copied_whatever_the_transform(space, transform):
    stored = np.random.default_rng(0).integers(0, 2, (5, *space.shape)).astype(space.dtype)
    result = ActionTransformer(spec(transform, space))(stored)
    np.testing.assert_array_equal(result, stored)
    assert result.dtype == np.dtype(space.dtype)
    assert not np.shares_memory(result, stored)


@pytest.mark.parametrize("transform", ["affine", "tanh_affine"])
@pytest.mark.parametrize("bounds", [{"low": None}, {"high": None}, {"high": float("inf")}, {"low": (0.0, -np.inf)}])
def test_missing_bounds_are_refused(transform, bounds):
    with pytest.raises(UsageError) as caught:
        ActionTransformer(spec(transform, dataclasses.replace(BOX, **bounds)))
    assert caught.value.where == "policies.learner"
    assert transform in str(caught.value)


def test_the_leaf_without_bounds_is_named():
    space = SpaceSpec.nested("dict", {"free": dataclasses.replace(BOX, low=None), "held": BOX})
    with pytest.raises(UsageError, match="free: Box"):
        ActionTransformer(spec("affine", space))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"low": None}, [[-5.0, 1.0], [0.0, 0.5], [3.0, -1.0]]),
        ({"high": None}, [[-1.0, 1.0], [0.0, 0.5], [7.0, -1.0]]),
        ({"low": None, "high": None}, STORED),
        ({"low": (-2.0, 0.0), "high": (0.0, 0.25)}, [[-2.0, 0.25], [0.0, 0.25], [0.0, 0.0]]),
        ({"low": (-np.inf, 0.75)}, [[-5.0, 1.0], [0.0, 0.75], [3.0, 0.75]]),
    ],
)
def test_clip_cuts_at_the_bounds_there_are(bounds, expected):
    result = ActionTransformer(spec("clip", dataclasses.replace(BOX, **bounds)))(STORED)
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


def test_bounds_of_some_elements_hold_after_the_way_over_json():
    source = spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32))
    text = json.dumps(space_spec(source, "action", "Toy-v0").to_dict(), allow_nan=False)
    transform = ActionTransformer(spec("clip", SpaceSpec.from_dict(json.loads(text))))
    assert transform(np.array([[-7.0, -7.0], [7.0, 7.0]], np.float32)).tolist() == [[-1.0, -7.0], [2.0, 7.0]]


def test_bounds_per_element_are_in_c_order():
    box = SpaceSpec("box", (2, 2), "float32", low=(0.0, 1.0, 2.0, 3.0), high=(10.0, 11.0, 12.0, 13.0))
    stored = np.array([[[-1.0, 0.0], [1.0, 9.0]], [[-9.0, 0.5], [np.inf, 0.0]]], np.float32)
    result = ActionTransformer(spec("affine", box))(stored)
    np.testing.assert_allclose(result, [[[0.0, 6.0], [12.0, 13.0]], [[0.0, 8.5], [12.0, 8.0]]])
    squashed = ActionTransformer(spec("tanh_affine", box))(stored)
    np.testing.assert_allclose(squashed[0, 0], [5 + 5 * np.tanh(-1.0), 6.0], rtol=1e-6)


@given(
    low=st.floats(-1e3, 1e3),
    width=st.floats(1e-3, 1e3),
    dtype=st.sampled_from(["float32", "float16", "float64"]),
    transform=st.sampled_from(["clip", "affine", "tanh_affine"]),
)
def test_no_rounding_leads_over_a_bound(low, width, dtype, transform):
    """Bounds of float64 that no float32 equals; what comes out must lie within them, and reach (nearly) to them."""
    high = low + width
    box = SpaceSpec("box", (1,), dtype, low=low, high=high)
    stored = np.array([[-2e3], [-1.0], [-0.3], [0.9999999], [1.0], [2e3]], np.float32)
    result = ActionTransformer(spec(transform, box))(stored)
    kind = np.dtype(dtype).type
    if np.nextafter(kind(low), kind(np.inf)) <= np.nextafter(kind(high), kind(-np.inf)):  # else there may be none
        assert low <= float(result.min())
        assert float(result.max()) <= high
    spacing = float(np.spacing(kind(max(abs(low), abs(high)))))
    assert float(result[0, 0]) == pytest.approx(low, abs=2 * spacing)
    assert float(result[-1, 0]) == pytest.approx(high, abs=2 * spacing)
    assert result.dtype == dtype


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
@pytest.mark.parametrize("transform", ["none", "clip", "affine", "tanh_affine"])
def test_boxes_of_integers_are_rounded_and_never_wrap(dtype, transform):
    limits = np.iinfo(dtype)
    box = SpaceSpec("box", (1,), dtype, low=float(limits.min), high=float(limits.max))
    result = ActionTransformer(spec(transform, box))(np.array([[-1e30], [2.7], [1e30]], np.float32))
    spread = 2**11 if dtype == "int64" else 0  # of float64 there
    assert int(limits.min) <= int(result[0, 0]) <= int(limits.min) + spread
    assert int(limits.max) - spread <= int(result[2, 0]) <= int(limits.max)
    if transform in ("none", "clip"):
        assert result[1, 0] == 3


@pytest.mark.parametrize("transform", ["none", "clip", "affine", "tanh_affine"])
def test_records_are_transformed_leaf_by_leaf(transform):
    """In the dtype of the space, whose fields may be packed in another order than those of the stored action."""
    grip = SpaceSpec("box", (3,), "uint8", low=0, high=255)
    inner = SpaceSpec.nested("tuple", {"0": BOX, "1": SpaceSpec("multi_binary", (2,), "int8")})
    space = SpaceSpec.nested("dict", {"arm": inner, "grip": grip, "tool": SpaceSpec("discrete", (), "int64", n=9)})
    stored = np.zeros(3, stored_action(space).dtype)
    assert stored.dtype != np.dtype(space.dtype)
    values = [STORED, [[0, 1], [1, 1], [0, 0]], [[-9, 300, 7.6]] * 3, [8, 0, 4]]
    for leaf, value in zip(stored_space(space).leaves(), values, strict=True):
        leaf.of(stored)[...] = value
    before = stored.copy()
    result = ActionTransformer(spec(transform, space))(stored)
    assert result.dtype == np.dtype(space.dtype)
    for leaf, field in zip(space.leaves(), stored_space(space).leaves(), strict=True):
        expected = ActionTransformer(spec(transform, leaf.space))(field.of(stored))
        np.testing.assert_array_equal(leaf.of(result), expected)
    assert space.leaves()[-1].of(result).tolist() == [8, 0, 4]
    result.view(np.uint8).fill(77)
    np.testing.assert_array_equal(stored, before)
