"""Environments that raise, or return what their spaces do not have, are named with the place and the step."""

import traceback

import numpy as np
import pytest
from environment_play import output, wrapped

from srl.api.errors import EnvironmentFault, SRLError
from srl.environments.environment_list import EnvironmentList
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.toy import Count, CountVector


class Wrong(Count):
    """Breaks its spaces at step 3."""

    def __init__(self, kind):
        super().__init__(10)
        self.kind = kind

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self._count == 3:
            observation = {
                "shape": np.zeros(2, np.float32),
                "dtype": np.zeros(1, "complex64"),
                "dict": {"a": 1},
                "none": None,
            }[self.kind]
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("kind", ["shape", "dtype", "dict", "none"])
def test_an_observation_outside_its_space_names_environment_step_and_field(kind):
    kinds = iter(["shape-free", kind])
    made = [Count(10), Wrong(kind)]
    environment = EnvironmentList(lambda: made[0 if next(kinds) == "shape-free" else 1], [1, 2], name="wrong")
    out = output(environment)
    environment.reset(out)
    for _ in range(2):
        environment.step(np.zeros(2, np.int64), out)
    with pytest.raises(EnvironmentFault, match="the observation does not have") as caught:
        environment.step(np.zeros(2, np.int64), out)
    assert caught.value.where == "wrong, environment 1, step 3"
    assert "shape (1,), dtype float32" in caught.value.expected


class WrongVector(CountVector):
    def __init__(self, field, value):
        super().__init__(2)
        self.wrong = {field: value}

    def step(self, actions):
        observation, reward, terminated, truncated, infos = super().step(actions)
        given = {"observation": observation, "reward": reward, "terminated": terminated} | self.wrong
        return given["observation"], given["reward"], given["terminated"], truncated, infos


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("observation", np.zeros((2, 2), np.float32)),
        ("observation", np.zeros((2, 1), np.complex64)),
        ("observation", [[0.0], [0.0]]),
        ("reward", np.zeros((2, 1))),
        ("reward", 1.0),
        ("terminated", np.zeros(3, np.bool_)),
    ],
)
def test_a_vector_environment_outside_its_spaces_is_named(field, value):
    environment = wrapped(WrongVector(field, value))
    out = output(environment)
    environment.reset(out)
    with pytest.raises(EnvironmentFault, match=f"the {field} does not have") as caught:
        environment.step(np.zeros(2, np.int64), out)
    assert caught.value.where == "test, step 1"


def test_an_exception_in_an_environment_keeps_its_traceback_and_names_the_place():
    """Field case 23."""
    factory = GymnasiumFactory({"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": "raise", "step": 4}})
    environment = factory.make(2, [1, 2])
    out = output(environment)
    environment.reset(out)
    for _ in range(3):
        environment.step(np.zeros(2, np.int64), out)
    with pytest.raises(EnvironmentFault, match="ValueError in step: boom-42") as caught:
        environment.step(np.zeros(2, np.int64), out)
    assert caught.value.where == "srl.environments.toy:Faulty, environment 0, step 4"
    text = "".join(traceback.format_exception(caught.value))
    assert 'raise ValueError("boom-42")' in text


def test_an_exception_in_a_vector_environment_names_the_step():
    class Raises(CountVector):
        def step(self, actions):
            raise ValueError("boom-42")

    environment = wrapped(Raises(3))
    out = output(environment)
    environment.reset(out)
    with pytest.raises(EnvironmentFault, match="ValueError in step: boom-42") as caught:
        environment.step(np.zeros(3, np.int64), out)
    assert caught.value.where == "test, 3 environments, step 1"


@pytest.mark.parametrize(
    ("kind", "field"),
    [("nan_reward", "reward"), ("nan_observation", "observation"), ("inf_observation", "observation")],
)
def test_non_finite_values_pass_the_adapter_at_exactly_their_step(kind, field):
    """The actor names and handles them; the adapter must not hide them (field case 63)."""
    environment = GymnasiumFactory({"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": kind}}).make(1, [1])
    out = output(environment)
    environment.reset(out)
    bad = []
    for step in range(1, 50):
        environment.step(np.zeros(1, np.int64), out)
        if not np.isfinite(getattr(out, field)).all():
            bad.append(step)
    assert bad == [37]


def test_a_constructor_that_raises_closes_what_was_made(monkeypatch):
    closed = []
    monkeypatch.setattr(Count, "close", lambda self: closed.append(self))
    made = iter([Count(), None])

    def make():
        env = next(made)
        if env is None:
            raise RuntimeError("no licence")
        return env

    with pytest.raises(EnvironmentFault, match="could not be made: RuntimeError: no licence"):
        EnvironmentList(make, [1, 2], name="test")
    assert len(closed) == 1
    assert issubclass(EnvironmentFault, SRLError)
