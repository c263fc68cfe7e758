"""What can be named in an experiment, and where it comes from."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from srl.api.loading import bundled_experiments
from srl.api.registry import KINDS, REGISTRY, Registry


@dataclass(frozen=True)
class Extra:
    """Packages that one kind of environment or feature needs.

    Attributes:
        name: Of the extra: ``pip install "srl-dataflow[NAME]"``.
        module: Top-level module that is there when it is installed.
        what: What it brings.
    """

    name: str
    module: str
    what: str

    @property
    def is_installed(self) -> bool:
        """Whether its module can be found; imports nothing."""
        return importlib.util.find_spec(self.module) is not None


EXTRAS = (
    Extra("atari", "ale_py", "environment type atari, and ids ALE/..."),
    Extra("box2d", "Box2D", "ids LunarLander-v3, BipedalWalker-v3, CarRacing-v3"),
    Extra("mujoco", "mujoco", "ids HalfCheetah-v5, Hopper-v5, Ant-v5, Humanoid-v5, ..."),
    Extra("envpool", "envpool", "environment type envpool"),
    Extra("screen", "matplotlib", "srl-run plot, video and completion; TensorBoard event files"),
    Extra("export", "onnx", "srl-run export to ONNX"),
    Extra("wandb", "wandb", "metrics sink wandb"),
    Extra("prometheus", "prometheus_client", "metrics sink prometheus"),
)


def listing(registry: Registry = REGISTRY) -> list[str]:
    """Lines to print: experiments, plugins by kind, extras."""
    lines = ["experiments"]
    lines += [f"  {name:<20} {_summary(path)}" for name, path in bundled_experiments().items()]
    for kind in KINDS:
        entries = registry.entries(kind)
        if entries:
            lines.append(_plural(kind))
            lines += [f"  {name:<20} {entry.target}  (from {entry.source})" for name, entry in entries.items()]
    lines.append("extras")
    for extra in EXTRAS:
        state = "installed" if extra.is_installed else f'pip install "srl-dataflow[{extra.name}]"'
        lines.append(f"  {extra.name:<20} {extra.what}: {state}")
    return lines


def _plural(kind: str) -> str:
    return f"{kind.replace('_', ' ')}s"


def _summary(path: Path) -> str:
    """The first comment of an experiment file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip('#" ') if first.startswith(("#", '"""')) else ""
