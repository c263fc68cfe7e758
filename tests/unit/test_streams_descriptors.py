"""What the processes of one host share: planned for the right workers, allocated or refused with both numbers."""

import fcntl
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from policy_specs import policy_spec

from srl.api.block import policy_schema, trajectory_schema
from srl.api.errors import ResourceError, StreamError
from srl.api.spaces import ArraySpec
from srl.system.streams.shared_memory.descriptors import (
    DescriptorPlan,
    InferenceSegment,
    SampleSegments,
    WeightsSegment,
    available_memory_bytes,
    close_descriptors,
    create_descriptors,
    plan_descriptors,
)
from srl.system.streams.shared_memory.mailboxes import Mailboxes
from srl.system.streams.shared_memory.segments import SlotPool, map_segment

SPEC = policy_spec()
SCHEMA = policy_schema(SPEC, rows=8, columns=2)
ACTORS = ("actor/0", "actor/1", "actor/2")
SERVERS = ("policy/0", "policy/1")
PLAN = plan_descriptors(
    [SampleSegments("s", SCHEMA, 4, ("trainer/0", "trainer/1"), (*ACTORS, *SERVERS))],
    [InferenceSegment("i", SCHEMA, SPEC, 2, ACTORS, SERVERS)],
    [WeightsSegment("p", ("trainer/0", "policy/0"))],
)


def test_every_descriptor_goes_to_those_who_need_it():
    holders = {item.name: set(item.holders) for item in PLAN}
    assert holders == {
        "samples:s:0": {"trainer/0", *ACTORS, *SERVERS},
        "samples:s:1": {"trainer/1", *ACTORS, *SERVERS},
        "inference:i": {*ACTORS, *SERVERS},
        "wake:i:server:0": {"policy/0", "actor/0", "actor/2"},
        "wake:i:server:1": {"policy/1", "actor/1"},
        "wake:i:actor:0": {"actor/0", "policy/0"},
        "wake:i:actor:1": {"actor/1", "policy/1"},
        "wake:i:actor:2": {"actor/2", "policy/0"},
        "weights:p": {"trainer/0", "policy/0"},
    }


def test_segments_are_allocated_owned_by_name_sealed_and_not_inherited_by_exec():
    descriptors = create_descriptors(PLAN)
    try:
        for item in PLAN:
            descriptor = descriptors[item.name]
            assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            if item.kind == "memfd":
                assert f"srl-{os.getpid()}-{item.name}" in os.readlink(f"/proc/self/fd/{descriptor}")
                status = os.fstat(descriptor)
                assert status.st_size == item.size_bytes
                assert status.st_blocks * 512 >= item.size_bytes
                with pytest.raises(PermissionError):
                    os.ftruncate(descriptor, 0)
        assert len(set(descriptors.values())) == len(PLAN)
    finally:
        close_descriptors(descriptors)


def test_slots_are_pages_apart_and_do_not_overlap():
    descriptors = create_descriptors([item for item in PLAN if item.name == "samples:s:0"])
    pool = SlotPool(descriptors["samples:s:0"], SCHEMA, "samples:s:0")
    assert pool.slots == 4
    for slot in range(4):
        pool.block(slot).buffer[:] = slot + 1
    for slot in range(4):
        assert np.all(pool.block(slot).buffer == slot + 1)
        assert pool.block(slot).buffer.ctypes.data % 4096 == 0
    for wrong in (-1, 4):
        with pytest.raises(StreamError, match="no such slot"):
            pool.block(wrong)
    close_descriptors(descriptors)
    with pytest.raises(OSError, match="Bad file descriptor"):
        SlotPool(descriptors["samples:s:0"], SCHEMA, "samples:s:0")


def test_a_segment_that_is_too_small_is_refused_before_it_is_touched():
    descriptors = create_descriptors([DescriptorPlan("samples:s:0", "memfd", 4096, ())])
    try:
        with pytest.raises(StreamError, match="smaller"):
            SlotPool(descriptors["samples:s:0"], SCHEMA, "samples:s:0", slots=100)
    finally:
        close_descriptors(descriptors)


def test_mailboxes_made_for_another_policy_are_refused():
    descriptors = create_descriptors([item for item in PLAN if item.name == "inference:i"])
    segment = map_segment(descriptors["inference:i"], "inference:i")
    close_descriptors(descriptors)
    assert Mailboxes.opened(segment, SCHEMA, SPEC, "inference:i") == Mailboxes.of(3, 2, 2, SCHEMA, SPEC)
    other = trajectory_schema(
        rows=8, columns=99, observation=ArraySpec((4,), "float32"), action=SPEC.action_array, extras=SPEC.extras
    )
    with pytest.raises(StreamError, match="another schema or policy"):
        Mailboxes.opened(segment, other, SPEC, "inference:i")


# Field case 56: 80 buffers x 81 steps x 84 x 84 x 4 bytes in a 64 MiB /dev/shm.
ATARI_BYTES = 80 * 81 * 84 * 84 * 4


def test_more_than_there_is_is_refused_with_both_numbers():
    with pytest.raises(ResourceError) as caught:
        create_descriptors([DescriptorPlan("samples:s:0", "memfd", ATARI_BYTES, ())], available_bytes=64 << 20)
    message = str(caught.value)
    assert "182894592 bytes (174.4 MiB)" in message  # in whole pages
    assert "67108864 bytes (64.0 MiB)" in message
    assert "memory" in caught.value.hint


def test_the_size_of_dev_shm_is_no_limit():
    """A memfd is not a file of that mount: what a container gives /dev/shm does not matter."""
    descriptors = create_descriptors([DescriptorPlan("samples:s:0", "memfd", 1 << 20, ())])
    try:
        assert os.fstat(descriptors["samples:s:0"]).st_dev != os.stat("/dev/shm").st_dev
    finally:
        close_descriptors(descriptors)


def test_a_refusal_by_the_system_is_an_error_and_leaves_nothing_open():
    """The limit stands for a full cgroup: allocation fails in the middle of the plan."""
    code = """
import os, resource
from srl.api.errors import ResourceError
from srl.system.streams.shared_memory.descriptors import DescriptorPlan, create_descriptors
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
before = len(os.listdir("/proc/self/fd"))
plan = [DescriptorPlan("small", "memfd", 4096, ()), DescriptorPlan("large", "memfd", 2 << 20, ())]
try:
    create_descriptors(plan)
except ResourceError as error:
    print(error.where, error.value, len(os.listdir("/proc/self/fd")) - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["large", str(2 << 20), "0"]


def test_too_few_descriptors_is_an_error_that_says_so():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 5, hard))
    try:
        with pytest.raises(ResourceError, match="ulimit"):
            create_descriptors([DescriptorPlan(f"wake:{n}", "eventfd", 0, ()) for n in range(highest + 10)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_memory_there_is_is_within_the_machine():
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory_bytes() <= physical
