"""What environments return that is not what Gymnasium's do: one error that names the part, never our own line."""

import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from srl.api.environment import StepOutput
from srl.api.errors import EnvironmentFault
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.vector_adapter import VectorAdapter

OBSERVATION = np.zeros(2, np.float32)


class Told(gymnasium.Env):
    """Returns what it is told to.

    Args:
        reset: In place of Gymnasium's (observation, info).
        step: In place of the five values.
    """

    answers: ClassVar[dict] = {}

    def __init__(self):
        self.observation_space = Box(0, 1, (2,), self.answers.get("dtype", np.float32))
        self.action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.answers.get("reset", (OBSERVATION, {}))

    def step(self, action):
        return self.answers.get("step", (OBSERVATION, 1.0, False, False, {}))


class TakesNoSeed(Told):
    def reset(self):
        return OBSERVATION, {}


class Undeclared(gymnasium.Env):
    def __init__(self):
        self.action_space = Discrete(2)


def told_options(monkeypatch, wrappers, **answers):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Told.__module__])
    monkeypatch.setattr(Told, "answers", answers)
    return {"entry": f"{__name__}:Told", "wrappers": wrappers}


def one_step(options):
    environment = GymnasiumFactory(options).make(1, [0])
    out = StepOutput(np.zeros((1, 2), environment.spec.observation.dtype), *(np.zeros(1, np.float32) for _ in range(5)))
    try:
        environment.reset(out)
        environment.step(np.zeros(1, np.int64), out)
    finally:
        environment.close()
    return out


WRAPPERS = ([], [{"type": "reward_scale", "scale": 2}])


@pytest.mark.parametrize("wrappers", WRAPPERS, ids=["bare", "wrapped"])
@pytest.mark.parametrize(
    ("answers", "what", "value"),
    [
        ({"step": (OBSERVATION, 1.0, False, {})}, "step() of the environment does not return", "a tuple of 4"),
        ({"step": None}, "step() of the environment does not return", "NoneType"),
        ({"step": (OBSERVATION, np.ones(1), False, False, {})}, "the reward of a step", "shape (1,), dtype float64"),
        ({"step": (OBSERVATION, None, False, False, {})}, "the reward of a step", "None"),
    ],
)
def test_what_a_step_returned_is_named(monkeypatch, wrappers, answers, what, value):
    options = told_options(monkeypatch, wrappers, **answers)
    with pytest.raises(EnvironmentFault) as caught:
        one_step(options)
    assert what in caught.value.what
    assert caught.value.value == value
    assert "raised" not in str(caught.value)


@pytest.mark.parametrize(("flag", "position"), [("terminated", 2), ("truncated", 3)])
def test_a_flag_that_is_several_is_named(monkeypatch, flag, position):
    step = [OBSERVATION, 1.0, False, False, {}]
    step[position] = np.array([True, False])
    with pytest.raises(EnvironmentFault, match=f"the {flag} of a step"):
        one_step(told_options(monkeypatch, [], step=tuple(step)))


def test_an_observation_alone_is_no_result_of_a_reset(monkeypatch):
    # Two numbers would unpack into observation and info.
    with pytest.raises(EnvironmentFault, match=r"reset\(\).*a tuple of 2: observation, info.*old Gym"):
        one_step(told_options(monkeypatch, [], reset=OBSERVATION))


def test_a_reset_without_a_seed_gets_gymnasiums_signature(monkeypatch):
    options = told_options(monkeypatch, [])
    with pytest.raises(EnvironmentFault, match=r"reset\(self, \*, seed=None, options=None\)"):
        one_step({**options, "entry": f"{__name__}:TakesNoSeed"})


def test_a_space_that_is_not_declared_is_named(monkeypatch):
    options = told_options(monkeypatch, [])
    with pytest.raises(EnvironmentFault, match="declares no observation_space"):
        GymnasiumFactory({**options, "entry": f"{__name__}:Undeclared"}).probe()


def test_masks_by_a_method_need_the_method(monkeypatch):
    with pytest.raises(EnvironmentFault, match=r"no method action_masks\(\)"):
        GymnasiumFactory({**told_options(monkeypatch, []), "action_mask": "method"}).probe()
    with pytest.raises(EnvironmentFault, match=r"no method action_masks\(\)"):
        GymnasiumFactory({"id": "CartPole-v1", "action_mask": "method"}).probe()


def test_masks_by_info_need_an_info(monkeypatch):
    options = told_options(monkeypatch, [], reset=(OBSERVATION, None))
    with pytest.raises(EnvironmentFault, match="the info is no dict"):
        one_step({**options, "action_mask": "info"})


@pytest.mark.parametrize(
    ("dtype", "numbers"), [(np.uint8, [3, 255]), (np.float32, [0, 1]), (np.int32, [True, 7]), (np.float32, [0, 0.5])]
)
def test_pythons_numbers_have_the_dtype_of_the_space_where_it_holds_them(monkeypatch, dtype, numbers):
    step = (numbers, 1, 0, 0, {})
    out = one_step(told_options(monkeypatch, [], reset=(numbers, {}), step=step, dtype=dtype))
    np.testing.assert_array_equal(out.observation[0], numbers)
    assert out.observation.dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (np.uint8, [3, 256]),
        (np.uint8, [-1, 0]),
        (np.float32, [2**24 + 1, 0]),
        (np.uint8, [0.5, 1]),
        (np.float32, [1, [2]]),
    ],
)
def test_pythons_numbers_that_the_dtype_does_not_hold_are_refused(monkeypatch, dtype, numbers):
    with pytest.raises(EnvironmentFault, match="shape and dtype"):
        one_step(told_options(monkeypatch, [], reset=(numbers, {}), dtype=dtype))


class OldVector(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 1
    single_observation_space = observation_space = Box(-1, 1, (2,))
    single_action_space = action_space = Discrete(2)

    def __init__(self, reset):
        self._result = reset

    def reset(self, *, seed=None, options=None):
        return self._result

    def step(self, actions):
        return OBSERVATION[None], np.ones(1), np.zeros(1, np.bool_), {}


def test_vector_environments_likewise():
    out = StepOutput(np.zeros((1, 2), np.float32), *(np.zeros(1, np.float32) for _ in range(5)))
    with pytest.raises(EnvironmentFault, match=r"reset\(\) of the environment"):
        VectorAdapter(OldVector(OBSERVATION[None]), [0], name="old").reset(out)
    adapter = VectorAdapter(OldVector((OBSERVATION[None], {})), [0], name="old")
    adapter.reset(out)
    with pytest.raises(EnvironmentFault, match=r"step\(\) of the environment.*a tuple of 4"):
        adapter.step(np.zeros(1, np.int64), out)
