"""Batches for algorithm tests, as a trainer gets them: acted by the policy's own acting class, row after row."""

from __future__ import annotations

import numpy as np
import pytest

from srl.api.algorithm import Batch
from srl.api.block import BlockHeader, policy_schema
from srl.api.importing import import_target
from srl.api.policy import ActInput, ActOutput
from srl.system.noise import block_noise


def fill_randomly(generator, space, array):
    """Random elements of a space into ``array[...]`` of its elements."""
    for leaf in space.leaves():
        view, plain = leaf.of(array), leaf.space
        if plain.kind == "discrete":
            view[...] = generator.integers(0, plain.n, view.shape)
        elif plain.kind == "multi_discrete":
            view[...] = generator.integers(0, plain.nvec, view.shape)
        elif plain.kind == "multi_binary" or plain.dtype == "uint8":
            view[...] = generator.integers(0, 2 if plain.kind == "multi_binary" else 256, view.shape)
        else:
            view[...] = generator.normal(size=view.shape) * 3.0 + 1.0


def act_batch(training, *, rows=16, columns=8, seed=0, ends=0.1, blocks=1, first_actor=0):
    """Random observations, rewards, masks and ends; decisions, states and values by the present weights.

    Args:
        training: The trainer context whose weights act.
        rows: T.
        columns: C.
        seed: Of everything random.
        ends: Share of rows that terminate, and of those that are truncated.
        blocks: Blocks the columns belong to, for the headers.
        first_actor: Index of the actor that sent the first block; one block per actor.
    """
    spec = training.spec
    generator = np.random.default_rng(seed)
    schema = policy_schema(spec, rows=rows, columns=columns)
    fields = dict(schema.allocate().fields)
    fill_randomly(generator, spec.observation, fields["observation"])
    shape = (rows, columns)
    fields["valid"][...] = True
    fields["reward"][...] = generator.normal(size=shape)
    fields["terminated"][...] = generator.random(shape) < ends
    fields["truncated"][...] = generator.random(shape) < ends
    fields["episode_start"][1:] = (fields["terminated"] | fields["truncated"])[:-1]
    truncated = fields["truncated"]
    fields["final_row"][...] = np.where(truncated, np.cumsum(truncated.reshape(-1)).reshape(shape) - 1, -1)
    finals = np.zeros((int(truncated.sum()), *spec.observation.shape), spec.observation.dtype)
    fill_randomly(generator, spec.observation, finals)
    fields["final_observation"] = finals
    if spec.action_mask:
        mask = fields["action_mask"]
        mask[...] = generator.random(mask.shape) < 0.6
        mask[..., 0] = True
        mask[..., -1] = True
    acting = import_target(spec.acting)(spec)
    acting.load(training.layout.views(training.flat_weights()))
    noise = block_noise(spec.noise, seed=seed, actor=0, ring_group=0, columns=columns, first_step=0, rows=rows)
    state = generator.normal(size=(columns, spec.state_size)).astype(np.float32) if spec.state_size else None
    for row in range(rows):
        extras = {extra.name: fields[extra.name][row] for extra in spec.extras}
        out = ActOutput(
            fields["action"][row],
            extras,
            None if state is None else np.zeros_like(state),
            None if state is None else np.zeros_like(state),
        )
        mask = fields["action_mask"][row] if spec.action_mask else None
        given = ActInput(
            fields["observation"][row], noise[row], fields["episode_start"][row], fields["valid"][row], mask, state
        )
        acting.act(given, out)
        if state is not None:
            if row % spec.state_rows == 0:
                fields["state"][row // spec.state_rows] = out.used_state
            state = out.state
    headers = [
        BlockHeader(first_actor + index, 0, 0, seed, index, 0, 0, rows, rows * columns // blocks, 0, 1, 0)
        for index in range(blocks)
    ]
    return Batch(fields, headers, rows * columns)


@pytest.fixture
def acted_batch():
    """:func:`act_batch`."""
    return act_batch
