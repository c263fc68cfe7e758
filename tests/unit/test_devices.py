"""Devices: who gets which, what is not there is named before the start, and on the CPU nothing is copied."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from srl.algorithms.ppo.plugin import PPO
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, UsageError
from srl.api.experiment import Experiment
from srl.api.policy import ActingPolicy
from srl.api.spaces import SpaceSpec
from srl.distributed.devices import DeviceTable, device_table
from srl.distributed.drawing import describe
from srl.distributed.graph import ResolvedGraph, resolve
from srl.distributed.memory import Room
from srl.system.workers import staging
from srl.system.workers.staging import Staging, claim_device
from srl.system.workers.training import Training

PIXELS = EnvironmentSpec(
    "Pixels", SpaceSpec("box", (4, 84, 84), "uint8", low=0, high=255), SpaceSpec("discrete", (), "int64", n=6)
)
NUMBERS = EnvironmentSpec("Numbers", SpaceSpec("box", (4,), "float32"), SpaceSpec("discrete", (), "int64", n=2))
BASE = {
    "name": "devices",
    "environment": {"type": "gymnasium", "id": "Pixels"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
    "streams": {"samples": {"kind": "sample"}, "ask": {"kind": "inference", "policy": "main"}},
    "workers": {
        "actors": {
            "kind": "actor",
            "count": 4,
            "environments": 2,
            "agents": [{"policy": "main", "samples": "samples", "inference": "ask"}],
        },
        "policy": {"kind": "policy", "serves": "ask"},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
    },
    "stop": {"updates": 3},
}
TWO = DeviceTable(gpus=2)
NONE = DeviceTable(why_no_gpus="this torch is built without CUDA")


def resolved(
    table: DeviceTable | None, environment: EnvironmentSpec = PIXELS, **groups: dict[str, Any]
) -> ResolvedGraph:
    raw: dict[str, Any] = copy.deepcopy(BASE)
    for name, changes in groups.items():
        raw["workers"][name] |= changes
    return resolve(
        Experiment.model_validate(raw),
        environment,
        cores=2,
        memory=lambda limit: Room(1 << 40, "a test"),
        devices=None if table is None else lambda: table,
    )


def problems(table: DeviceTable, environment: EnvironmentSpec = PIXELS, **groups: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ExperimentError) as caught:
        resolved(table, environment, **groups)
    return {problem.where: str(problem) for problem in caught.value.problems}


def test_without_a_word_everything_is_on_the_cpu_and_nobody_looks_for_devices() -> None:
    graph = resolve(
        Experiment.model_validate(BASE),
        PIXELS,
        memory=lambda limit: Room(1 << 40, "a test"),
        devices=lambda: pytest.fail("torch need not be imported"),
    )
    assert graph.devices == {"policy/0": "cpu", "trainer/0": "cpu"}
    assert {graph.assignment(worker, "d").device for worker in graph.workers} == {"cpu"}


def test_workers_are_spread_over_the_gpus_one_after_the_other() -> None:
    graph = resolved(TWO, policy={"device": "cuda", "count": 3}, trainer={"device": "cuda", "count": 2})
    assert graph.devices == {
        "policy/0": "cuda:0",
        "policy/1": "cuda:1",
        "policy/2": "cuda:0",
        "trainer/0": "cuda:0",
        "trainer/1": "cuda:1",
    }
    told = {worker.name: graph.assignment(worker, "d").device for worker in graph.workers}
    assert told == {**graph.devices, **{f"actors/{index}": "cpu" for index in range(4)}}
    drawing = describe(graph)
    assert "[policy] 3 x policy: on cuda:0, cuda:1" in drawing
    assert "trains policy main on cuda:0, cuda:1" in drawing


def test_a_gpu_that_is_named_is_the_one_for_all_workers_of_the_group() -> None:
    graph = resolved(TWO, policy={"device": "cuda:1", "count": 2})
    assert graph.devices["policy/0"] == graph.devices["policy/1"] == "cuda:1"


@pytest.mark.parametrize(
    ("device", "table", "there"),
    [
        ("cuda", NONE, "one of cpu (this torch is built without CUDA)"),
        ("cuda:2", TWO, "one of cpu, cuda:0, cuda:1"),
        ("mps", TWO, "one of cpu, cuda:0, cuda:1"),
        ("cuda", DeviceTable(has_mps=True, why_no_gpus="torch sees no GPU"), "one of cpu, mps (torch sees no GPU)"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_those_that_are(device: str, table: DeviceTable, there: str) -> None:
    found = problems(table, trainer={"device": device})
    assert set(found) == {"workers.trainer.device"}
    assert repr(device) in found["workers.trainer.device"]
    assert there in found["workers.trainer.device"]


def test_shares_of_one_gpu_add_up_to_at_most_the_whole() -> None:
    half = {"device": "cuda", "gpu_memory_fraction": 0.5}
    shared = DeviceTable(gpus=1)
    resolved(shared, policy=half, trainer=half)
    found = problems(shared, policy={**half, "count": 2}, trainer={**half, "gpu_memory_fraction": 0.25})
    text = found["workers.policy.gpu_memory_fraction"]
    assert "more than the memory of cuda:0" in text
    assert "1.25: policy/0 0.5, policy/1 0.5, trainer/0 0.25" in text
    resolved(TWO, policy={**half, "count": 2}, trainer={**half, "gpu_memory_fraction": 0.25})


def test_a_share_needs_a_gpu() -> None:
    assert set(problems(TWO, trainer={"gpu_memory_fraction": 0.5})) == {"workers.trainer.gpu_memory_fraction"}
    with pytest.raises(ValueError, match="less than or equal to 1"):
        resolved(TWO, trainer={"device": "cuda", "gpu_memory_fraction": 1.5})


def test_a_policy_that_acts_in_numpy_is_refused_on_a_gpu() -> None:
    found = problems(TWO, NUMBERS, policy={"device": "cuda"})
    assert "acts in numpy" in found["workers.policy.device"]
    resolved(TWO, NUMBERS, trainer={"device": "cuda"})


def test_what_is_only_looked_at_needs_no_devices() -> None:
    assert resolved(None, trainer={"device": "cuda:5"}).policies["main"].name == "main"


@pytest.mark.parametrize(
    ("gpus", "version", "why"), [(0, None, "without CUDA"), (0, "12.8", "sees no GPU"), (2, "1", "")]
)
def test_the_table_is_what_torch_finds(monkeypatch: Any, gpus: int, version: str | None, why: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    table = device_table()
    assert table.gpus == gpus
    assert why in table.why_no_gpus


def test_a_gpu_is_claimed_with_its_share_of_memory(monkeypatch: Any) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("device", str(device))))
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: calls.append((fraction, str(device))),
    )
    assert claim_device("cpu", None) == torch.device("cpu")
    assert calls == []
    claim_device("cuda:1", 0.25)
    claim_device("cuda:0")
    assert calls == [("device", "cuda:1"), (0.25, "cuda:1"), ("device", "cuda:0")]


def test_on_the_cpu_staging_copies_nothing() -> None:
    stage = Staging(torch.device("cpu"))
    array = np.arange(6, dtype=np.float32)
    tensor = stage.to_device(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert stage.to_device(tensor) is tensor
    assert stage.to_host(tensor).ctypes.data == array.ctypes.data
    spec = PPO.policy_spec("main", PPO.config(), {}, NUMBERS)
    training = Training(spec, seed=1)
    assert training.to_device(array).data_ptr() == array.ctypes.data
    assert training.flat_weights().ctypes.data == training.flat_weights().ctypes.data


class _FakeEvent:
    waited: list[int] = []  # noqa: RUF012  # one list for all events of the test

    def __init__(self) -> None:
        self.number = 0

    def record(self, stream: Any) -> None:
        self.number += 1

    def synchronize(self) -> None:
        self.waited.append(self.number)


def test_pinned_buffers_take_turns_and_are_waited_for_before_they_are_filled_again(monkeypatch: Any) -> None:
    """The bookkeeping of copies to a GPU, with host memory in its place."""

    class Stream:
        def __init__(self, device: Any = None) -> None: ...

        def wait_event(self, event: Any) -> None:
            assert event.number > 0

        def __enter__(self) -> None: ...

        def __exit__(self, *details: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", _FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(staging, "_pinned_memory", lambda size: torch.empty(size, dtype=torch.uint8))
    ring = staging._PinnedRing(torch.device("cpu"))
    sent = [torch.full((2, count), float(count)) for count in range(1, staging.BUFFERS + 4)]
    received = [ring.send(tensor) for tensor in sent]
    for tensor, result in zip(sent, received, strict=True):
        assert torch.equal(tensor, result)
    assert len(ring._buffers) == staging.BUFFERS
    assert _FakeEvent.waited == [1, 1, 1]


class OnlyHere(ActingPolicy):
    def load(self, parameters: Any) -> None: ...

    def act(self, batch: Any, out: Any, *, deterministic: bool = False) -> None: ...


def test_acting_policies_are_on_the_cpu_unless_they_say_otherwise() -> None:
    policy = OnlyHere(PPO.policy_spec("main", PPO.config(), {}, NUMBERS))
    policy.to("cpu")
    with pytest.raises(UsageError, match=r"policies\.main: .*CPU only.*cuda:0"):
        policy.to("cuda:0")
