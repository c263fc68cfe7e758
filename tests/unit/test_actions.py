import dataclasses

import numpy as np
import pytest

from srl.api.errors import UsageError
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec, SpaceSpec
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
        action_array=ArraySpec(action.shape, action.dtype),
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


@pytest.mark.parametrize("transform", ["clip", "affine", "tanh_affine"])
@pytest.mark.parametrize("bounds", [{"low": None}, {"high": None}, {"high": float("inf")}])
def test_missing_bounds_are_refused(transform, bounds):
    with pytest.raises(UsageError) as caught:
        ActionTransformer(spec(transform, dataclasses.replace(BOX, **bounds)))
    assert caught.value.where == "policies.learner"
    assert transform in str(caught.value)
