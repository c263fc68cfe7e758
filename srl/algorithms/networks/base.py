"""What an actor-critic network is: an observation becomes policy outputs (such as logits) and a value.

Axes: ``N`` or ``B`` rows, ``P`` policy outputs, ``S`` numbers of recurrent state, ``C`` rows of a sequence.

What a network computes with is not the observation but its *inputs* (:meth:`ActorCritic.inputs`): made once per batch
in numpy, then gathered minibatch by minibatch (:func:`gather`) and moved to the device. Every network splits its
forward pass in two: ``prepare`` turns the float32 parameters into what the pass computes with (dtype, memory format,
scale of bytes folded into the first layer), ``compute`` does the pass. Training prepares at every pass, so that
gradients reach the float32 parameters; acting prepares once per version::

    inputs = network.inputs(observation)                        # numpy [N, ...] to torch, on the CPU
    part = gather(inputs, rows, to_device)
    outputs, value, backward = network.differentiable(part)     # training
    outputs, value, state = network.compute(part, prepared, state)      # acting
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

HIDDEN_GAIN = sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

Inputs = torch.Tensor | dict[str, torch.Tensor]
"""What a network computes with: ``[N, ...]``, or several such by name."""
Prepared = Sequence[torch.Tensor]
Array = NDArray[np.float32]
Backward = Callable[[Array, Array], None]
Place = Callable[[torch.Tensor], torch.Tensor]
"""Brings a tensor to a device."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a recurrent network needs to know about N sequences of C rows.

    Attributes:
        state: ``float32[N, S]``, the state before the first row.
        episode_start: ``bool[C, N]``; where set, also at the first row, the initial state takes the state's place.
        valid: ``bool[C, N]``; rows without a transition do not advance the state.
    """

    state: torch.Tensor
    episode_start: torch.Tensor
    valid: torch.Tensor


class ActorCritic(nn.Module, ABC):
    """Base of the networks.

    Args:
        dtype: What the hidden layers compute in; both heads always compute in float32.

    Attributes:
        state_size: S; 0 = the network has no recurrent state.
        value_head: Called, it gives weight ``[1, H]`` and bias ``[1]`` of the layer that puts out the value.
    """

    state_size: int = 0
    value_head: Callable[[], tuple[nn.Parameter, nn.Parameter]]

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    @abstractmethod
    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """What :meth:`compute` takes, on the CPU.

        Args:
            observation: ``[N, ...]`` in the space's dtype. The result may alias it.
        """

    @abstractmethod
    def prepare(self) -> Prepared:
        """The parameters in the form that :meth:`compute` takes; differentiable.

        Empty where the pass takes the module's own parameters.
        """

    @abstractmethod
    def compute(
        self, inputs: Inputs, prepared: Prepared, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """One step.

        Args:
            inputs: Of B rows.
            prepared: From :meth:`prepare`.
            state: ``float32[B, S]``, the state to be used (the initial one at episode starts); ``None`` without state.

        Returns:
            Policy outputs ``float32[B, P]``, values ``float32[B]`` and the next state ``float32[B, S]`` or ``None``.
        """

    @abstractmethod
    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """The same as :meth:`inputs` by torch's operators alone, for export.

        Args:
            leaves: The observation's leaves by path, ``[N, ...]`` each, in their spaces' dtypes.
        """

    def step(self, inputs: Inputs, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Policy outputs and next state of one step by torch's operators alone, for export; see :meth:`compute`."""
        outputs, _, following = self.compute(inputs, self.prepare(), state)
        return outputs, following

    def initial_state(self) -> torch.Tensor:
        """The state at episode starts, ``float32[S]``."""
        return self.value_head()[1].new_zeros(self.state_size)

    def sequence(self, inputs: Inputs, memory: Memory) -> tuple[torch.Tensor, torch.Tensor]:
        """C steps of N sequences, differentiable through time.

        Args:
            inputs: Of ``C * N`` rows, time first.
            memory: Of the N sequences.

        Returns:
            Policy outputs ``float32[C * N, P]`` and values ``float32[C * N]``; those of rows without a transition
            mean nothing.
        """
        outputs, value, _ = self.compute(inputs, self.prepare())
        return outputs, value

    def states(self, inputs: Inputs, memory: Memory) -> torch.Tensor:
        """The states after each row of N sequences; arguments as of :meth:`sequence`.

        Returns:
            ``float32[C * N, S]``. Those of rows without a transition are the states that were used there.
        """
        return memory.state.new_zeros(memory.valid.numel(), 0)

    def forward(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`compute` with the present parameters, of a network without state."""
        outputs, value, _ = self.compute(inputs, self.prepare())
        return outputs, value

    def differentiable(self, inputs: Inputs, memory: Memory | None = None) -> tuple[Array, Array, Backward]:
        """A forward pass, and the backward pass that belongs to it.

        Args:
            inputs: Of N rows.
            memory: Given if the rows are sequences, see :meth:`sequence`.

        Returns:
            Policy outputs ``float32[N, P]`` and values ``float32[N]``, valid until the next pass, and what adds the
            gradients to the parameters' ``grad``, given the loss's gradients with respect to the two.
        """
        if memory is None:
            outputs, value, _ = self.compute(inputs, self.prepare())
        else:
            outputs, value = self.sequence(inputs, memory)

        def backward(outputs_gradient: Array, value_gradient: Array) -> None:
            gradients = (torch.from_numpy(outputs_gradient), torch.from_numpy(value_gradient))
            torch.autograd.backward((outputs, value), tuple(one.to(outputs.device) for one in gradients))

        return outputs.detach().cpu().numpy(), value.detach().cpu().numpy(), backward


class ValueHead(nn.Linear):
    """The layer that puts out the value. Called, it gives its parameters; see :class:`ActorCritic`."""

    def __init__(self, features: int) -> None:
        super().__init__(features, 1)

    def forward(self) -> tuple[nn.Parameter, nn.Parameter]:  # type: ignore[override]  # a layer by its parameters only
        """Weight ``[1, features]`` and bias ``[1]``."""
        return cast(nn.Parameter, self.weight), self.bias


def gather(inputs: Inputs, rows: NDArray[np.int64], place: Place | None = None) -> Inputs:
    """Rows of inputs (on the CPU), on a device.

    Gathered into memory of torch's own: its alignment is the same in every process, and with it the result.

    Args:
        inputs: Of N rows.
        rows: ``int64[M]``.
        place: Brings a tensor to the device (:meth:`srl.api.algorithm.TrainerContext.to_device`); ``None`` = the CPU.
    """
    if isinstance(inputs, torch.Tensor):
        return _gather(inputs, rows, place)
    return {name: _gather(tensor, rows, place) for name, tensor in inputs.items()}


def _gather(tensor: torch.Tensor, rows: NDArray[np.int64], place: Place | None) -> torch.Tensor:
    gathered = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype)
    np.take(tensor.numpy(), rows, axis=0, out=gathered.numpy(), mode="clip")
    return gathered if place is None else place(gathered)


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """An array as a contiguous tensor: the array's own memory where it is contiguous and writable, else a copy."""
    if array.flags.c_contiguous and array.flags.writeable:
        return torch.from_numpy(array)
    tensor = torch.from_numpy(np.empty(0, array.dtype)).new_empty(array.shape)
    np.copyto(tensor.numpy(), array)
    return tensor


def one_tensor(inputs: Inputs) -> torch.Tensor:
    """Inputs of a network that takes a single tensor.

    Raises:
        TypeError: If they are several.
    """
    if not isinstance(inputs, torch.Tensor):
        raise TypeError(f"this network takes one tensor, as its method inputs makes it; got {sorted(inputs)}")
    return inputs


def orthogonal(rows: int, columns: int, gain: float) -> torch.Tensor:
    """A random orthogonal matrix ``[rows, columns]`` times ``gain``."""
    return nn.init.orthogonal_(torch.empty(rows, columns), gain)


def initialise(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    """Orthogonal weights, biases of 0."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(bias_of(layer))


def bias_of(layer: nn.Conv2d | nn.Linear) -> torch.Tensor:
    """The bias of a layer that has one."""
    if layer.bias is None:  # narrows the type: every layer here is made with a bias
        raise TypeError(f"{layer} has no bias")
    return layer.bias
