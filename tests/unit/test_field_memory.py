"""Field cases 42 and 56: images stay bytes in blocks, their size is estimated, printed and refused before the start.

What is admitted can be touched to its last byte.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from srl.api.block import policy_schema, trajectory_schema
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError
from srl.api.experiment import Experiment
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec, SpaceSpec
from srl.distributed.drawing import describe
from srl.distributed.graph import ResolvedGraph, resolve
from srl.distributed.memory import Room, describe_total
from srl.system.streams.shared_memory.descriptors import (
    SampleSegments,
    close_descriptors,
    create_descriptors,
    plan_descriptors,
)
from srl.system.streams.shared_memory.segments import SlotPool
from srl.system.streams.tcp.inference import Frames

FRAMES = (4, 84, 84)
FRAME_BYTES = 84 * 84 * 4
ENVIRONMENT = EnvironmentSpec("Frames", SpaceSpec("box", FRAMES, "uint8"), SpaceSpec("discrete", (), "int64", n=6))
# 75,000 transitions in the pool: 3 slots of 250 rows x 100 environments. A single block is trained on where it lies.
EXPERIMENT = {
    "name": "frames",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 250}, "network": {"type": "mlp"}}},
    "streams": {"samples": {"kind": "sample", "max_policy_lag": 1}},
    "workers": {
        "actors": {"kind": "actor", "environments": 100, "agents": [{"policy": "main", "samples": "samples"}]},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
    },
    "stop": {"updates": 1},
}


def graph(dtype: str, available_bytes: int) -> ResolvedGraph:
    space = SpaceSpec("box", FRAMES, dtype)
    environment = EnvironmentSpec("Frames", space, ENVIRONMENT.action)
    room = Room(available_bytes, "a test")
    return resolve(Experiment.model_validate(EXPERIMENT), environment, cores=2, memory=lambda limit: room)


def test_case_42_a_hundred_thousand_frames_are_bytes_and_stored_once() -> None:
    resolved = graph("uint8", 1 << 40)
    (need,) = resolved.needs
    assert (need.slots, need.batch_blocks) == (3, 0)
    # An observation is also the next one of the row before: half of the 4.2 GB of two arrays, and the side table.
    transitions, table = 75_000, 3 * (25_000 // 16)
    frames = (transitions + 3 * 100 + table) * FRAME_BYTES
    assert frames <= need.total_bytes <= 1.01 * frames
    assert need.total_bytes < 0.75 * 5.6e9 * 0.6
    assert graph("float32", 1 << 40).needs[0].total_bytes == pytest.approx(4 * need.total_bytes, rel=0.01)


def test_case_42_the_estimate_is_printed_and_what_does_not_fit_is_refused_with_both_numbers() -> None:
    resolved = graph("uint8", 1 << 40)
    (need,) = resolved.needs
    size = f"{need.total_bytes / 2**20:,.0f} MiB"
    assert describe_total(resolved.needs, resolved.room) == f"memory for blocks: {size} of 1,048,576 MiB (a test)"
    assert f"total {size}, of 1,048,576 MiB (a test)" in describe(resolved)
    graph("uint8", need.total_bytes)
    with pytest.raises(ExperimentError) as caught:
        graph("float32", 5_600_000_000)
    assert "but there are 5,341 MiB (5,600,000,000 bytes, a test)" in str(caught.value)
    assert "workers.actors.environments" in str(caught.value)


def test_case_42_bytes_stay_bytes_in_blocks_and_messages() -> None:
    spec = PolicySpec(
        name="main",
        module="",
        acting="",
        backend="numpy",
        observation=ENVIRONMENT.observation,
        action=ENVIRONMENT.action,
        action_array=ENVIRONMENT.action.array,
        extras=(),
        noise=NoiseSpec("uniform", (1,)),
    )
    schema = policy_schema(spec, rows=2, columns=3)
    block = schema.allocate()
    assert block["observation"].dtype == block["final_observation"].dtype == np.uint8
    sent = {field.name: field for field in Frames.of(schema, spec).request.fields}["observation"]
    assert (sent.dtype, sent.shape) == ("uint8", (3, *FRAMES))


def test_case_56_eighty_blocks_of_frames_can_be_touched_to_their_last_byte() -> None:
    """174 MiB, more than the 64 MiB that containers give /dev/shm: the segment lies elsewhere, allocated whole."""
    schema = trajectory_schema(
        rows=80,
        columns=1,
        observation=ArraySpec(FRAMES, "uint8"),
        action=ENVIRONMENT.action.array,
        extras=(),
        final_rows=1,
    )
    plan = plan_descriptors([SampleSegments("s", schema, 80, ("trainer/0",), ("actor/0",))])
    assert plan[0].size_bytes > 80 * 81 * FRAME_BYTES == 182_891_520
    before = set(os.listdir("/dev/shm"))
    descriptors = create_descriptors(plan)
    try:
        held = os.fstat(descriptors["samples:s:0"])
        assert held.st_blocks * 512 >= plan[0].size_bytes  # all of it is there now, not when it is touched
        assert held.st_dev != os.stat("/dev/shm").st_dev
        assert set(os.listdir("/dev/shm")) == before
        writer, reader = (SlotPool(descriptors["samples:s:0"], schema, "samples:s:0", 80) for _ in range(2))
        for slot in range(80):
            writer.block(slot)["observation"][...] = slot
        assert [int(reader.block(slot)["observation"].reshape(-1)[-1]) for slot in range(80)] == list(range(80))
        assert all((reader.block(slot)["observation"] == slot).all() for slot in (0, 40, 79))
        writer.close()
        reader.close()
    finally:
        close_descriptors(descriptors)
