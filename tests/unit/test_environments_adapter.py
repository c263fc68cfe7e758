"""The adapters' way in and out: actions, observations, frames, constructor calls, episodes of a known environment."""

import gymnasium
import numpy as np
import pytest
from environment_play import output
from gymnasium.spaces import Box, Discrete

from srl.api.errors import EnvironmentFault
from srl.environments.environment_list import EnvironmentList
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.toy import Count, CountVector
from srl.environments.vector_adapter import VectorAdapter


class Offset(gymnasium.Env):
    """Actions 5..7, written over once seen; an old-fashioned float64 observation and a box action space on demand."""

    def __init__(self, space=None, dtype=np.float64):
        self.observation_space = Box(-1, 1, (2,), dtype)
        self.action_space = space or Discrete(3, start=5)
        self.given = []

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, self.observation_space.dtype), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.given.append(np.copy(action))
        if isinstance(action, np.ndarray):
            action[...] = 99
        return np.full(2, 0.1, self.observation_space.dtype), np.float64(0.5), False, False, {}


class HostileVector(CountVector):
    """Starts its actions where told and writes over the array it is given."""

    def __init__(self, start=5):
        super().__init__(2)
        self.single_action_space = Discrete(3, start=start)
        self.given = []

    def step(self, actions):
        self.given.append(actions.copy())
        actions[...] = 99
        return super().step(actions)


def test_discrete_actions_count_from_zero_inside():
    environment = EnvironmentList(Offset, [1, 2], name="offset")
    out = output(environment)
    environment.reset(out)
    environment.step(np.array([0, 2]), out)
    assert [env.given for env in environment._envs] == [[5], [7]]
    assert environment.spec.action.start == 5
    vector = HostileVector()
    adapter = VectorAdapter(vector, [1, 2], name="hostile")
    out = output(adapter)
    adapter.reset(out)
    adapter.step(np.array([0, 2]), out)
    assert vector.given[0].tolist() == [5, 7]


def test_an_environment_that_writes_to_its_action_does_not_reach_the_caller():
    """Field case 18, the action's array."""
    for start in (Discrete(3, start=5), Discrete(3), Box(-1, 1, (2,), np.float32), Box(-1, 1, (), np.float64)):
        environment = EnvironmentList(lambda start=start: Offset(start), [1, 2], name="offset")
        out = output(environment)
        environment.reset(out)
        action = np.zeros((2, *environment.spec.action.shape), environment.spec.action.dtype)
        environment.step(action, out)
        assert not action.any()
    action = np.array([1, 2])
    for start in (0, 5):
        adapter = VectorAdapter(HostileVector(start), [1, 2], name="hostile")
        out = output(adapter)
        adapter.reset(out)
        adapter.step(action, out)
        assert action.tolist() == [1, 2]


def test_float64_observations_become_float32_and_uint8_stays():
    """Field case 42."""
    environment = EnvironmentList(Offset, [1], name="offset")
    assert environment.spec.observation.dtype == "float32"
    out = output(environment)
    environment.reset(out)
    environment.step(np.zeros(1, np.int64), out)
    assert out.observation.tolist() == [[np.float32(0.1), np.float32(0.1)]]
    assert out.reward[0] == 0.5
    big = GymnasiumFactory({"entry": "srl.environments.toy:BigObservation", "kwargs": {"size_bytes": 100}})
    assert big.probe().observation.array.size_bytes() == 100


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Text(3),
        gymnasium.spaces.Sequence(Discrete(2)),
        gymnasium.spaces.OneOf([Discrete(2)]),
        gymnasium.spaces.Graph(Box(0, 1, (1,)), None),
    ],
    ids=lambda space: type(space).__name__,
)
def test_other_spaces_are_refused_with_their_word(space):
    word = type(space).__name__
    with pytest.raises(EnvironmentFault, match=rf"{word} action spaces are not supported \(got"):
        EnvironmentList(lambda: Offset(space), [1], name="spaces")
    nested = gymnasium.spaces.Dict(a=gymnasium.spaces.Tuple([Discrete(2), space]))
    with pytest.raises(EnvironmentFault, match=rf"{word} action spaces are not supported \(at 'a.1'\)"):
        EnvironmentList(lambda: Offset(nested), [1], name="spaces")


def test_environments_of_one_batch_must_have_equal_spaces():
    dtypes = iter([np.float64, np.float32])
    with pytest.raises(EnvironmentFault, match="differ in their observation_space") as caught:
        EnvironmentList(lambda: Offset(dtype=next(dtypes)), [1, 2], name="mixed")
    assert "environment 1" in caught.value.where


def test_native_cartpole_has_the_episodes_of_single_cartpoles():
    """Under one constant action the pole falls within 8 to 12 steps, counted alike by both."""
    for vectorization in ("auto", "sync"):
        environment = GymnasiumFactory({"id": "CartPole-v1", "vectorization": vectorization}).make(8, list(range(8)))
        assert isinstance(environment, VectorAdapter) == (vectorization == "auto")
        out = output(environment)
        environment.reset(out)
        valid, rewards, ends, total = out.valid.copy(), 0.0, 0, 0
        for _ in range(100):
            ended = environment.step(np.ones(8, np.int64), out)
            total += int(valid.sum())
            rewards += float(out.reward[valid].sum())
            valid = out.valid.copy()
            if ended is not None:
                ends += len(ended.columns)
                assert (np.abs(ended.final_observation[:, 2]) > 12 * np.pi / 180).all()
        assert rewards == total
        assert 8 * 100 / 13 < ends < 8 * 100 / 8


def test_frames_and_steps_are_told_apart():
    """Field case 43: 10 steps of 4 frames return 40; an end on an inner frame gives the rewards up to it."""
    kwargs = {"frames": 40, "skip": 4}
    factory = GymnasiumFactory({"entry": "srl.environments.toy:FrameSkip", "kwargs": kwargs, "frames_per_step": 4})
    assert factory.probe().frames_per_step == 4
    for frames, steps, last in ((40, 10, 4.0), (38, 10, 2.0)):
        factory = GymnasiumFactory({"entry": "srl.environments.toy:FrameSkip", "kwargs": kwargs | {"frames": frames}})
        environment = factory.make(1, [1])
        out = output(environment)
        environment.reset(out)
        rewards = []
        while not rewards or not out.terminated[0]:
            environment.step(np.zeros(1, np.int64), out)
            rewards.append(float(out.reward[0]))
        assert (sum(rewards), len(rewards), rewards[-1]) == (frames, steps, last)


def test_constructor_calls_are_the_environments_and_one_probe_that_is_closed(monkeypatch):
    """Field case 70."""
    made, closed = [], []
    monkeypatch.setattr(Count, "__init__", _recording(Count.__init__, made))
    monkeypatch.setattr(Count, "close", lambda self: closed.append(self))
    factory = GymnasiumFactory({"entry": "srl.environments.toy:Count"})
    assert factory.check(factory.options) == []
    assert made == []
    factory.probe()
    assert len(made) == len(closed) == 1
    environments = [factory.make(4, [1, 2, 3, 4]) for _ in range(2)]
    assert len(made) == 9
    for environment in environments:
        environment.close()
        environment.close()
    assert len(closed) == 9


def _recording(constructor, made):
    def init(self, *args, **kwargs):
        made.append(self)
        constructor(self, *args, **kwargs)

    return init
