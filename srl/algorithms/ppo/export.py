"""Deterministic acting as one torch module, for ONNX and TorchScript: from observation to environment action."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from srl.api.policy import ActionTransform
from srl.api.spaces import Bound, SpaceSpec

if TYPE_CHECKING:
    from srl.algorithms.ppo.policy import PPOPolicy

ILLEGAL = -3.0e38
"""Stands for the logit of an illegal action; no network puts out anything as low."""


class ExportedPolicy(nn.Module):
    """Statistics, network, mode of the distribution and action transform of a policy.

    Called with tensors in the order of ``input_names``; ``B`` rows each::

        observation, or every leaf of a nested one by path      the environment's observation, in its space's dtype;
                                                                discrete values as the environment counts them
        action_mask                 bool[B, M]                  only if the environment has masks
        state                       float32[B, S]               only of recurrent policies: what came out last,
        episode_start               bool[B]                     ... and where it does not count

    Puts out tensors in the order of ``output_names``: ``action`` (or every leaf of a nested action by path), as the
    environment takes it, and ``state`` of recurrent policies.

    Args:
        policy: A policy on the CPU, in float32; shared, not copied.

    Attributes:
        input_names: Names of the inputs.
        output_names: Names of the outputs.
    """

    def __init__(self, policy: PPOPolicy) -> None:
        super().__init__()
        policy.refresh()
        spec = policy.spec
        self._policy = policy
        self._leaves = spec.observation.leaves()
        self._head = _Head(spec.action, spec.action_transform, spec.options["standard_deviation"] == "state")
        self._has_mask, self._has_state = bool(spec.action_mask), bool(spec.state_size)
        self._normalizes = policy.observation_statistics is not None
        starts = {leaf.path: _first_values(leaf.space) for leaf in self._leaves}
        self._starts = {path: start for path, start in starts.items() if start is not None}
        shift, factor = policy.normalizer.scale()
        self.register_buffer("shift", torch.from_numpy(shift))
        self.register_buffer("factor", torch.from_numpy(factor))
        self._bound = float(spec.options["observation_bound"])
        names = [leaf.path or "observation" for leaf in self._leaves]
        names += ["action_mask"] if self._has_mask else []
        self.input_names = tuple(names + (["state", "episode_start"] if self._has_state else []))
        self.output_names = self._head.names + (("state",) if self._has_state else ())

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One decision for every row; see the class."""
        count = len(self._leaves)
        given = dict(zip(self.input_names[count:], inputs[count:], strict=True))
        leaves = {leaf.path: one for leaf, one in zip(self._leaves, inputs, strict=False)}
        for path, first in self._starts.items():
            leaves[path] = leaves[path] - first
        network = self._policy.network
        state = None
        if self._has_state:
            start = given["episode_start"].unsqueeze(1)
            state = torch.where(start, network.initial_state().unsqueeze(0), given["state"])
        outputs, following = network.step(network.inputs_of(self._normalized(leaves)), state)
        actions = self._head(outputs, given.get("action_mask"))
        return actions if following is None else (*actions, following)

    def _normalized(self, leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """As :class:`srl.algorithms.normalization.observations.ObservationNormalizer` does it."""
        result = dict(leaves)
        if not self._normalizes:
            return result
        shift: torch.Tensor = self.get_buffer("shift")
        factor: torch.Tensor = self.get_buffer("factor")
        first = 0
        for leaf in self._leaves:
            if np.dtype(leaf.space.dtype).kind != "f":
                continue
            part, shape = slice(first, first + prod(leaf.space.shape)), leaf.space.shape
            kind = torch.float64 if leaf.space.dtype == "float64" else torch.float32
            values = leaves[leaf.path] - shift[part].to(kind).reshape(shape)
            if leaf.space.dtype == "float16":  # the normaliser works in place: every result is rounded to the dtype
                values = (values.half() * factor[part].reshape(shape)).half().float()
            else:
                values = values * factor[part].reshape(shape)
            result[leaf.path] = values.clamp(-self._bound, self._bound)
            first = part.stop
        return result


class _Head(nn.Module):
    """The mode of every part of an action, as the environment takes it."""

    def __init__(self, action: SpaceSpec, transform: ActionTransform, has_deviations: bool) -> None:
        super().__init__()
        leaves = action.leaves()
        self.names = tuple(f"action.{leaf.path}" if leaf.path else "action" for leaf in leaves)
        self._modes = [_mode(leaf.space, transform, has_deviations) for leaf in leaves]

    def forward(self, outputs: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        first, first_legal = 0, 0
        actions = []
        for mode in self._modes:
            legal = None if mask is None else mask[:, first_legal : first_legal + mode.choices]
            actions.append(mode(outputs[:, first : first + mode.width], legal))
            first, first_legal = first + mode.width, first_legal + mode.choices
        return tuple(actions)


class _Mode(ABC):
    """The most probable element of a plain space; constants are tensors before anything is traced.

    Attributes:
        width: Policy outputs that decide it.
        choices: Mask entries of it.
    """

    def __init__(self, space: SpaceSpec, width: int, choices: int = 0) -> None:
        self.width = width
        self.choices = choices
        self._shape = (-1, *space.shape)

    @abstractmethod
    def __call__(self, outputs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
        """``[B, *shape]`` of ``outputs[B, width]`` and ``legal[B, choices]``."""


class _BoxMode(_Mode):
    """The mean, transformed as :class:`srl.system.actions.ActionTransformer` does it."""

    def __init__(self, space: SpaceSpec, transform: ActionTransform, has_deviations: bool) -> None:
        self._size = prod(space.shape)
        # Deviations from the network follow the means; the mode does not need them.
        super().__init__(space, self._size * (2 if has_deviations else 1))
        self._transform = transform
        self._low, self._high = _bound(space.low, space, -np.inf), _bound(space.high, space, np.inf)

    def __call__(self, outputs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
        action = outputs[:, : self._size].reshape(self._shape)
        if self._transform == "none":
            return action
        if self._transform == "tanh_affine":
            action = self._scaled(torch.tanh(action))
        elif self._transform == "affine":
            action = self._scaled(action.clamp(-1.0, 1.0))
        return torch.minimum(torch.maximum(action, self._low), self._high)

    def _scaled(self, unit: torch.Tensor) -> torch.Tensor:
        return self._low + (unit + 1.0) * (0.5 * (self._high - self._low))


class _BinaryMode(_Mode):
    """1 where that is likelier than 0."""

    def __call__(self, outputs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
        return (outputs > 0).to(torch.int8).reshape(self._shape)


class _ChoiceMode(_Mode):
    """The most probable legal value of every choice; one with nothing legal counts as free."""

    def __init__(self, space: SpaceSpec) -> None:
        self._counts = space.nvec or (space.n,)
        super().__init__(space, sum(self._counts), sum(self._counts))
        starts = space.starts or (space.start,) * len(self._counts)
        self._starts = torch.from_numpy(np.array(starts, np.int64))

    def __call__(self, outputs: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
        chosen = []
        first = 0
        for count in self._counts:
            part = slice(first, first + count)
            chosen.append(self._likeliest(outputs[:, part], None if legal is None else legal[:, part]))
            first += count
        return (torch.stack(chosen, dim=1) + self._starts).reshape(self._shape)

    @staticmethod
    def _likeliest(logits: torch.Tensor, legal: torch.Tensor | None) -> torch.Tensor:
        if legal is not None:
            free = ~legal.any(dim=1, keepdim=True)
            logits = torch.where(legal | free, logits, torch.full_like(logits, ILLEGAL))
        return logits.argmax(dim=1)


def _mode(space: SpaceSpec, transform: ActionTransform, has_deviations: bool) -> _Mode:
    if space.kind == "box":
        return _BoxMode(space, transform, has_deviations)
    if space.kind == "multi_binary":
        return _BinaryMode(space, prod(space.shape))
    return _ChoiceMode(space)


def _first_values(space: SpaceSpec) -> torch.Tensor | None:
    """What a discrete space counts from, if that is not 0."""
    starts = space.starts if space.kind == "multi_discrete" else (space.start,)
    if not any(starts):
        return None
    return torch.from_numpy(np.array(starts, np.int64)).reshape(space.shape)


def _bound(bound: Bound, space: SpaceSpec, absent: float) -> torch.Tensor:
    values = bound if isinstance(bound, tuple) else (absent if bound is None else bound,) * prod(space.shape)
    return torch.from_numpy(np.array(values, np.float32)).reshape(space.shape)
