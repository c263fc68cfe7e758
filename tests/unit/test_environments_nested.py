"""Nested observations, nested actions and action masks through every adapter and every autoreset mode."""

import gymnasium
import numpy as np
import pytest
from environment_play import output
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from srl.api.errors import EnvironmentFault
from srl.environments.environment_list import EnvironmentList
from srl.environments.toy import CountVector
from srl.environments.vector_adapter import VectorAdapter

MODES = list(AutoresetMode)
KEYS = (("clock", "pair", "bits"), ("bits", "clock", "pair"))


class NestedCount(gymnasium.Env):
    """Counts in every leaf; the mask of count k allows action k % 3 alone; the order of the keys alternates.

    ``choice`` 1..3 (counted from 1) must be what the mask allowed, or the reward is 0.
    """

    SPACE = Dict(
        clock=Discrete(50, start=100),
        pair=Tuple([Box(0, 99, (2,), np.float64), MultiBinary(2)]),
        bits=Box(0, 255, (3,), np.uint8),
    )

    def __init__(self, length=3, source="info", end="terminated"):
        self.length, self.source, self.end = length, source, end
        mask = {"action_mask": MultiBinary(3)} if source == "observation" else {}
        self.observation_space = Dict({**self.SPACE.spaces, **mask})
        self.action_space = Dict(choice=Discrete(3, start=1), push=Box(-1.0, 1.0, (2,), np.float64))
        self.count = self.episodes = 0
        self.given = []

    def mask(self):
        return np.arange(3) == self.count % 3

    def action_masks(self):
        return self.mask()

    def result(self):
        values = {
            "clock": np.int64(100 + self.count),
            "pair": (np.full(2, self.count, np.float64), np.array([self.count % 2, 1], np.int8)),
            "bits": np.full(3, self.count, np.uint8),
        }
        observation = {key: values[key] for key in KEYS[self.count % 2]}
        if self.source == "observation":
            observation = {"action_mask": self.mask().astype(np.int8), **observation}
        return observation, {"action_mask": self.mask()} if self.source == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.result()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.given.append({key: np.copy(value) for key, value in action.items()})
        legal = self.mask()[action["choice"] - 1]
        action["push"][...] = 77
        self.count += 1
        ended = self.count >= self.length
        observation, info = self.result()
        flags = (ended and self.end != "truncated", ended and self.end != "terminated")
        return observation, float(legal), *flags, info


def environments(source, lengths=(3, 5), end="terminated", kinds=("list", "sync", "async")):
    functions = [lambda length=length: NestedCount(length, source, end) for length in lengths]
    seeds = list(range(len(lengths)))
    found = {}
    if "list" in kinds:
        made = iter(functions)
        found["list"] = EnvironmentList(lambda: next(made)(), seeds, name="nested", action_mask=source)
    for kind, factory in (("sync", SyncVectorEnv), ("async", AsyncVectorEnv)):
        for mode in MODES if kind in kinds else ():
            vector = factory(functions, autoreset_mode=mode)
            found[f"{kind} {mode.name}"] = VectorAdapter(vector, seeds, name="nested", action_mask=source)
    return found


def leaf(space, array, path):
    (found,) = [one for one in space.leaves() if one.path == path]
    return found.of(array)


def play_legally(environment, steps):
    """Follows the masks; returns per column the valid rows as (count, reward, terminated, truncated, final count)."""
    space, action_space = environment.spec.observation, environment.spec.action
    columns = [[] for _ in range(environment.count)]
    out = output(environment)
    environment.reset(out)
    for _ in range(steps):
        counts = leaf(space, out.observation, "clock").copy()
        valid, mask = out.valid.copy(), out.action_mask.copy()
        assert np.array_equal(leaf(space, out.observation, "bits")[:, 0], counts)
        assert np.array_equal(leaf(space, out.observation, "pair.0")[:, 1], counts)
        assert np.array_equal(leaf(space, out.observation, "pair.1")[:, 0], counts % 2)
        assert mask[~valid].all()  # nothing is illegal where nobody decides
        assert (mask[valid].sum(axis=1) == 1).all()
        assert (mask[valid].argmax(axis=1) == counts[valid] % 3).all()
        action = np.zeros(environment.count, action_space.dtype)
        leaf(action_space, action, "choice")[...] = mask.argmax(axis=1)
        leaf(action_space, action, "push")[...] = 0.5
        before = action.tobytes()
        ended = environment.step(action, out)
        assert action.tobytes() == before
        for column in np.flatnonzero(valid):
            final = None
            if ended is not None and column in ended.columns:
                record = ended.final_observation[list(ended.columns).index(column)]
                final = int(leaf(space, record, "clock"))
                assert int(leaf(space, record, "bits")[0]) == final
            columns[column].append(
                (
                    int(counts[column]),
                    float(out.reward[column]),
                    bool(out.terminated[column]),
                    bool(out.truncated[column]),
                    final,
                )
            )
    return columns


@pytest.mark.parametrize("source", ["info", "observation", "method"])
def test_every_adapter_gives_the_same_episodes_and_the_mask_of_the_row_it_belongs_to(source):
    """Field cases 1, 18, 30 and 32 for nested spaces: whatever the mode, key order and source of the mask."""
    kinds = ("list", "sync", "async") if source == "info" else ("list", "sync")
    for name, environment in environments(source, kinds=kinds).items():
        try:
            three, five = play_legally(environment, 24)
        finally:
            environment.close()
        for column, length in ((three, 3), (five, 5)):
            episode = [(k, 1.0, k + 1 == length, False, length if k + 1 == length else None) for k in range(length)]
            whole = len(column) // length
            assert whole >= 4
            assert column[: whole * length] == episode * whole, name


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_an_episode_ends_whichever_flags_its_last_step_sets(end):
    """Field case 16 for one agent: both flags in one step pass as they are, and are one end."""
    for name, environment in environments("info", (2,), end, ("list", "sync")).items():
        (column,) = play_legally(environment, 6)
        ends = [row for row in column if row[4] is not None]
        assert len(ends) == (2 if "NEXT" in name else 3), name
        assert {row[2:4] for row in ends} == {(end != "truncated", end != "terminated")}


def test_the_environment_gets_float64_and_choices_from_their_start():
    environment = environments("info", kinds=("list",))["list"]
    play_legally(environment, 3)
    given = environment._envs[0].given
    assert [int(one["choice"]) for one in given] == [1, 2, 3]
    assert given[0]["push"].dtype == np.float64
    assert given[0]["push"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("layout", ["stacked", "objects"])
def test_a_native_vector_environment_with_nested_observations_in_same_step(layout):
    class Nested(CountVector):
        def __init__(self):
            super().__init__(2, [1, 2], autoreset_mode="same_step", final_layout=layout)
            self.single_observation_space = Dict(b=Box(0, 9, (1,)), a=Tuple([Discrete(9)]))

        def _observation(self):
            count = self._count
            return {"b": count.astype(np.float32)[:, None], "a": (count.copy(),)}

        def _final(self, ended):
            batch = self._observation()
            if layout == "stacked":
                return batch
            objects = np.full(2, None, object)
            for index in np.flatnonzero(ended):
                objects[index] = {"a": (batch["a"][0][index],), "b": batch["b"][index]}
            return objects

    environment = VectorAdapter(Nested(), [1, 2], name="nested")
    out = output(environment)
    environment.reset(out)
    space = environment.spec.observation
    for step, (columns, finals) in enumerate([([0], [1]), ([0, 1], [1, 2]), ([0], [1])], 1):
        ended = environment.step(np.zeros(2, np.int64), out)
        assert ended.columns.tolist() == columns, step
        assert leaf(space, ended.final_observation, "a.0").tolist() == finals
        assert leaf(space, ended.final_observation, "b")[:, 0].tolist() == finals
        assert leaf(space, out.observation, "a.0")[0] == 0


class Masked(gymnasium.Env):
    """Gives whatever mask it is told to."""

    def __init__(self, mask, action=None, source="info"):
        self.observation_space = Box(0, 1, (1,))
        self.action_space = Discrete(3) if action is None else action
        self.given = mask

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {} if self.given is None else {"action_mask": self.given}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {} if self.given is None else {"action_mask": self.given}

    def action_masks(self):
        return self.given


COMPOSED = Dict(one=Discrete(2), two=Tuple([MultiDiscrete([2, 3]), Box(0, 1, (1,))]))


@pytest.mark.parametrize(
    ("action", "mask", "flat"),
    [
        (Discrete(3), np.array([True, False, True]), [1, 0, 1]),
        (Discrete(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (Discrete(3), [1, 0, 1], [1, 0, 1]),
        (Discrete(3, start=4), np.array([0.0, 0.0, 1.0]), [0, 0, 1]),
        (MultiDiscrete([2, 3]), np.array([1, 0, 0, 1, 1]), [1, 0, 0, 1, 1]),
        (MultiDiscrete([2, 3]), (np.array([1, 0]), np.array([0, 1, 1])), [1, 0, 0, 1, 1]),
        (MultiDiscrete([2, 2]), np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
        (COMPOSED, np.array([1, 1, 1, 0, 0, 1, 1]), [1, 1, 1, 0, 0, 1, 1]),
        (COMPOSED, {"one": [1, 1], "two": ((np.array([1, 0]), [0, 1, 1]), None)}, [1, 1, 1, 0, 0, 1, 1]),
    ],
    ids=str,
)
def test_masks_may_be_flat_or_nested_as_the_action_space_is(action, mask, flat):
    for source in ("info", "method"):
        for vector in (False, True):
            if vector:
                env = SyncVectorEnv([lambda: Masked(mask, action)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
                environment = VectorAdapter(env, [1, 2], name="masked", action_mask=source)
            else:
                environment = EnvironmentList(lambda: Masked(mask, action), [1, 2], name="masked", action_mask=source)
            out = output(environment)
            environment.reset(out)
            assert out.action_mask.astype(int).tolist() == [flat, flat]
            out.action_mask[...] = False
            environment.step(np.zeros((2, *environment.spec.action.shape), environment.spec.action.dtype), out)
            assert out.action_mask.astype(int).tolist() == [flat, flat]


@pytest.mark.parametrize(
    "mask", [np.ones(2), np.ones((3, 2)), np.array([0, 1, 2]), np.array(["a", "b", "c"]), "abc", {"a": [1]}], ids=repr
)
def test_a_mask_that_does_not_fit_is_named(mask):
    environment = EnvironmentList(lambda: Masked(mask), [1], name="masked", action_mask="method")
    with pytest.raises(EnvironmentFault, match=r"mask does not fit the action space.*3 truth values") as caught:
        environment.reset(output(environment))
    assert caught.value.where == "masked, environment 0, step 0"


def test_a_missing_mask_is_named_with_its_environment():
    env = SyncVectorEnv([lambda: Masked(np.ones(3)), lambda: Masked(None)])
    for environment, where in (
        (
            EnvironmentList(lambda: Masked(None), [1], name="masked", action_mask="info"),
            "masked, environment 0, step 0",
        ),
        (VectorAdapter(env, [1, 2], name="masked", action_mask="info"), "masked, step 0, environment 1"),
    ):
        with pytest.raises(EnvironmentFault, match=r"gives no action mask.*action_mask is info") as caught:
            environment.reset(output(environment))
        assert caught.value.where == where


def test_masks_that_cannot_be_are_refused_at_the_start():
    with pytest.raises(EnvironmentFault, match="no discrete choice"):
        EnvironmentList(lambda: Masked(None, Box(0, 1, (2,))), [1], name="masked", action_mask="info")
    with pytest.raises(EnvironmentFault, match="the observation has no 'action_mask'"):
        EnvironmentList(lambda: Masked(None), [1], name="masked", action_mask="observation")

    class Short(Masked):
        def __init__(self):
            super().__init__(None)
            self.observation_space = Dict(action_mask=MultiBinary(2), seen=Box(0, 1, (1,)))

    with pytest.raises(EnvironmentFault, match=r"mask in the observation does not fit.*3 entries"):
        EnvironmentList(Short, [1], name="masked", action_mask="observation")
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    with pytest.raises(EnvironmentFault, match="action_masks"):
        EnvironmentList(lambda: env, [1], name="cartpole", action_mask="method")


def test_a_mask_nobody_asked_for_stays_in_the_observation():
    environment = EnvironmentList(lambda: NestedCount(source="observation"), [1], name="nested")
    assert "action_mask" in [one.path for one in environment.spec.observation.leaves()]
    assert not environment.spec.action_mask
