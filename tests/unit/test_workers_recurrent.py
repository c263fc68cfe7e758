"""States, masks and records in ring groups, merged requests and evaluations: short blocks, errors, invalid rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from srl.api.block import FieldSpec, policy_schema
from srl.api.environment import Ended, EnvironmentSpec, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault, NonFiniteError
from srl.api.policy import ActingPolicy, NoiseSpec, PolicySpec
from srl.api.spaces import SpaceSpec, mask_size, stored_action
from srl.system.decisions import copy_input, new_input, new_output
from srl.system.streams.interface import Credit, InferenceRequest, Producer
from srl.system.workers.evaluator import EpisodeRunner
from srl.system.workers.finite import FiniteGuard
from srl.system.workers.legal import LegalActions
from srl.system.workers.policy_worker import RequestMerger
from srl.system.workers.ring_group import RingGroup, RingGroupIdentity

OBSERVATION = SpaceSpec.nested(
    "dict", {"count": SpaceSpec("box", (1,), "float32"), "image": SpaceSpec("box", (2,), "uint8")}
)
COUNT = OBSERVATION.leaves()[0]
ACTION = SpaceSpec.nested(
    "dict", {"push": SpaceSpec("box", (2,), "float32"), "choice": SpaceSpec("discrete", (), "int64", n=3)}
)
ENVIRONMENT = EnvironmentSpec("Count3", OBSERVATION, ACTION, action_mask=True)


class Count3(VectorEnvironment):
    """COUNT(3): column 0 begins anew in the ending step, column 1 has a reset query after it.

    ``bad`` has the steps (of all) at whose end column 0's count is NaN; ``stuck`` those with nothing legal for it.
    """

    def __init__(self, count: int = 2, bad: Sequence[int] = (), stuck: Sequence[int] = ()) -> None:
        self.spec = ENVIRONMENT
        self.count = count
        self.step_number = 0
        self.bad, self.stuck = bad, stuck

    def reset(self, out: StepOutput) -> None:
        self.counts = np.zeros(self.count, np.int64)
        self.over = np.zeros(self.count, np.bool_)
        out.valid[:] = out.episode_start[:] = True
        self.show(out)

    def step(self, action, out: StepOutput) -> Ended | None:
        self.step_number += 1
        resetting, self.over = self.over, np.zeros(self.count, np.bool_)
        self.counts = np.where(resetting, 0, self.counts + 1)
        ended = self.counts == 3
        out.reward[:] = ~resetting
        out.terminated[:], out.truncated[:] = ended, False
        columns = np.flatnonzero(ended)
        final = np.zeros(len(columns), OBSERVATION.dtype)
        COUNT.of(final)[:] = 3
        queries = ended & (np.arange(self.count) % 2 == 1)
        out.valid[:] = ~queries
        self.over = queries
        self.counts[ended & ~queries] = 0
        out.episode_start[:] = resetting | (ended & ~queries)
        self.show(out)
        action[...] = np.ones((), action.dtype)
        return Ended(columns, final) if len(columns) else None

    def show(self, out: StepOutput) -> None:
        COUNT.of(out.observation)[:, 0] = self.counts
        if self.step_number in self.bad:
            COUNT.of(out.observation)[0] = np.nan
        if out.action_mask is not None:
            out.action_mask[:] = self.counts[:, None] != np.arange(3)
            out.action_mask[~out.valid] = False
            if self.step_number in self.stuck:
                out.action_mask[0] = False

    def close(self) -> None:
        pass


def spec_of(state_rows: int = 2, space: SpaceSpec = ACTION) -> PolicySpec:
    return PolicySpec(
        name="main",
        module="",
        acting="",
        backend="numpy",
        observation=OBSERVATION,
        action=space,
        action_array=stored_action(space),
        extras=(FieldSpec("output", (), "float32"),),
        noise=NoiseSpec("uniform", (1,)),
        action_mask=mask_size(space),
        state_size=1,
        state_rows=state_rows,
    )


class Cell(ActingPolicy):
    """h' = h + 1 from 0.5, at invalid rows too: the runtime has to undo that."""

    def load(self, parameters):
        pass

    def act(self, batch, out, *, deterministic=False):
        out.used_state[...] = np.where(batch.episode_start[:, None], np.float32(0.5), batch.state)
        out.state[...] = out.used_state + 1
        out.extras["output"][...] = out.state[:, 0]
        out.action[...] = 0


def ring_group(rows=4, final_rows=None, mode="stop", environment=None, **options):
    spec = spec_of(**options)
    environment = environment or Count3()
    schema = policy_schema(spec, rows=rows, columns=environment.count)
    if final_rows is not None:
        schema = replace(schema, final_rows=final_rows)
    guard = FiniteGuard(mode)
    group = RingGroup(RingGroupIdentity(Producer(0, 0, 1), 0, 7), environment, schema, spec, guard)
    group.reset()
    return group, schema, Cell(spec)


def begin(group, schema, grant):
    block = schema.allocate()
    block.buffer[:] = 255  # a slot is full of what was there before
    group.begin(Credit(grant, 0, grant, 0, 0), block)
    return block


def run(group, cell, rows):
    for _ in range(rows):
        views = group.views()
        cell.act(views.act_input, views.act_output)
        group.step(0)


def test_case_13_states_over_fragments_and_reset_queries():
    group, schema, cell = ring_group()
    blocks = []
    for grant in range(2):
        blocks.append(begin(group, schema, grant))
        run(group, cell, 4)
        group.finish()
    assert [block["output"][:, 0].tolist() for block in blocks] == [[1.5, 2.5, 3.5, 1.5], [2.5, 3.5, 1.5, 2.5]]
    assert [block["state"][:, 0, 0].tolist() for block in blocks] == [[0.5, 2.5], [1.5, 0.5]]
    # Column 1 has a reset query in row 3, in which the policy says 4.5 and nothing advances.
    assert blocks[0]["valid"][:, 1].tolist() == [True, True, True, False]
    assert [block["output"][:3, 1].tolist() for block in blocks] == [[1.5, 2.5, 3.5]] * 2


def test_an_invalid_row_leaves_the_state_that_was_used():
    group, schema, cell = ring_group(rows=5, state_rows=1)
    block = begin(group, schema, 0)
    run(group, cell, 5)
    group.finish()
    assert block["state"][:, 1, 0].tolist() == [0.5, 1.5, 2.5, 3.5, 0.5]


@pytest.mark.parametrize("end", ["cut", "abandoned", "early"])
def test_states_and_masks_go_on_after_a_block_that_is_short(end):
    """Three rows, then a whole block: the second begins with the state and mask after them, and stores that state."""
    group, schema, cell = ring_group(final_rows=3 if end == "early" else None)
    first = begin(group, schema, 0)
    run(group, cell, 3)
    if end == "early":
        assert group.full()
    if end == "abandoned":
        assert group.abandon() == 6
    else:
        header = group.finish()
        assert (header.length, header.valid_rows) == (3, 6)
        assert first["state"][:, 0, 0].tolist() == [0.5, 2.5]
        assert not first["valid"][3:].any()
        assert first["action"][3:].tobytes() == bytes(first["action"][3:].nbytes)
        assert (first["action_mask"][3:] == first["action_mask"][3]).all()
        assert first["observation"][4].tobytes() == first["observation"][3].tobytes()
    second = begin(group, schema, 1)
    assert second["action_mask"][0].tolist() == [[False, True, True], [False, False, False]]
    assert second["valid"][0].tolist() == [True, False]
    run(group, cell, 2)
    assert second["output"][:2].tolist() == [[1.5, 4.5], [2.5, 1.5]]
    assert second["state"][0, :, 0].tolist() == [0.5, 3.5]


def test_stored_states_behind_a_cut_are_zero():
    group, schema, cell = ring_group(state_rows=1)
    block = begin(group, schema, 0)
    run(group, cell, 2)
    group.finish()
    assert block["state"][:, 0, 0].tolist() == [0.5, 1.5, 0.0, 0.0]


def test_case_18_an_environment_that_writes_to_its_record_of_actions_does_not_reach_the_block():
    group, schema, cell = ring_group()
    block = begin(group, schema, 0)
    run(group, cell, 4)
    group.finish()
    assert block["action"].tobytes() == bytes(block["action"].nbytes)


class Push(Count3):
    """Takes one bounded number, keeps what it was given and scales it in place."""

    def step(self, action, out: StepOutput) -> Ended | None:
        self.given = action.copy()
        action *= 0.25
        return super().step(action, out)


def test_case_18_the_block_keeps_the_action_before_clipping():
    space = SpaceSpec("box", (1,), "float32", low=-1.0, high=1.0)
    environment = Push()
    environment.spec = EnvironmentSpec("Push", OBSERVATION, space)
    policy = replace(spec_of(space=space), action_transform="clip", state_size=0, state_rows=0)
    schema = policy_schema(policy, rows=4, columns=2)
    group = RingGroup(RingGroupIdentity(Producer(0, 0, 1), 0, 7), environment, schema, policy, FiniteGuard("stop"))
    group.reset()
    block = begin(group, schema, 0)
    for _ in range(4):
        out = group.views().act_output
        out.action[...] = 1.7
        out.extras["output"][...] = -2.363939  # log-probability of 1.7 under a standard Gaussian
        group.step(0)
        assert environment.given.tolist() == [[1.0], [1.0]]
    group.finish()
    assert (block["action"] == np.float32(1.7)).all()
    assert (block["output"] == np.float32(-2.363939)).all()


def test_case_30_nothing_legal_is_named_with_environment_choice_and_step():
    group, schema, cell = ring_group(environment=Count3(stuck=[2]))
    begin(group, schema, 0)
    run(group, cell, 1)
    with pytest.raises(EnvironmentFault) as caught:
        run(group, cell, 1)
    assert "no action is legal in environment 0, action 'choice'" in str(caught.value)
    assert caught.value.where == "ring group 0 of actor 0, step 2"
    with pytest.raises(EnvironmentFault, match="actor 0, step 0: no action is legal"):
        ring_group(environment=Count3(stuck=[0]))


def test_case_30_every_choice_of_the_action_needs_something_legal():
    several = SpaceSpec("multi_discrete", (2, 2), "int64", nvec=(2, 1, 3, 2))
    one = SpaceSpec("discrete", (), "int64", n=2)
    action = SpaceSpec.nested("dict", {"b": several, "a": one, "c": SpaceSpec("box", (5,), "float32")})
    agents = EnvironmentSpec("x", OBSERVATION, action, slots=2, agents=("red", "blue"), action_mask=True)
    legal = LegalActions(agents)
    mask = np.zeros((4, mask_size(action)), np.bool_)
    mask[:, [1, 3, 4, 7, 8]] = True  # a: 2; b: 2, 1, 3, 2
    everywhere = np.ones(4, np.bool_)
    legal.check(mask, everywhere, "here", 5)
    mask[3, 7] = False
    legal.check(mask, np.array([True, True, True, False]), "here", 5)
    with pytest.raises(EnvironmentFault) as caught:
        legal.check(mask, everywhere, "here", 5)
    assert "here, step 5: no action is legal in environment 1, agent 'blue', action 'b', element 2" in str(caught.value)


def test_a_leaf_that_is_not_finite_is_found_in_place_and_named():
    group, schema, cell = ring_group(environment=Count3(bad=[2]))
    begin(group, schema, 0)
    run(group, cell, 1)
    with pytest.raises(NonFiniteError, match=r"step 1: the observation 'count' of environment 0 is not finite"):
        run(group, cell, 1)


def test_replacing_writes_zeros_into_the_leaf_only():
    group, schema, cell = ring_group(mode="replace", environment=Count3(bad=[2]))
    block = begin(group, schema, 0)
    image = OBSERVATION.leaves()[1].of(block["observation"])
    run(group, cell, 4)
    group.finish()
    assert COUNT.of(block["observation"])[:, 0, 0].tolist() == [0, 1, 0, 0, 1]
    assert np.isfinite(COUNT.of(block["observation"])).all()
    assert (image[1:] == 255).all()  # bytes that the environment did not write


def test_a_final_observation_is_named_by_the_environment_that_ended():
    observation = np.zeros(2, OBSERVATION.dtype)
    COUNT.of(observation)[1] = np.inf
    with pytest.raises(NonFiniteError, match="final_observation 'count' of environment 7"):
        FiniteGuard("stop").check_final(Ended(np.array([2, 7]), observation), ENVIRONMENT, "here")


def test_merged_requests_keep_their_own_masks_and_states():
    spec = spec_of()
    generator = np.random.default_rng(1)
    requests = []
    for actor, rows in enumerate((2, 1, 3)):
        batch, out = new_input(spec, rows), new_output(spec, rows)
        COUNT.of(batch.observation)[...] = generator.random((rows, 1))
        batch.state[...] = generator.random((rows, 1))
        batch.action_mask[...] = generator.integers(0, 2, (rows, 3))
        batch.valid[...] = True
        requests.append(InferenceRequest(actor, 0, 0, 0, False, batch, out))
    merger = RequestMerger(spec)
    batch, out = merger.gather(requests)
    for name in ("observation", "state", "action_mask", "valid"):
        whole = np.concatenate([getattr(request.batch, name) for request in requests])
        assert getattr(batch, name).tobytes() == whole.tobytes(), name
    Cell(spec).act(batch, out)
    merger.scatter(requests, out)
    for request in requests:
        np.testing.assert_array_equal(request.out.used_state, request.batch.state)
        np.testing.assert_array_equal(request.out.state, request.batch.state + 1)
        np.testing.assert_array_equal(request.out.extras["output"], request.batch.state[:, 0] + 1)


def test_a_policy_without_masks_and_states_has_none_of_their_arrays():
    spec = PolicySpec(
        name="main",
        module="",
        acting="",
        backend="numpy",
        observation=OBSERVATION,
        action=ACTION,
        action_array=stored_action(ACTION),
        extras=(),
        noise=NoiseSpec("uniform", ()),
    )
    batch, out = new_input(spec, 2), new_output(spec, 2)
    assert (batch.action_mask, batch.state, out.state, out.used_state) == (None, None, None, None)
    copy_input(batch, new_input(spec, 2))
    assert [field.name for field in policy_schema(spec, rows=4, columns=2).fields].count("action_mask") == 0


def test_evaluation_keeps_states_within_episodes_and_begins_anew():
    spec = spec_of()
    environment = Count3()
    for _ in range(2):
        runner = EpisodeRunner(environment, spec, [2, 2], Cell(spec))
        outputs = []
        while not runner.done():
            runner.step(0)
            outputs.append(runner._output.extras["output"].tolist())
        assert runner.returns == [3.0] * 4
        assert [row[0] for row in outputs[:6]] == [1.5, 2.5, 3.5, 1.5, 2.5, 3.5]
        assert [row[1] for row in outputs[:7]] == [1.5, 2.5, 3.5, 4.5, 1.5, 2.5, 3.5]  # 4.5: the reset query
    stuck = EpisodeRunner(Count3(stuck=[1]), spec, [1, 1], Cell(spec))
    stuck.step(0)
    with pytest.raises(EnvironmentFault, match="evaluation, step 1: no action is legal in environment 0"):
        stuck.step(0)
