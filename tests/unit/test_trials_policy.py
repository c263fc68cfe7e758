"""``srl.load(trial).policy``: one observation as the environment gives it, or a batch; recurrent state; masks."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import srl
from srl.api.errors import EnvironmentFault, UsageError
from srl.api.importing import import_target
from srl.system.seeding import environment_seeds
from srl.trials.experiments import recipe

PLUGINS = Path(__file__).parents[1] / "plugins"
EVERYTHING = {"type": "gymnasium", "entry": f"{PLUGINS}/filmed.py:Everything", "action_mask": "info"}
RECURRENT = {"policies.learner.network": {"type": "mlp", "hidden": [16], "recurrent": {"type": "lstm", "size": 8}}}


def everything(**overrides):
    return recipe("ppo", EVERYTHING, {"policies.learner.network": {"type": "mlp", "hidden": [16]}, **overrides})


def test_one_observation_and_a_batch_of_a_plain_space(untrained_trial):
    policy = srl.load(untrained_trial(recipe("ppo", "CartPole-v1"))).policy
    assert (policy.version, policy.env_steps) == (1, 10)
    observations = np.random.default_rng(0).normal(size=(7, 4))  # float64, as people write them
    single = [policy.act(one) for one in observations]
    assert {type(one) for one in single} == {np.int64}
    assert policy.act(list(observations)).tolist() == single
    assert len({policy.act(observations[0], deterministic=False) for _ in range(200)}) == 2
    for wrong in (np.zeros(3), np.zeros((2, 2, 4)), {"a": 1}, np.array(["x"] * 4)):
        with pytest.raises((UsageError, EnvironmentFault), match=r"observation"):
            policy.act(wrong)
    with pytest.raises(UsageError, match="not finite"):
        policy.act([0.0, float("nan"), 0.0, 0.0])


def test_nested_observations_masks_and_actions_with_a_start(untrained_trial):
    trial = srl.load(untrained_trial(everything()))
    env = import_target(EVERYTHING["entry"])()
    observation, info = env.reset(seed=3)
    for _ in range(20):
        action = trial.policy.act(observation, action_mask=info["action_mask"])
        assert env.action_space.contains(action)
        assert info["action_mask"][action[0] - 5]
        assert info["action_mask"][3 + action[2][0]]
        assert info["action_mask"][5 + action[2][1] - 10]
        observation, *_, info = env.step(action)
    with pytest.raises(UsageError, match=r"needs an action mask.*bool\[9\]"):
        trial.policy.act(observation)
    with pytest.raises(EnvironmentFault, match="'place' is outside the space"):
        trial.policy.act({**observation, "place": 0}, action_mask=info["action_mask"])
    batch = {
        "place": np.array([3, 6]),
        "parts": (np.zeros((2, 2, 2), np.float32), np.ones((2, 3), np.int8)),
        "gears": np.array([[1, -1], [2, 1]]),
    }
    actions = trial.policy.act(batch, action_mask=np.ones((2, 9), bool))
    assert [np.shape(part) for part in actions] == [(2,), (2, 2), (2, 2)]


def test_recurrent_state_is_kept_until_reset(untrained_trial):
    overrides = {**RECURRENT, "environment.id": "Pendulum-v1"}
    policy = srl.load(untrained_trial(recipe("ppo", "CartPole-v1", overrides))).policy
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)

    def episode():
        policy.reset()
        return np.array([policy.act(one) for one in observations])

    first = episode()
    assert np.array_equal(first, episode())
    policy.reset()
    fresh = policy.act(observations[3])
    assert not np.allclose(first[3], fresh)
    # A batch whose second column starts anew in the middle goes on as two single ones would.
    policy.reset()
    for one in observations[:3]:
        policy.act(np.stack([one, one]))
    policy.reset([False, True])
    both = policy.act(np.stack([observations[3]] * 2))
    np.testing.assert_allclose(both[0], first[3], atol=1e-6)
    np.testing.assert_allclose(both[1], fresh, atol=1e-6)
    with pytest.raises(UsageError, match="another number of observations"):
        policy.act(observations[0])


def test_it_acts_as_the_evaluation_does(untrained_trial):
    """The same episode through the policy and a Gymnasium environment as through the evaluator's own loop."""
    trial = srl.load(untrained_trial(recipe("ppo", "Pendulum-v1", RECURRENT)))
    expected = trial.evaluate(1, environments=1, seed=11)["returns"]
    (seed,) = environment_seeds(11, kind="evaluate", worker=0, incarnation=0, ring_group=0, count=1)
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=seed)
    total, done = 0.0, False
    trial.policy.reset()
    while not done:
        observation, reward, terminated, truncated, _ = env.step(trial.policy.act(observation))
        total, done = total + reward, terminated or truncated
    assert [total] == pytest.approx(expected, rel=1e-4)


def test_what_is_not_there_is_named(untrained_trial, tmp_path):
    path = untrained_trial(recipe("ppo", "CartPole-v1"))
    with pytest.raises(UsageError, match="version-000000001"):
        srl.load(path).load_policy("99")
    with pytest.raises(UsageError, match="Known policies of this trial: learner"):
        srl.load(path).load_policy(name="other")
    with pytest.raises(UsageError, match="newest trial in it is"):
        srl.load(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        srl.train  # noqa: B018
    assert {"run", "load", "recipe"} <= set(dir(srl))
