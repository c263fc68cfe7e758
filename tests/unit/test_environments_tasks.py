"""Tasks of known optimum: the best policy gets it, others do not, and episodes are those of the contract."""

import gymnasium
import numpy as np
import pytest
from environment_play import output

from srl.api.environment import VectorEnvironment
from srl.environments import tasks
from srl.environments.batch_tasks import Combination, Forever, LegalMoves, Mixed, Recall, Target
from srl.environments.environment_list import EnvironmentList
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.vector_adapter import VectorAdapter

NAMES = ("Combination", "LegalMoves", "Recall", "CartPolePositions", "Forever", "Mixed", "Target")
VECTORIZATIONS = ("auto", "sync")


def make(name: str, count: int, vectorization: str = "auto", seed: int = 0, **options) -> VectorEnvironment:
    given = {"id": f"srl/{name}-v0", "vectorization": vectorization, **options}
    assert GymnasiumFactory.check(given) == []
    return GymnasiumFactory(given).make(count, list(range(seed, seed + count)))


def leaves(space, array) -> dict:
    return {leaf.path: leaf.of(array) for leaf in space.leaves()}


def combination(environment, out, memory):
    return out.observation.copy()


def legal_moves(environment, out, memory):
    return np.where(out.action_mask, out.observation, -1).argmax(axis=1)


def greedy_moves(environment, out, memory):
    return out.observation.argmax(axis=1)


def recall(environment, out, memory):
    cue = memory.setdefault("cue", np.zeros(environment.count, np.int64))
    cue[out.episode_start] = out.observation[out.episode_start, :-1].argmax(axis=1)
    return cue


def forgetful(environment, out, memory):
    return np.zeros(environment.count, np.int64)


def target(environment, out, memory):
    return out.observation.copy()


def mixed(environment, out, memory):
    action = np.zeros(environment.count, environment.spec.action.dtype)
    seen, given = (
        leaves(environment.spec.observation, out.observation),
        leaves(environment.spec.action, action),
    )
    given["choice"][...] = seen["choice"]
    given["move"][...] = seen["point.0"]
    given["rest.0"][...] = seen["point.1"]
    given["rest.1"][...] = seen["picture"].reshape(-1, 4) > 0
    return action


def mean_return(environment, policy, steps):
    out, memory = output(environment), {}
    environment.reset(out)
    sums = np.zeros(environment.count)
    returns = []
    for _ in range(steps):
        ended = environment.step(policy(environment, out, memory), out)
        sums += out.reward
        if ended is not None:
            returns += sums[ended.columns].tolist()
            sums[ended.columns] = 0.0
    return float(np.mean(returns)), len(returns)


@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
@pytest.mark.parametrize(
    ("name", "policy", "kwargs"),
    [
        ("Combination", combination, {}),
        ("Combination", combination, {"values": [2, 2], "steps": 3}),
        ("Recall", recall, {}),
        ("Recall", recall, {"cues": 2, "delay": 1}),
        ("Forever", forgetful, {"steps": 7}),
        ("Target", target, {"dimensions": 3}),
        ("Mixed", mixed, {}),
    ],
)
def test_the_best_policy_gets_exactly_the_optimum(name, policy, kwargs, vectorization):
    environment = make(name, 6, vectorization, kwargs=kwargs)
    assert isinstance(environment, VectorAdapter if vectorization == "auto" else EnvironmentList)
    source = environment._env if vectorization == "auto" else environment._envs[0].unwrapped
    mean, count = mean_return(environment, policy, 40)
    assert count >= 6 * 3
    assert mean == pytest.approx(source.optimum)
    environment.close()


def test_masks_make_the_difference_in_legal_moves():
    """Field case 30: with the mask 0.9 a step, without it nothing beats 0."""
    task = LegalMoves()
    assert task.optimum == pytest.approx(16 * 0.9)
    assert task.unmasked_optimum == 0.0
    # 64 environments, 640 steps: standard error of a step 0.001 and 0.005.
    masked, count = mean_return(make("LegalMoves", 64, action_mask="info"), legal_moves, 640)
    assert count == 64 * 40
    assert masked == pytest.approx(task.optimum, abs=0.1)
    unmasked, _ = mean_return(make("LegalMoves", 64), greedy_moves, 640)
    assert unmasked == pytest.approx(0.0, abs=0.35)


@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_strict_legal_moves_refuse_an_illegal_one(vectorization):
    environment = make("LegalMoves", 4, vectorization, action_mask="info", kwargs={"strict": True})
    mean, _ = mean_return(environment, legal_moves, 64)
    assert 11 < mean < 16
    out = output(environment)
    environment.reset(out)
    illegal = np.where(out.action_mask, -1, 1).argmax(axis=1)
    with pytest.raises(Exception, match="illegal move in environment 0"):
        environment.step(illegal, out)


def test_without_memory_recall_is_guessing():
    environment = make("Recall", 64)
    mean, count = mean_return(environment, forgetful, 450)
    assert count == 64 * 50
    assert mean == pytest.approx(Recall().memoryless_optimum, abs=0.03)
    out = output(environment)
    environment.reset(out)
    seen = [out.observation.copy()]
    for _ in range(8):
        environment.step(np.zeros(64, np.int64), out)
        seen.append(out.observation.copy())
    assert (seen[0][:, :4].sum(axis=1) == 1).all()
    assert not np.any(seen[1:8])
    assert (seen[8] == [0, 0, 0, 0, 1]).all()


@pytest.mark.parametrize("end", ["truncated", "terminated", "both"])
@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_forever_never_tells_the_time_and_ends_as_told(end, vectorization):
    environment = make("Forever", 2, vectorization, kwargs={"steps": 3, "end": end})
    out = output(environment)
    environment.reset(out)
    for step in range(1, 7):
        ended = environment.step(np.zeros(2, np.int64), out)
        assert (out.observation == 1).all()
        assert (ended is not None) == (step % 3 == 0)
        assert out.terminated.all() == (step % 3 == 0 and end != "truncated")
        assert out.truncated.all() == (step % 3 == 0 and end != "terminated")
        if ended is not None:
            assert (ended.final_observation == 1).all()


@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
def test_cartpole_without_velocities_is_cartpole(vectorization):
    """The same states as Gymnasium's own, place and angle alone."""
    hidden = make("CartPolePositions", 3, vectorization)
    full = GymnasiumFactory({"id": "CartPole-v1", "vectorization": vectorization}).make(3, [0, 1, 2])
    some, all_ = output(hidden), output(full)
    hidden.reset(some)
    full.reset(all_)
    for step in range(80):
        assert np.array_equal(some.observation, all_.observation[:, [0, 2]])
        assert np.array_equal(some.valid, all_.valid)
        action = np.full(3, step // 2 % 2)
        hidden.step(action, some)
        full.step(action, all_)
    assert hidden.spec.observation.high == pytest.approx((4.8, 0.41887903))
    if vectorization == "auto":
        assert hidden._env.max_episode_steps == 500
    else:
        assert hidden._envs[0].spec.max_episode_steps == 500


@pytest.mark.parametrize("vectorization", VECTORIZATIONS)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "Forever"])
def test_the_seed_of_the_reset_drives_all_randomness(name, vectorization):
    """Field case 35: equal seeds give equal bits whatever global generators do; others differ, also between columns."""

    def run(seed):
        np.random.seed(np.random.randint(1000))
        environment = make(name, 3, vectorization, seed=seed)
        out = output(environment)
        environment.reset(out)
        seen = [out.observation.copy()]
        for _ in range(25):
            environment.step(np.zeros((3, *environment.spec.action.shape), environment.spec.action.dtype), out)
            seen.append(out.observation.copy())
        return np.stack(seen)

    first = run(7)
    assert first.tobytes() == run(7).tobytes()
    assert first.tobytes() != run(107).tobytes()
    columns = {first[:, column].tobytes() for column in range(3)}
    assert len(columns) == 3


@pytest.mark.parametrize("task", [Combination, LegalMoves, Recall, Forever, Mixed, Target])
def test_a_batch_and_a_single_one_have_the_spaces_they_declare(task):
    batch = task(4)
    batch.action_space.seed(1)
    observation, _ = batch.reset(seed=3)
    assert batch.observation_space.contains(observation)
    for _ in range(12):
        observation, reward, _, _, _ = batch.step(batch.action_space.sample())
        assert batch.observation_space.contains(observation)
        assert reward.shape == (4,)
    env = gymnasium.make(f"srl/{task.__name__}-v0")  # Gymnasium's own checker around it
    env.action_space.seed(1)
    env.reset(seed=3)
    for _ in range(12):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            env.reset()


def test_ids_are_found_by_their_namespace_and_arguments_by_their_names():
    (problem,) = GymnasiumFactory.check({"id": "srl/Recal-v0"})
    assert "'srl/Recall-v0'" in problem.hint
    for vectorization in VECTORIZATIONS:
        (problem,) = GymnasiumFactory.check(
            {"id": "srl/Recall-v0", "kwargs": {"dely": 3}, "vectorization": vectorization}
        )
        assert (problem.where, problem.hint) == ("kwargs.dely", "Did you mean 'delay'?")
    assert set(tasks.SINGLE) | {"CartPolePositions"} == set(NAMES)


@pytest.mark.parametrize(
    ("task", "kwargs"),
    [(LegalMoves, {"legal": 9}), (LegalMoves, {"legal": 0}), (Recall, {"delay": 0}), (Forever, {"steps": 0})],
)
def test_arguments_without_sense_are_refused(task, kwargs):
    with pytest.raises(ValueError, match="got"):
        task(**kwargs)
