"""Wrappers by name: what they do, what is reported under them, and what is said before the start."""

import gymnasium
import numpy as np
import pytest
from environment_play import output
from gymnasium.spaces import Box, Dict, Discrete

from srl.api.errors import EnvironmentFault, ExperimentError
from srl.api.keys import KeyTree
from srl.api.options import OptionsCheck
from srl.api.registry import BUILT_IN, REGISTRY, Registry
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.vector_adapter import VectorAdapter
from srl.environments.wrapping import RawEpisode

HERE = __name__


class Ramp(gymnasium.Env):
    """Step k of an episode pays k; the observation is k in whatever shape; ends after ``length`` steps."""

    def __init__(self, length=6, shape=(2,), dtype="float32", high=np.inf):
        self.observation_space = Box(0, high, tuple(shape), np.dtype(dtype).type)
        self.action_space = Discrete(2)
        self.length, self.time, self.actions = length, 0, []

    def _seen(self):
        return np.full(self.observation_space.shape, self.time, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        self.actions.append(int(action))
        self.time += 1
        return self._seen(), float(self.time), self.time >= self.length, False, {}


class Lives(gymnasium.Wrapper):
    """Ends an episode at every second step without a reset below, as wrappers for lost lives do."""

    def reset(self, *, seed=None, options=None):
        if getattr(self, "alive", False):
            observation, _, _, _, info = self.env.step(0)
            return observation, info
        self.alive = True
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.alive = not terminated
        lost = observation.flat[0] % 3 == 2
        return observation, reward, terminated or lost, truncated, info


class InTwo(gymnasium.Wrapper):
    """Two episodes below are one above: it resets in the midst of its step."""

    def reset(self, *, seed=None, options=None):
        self.ends = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.ends += terminated
        if terminated and self.ends == 1:
            observation, info = self.env.reset()
        return observation, reward, self.ends == 2, truncated, info


def tripled(env, factor=3):
    """A function of one's own."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: factor * reward)


def nothing(env):
    return None


def failing(env):
    raise RuntimeError("no licence")


def options(*wrappers, **kwargs):
    return {"entry": f"{HERE}:Ramp", "kwargs": kwargs, "wrappers": list(wrappers)}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[Ramp.__module__])


def make(*wrappers, count=1, **kwargs):
    given = options(*wrappers, **kwargs)
    assert GymnasiumFactory.check(given) == []
    environment = GymnasiumFactory(given).make(count, list(range(count)))
    out = output(environment)
    environment.reset(out)
    return environment, out


def play(environment, out, steps):
    """Per step: reward, terminated, truncated, and the end (final observation, return, counted) if there was one."""
    rows = []
    for _ in range(steps):
        ended = environment.step(np.ones(environment.count, np.int64), out)
        end = None
        if ended is not None:
            counted = True if ended.counted is None else bool(ended.counted[0])
            end = (float(ended.final_observation.flat[0]), float(ended.episode_return[0]), counted)
        rows.append((float(out.reward[0]), bool(out.terminated[0]), bool(out.truncated[0]), end))
    return rows


def test_every_built_in_wrapper_resolves_and_documents_its_options():
    for name in BUILT_IN["wrapper"]:
        wrapper = REGISTRY.resolve("wrapper", name)
        assert wrapper.__doc__
        assert all(field.description for field in wrapper.Options.model_fields.values())
        assert wrapper.Options.model_config["extra"] == "forbid"


def test_frames_are_stacked_the_newest_last_and_start_anew_with_the_episode():
    environment, out = make({"type": "frame_stack", "frames": 3}, length=2)
    assert environment.spec.observation.shape == (3, 2)
    assert out.observation[0, :, 0].tolist() == [0, 0, 0]
    environment.step(np.zeros(1, np.int64), out)
    assert out.observation[0, :, 0].tolist() == [0, 0, 1]
    ended = environment.step(np.zeros(1, np.int64), out)
    assert ended.final_observation[0, :, 0].tolist() == [0, 1, 2]
    assert out.observation[0, :, 0].tolist() == [0, 0, 0]


def test_channels_may_be_concatenated():
    environment, out = make(
        {"type": "channels_first"},
        {"type": "frame_stack", "frames": 2, "padding": "zero", "concatenate": True},
        shape=(4, 5, 3),
        dtype="uint8",
        high=255,
    )
    assert environment.spec.observation.shape == (6, 4, 5)
    assert environment.spec.observation.dtype == "uint8"
    environment.step(np.zeros(1, np.int64), out)
    environment.step(np.zeros(1, np.int64), out)
    assert out.observation[0, :, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]


def test_reported_returns_are_those_before_clipping_and_scaling():
    for wrappers, rewards in (
        ([{"type": "reward_clip", "low": -1, "high": 1}], [1, 1, 1]),
        ([{"type": "reward_clip", "low": None, "high": 2}], [1, 2, 2]),
        ([{"type": "reward_scale", "scale": 0.5, "shift": 1}], [1.5, 2, 2.5]),
        ([{"type": "reward_scale", "scale": 10}, {"type": "reward_clip"}], [1, 1, 1]),
        ([{"type": f"{HERE}:tripled"}], [3, 6, 9]),
        ([{"type": f"{HERE}:tripled", "factor": 2}], [2, 4, 6]),
    ):
        rows = play(*make(*wrappers, length=3), 6)
        assert [row[0] for row in rows] == rewards * 2
        assert [row[3] for row in rows] == [None, None, (3.0, 6.0, True)] * 2


def test_a_time_limit_truncates_and_counts_where_it_stands():
    rows = play(*make({"type": "time_limit", "steps": 4}), 8)
    assert [row[1:3] for row in rows] == [(False, False)] * 3 + [(False, True)] + [(False, False)] * 3 + [(False, True)]
    assert rows[3][3] == (4.0, 10.0, True)
    above = play(*make({"type": "frame_skip", "frames": 2}, {"type": "time_limit", "steps": 2}), 4)
    below = play(*make({"type": "time_limit", "steps": 4}, {"type": "frame_skip", "frames": 2}), 4)
    assert above == below
    assert above[1] == (7.0, False, True, (4.0, 10.0, True))
    ends = play(*make({"type": "time_limit", "steps": 3}, length=3), 3)
    assert ends[2][1:3] == (True, True)  # terminated wins where both are set


def test_skipped_frames_are_counted_and_an_end_inside_stops():
    """Field case 43 for the wrapper."""
    environment, out = make({"type": "frame_skip", "frames": 4})
    assert environment.spec.frames_per_step == 4
    rows = play(environment, out, 4)
    assert rows[0] == (1 + 2 + 3 + 4, False, False, None)
    assert rows[1] == (5 + 6, True, False, (6.0, 21.0, True))
    assert environment._envs[0].unwrapped.actions == [1] * 12
    twice = GymnasiumFactory(options({"type": "frame_skip", "frames": 4}, {"type": "frame_skip", "frames": 2}))
    assert twice.probe().frames_per_step == 8
    told = GymnasiumFactory({**options({"type": "frame_skip", "frames": 4}), "frames_per_step": 5})
    assert told.probe().frames_per_step == 5


def test_the_maximum_is_over_frames_of_this_step_alone():
    class Flicker(Ramp):
        SEEN = (9, 1, 2, 3, 4, 5)

        def _seen(self):
            return np.full((2,), self.SEEN[min(self.time, 5)], np.float32)

    env = REGISTRY.resolve("wrapper", "frame_skip")
    wrapped = env(Flicker(5), env.Options(frames=4, max_pool=True))
    wrapped.reset()
    assert wrapped.step(0)[0].tolist() == [4, 4]
    assert wrapped.step(0)[0].tolist() == [5, 5]  # one frame only; that of the step before does not count


def test_a_lost_life_is_no_end_of_a_reported_episode():
    environment, out = make({"type": f"{HERE}:Lives"}, {"type": "reward_clip"}, length=6)
    rows = play(environment, out, 8)
    assert [row[3] for row in rows] == [
        None,
        (2.0, 3.0, False),
        None,
        (5.0, 15.0, False),
        # The reset after the lost life played the step that ended the game.
        (7.0, 28.0, True),
        None,
        (2.0, 3.0, False),
        None,
    ]


def test_the_return_of_an_episode_that_is_several_below_is_that_of_all():
    environment, out = make({"type": f"{HERE}:InTwo"}, length=3)
    rows = play(environment, out, 12)
    assert [row[3] for row in rows if row[3]] == [(3.0, 12.0, True)] * 2  # 1 + 2 + 3, twice


def test_sticky_actions_follow_the_seed_of_the_environment():
    def actions(seed):
        given = options({"type": "sticky_action", "probability": 0.5}, length=1000)
        environment = GymnasiumFactory(given).make(1, [seed])
        out = output(environment)
        environment.reset(out)
        for step in range(60):
            environment.step(np.array([step % 2]), out)
        return environment._envs[0].unwrapped.actions

    assert actions(1) == actions(1) != actions(2)
    assert 5 < sum(one != step % 2 for step, one in enumerate(actions(1))) < 55


IMAGE = {"shape": (4, 5, 3), "dtype": "uint8", "high": 255}
SHIFT = {"type": "normalize_observation"}


@pytest.mark.parametrize(
    ("wrapper", "kwargs", "shape", "dtype", "second"),
    [
        ({"type": "flatten_observation"}, {"shape": (2, 3)}, (6,), "float32", 1.0),
        ({"type": "gray_scale"}, IMAGE, (4, 5), "uint8", 1.0),
        ({"type": "gray_scale", "keep_channel": True}, IMAGE, (4, 5, 1), "uint8", 1.0),
        ({"type": "resize", "height": 8, "width": 6}, {**IMAGE, "shape": (4, 5)}, (8, 6), "uint8", 1.0),
        ({**SHIFT, "mean": 3, "standard_deviation": 4}, {}, (2,), "float32", -0.5),
        ({**SHIFT, "mean": [3, 0], "standard_deviation": [4, 1]}, {}, (2,), "float32", -0.5),
        ({**SHIFT, "mean": 0, "standard_deviation": 2}, {"dtype": "float64"}, (2,), "float32", 0.5),
        ({"type": "rescale_observation", "low": -1, "high": 1}, {"high": 10}, (2,), "float32", -0.8),
        ({"type": "rescale_observation"}, {"dtype": "uint8", "high": 255}, (2,), "float32", 1 / 255),
    ],
    ids=str,
)
def test_observation_wrappers(wrapper, kwargs, shape, dtype, second):
    environment, out = make(wrapper, **kwargs)
    assert (environment.spec.observation.shape, environment.spec.observation.dtype) == (shape, dtype)
    environment.step(np.zeros(1, np.int64), out)
    assert out.observation.flat[0] == pytest.approx(second)


def test_time_and_entries_of_an_observation():
    environment, out = make({"type": "time_limit", "steps": 4}, {"type": "time_aware"})
    play(environment, out, 1)
    assert out.observation[0].tolist() == [1.0, 1.0, 0.25]
    environment, _ = make(
        {"type": "time_limit", "steps": 4},
        {"type": "time_aware", "flatten": False},
        {"type": "filter_observation", "keys": ["time"]},
    )
    assert [leaf.path for leaf in environment.spec.observation.leaves()] == ["time"]


def test_wrappers_make_single_environments_of_an_id_with_a_native_vector():
    for wrappers, kind in (([], VectorAdapter), ([{"type": "time_limit", "steps": 3}], None)):
        environment = GymnasiumFactory({"id": "CartPole-v1", "wrappers": wrappers}).make(1, [1])
        assert isinstance(environment, VectorAdapter) == (kind is VectorAdapter)
    (problem,) = GymnasiumFactory.check(
        {"id": "CartPole-v1", "wrappers": [{"type": "reward_clip"}], "vectorization": "vector_entry_point"}
    )
    assert problem.where == "vectorization"
    (problem,) = GymnasiumFactory.check(
        {"entry": "srl.environments.toy:CountVector", "wrappers": [{"type": "reward_clip"}]}
    )
    assert problem.where == "wrappers"
    assert "vector environment" in problem.what


def test_problems_of_wrappers_are_found_before_the_start_with_key_paths_and_near_names():
    """Field case 25."""
    (problem,) = GymnasiumFactory.check(options({"frames": 3}))
    assert problem.where == "wrappers.0.type"
    found = GymnasiumFactory.check(
        options(
            {"type": "frame_stak", "frames": 4},
            {"type": "frame_stack", "frame": 4},
            {"type": "reward_clip", "low": 2, "high": 1},
            {"type": "time_limit", "steps": 0},
            {"type": "json:dumpz"},
            {"type": "json:__name__"},
            {"type": f"{HERE}:tripled", "faktor": 2},
            {"type": "normalize_observation"},
            {"type": "flatten_observation", "x": 1},
        )
    )
    by_path = {problem.where: problem for problem in found}
    assert set(by_path) == {
        "wrappers.0.type",
        "wrappers.1.frame",
        "wrappers.1.frames",
        "wrappers.2",
        "wrappers.3.steps",
        "wrappers.4.type",
        "wrappers.5.type",
        "wrappers.6.faktor",
        "wrappers.7.mean",
        "wrappers.7.standard_deviation",
        "wrappers.8.x",
    }
    assert "'frame_stack'" in by_path["wrappers.0.type"].hint
    assert "'frames'" in by_path["wrappers.1.frame"].hint
    assert by_path["wrappers.2"].what == "low must be below high"
    assert "'dumps'" in by_path["wrappers.4.type"].hint
    assert "'factor'" in by_path["wrappers.6.faktor"].hint
    with pytest.raises(ExperimentError):
        GymnasiumFactory(options({"type": "frame_stak"})).probe()


@pytest.mark.parametrize(
    ("wrapper", "part"),
    [
        (f"{HERE}:nothing", "did not return an environment"),
        (f"{HERE}:failing", "RuntimeError: no licence"),
        ("channels_first", "needs images"),
    ],
)
def test_a_wrapper_that_fails_is_named_and_leaves_nothing_open(monkeypatch, wrapper, part):
    closed = []
    monkeypatch.setattr(Ramp, "close", lambda self: closed.append(self))
    with pytest.raises(EnvironmentFault, match=part) as caught:
        GymnasiumFactory(options({"type": wrapper})).make(2, [1, 2])
    assert caught.value.where == f"{HERE}:Ramp, wrapper {wrapper}"
    assert len(closed) == 1


def test_wrappers_named_by_a_file_and_registered_ones(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from gymnasium.wrappers import TransformReward\n"
        "from srl.api.registry import register\n\n"
        "def plus(env, amount=1.0):\n    return TransformReward(env, lambda reward: reward + amount)\n\n"
        "register('wrapper', 'plus_for_tests', plus)\n"
    )
    rows = play(*make({"type": f"{tmp_path}/mine.py:plus", "amount": 2}, length=3), 3)
    assert [row[0] for row in rows] == [3, 4, 5]
    rows = play(*make({"type": "plus_for_tests"}, length=3), 3)
    assert [row[0] for row in rows] == [2, 3, 4]


def test_masks_pass_through_wrappers():
    given = {"id": "srl/LegalMoves-v0", "action_mask": "info", "wrappers": [{"type": "reward_clip"}]}
    environment = GymnasiumFactory(given).make(2, [1, 2])
    out = output(environment)
    environment.reset(out)
    assert out.action_mask.sum(axis=1).tolist() == [4, 4]


def test_what_lies_below_the_wrappers_counts_resets_and_rewards():
    raw = RawEpisode(Ramp())
    raw.reset(seed=1)
    raw.step(0)
    raw.step(0)
    assert (raw.resets, raw.episode_return) == (1, 3.0)
    raw.reset()
    assert (raw.resets, raw.episode_return) == (2, 0.0)


def test_a_dict_observation_can_be_flattened():
    env = gymnasium.wrappers.TransformObservation(
        Ramp(), lambda seen: {"b": seen, "a": 1}, Dict(b=Ramp().observation_space, a=Discrete(3))
    )
    wrapper = REGISTRY.resolve("wrapper", "flatten_observation")
    assert wrapper(env, wrapper.Options()).reset()[0].tolist() == [0, 0, 0, 1, 0]  # in the order of the space


def test_without_plugins_only_built_in_wrappers_are_admitted():
    """The check must not import what it forbids."""
    table = Registry()
    table.register("wrapper", "brought", "no_such_package.wrappers:Brought", source="package brought")
    raw = {
        "environment": {
            "type": "gymnasium",
            "id": "CartPole-v1",
            "wrappers": [
                {"type": "brought"},
                {"type": "time_limit", "steps": 3},
                {"type": "./mine.py:Own"},
                "time_limit",
            ],
        }
    }
    check = OptionsCheck(allow_plugins=False, registry=table)
    found = check.problems(raw, KeyTree(raw, check.model), {})
    assert {problem.where: problem.value for problem in found} == {
        "environment.wrappers.0.type": "brought",
        "environment.wrappers.2.type": "./mine.py:Own",
    }
    assert all("--no-plugins" in problem.what for problem in found)
    del raw["environment"]["wrappers"][2:], raw["environment"]["wrappers"][0]
    assert check.problems(raw, KeyTree(raw, check.model), {}) == []
