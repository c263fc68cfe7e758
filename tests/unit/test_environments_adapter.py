"""The adapter's validity rows, final observations and seeds, against environments with known answers."""

import traceback
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault, SRLError, UsageError
from srl.environments.environment_list import EnvironmentList
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.toy import Count, CountVector
from srl.environments.vector_adapter import VectorAdapter

MODES = {mode.name: mode for mode in AutoresetMode}


def output(environment: VectorEnvironment) -> StepOutput:
    """Arrays filled with what no correct step leaves behind."""
    count, observation = environment.count, environment.spec.observation
    return StepOutput(
        observation=np.full((count, *observation.shape), 77, observation.dtype),
        reward=np.full(count, -77, np.float32),
        terminated=np.ones(count, np.bool_),
        truncated=np.ones(count, np.bool_),
        valid=np.zeros(count, np.bool_),
        episode_start=np.ones(count, np.bool_),
    )


@dataclass
class Transition:
    observation: float
    reward: float
    successor: float
    terminated: bool
    truncated: bool
    episode_start: bool


def play(environment: VectorEnvironment, steps: int) -> list[list[Transition]]:
    """The transitions of each column, as a reader of blocks sees them (one-element observations)."""
    columns: list[list[Transition]] = [[] for _ in range(environment.count)]
    rows = [output(environment)]
    environment.reset(rows[0])
    ends: list[Ended | None] = []
    for _ in range(steps):
        rows.append(output(environment))
        ends.append(environment.step(np.zeros(environment.count, np.int64), rows[-1]))
    for time, ended in enumerate(ends):
        row, result = rows[time], rows[time + 1]
        for column in range(environment.count):
            done = bool(result.terminated[column] or result.truncated[column])
            in_ended = ended is not None and column in ended.columns
            assert done == in_ended
            if not row.valid[column]:
                assert not done
                assert result.reward[column] == 0
                continue
            if done:
                assert ended is not None
                successor = ended.final_observation[list(ended.columns).index(column)]
            else:
                successor = next(
                    rows[u].observation[column] for u in range(time + 1, steps + 1) if rows[u].valid[column]
                )
            columns[column].append(
                Transition(
                    float(row.observation[column, 0]),
                    float(result.reward[column]),
                    float(successor[0]),
                    bool(result.terminated[column]),
                    bool(result.truncated[column]),
                    bool(row.episode_start[column]),
                )
            )
    return columns


def episode(length: int, end: str = "terminated") -> list[Transition]:
    return [
        Transition(
            observation=float(k),
            reward=1.0,
            successor=float(k + 1),
            terminated=end == "terminated" and k + 1 == length,
            truncated=end == "truncated" and k + 1 == length,
            episode_start=k == 0,
        )
        for k in range(length)
    ]


def wrapped(env: VectorEnv, seed: int = 5) -> VectorAdapter:
    return VectorAdapter(env, [seed + k for k in range(env.num_envs)], name="test")


def native(mode: str, lengths: list[int], end: str = "terminated", layout: str = "objects") -> VectorEnvironment:
    return wrapped(CountVector(len(lengths), lengths, end, mode.lower(), layout))


def synchronous(mode: str, lengths: list[int], end: str = "terminated") -> VectorEnvironment:
    functions = [lambda length=length: Count(length, end) for length in lengths]
    return wrapped(SyncVectorEnv(functions, autoreset_mode=MODES[mode]))


def listed(lengths: list[int], end: str = "terminated") -> VectorEnvironment:
    remaining = iter(lengths)
    return EnvironmentList(lambda: Count(next(remaining), end), list(range(len(lengths))), name="test")


def every_kind(lengths: list[int], end: str) -> dict[str, VectorEnvironment]:
    kinds = {f"native {mode}": native(mode, lengths, end) for mode in MODES}
    kinds |= {f"sync {mode}": synchronous(mode, lengths, end) for mode in MODES}
    return kinds | {"stacked": native("SAME_STEP", lengths, end, "stacked"), "list": listed(lengths, end)}


def test_the_dummy_row_of_next_step_autoreset_is_no_transition():
    """Field case 1: 12 steps of COUNT(3) give 9 transitions, not 12, and none from 3 to 0."""
    for environment in (native("NEXT_STEP", [3]), synchronous("NEXT_STEP", [3])):
        (column,) = play(environment, 12)
        assert column == episode(3) * 3


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_every_row_is_a_transition_in_the_other_modes(mode):
    (column,) = play(native(mode, [3]), 12)
    assert column == episode(3) * 4


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episodes_are_the_same_in_every_mode_when_ends_are_not_aligned(end):
    for name, environment in every_kind([3, 5], end).items():
        three, five = play(environment, 24)
        assert three[:15] == episode(3, end) * 5, name
        assert five[:20] == episode(5, end) * 4, name
        environment.close()
        environment.close()


def test_two_ends_at_once_keep_their_order():
    environment = native("SAME_STEP", [2, 3, 2])
    out = output(environment)
    environment.reset(out)
    action = np.zeros(3, np.int64)
    assert environment.step(action, out) is None
    ended = environment.step(action, out)
    assert ended.columns.tolist() == [0, 2]
    assert ended.final_observation.tolist() == [[2.0], [2.0]]
    assert out.episode_start.tolist() == [True, False, True]
    assert out.observation.tolist() == [[0.0], [2.0], [0.0]]


class Draws(gymnasium.Env):
    """Reports every reset seed; the start is a draw of its own generator."""

    def __init__(self):
        self.observation_space = Box(0, 1, (1,), np.float64)
        self.action_space = Discrete(2)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        return self.np_random.random(1), {}

    def step(self, action):
        return np.zeros(1), 0.0, False, True, {}


def starts(seeds: list[int], episodes: int = 3) -> list[float]:
    environment = EnvironmentList(Draws, seeds, name="draws")
    out = output(environment)
    environment.reset(out)
    found = [*out.observation[:, 0]]
    for _ in range(episodes - 1):
        environment.step(np.zeros(len(seeds), np.int64), out)
        found += [*out.observation[:, 0]]
    return [float(value) for value in found]


def test_seeds_go_to_the_first_reset_only_and_every_start_differs():
    """Field cases 35 and 36."""
    first = starts([7, 8, 9, 10, 11])
    assert len(set(first)) == 15
    assert starts([7, 8, 9, 10, 11]) == first
    assert not set(starts([107, 108, 109])) & set(first)
    environment = EnvironmentList(Draws, [7], name="draws")
    out = output(environment)
    environment.reset(out)
    for _ in range(4):
        environment.step(np.zeros(1, np.int64), out)
    assert environment._envs[0].seeds == [7, None, None, None, None]


@pytest.mark.parametrize("mode", list(MODES))
def test_a_synchronous_vector_environment_gets_one_seed_per_environment(mode):
    env = SyncVectorEnv([Draws, Draws], autoreset_mode=MODES[mode])
    environment = VectorAdapter(env, [31, 4], name="draws")
    out = output(environment)
    environment.reset(out)
    environment.step(np.zeros(2, np.int64), out)
    environment.step(np.zeros(2, np.int64), out)
    assert [one.seeds[:2] for one in env.envs] == [[31, None], [4, None]]


def test_a_native_vector_environment_repeats_with_its_seed():
    def run(seed: int) -> np.ndarray:
        environment = GymnasiumFactory({"id": "CartPole-v1"}).make(4, [seed, seed + 1, seed + 2, seed + 3])
        out = output(environment)
        environment.reset(out)
        seen = [out.observation.copy()]
        for step in range(60):
            environment.step(np.full(4, step % 2, np.int64), out)
            seen.append(out.observation.copy())
        return np.stack(seen)

    assert np.array_equal(run(7), run(7))
    assert not np.array_equal(run(7), run(8))


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


def test_same_step_autoreset_without_final_observations_is_refused():
    env = CountVector(1, [1], autoreset_mode="same_step")
    env._final = lambda ended: None
    environment = wrapped(env)
    out = output(environment)
    environment.reset(out)
    with pytest.raises(EnvironmentFault, match="reports no final observation"):
        environment.step(np.zeros(1, np.int64), out)


def test_a_vector_environment_without_an_autoreset_mode_is_refused():
    env = CountVector(1)
    env.metadata = {}
    with pytest.raises(EnvironmentFault, match="does not declare its autoreset mode"):
        wrapped(env)


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


@pytest.mark.parametrize("seeds", [[1], [1, 1], [1, 2, 3], []])
def test_seeds_must_be_one_per_environment_and_distinct(seeds):
    with pytest.raises(UsageError, match="one seed each, all distinct"):
        GymnasiumFactory({"id": "CartPole-v1"}).make(2, seeds)


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
