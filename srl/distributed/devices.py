"""Which devices there are, and which of them each worker gets. Pure apart from :func:`device_table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from srl.api.errors import SRLError
from srl.api.experiment import Experiment, InferenceStream, PolicyGroup, TrainerGroup
from srl.api.policy import PolicySpec

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """What this machine has beside its CPU.

    Attributes:
        gpus: Number of visible CUDA GPUs.
        has_mps: Whether there is Apple's.
        why_no_gpus: What is missing, where there is none.
    """

    gpus: int = 0
    has_mps: bool = False
    why_no_gpus: str = ""

    def describe(self) -> str:
        """All devices, for messages."""
        names = [CPU, *(f"cuda:{index}" for index in range(self.gpus)), *(["mps"] if self.has_mps else [])]
        return ", ".join(names) + (f" ({self.why_no_gpus})" if self.why_no_gpus and not self.gpus else "")


DeviceReader = Callable[[], DeviceTable]
"""What :func:`device_table` is; tests give their own."""


def device_table() -> DeviceTable:
    """The devices that torch finds here. Counting GPUs takes none of their memory."""
    import torch  # the controller needs it for nothing else

    gpus = torch.cuda.device_count()
    why = ""
    if not gpus:
        why = "torch sees no GPU" if torch.version.cuda else "this torch is built without CUDA"
    return DeviceTable(gpus, torch.backends.mps.is_available(), why)


def worker_devices(experiment: Experiment, table: DeviceTable) -> dict[str, str]:
    """Worker name to device, of all trainer and policy workers.

    ``cuda`` means GPU ``i mod n`` for worker i of a group, n GPUs.
    """
    devices = {}
    for name, group in experiment.workers.items():
        if isinstance(group, TrainerGroup | PolicyGroup):
            for index in range(group.count):
                spread = group.device == "cuda" and table.gpus
                devices[f"{name}/{index}"] = f"cuda:{index % table.gpus}" if spread else group.device
    return devices


def needs_devices(experiment: Experiment) -> bool:
    """Whether any worker is to compute elsewhere than on the CPU."""
    groups = experiment.workers.values()
    return any(isinstance(group, TrainerGroup | PolicyGroup) and group.device != CPU for group in groups)


def device_problems(experiment: Experiment, table: DeviceTable) -> Iterator[SRLError]:
    """Devices that are not there, and GPUs of which more than the whole is promised."""
    for name, group in experiment.workers.items():
        if not isinstance(group, TrainerGroup | PolicyGroup):
            continue
        if not _is_there(group.device, table):
            yield SRLError(
                "there is no such device",
                where=f"workers.{name}.device",
                value=group.device,
                expected=f"one of {table.describe()}",
            )
        if group.gpu_memory_fraction is not None and not group.device.startswith("cuda"):
            yield SRLError(
                "a share of a GPU's memory, but no GPU",
                where=f"workers.{name}.gpu_memory_fraction",
                value=group.gpu_memory_fraction,
                expected="null, or device: cuda",
            )
    yield from _crowded(experiment, worker_devices(experiment, table))


def acting_device_problems(experiment: Experiment, policies: Mapping[str, PolicySpec]) -> Iterator[SRLError]:
    """Policy workers on a GPU whose policy acts in numpy."""
    for name, group in experiment.workers.items():
        stream = experiment.streams.get(group.serves) if isinstance(group, PolicyGroup) else None
        if not isinstance(group, PolicyGroup) or not isinstance(stream, InferenceStream) or group.device == CPU:
            continue
        spec = policies.get(stream.policy)
        if spec is not None and spec.backend == "numpy":
            yield SRLError(
                f"policy '{stream.policy}' acts in numpy, on the CPU: its network is small",
                where=f"workers.{name}.device",
                value=group.device,
                expected=CPU,
            )


def _is_there(device: str, table: DeviceTable) -> bool:
    kind, _, index = device.partition(":")
    return kind == CPU or (kind == "mps" and table.has_mps) or (kind == "cuda" and int(index or 0) < table.gpus)


def _crowded(experiment: Experiment, devices: Mapping[str, str]) -> Iterator[SRLError]:
    promised: dict[str, dict[str, float]] = {}
    for worker, device in devices.items():
        group = experiment.workers[worker.rpartition("/")[0]]
        fraction = group.gpu_memory_fraction if isinstance(group, TrainerGroup | PolicyGroup) else None
        if fraction is not None and device.startswith("cuda"):
            promised.setdefault(device, {})[worker] = fraction
    for device, shares in promised.items():
        if sum(shares.values()) > 1.0 + 1e-9:
            named = ", ".join(f"{worker} {share:g}" for worker, share in shares.items())
            yield SRLError(
                f"more than the memory of {device} is promised",
                where=f"workers.{next(iter(shares)).rpartition('/')[0]}.gpu_memory_fraction",
                value=f"{sum(shares.values()):g}: {named}",
                expected="at most 1 over all workers on one GPU",
            )
