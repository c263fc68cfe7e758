"""What a trainer worker offers an algorithm: the module, optimizers, gradient steps over all ranks, saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from srl.api.errors import NonFiniteError, UsageError
from srl.api.policy import PolicySpec
from srl.system.collective import Alone, Collective, Operation
from srl.system.parameters import ParameterLayout
from srl.system.seeding import generator, module_seed
from srl.system.workers.algorithm_check import make_module
from srl.system.workers.flat import ArrayShapes, FlatAdam, FlatModule
from srl.system.workers.staging import Staging

COUNT_BASE = 4096
"""Counts travel as two float32 digits of this base, each of which is exact."""

TEXT_BYTES = 1024
"""What a rank says about a value that is not finite, at most."""


def build_module(spec: PolicySpec, seed: int) -> torch.nn.Module:
    """The policy's torch module, initialised from the experiment's seed alone; global random state is left as it was.

    Raises:
        PluginError: See :func:`srl.system.workers.algorithm_check.make_module`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(module_seed(seed, spec.name))
        return make_module(spec)


class Training:
    """The :class:`srl.api.algorithm.TrainerContext` of one trainer rank.

    Args:
        spec: The policy to train.
        seed: The experiment's seed.
        device: torch device name.
        collective: The way to the other ranks; ``None`` = there are none.
        extra: Further arrays to publish with the weights: name to (shape, dtype name); see :meth:`set_extra`.

    Attributes:
        policy: The module under training; its parameters are views of one flat buffer.
        spec: The policy.
        device: Where it is.
        version: Completed updates; kept by the trainer worker.
        progress: Share of the budget used, 0 to 1; kept by the trainer worker.
        generator: Randomness; the same numbers on every rank.
        rank: Number of this rank.
        ranks: How many there are.
        gradient_steps: Steps made.
        layout: Layout of :meth:`flat_weights`.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        seed: int,
        device: str = "cpu",
        collective: Collective | None = None,
        extra: ArrayShapes | None = None,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.policy = _placed(build_module(spec, seed), spec, self.device)
        self._staging = Staging(self.device)
        self.version = 0
        self._collective = collective or Alone()
        self.rank, self.ranks = self._collective.rank, self._collective.ranks
        self.progress = 0.0
        self.gradient_steps = 0
        self.generator = generator(seed, f"trainer/{spec.name}", 0)
        self._flat = FlatModule(self.policy, extra or {}, self._staging)
        self._optimizers: list[FlatAdam] = []

    @property
    def layout(self) -> ParameterLayout:
        """Layout of :meth:`flat_weights`."""
        return self._flat.layout

    def optimizer(self, *, learning_rate: float, epsilon: float, max_gradient_norm: float | None) -> FlatAdam:
        """Adam over all parameters of ``policy``."""
        optimizer = FlatAdam(
            self._flat, learning_rate=learning_rate, epsilon=epsilon, max_gradient_norm=max_gradient_norm
        )
        self._optimizers.append(optimizer)
        return optimizer

    def step(
        self,
        optimizer: FlatAdam,
        *,
        valid_count: int,
        loss_sum: torch.Tensor | None = None,
        outputs: Sequence[torch.Tensor] = (),
        gradients: Sequence[torch.Tensor] = (),
        backward: Callable[[], None] | None = None,
    ) -> float:
        """One gradient step; see :meth:`srl.api.algorithm.TrainerContext.step`.

        With no valid row anywhere nothing happens, and the norm is 0.
        """
        problem = self._accumulate(valid_count, backward, loss_sum, outputs, gradients)
        total = self._sum_over_ranks(valid_count, problem)
        if total == 0:
            return 0.0
        norm = float(torch.linalg.vector_norm(self._flat.gradients)) / total
        if not isfinite(norm):
            raise self._non_finite("gradient norm", norm)
        bound = optimizer.max_gradient_norm
        clip = bound / norm if bound is not None and norm > bound else 1.0
        self._flat.gradients.mul_(clip / total)
        optimizer.apply()
        self.gradient_steps += 1
        return norm

    def to_device(self, values: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """``values`` on the trainer's device; see :meth:`srl.api.algorithm.TrainerContext.to_device`."""
        return self._staging.to_device(values)

    def reduce(self, value: float, op: Operation = "sum") -> float:
        """A number combined over all ranks."""
        return float(self._collective.reduce_array(np.array([value], np.float64), op)[0])

    def reduce_array(self, values: NDArray[np.float64], op: Operation = "sum") -> NDArray[np.float64]:
        """Numbers combined over all ranks, each for itself."""
        return self._collective.reduce_array(values, op)

    def gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all ranks in order of rank."""
        return self._collective.gather(values)

    def agree(self, problem: NonFiniteError | None) -> None:
        """Raise on every rank if any rank has a problem; see :meth:`srl.api.algorithm.TrainerContext.agree`."""
        if self.ranks == 1:
            if problem is not None:
                raise problem
            return
        flags = [bool(one[0]) for one in self.gather(np.array([problem is not None]))]
        if not any(flags):
            return
        text = np.zeros(TEXT_BYTES, np.uint8)
        said = str(problem or "").encode()[:TEXT_BYTES]
        text[: len(said)] = np.frombuffer(said, np.uint8)
        texts = [one.tobytes().rstrip(b"\0").decode(errors="replace") for one in self.gather(text)]
        if problem is not None:
            raise problem
        first = flags.index(True)
        raise NonFiniteError(f"trainer rank {first} found a value that is not finite: {texts[first]}")

    def synchronize(self) -> None:
        """Take over rank 0's weights and buffers: a module may draw its first ones from a generator of its own."""
        if self.ranks > 1:
            self._collective.broadcast(self._flat.memory)

    def checksum(self) -> int:
        """A number that is equal on all ranks whose weights are equal bit for bit."""
        return self._flat.checksum()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Around one ``update``: if it raises, weights, buffers, optimizers and counters are as before.

        Weights that became infinite without any loss or gradient doing so raise :class:`NonFiniteError` too.
        """
        memory = self._flat.memory.clone()
        state = self.state()
        try:
            yield
            if not isfinite(float(self._flat.weights.sum())):
                raise self._non_finite("weight", float("nan"))
        except BaseException:
            self._flat.memory.copy_(memory)
            self.load_state(state)
            raise

    def flat_weights(self) -> NDArray[np.uint8]:
        """All parameters, buffers and extra arrays as ``uint8[layout.size_bytes]``; copy it to keep it."""
        return self._flat.bytes()

    def set_extra(self, name: str, value: Any) -> None:
        """Set an extra array that is published with the weights."""
        self._flat.set_extra(name, value)

    def load_weights(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name (a checkpoint).

        Raises:
            UsageError: They do not fit the policy.
        """
        self._flat.load(arrays)

    def state(self) -> dict[str, Any]:
        """Everything beside the weights that a resume needs: arrays, numbers, nested dicts of them."""
        return {
            "version": self.version,
            "gradient_steps": self.gradient_steps,
            "generator": self.generator.bit_generator.state,
            "optimizers": {str(index): optimizer.state() for index, optimizer in enumerate(self._optimizers)},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`; called after the algorithm made its optimizers.

        Raises:
            UsageError: Another number of optimizers was saved.
        """
        saved = state["optimizers"]
        if len(saved) != len(self._optimizers):
            raise UsageError(
                "the saved state is of another algorithm",
                where="optimizers",
                value=len(saved),
                expected=f"{len(self._optimizers)} optimizers",
            )
        self.version = int(state["version"])
        self.gradient_steps = int(state["gradient_steps"])
        self.generator.bit_generator.state = state["generator"]
        for index, optimizer in enumerate(self._optimizers):
            optimizer.load_state(saved[str(index)])

    def _accumulate(
        self,
        valid_count: int,
        backward: Callable[[], None] | None,
        loss_sum: torch.Tensor | None,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> NonFiniteError | None:
        """Leave this rank's gradients in the flat buffer; zeros where it has no valid row, or something is not finite.

        Returns:
            What is not finite. It is raised only when all ranks know.
        """
        self._flat.zero_gradients()
        own = self._flat.gradients
        if valid_count == 0:
            return None
        try:
            if backward is not None:
                backward()
            else:
                self._backward(loss_sum, outputs, gradients)
            # With one rank the norm of the sum says the same.
            if self.ranks > 1 and not isfinite(norm := float(torch.linalg.vector_norm(own))):
                raise self._non_finite("gradient norm", norm)
        except NonFiniteError as error:
            own.zero_()
            return error
        return None

    def _sum_over_ranks(self, valid_count: int, problem: NonFiniteError | None) -> int:
        """Sum the gradients over all ranks in place, in one message with the count.

        Returns:
            The global valid count.

        Raises:
            NonFiniteError: Some rank has a problem; on all ranks.
        """
        if self.ranks == 1:
            self.agree(problem)
            return valid_count
        message = self._flat.gradient_message
        high, low = divmod(valid_count, COUNT_BASE)
        message[-3:] = torch.tensor([low, high, problem is not None], dtype=torch.float32)
        self._collective.sum_tensor(message)
        low, high, problems = (int(number) for number in message[-3:].tolist())
        if problems:
            self.agree(problem)
        return high * COUNT_BASE + low

    def _backward(
        self, loss_sum: torch.Tensor | None, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        _check_loss(loss_sum, outputs)
        if loss_sum is None:
            torch.autograd.backward(tuple(outputs), tuple(gradients))
            return
        value = float(loss_sum.detach())
        if not isfinite(value):
            raise self._non_finite("loss", value)
        loss_sum.backward()  # type: ignore[no-untyped-call]

    def _non_finite(self, what: str, value: float) -> NonFiniteError:
        return NonFiniteError(
            f"a {what} is not finite",
            where=f"policy {self.spec.name}, version {self.version}, gradient step {self.gradient_steps}",
            value=value,
            hint="The step is not made. Lower the learning rate, or look for extreme observations and rewards.",
        )


def _placed(module: torch.nn.Module, spec: PolicySpec, device: torch.device) -> torch.nn.Module:
    """The module on its device.

    Raises:
        UsageError: The device has no numbers of 64 bits, and the module has such (statistics are float64).
    """
    wide = sorted(name for name, buffer in module.named_buffers() if buffer.dtype == torch.float64)
    if wide and device.type == "mps":
        raise UsageError(
            f"policy '{spec.name}' cannot be trained on this device: it has no float64",
            where=f"policies.{spec.name}",
            value=", ".join(wide),
            expected="device: cpu or cuda for the trainer, or no running statistics (normalised observations or "
            "returns, PopArt)",
        )
    return module.to(device)


def _check_loss(loss_sum: torch.Tensor | None, outputs: Sequence[torch.Tensor]) -> None:
    """Raise where a gradient step has nothing to follow: it would move nothing, or end in an error of autograd's."""
    problem = None
    if loss_sum is None:
        problem = None if outputs else "no loss is given"
    elif loss_sum.numel() != 1:
        problem = f"the loss has the shape {tuple(loss_sum.shape)}"
    elif not loss_sum.requires_grad:
        problem = "the loss does not depend on the policy's parameters"
    if problem is not None:
        raise UsageError(
            f"a gradient step has nothing to follow: {problem}",
            where="trainer.step",
            expected="loss_sum, one number: the sum of the loss over valid rows; or outputs with their gradients; or "
            "backward",
        )
