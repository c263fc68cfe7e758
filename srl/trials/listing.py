"""What can be named in an experiment, and where it comes from."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
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
    Extra("images", "cv2", "wrapper resize"),
    Extra("envpool", "envpool", "environment type envpool"),
    Extra("screen", "matplotlib", "srl-run plot, video and completion; TensorBoard event files"),
    Extra("export", "onnx", "srl-run export to ONNX"),
    Extra("wandb", "wandb", "metrics sink wandb"),
    Extra("prometheus", "prometheus_client", "metrics sink prometheus"),
)


def listing(registry: Registry = REGISTRY) -> list[str]:
    """Lines to print: experiments, plugins by kind, extras."""
    lines = _section("experiments", {name: _summary(path) for name, path in bundled_experiments().items()})
    for kind in KINDS:
        entries = registry.entries(kind).items()
        lines += _section(
            f"{kind.replace('_', ' ')}s", {name: f"{entry.target}  (from {entry.source})" for name, entry in entries}
        )
    states = {one: "installed" if one.is_installed else f'pip install "srl-dataflow[{one.name}]"' for one in EXTRAS}
    return lines + _section("extras", {extra.name: f"{extra.what}: {state}" for extra, state in states.items()})


def _section(title: str, rows: Mapping[str, str]) -> list[str]:
    """A title and its rows, the second column aligned; nothing if there are no rows."""
    width = max(map(len, rows), default=0)
    return [title, *(f"  {name:<{width}}  {text}" for name, text in rows.items())] if rows else []


def _summary(path: Path) -> str:
    """The first comment of an experiment file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip('#" ') if first.startswith(("#", '"""')) else ""
