"""Seeds: one per environment, at the first reset only, and every start differs."""

import gymnasium
import numpy as np
import pytest
from environment_play import MODES, output
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv

from srl.api.errors import UsageError
from srl.environments.environment_list import EnvironmentList
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.vector_adapter import VectorAdapter


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


@pytest.mark.parametrize("seeds", [[1], [1, 1], [1, 2, 3], []])
def test_seeds_must_be_one_per_environment_and_distinct(seeds):
    with pytest.raises(UsageError, match="one seed each, all distinct"):
        GymnasiumFactory({"id": "CartPole-v1"}).make(2, seeds)
