"""A module's parameters, gradients and buffers in flat memory, and Adam over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from srl.api.errors import UsageError
from srl.system.parameters import ParameterLayout
from srl.system.workers.staging import Staging

TAIL = 16
"""Numbers behind the gradients in the message that is summed over ranks: counts and flags."""

ArrayShapes = Mapping[str, tuple[tuple[int, ...], str]]


class FlatModule:
    """Moves a module's parameters and buffers into one buffer that follows :class:`ParameterLayout`.

    Parameters come first, then buffers, then ``extra`` arrays. Between the arrays lie up to 60 bytes of padding, which
    stay zero: they have no gradient. Publishing is one copy.

    Args:
        module: On its device; its parameters become views.
        extra: Further arrays to publish with the weights: name to (shape, dtype name).
        staging: Brings the buffer to host memory.

    Attributes:
        layout: Where everything lies.
        memory: The whole buffer, ``uint8[layout.size_bytes]``.
        weights: The parameters in it, ``float32[W]``.
        gradients: Their gradients, ``float32[W]``.
        gradient_message: The same memory with ``TAIL`` numbers behind it: one message over ranks.

    Raises:
        UsageError: A parameter is not float32.
    """

    def __init__(self, module: nn.Module, extra: ArrayShapes, staging: Staging) -> None:
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32:
                raise UsageError(
                    "a parameter has the wrong dtype",
                    where=f"{type(module).__name__}.{name}",
                    value=str(parameter.dtype),
                    expected="float32; a policy may compute in another dtype, but keeps its parameters in this one",
                )
        arrays = {name: _shape(tensor) for name, tensor in {**parameters, **buffers}.items()}
        self._extra = frozenset(extra)
        self._staging = staging
        self.layout = ParameterLayout.of({**arrays, **extra})
        device = next(iter(parameters.values())).device
        self.memory = torch.zeros(self.layout.size_bytes, dtype=torch.uint8, device=device)
        end = ParameterLayout.of({name: _shape(tensor) for name, tensor in parameters.items()}).size_bytes
        self.weights = self.memory[:end].view(torch.float32)
        self.gradient_message = torch.zeros(len(self.weights) + TAIL, device=device)
        self.gradients = self.gradient_message[: len(self.weights)]
        self._views = {field.name: self._view(field.name) for field in self.layout.fields}
        self._grads = [(parameter, self._gradient(name)) for name, parameter in parameters.items()]
        with torch.no_grad():
            for name, parameter in parameters.items():
                self._views[name].copy_(parameter)
                parameter.data = self._views[name]
            for name, buffer in buffers.items():
                self._views[name].copy_(buffer)
                buffer.data = self._views[name]
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Set the gradients to 0, and see that it is them that a backward pass adds to.

        ``zero_grad()`` of a module takes them off its parameters; gradients would then go elsewhere, and no step would
        move anything.
        """
        self.gradients.zero_()
        for parameter, gradient in self._grads:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def bytes(self) -> NDArray[np.uint8]:
        """The whole buffer, ``uint8[layout.size_bytes]``: aliased on the CPU, else valid until the next call."""
        return self._staging.to_host(self.memory)

    def checksum(self) -> int:
        """Sum of the buffer's 64-bit words, modulo 2**64: equal on ranks whose weights are equal bit for bit."""
        return int(self.memory.view(torch.int64).sum())

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over parameters and buffers by name; other names are ignored, extra arrays may be missing.

        Raises:
            UsageError: An array is missing or has another shape.
        """
        wanted = [field for field in self.layout.fields if field.name in arrays or field.name not in self._extra]
        for field in wanted:
            found = arrays.get(field.name)
            if found is None or tuple(found.shape) != field.shape:
                raise UsageError(
                    "the weights do not fit the policy",
                    where=field.name,
                    value="missing" if found is None else tuple(found.shape),
                    expected=f"an array of shape {field.shape}",
                )
        with torch.no_grad():
            for field in wanted:
                self._views[field.name].copy_(torch.from_numpy(np.array(arrays[field.name])))

    def set_extra(self, name: str, value: Any) -> None:
        """Write an extra array."""
        self._views[name].copy_(torch.as_tensor(value))

    def _view(self, name: str) -> torch.Tensor:
        field = next(field for field in self.layout.fields if field.name == name)
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
        size = int(np.prod(field.shape, dtype=np.int64)) * dtype.itemsize
        return self.memory[field.offset_bytes : field.offset_bytes + size].view(dtype).view(field.shape)

    def _gradient(self, name: str) -> torch.Tensor:
        field = next(field for field in self.layout.fields if field.name == name)
        first, size = field.offset_bytes // 4, int(np.prod(field.shape, dtype=np.int64))
        return self.gradients[first : first + size].view(field.shape)


class FlatAdam:
    """Adam (Kingma and Ba 2015) over one flat buffer, in one fused operation.

    Args:
        module: Whose weights it moves.
        learning_rate: Step size; may be set at any time.
        epsilon: Added to the root of the second moment.
        max_gradient_norm: Bound that the trainer clips to; ``None`` = never.
    """

    BETA1 = 0.9
    BETA2 = 0.999

    def __init__(
        self, module: FlatModule, *, learning_rate: float, epsilon: float, max_gradient_norm: float | None
    ) -> None:
        self.learning_rate = learning_rate
        self.max_gradient_norm = max_gradient_norm
        self._epsilon = epsilon
        self._weights = module.weights
        self._gradients = module.gradients
        self._first = torch.zeros_like(module.weights)
        self._second = torch.zeros_like(module.weights)
        self._steps = torch.zeros((), dtype=torch.float32, device=module.weights.device)

    def apply(self) -> None:
        """One step with the present gradients."""
        self._steps += 1
        torch._fused_adam_(
            [self._weights],
            [self._gradients],
            [self._first],
            [self._second],
            [],
            [self._steps],
            lr=self.learning_rate,
            beta1=self.BETA1,
            beta2=self.BETA2,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, Any]:
        """Moments (copies), step count and learning rate."""
        return {
            "first_moment": self._first.cpu().numpy().copy(),
            "second_moment": self._second.cpu().numpy().copy(),
            "steps": int(self._steps.item()),
            "learning_rate": self.learning_rate,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self._first.copy_(torch.from_numpy(np.array(state["first_moment"])))
        self._second.copy_(torch.from_numpy(np.array(state["second_moment"])))
        self._steps.fill_(float(state["steps"]))
        self.learning_rate = float(state["learning_rate"])


def _shape(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
