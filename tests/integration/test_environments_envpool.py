"""The EnvPool adapter against EnvPool left alone: the same episodes, with every row a transition."""

import sys
import warnings
from dataclasses import dataclass, field

import envpool
import numpy as np
import pytest
from environment_play import output

from srl.api.errors import EnvironmentFault, MissingExtraError, UsageError
from srl.environments.envpool_adapter import EnvPoolFactory

SEEDS = [11, 12]


def make(identifier, count=2, **options):
    given = {"id": identifier, **options}
    assert EnvPoolFactory.check(given) == []
    environment = EnvPoolFactory(given).make(count, SEEDS[:count])
    out = output(environment)
    environment.reset(out)
    return environment, out


@dataclass
class Column:
    """What one environment did: observations acted on, rewards, ends as (step, final observation, flags)."""

    observations: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    ends: list = field(default_factory=list)


def alone(identifier, policy, steps, **kwargs):
    """EnvPool left alone: the step after an end resets, and is no transition."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = envpool.make_gymnasium(identifier, num_envs=2, batch_size=2, env_seed=SEEDS, num_threads=1, **kwargs)
        dtype = env.action_space.dtype
        observation, info = env.reset()
    columns = [Column(), Column()]
    resetting = np.zeros(2, np.bool_)
    while min(len(column.rewards) for column in columns) < steps:
        action = np.stack([policy(observation[k], len(columns[k].rewards)) for k in range(2)]).astype(dtype)
        before = info
        after, reward, terminated, truncated, info = env.step(action)
        for k in np.flatnonzero(~resetting):
            columns[k].observations.append(observation[k])
            columns[k].rewards.append(float(reward[k]))
            lost = "lives" in info and info["lives"][k] < before["lives"][k]
            if terminated[k] or truncated[k] or lost:
                over = bool(terminated[k] or truncated[k])
                columns[k].ends.append((len(columns[k].rewards), after[k], bool(truncated[k]), over))
        resetting = terminated | truncated
        observation = after
    env.close()
    return columns


def adapted(environment, out, policy, steps):
    columns = [Column(), Column()]
    space = environment.spec.action
    for _ in range(steps):
        rows = [policy(out.observation[k], len(columns[k].rewards)) for k in range(2)]
        action = np.stack(rows).astype(space.dtype).reshape(2, *space.shape)
        for k in range(2):
            columns[k].observations.append(out.observation[k].copy())
        before = action.copy()
        ended = environment.step(action, out)
        assert np.array_equal(action, before)
        assert out.valid.all()
        done = out.terminated | out.truncated
        assert np.array_equal(done, out.episode_start)
        assert np.flatnonzero(done).tolist() == ([] if ended is None else ended.columns.tolist())
        for k in range(2):
            columns[k].rewards.append(float(out.reward[k]))
            if done[k]:
                position = ended.columns.tolist().index(k)
                counted = ended.counted is None or bool(ended.counted[position])
                total = None if ended.episode_return is None else float(ended.episode_return[position])
                flags = (bool(out.terminated[k]), bool(out.truncated[k]))
                columns[k].ends.append(
                    (len(columns[k].rewards), ended.final_observation[position], flags, counted, total)
                )
    environment.close()
    environment.close()
    return columns


def lean(observation, step):
    """CartPole: push where it leans, which fails after some 40 steps."""
    return np.int64(observation[2] > 0)


def wiggle(observation, step):
    return np.sin(np.asarray(observation[:6], np.float32))


def varied(observation, step):
    return np.int64(step * 7 // 3 % 5)


@pytest.mark.parametrize(
    ("identifier", "policy", "kwargs", "steps"),
    [
        ("CartPole-v1", lean, {}, 300),
        ("CartPole-v1", lean, {"max_episode_steps": 30}, 300),
        ("HalfCheetah-v4", wiggle, {"max_episode_steps": 40}, 150),
        ("Pong-v5", varied, {"max_episode_steps": 25}, 70),
    ],
)
def test_the_episodes_are_those_of_envpool_left_alone(identifier, policy, kwargs, steps):
    expected = alone(identifier, policy, steps, **kwargs)
    found = adapted(*make(identifier, **kwargs), policy, steps)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one.observations, np.array(other.observations[:steps], one.observations[0].dtype))
        assert one.rewards == other.rewards[:steps]
        ends = [end for end in other.ends if end[0] <= steps]
        assert len(ends) >= 2
        assert [end[0] for end in one.ends] == [end[0] for end in ends]
        for mine, raw in zip(one.ends, ends, strict=True):
            assert np.array_equal(mine[1], np.asarray(raw[1], mine[1].dtype))
            assert mine[2][1] == raw[2]
            assert mine[2] != (False, False)


def test_an_end_on_the_very_step_of_the_limit_sets_both_flags():
    """EnvPool alone calls it truncated: field case 16."""
    (first, _) = adapted(*make("CartPole-v1"), lean, 120)
    length = first.ends[0][0]
    for limit, flags in ((length, (True, True)), (length + 1, (True, False)), (length - 1, (False, True))):
        (column, _) = adapted(*make("CartPole-v1", max_episode_steps=limit), lean, length)
        step, _, found, _, _ = column.ends[0]
        assert (step, found) == (min(limit, length), flags)
    assert alone("CartPole-v1", lean, length, max_episode_steps=length)[0].ends[0][2]


def test_lost_lives_end_episodes_and_returns_are_those_of_whole_games_before_clipping():
    kwargs = {"reward_clip": True, "noop_max": 1}
    environment, out = make("MsPacman-v5", kwargs={**kwargs, "episodic_life": True}, max_episode_steps=400)
    assert environment.spec.frames_per_step == 4
    assert environment.spec.observation.dtype == "uint8"
    steps = 450
    found = adapted(environment, out, varied, steps)
    expected = alone("MsPacman-v5", varied, steps, **{**kwargs, "reward_clip": False}, max_episode_steps=400)
    games = 0
    for one, other in zip(found, expected, strict=True):
        rewards = np.array(other.rewards[:steps])
        assert rewards.max() >= 10
        assert one.rewards == np.sign(rewards).tolist()
        ends = [end for end in other.ends if end[0] <= steps]
        assert len(ends) >= 3
        assert [end[0] for end in one.ends] == [end[0] for end in ends]
        began = 0
        for (step, final, flags, counted, total), (_, last, cut, over) in zip(one.ends, ends, strict=True):
            assert np.array_equal(final, last)
            assert flags == (not cut, cut)
            assert counted == over
            assert total == rewards[began:step].sum()
            if counted:
                began, games = step, games + 1
    assert games >= 2


def test_a_game_cut_at_its_limit_begins_anew_with_all_lives():
    environment, out = make("Breakout-v5", kwargs={"episodic_life": True}, max_episode_steps=30)
    flags = []
    for _ in range(95):
        ended = environment.step(np.ones(2, np.int64), out)
        if ended is not None and 0 in ended.columns:
            position = ended.columns.tolist().index(0)
            counted = ended.counted is None or bool(ended.counted[position])
            flags.append((bool(out.terminated[0]), bool(out.truncated[0]), counted))
            assert environment._lives[0] == (5 if counted else 4)
    environment.close()
    assert flags == [(True, False, False), (False, True, True)] * 3


def test_every_environment_has_its_own_stream_that_follows_its_seed():
    """Field case 35."""

    def starts(seeds):
        environment = EnvPoolFactory({"id": "CartPole-v1"}).make(len(seeds), seeds)
        out = output(environment)
        environment.reset(out)
        found = [*out.observation.copy()]
        while len(found) < 3 * len(seeds):
            ended = environment.step(np.ones(len(seeds), np.int64), out)
            found += [] if ended is None else [*out.observation[ended.columns]]
        environment.close()
        return [tuple(one.tolist()) for one in found]

    first = starts([7, 8, 9])
    assert len(set(first)) == len(first)
    assert starts([7, 8, 9]) == first
    assert not set(starts([107, 108, 109])) & set(first)


def test_numbers_that_envpool_declares_as_float64():
    """Field case 42."""
    environment, _ = make("HalfCheetah-v4")
    assert (environment.spec.observation.dtype, environment.spec.action.dtype) == ("float32", "float32")
    assert environment.spec.frames_per_step == 1
    assert (environment.spec.action.low, environment.spec.action.high) == (-1.0, 1.0)
    assert environment._actions.batch(np.zeros((2, 6), np.float32)).dtype == np.float64
    environment.close()


@pytest.mark.parametrize("identifier", ["LunarLander-v3", "BipedalWalker-v3", "CheetahRun-v1"])
def test_wrong_bounds_are_not_believed(identifier):
    spec = EnvPoolFactory({"id": identifier}).probe()
    for leaf in spec.observation.leaves():
        assert (leaf.space.low, leaf.space.high) == (None, None)


def test_dict_observations_and_masks():
    environment, out = make("Jumanji/Snake-v1", action_mask="observation")
    assert [leaf.path for leaf in environment.spec.observation.leaves()] == ["grid", "step_count"]
    random = np.random.default_rng(1)
    for _ in range(200):
        assert out.action_mask.any(axis=1).all()
        action = np.array([random.choice(np.flatnonzero(mask)) for mask in out.action_mask])
        environment.step(action, out)
    (clock,) = [leaf.of(out.observation) for leaf in environment.spec.observation.leaves() if leaf.path == "step_count"]
    assert (clock >= 0).all()
    environment.close()
    spec = EnvPoolFactory({"id": "MiniGrid-Empty-5x5-v0"}).probe()
    assert {leaf.path: leaf.space.dtype for leaf in spec.observation.leaves()} == {
        "direction": "int64",
        "image": "uint8",
        "mission": "uint8",
    }


def test_an_action_the_environment_does_not_have_is_refused():
    environment, out = make("CartPole-v1")
    with pytest.raises(EnvironmentFault, match="does not have this action") as caught:
        environment.step(np.array([0, 2]), out)
    assert caught.value.where == "CartPole-v1, 2 environments, step 1"
    environment.close()


@pytest.mark.parametrize(
    ("options", "where", "near"),
    [
        ({"id": "Pong-v6"}, "id", "'Pong-v5'"),
        ({"id": "cartpole-v1"}, "id", "'CartPole-v1'"),
        ({"id": "Pong-v5", "kwargs": {"frameskip": 2}}, "kwargs.frameskip", "'frame_skip'"),
        ({"id": "Pong-v5", "kwargs": {"num_envs": 2}}, "kwargs.num_envs", "beside kwargs"),
        ({"id": "Pong-v5", "kwargs": {"max_episode_steps": 2}}, "kwargs.max_episode_steps", "beside kwargs"),
        ({"id": "Pong-v5", "num_thread": 1}, "num_thread", "'num_threads'"),
        ({"id": "Pong-v5", "wrappers": [{"type": "reward_clip"}]}, "wrappers.0", "kwargs.reward_clip"),
        ({"id": "CartPole-v1", "wrappers": [{"type": "time_limit"}]}, "wrappers.0", "max_episode_steps"),
    ],
)
def test_wrong_options_are_found_before_the_start(options, where, near):
    (problem,) = EnvPoolFactory.check(options)
    assert problem.where == where
    assert near in problem.hint


def test_without_envpool_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    (problem,) = EnvPoolFactory.check({"id": "Pong-v5"})
    assert isinstance(problem, MissingExtraError)
    assert 'pip install "srl-dataflow[envpool]"' in problem.hint


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("frame_skip", "4", "a whole number"),
        ("frame_skip", True, "a whole number"),
        ("reward_clip", 1, "true or false"),
        ("repeat_action_probability", "much", "a number"),
        ("task", 3, "text"),
    ],
)
def test_values_of_another_type_than_envpools_are_named(name, value, expected):
    (problem,) = EnvPoolFactory.check({"id": "Pong-v5", "kwargs": {name: value}})
    assert (problem.where, problem.value, problem.expected) == (f"kwargs.{name}", value, expected)
    assert EnvPoolFactory.check({"id": "Pong-v5", "kwargs": {"repeat_action_probability": 0}}) == []


@pytest.mark.parametrize(
    ("identifier", "kwargs", "size"),
    [("CartPole-v1", {}, (400, 600, 3)), ("Breakout-v5", {"episodic_life": True}, (210, 160, 3))],
)
def test_a_film_is_of_the_same_episodes_with_a_frame_for_every_observation(identifier, kwargs, size):
    factory = EnvPoolFactory({"id": identifier, "kwargs": kwargs})
    recording, played = factory.record(SEEDS[0]), factory.make(1, SEEDS[:1])
    filmed, out, other = recording.environment, output(played), output(played)
    filmed.reset(out)
    played.reset(other)
    assert len(recording.frames) == 1
    draws, games, lives = np.random.default_rng(1), 0, 0
    for _ in range(400):
        before = len(recording.frames)
        action = draws.integers(played.spec.action.n, size=1)
        ended, same = filmed.step(action.copy(), out), played.step(action.copy(), other)
        np.testing.assert_array_equal(out.observation, other.observation)
        assert (ended is None) == (same is None)
        over = ended is not None and (ended.counted is None or bool(ended.counted[0]))
        games, lives = games + over, lives + (ended is not None and not over)
        assert len(recording.frames) == before + 1 + over
    assert games
    assert bool(lives) == bool(kwargs)
    assert {frame.shape for frame in recording.frames} == {size}
    assert any((frame != recording.frames[0]).any() for frame in recording.frames)
    filmed.close()
    played.close()


@pytest.mark.parametrize("identifier", ["HalfCheetah-v4", "FrozenLake-v1"])
def test_what_envpool_does_not_draw_is_one_error(identifier):
    def film():
        environment = EnvPoolFactory({"id": identifier}).record(1).environment
        environment.reset(output(environment))

    with pytest.raises(UsageError, match=r"cannot be filmed: EnvPool.*type gymnasium"):
        film()
