"""What a policy is to the rest of the system: plain data (:class:`PolicySpec`) and something that acts.

A policy is a pure function of (observation, state, episode_start, mask, noise) to (action, next state, extras). Its
torch module lives in an algorithm's or plugin's package; actors with remote inference see only the spec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from srl.api.block import FieldSpec
from srl.api.errors import UsageError
from srl.api.spaces import ArraySpec, SpaceSpec

ActionTransform = Literal["none", "clip", "tanh_affine", "affine"]
ActingBackend = Literal["numpy", "torch"]


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """The randomness one decision needs; drawn by the actor for a whole block, so that any worker decides alike.

    Attributes:
        kind: ``"uniform"`` (float32 in [0, 1)) or ``"normal"`` (float32, mean 0, standard deviation 1).
        shape: Shape per column, such as ``(1,)``.
    """

    kind: Literal["uniform", "normal"]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy as plain data: resolved once before the start, sent with every assignment.

    Attributes:
        name: Name of the policy in the experiment.
        module: ``package.module:Attr`` of the torch module class; called as ``Attr(spec)``.
        acting: ``package.module:Attr`` of the :class:`ActingPolicy` class; called as ``Attr(spec)``.
        backend: What ``acting`` computes with; a ``numpy`` backend imports no torch.
        observation: Observation space of one column.
        action: Action space of one column.
        action_array: How one action is stored in a block.
        extras: Per-row outputs beside the action, axes ``"T,B"``.
        noise: Randomness per decision.
        action_transform: From stored action to the environment's action.
        network: The experiment's network options, resolved (every default filled in).
        acting_dtype: ``"float32"`` or ``"bfloat16"``: precision of forward passes when acting.
        action_mask: Entries of the action mask (:func:`srl.api.spaces.mask_size`); 0 = the environment gives none.
        state_size: S, float32 numbers of recurrent state per column; 0 = the policy has none.
        state_rows: C, a block stores the state that was used at every C-th row; divides T. 0 without state.
        options: What else the algorithm's module and acting policy need to know, resolved; JSON-compatible.
    """

    name: str
    module: str
    acting: str
    backend: ActingBackend
    observation: SpaceSpec
    action: SpaceSpec
    action_array: ArraySpec
    extras: tuple[FieldSpec, ...]
    noise: NoiseSpec
    action_transform: ActionTransform = "none"
    network: Mapping[str, Any] = field(default_factory=dict)
    acting_dtype: str = "float32"
    action_mask: int = 0
    state_size: int = 0
    state_rows: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {**asdict(self), "observation": self.observation.to_dict(), "action": self.action.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicySpec:
        """The inverse of :meth:`to_dict`."""
        extras = tuple(FieldSpec(**{**extra, "shape": tuple(extra["shape"])}) for extra in data["extras"])
        return cls(
            **{
                **data,
                "observation": SpaceSpec.from_dict(data["observation"]),
                "action": SpaceSpec.from_dict(data["action"]),
                "action_array": ArraySpec(tuple(data["action_array"]["shape"]), data["action_array"]["dtype"]),
                "extras": extras,
                "noise": NoiseSpec(data["noise"]["kind"], tuple(data["noise"]["shape"])),
            }
        )


@dataclass(slots=True)
class ActInput:
    """One batch to decide on; read only.

    Attributes:
        observation: ``[B, ...]`` in the observation space's dtype.
        noise: ``float32[B, *noise.shape]``.
        episode_start: ``bool[B]``; where set, the policy puts its own initial state in the place of ``state``.
        valid: ``bool[B]``; results of rows without a transition are not used, and they do not advance the state.
        action_mask: ``bool[B, M]``, True where the action is legal; ``None`` if the policy has no mask.
        state: ``float32[B, S]`` recurrent state before the row; ``None`` if the policy has none.
    """

    observation: NDArray[Any]
    noise: NDArray[np.float32]
    episode_start: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    action_mask: NDArray[np.bool_] | None = None
    state: NDArray[np.float32] | None = None


@dataclass(slots=True)
class ActOutput:
    """Where decisions are written: rows of a block on one host.

    Attributes:
        action: ``[B, ...]`` as in ``PolicySpec.action_array``.
        extras: Name to ``[B, ...]`` for every field in ``PolicySpec.extras``.
        state: ``float32[B, S]`` recurrent state after the row (the one used where the row is not valid); ``None``
            if the policy has none.
        used_state: ``float32[B, S]`` the state that was used: that of the input, or the initial one at episode starts.
    """

    action: NDArray[Any]
    extras: Mapping[str, NDArray[Any]]
    state: NDArray[np.float32] | None = None
    used_state: NDArray[np.float32] | None = None


class ActingPolicy(ABC):
    """Decides for a batch. Holds one version of the weights.

    Same weights, input and batch size give the same bits, in every process of one machine type.

    Args:
        spec: The policy.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec

    def to(self, device: str) -> None:
        """Compute on a device from now on; called once, before the first :meth:`load`.

        What computes with torch overrides this; here only the CPU is accepted.

        Args:
            device: torch device name, such as ``cpu`` or ``cuda:0``.

        Raises:
            UsageError: It cannot compute there.
        """
        if device != "cpu":
            raise UsageError(
                "this acting policy computes on the CPU only",
                where=f"policies.{self.spec.name}",
                value=device,
                expected="device: cpu for the policy workers",
                hint=f"'{self.spec.acting}' has no method 'to'.",
            )

    @abstractmethod
    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights (and buffers) by name; the arrays are copied."""

    @abstractmethod
    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide for ``batch`` and write into ``out``.

        Args:
            batch: The inputs.
            out: Where to write.
            deterministic: The mode of the distribution instead of a sample (evaluation).
        """
