"""The plugin unit: an algorithm says what it needs from the graph, and turns batches into better weights.

Order of calls, in every trainer worker::

    algorithm = Algorithm(config, trainer)      # builds its optimizers over trainer.policy
    algorithm.load_state(...)                   # when resuming
    while training:
        metrics = algorithm.update(batch)       # one policy version per call

An algorithm never calls ``backward`` or an optimizer's ``step`` itself: ``trainer.step`` reduces gradients and counts
over ranks, divides by the global count, clips, checks that all is finite, and steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from srl.api.block import BlockHeader
from srl.api.environment import EnvironmentSpec
from srl.api.errors import NonFiniteError, UsageError
from srl.api.policy import PolicySpec
from srl.api.suggest import did_you_mean

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DataRequirements:
    """What an algorithm asks of the data path.

    Attributes:
        rows: T, rows per block.
        blocks_per_update: N, blocks one ``update`` consumes; ``None`` = one per ring group of the graph.
        mode: ``"fragment"`` (T fixed, crosses episodes) or ``"episode"``.
        on_policy: True if data older than the admissible lag must not be trained on.
        default_lag_versions: The lag bound used where the experiment gives none; ``None`` = no bound.
    """

    rows: int
    blocks_per_update: int | None = None
    mode: Literal["fragment", "episode"] = "fragment"
    on_policy: bool = True
    default_lag_versions: int | None = 1


@dataclass(slots=True)
class Batch:
    """The blocks of one update, side by side: columns of all blocks in (actor, ring group, sequence) order.

    Blocks cut short are padded to T with ``valid`` = False rows, so every array has the same T.

    Attributes:
        fields: Name to array: ``observation[T+1, C, ...]`` (and ``action_mask``, where there is one), everything else
            per row ``[T, C, ...]``; ``state[T / state_rows, C, S]`` for recurrent policies;
            ``final_observation[F, ...]`` of all blocks one after the other, with ``final_row`` renumbered to match;
            ``version[T, C]`` int64, the policy version that chose each row's action (from the blocks' tables).
            Unless ``on_non_finite`` is ``stop``: bool ``observation_replaced[T+1, C]`` and ``reward_replaced[T, C]``,
            True where a zero stands for a value that was not finite; such rows belong into no running statistic.
        The row after the last row of a short block (its bootstrap observation) is in row T as always.
        headers: One header per block.
        valid_rows: Number of valid rows.
    """

    fields: Mapping[str, NDArray[Any]]
    headers: Sequence[BlockHeader]
    valid_rows: int

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The array of a field.

        Raises:
            UsageError: The batch has none of this name.
        """
        if name not in self.fields:
            hint = did_you_mean(str(name), self.fields, "fields")
            raise UsageError("the batch has no such field", where="batch", value=name, hint=hint)
        return self.fields[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a field of this name, such as ``action_mask``."""
        return name in self.fields


class TrainerContext(Protocol):
    """What the trainer worker offers an algorithm."""

    policy: torch.nn.Module
    """The module under training, on ``device``."""
    spec: PolicySpec
    device: torch.device
    version: int
    """Completed updates, this one not counted."""
    progress: float
    """Share of the budget used, 0 to 1: env steps of ``stop.env_steps`` or updates of ``stop.updates``, whichever is
    further; 0 without either."""
    generator: np.random.Generator
    """Randomness of the trainer (minibatch order), seeded from the experiment; the same on every rank."""
    rank: int
    """Number of this trainer worker, 0 to ``ranks - 1``."""
    ranks: int
    """Trainer workers that train this policy together, each on its own blocks; they make the same calls in the same
    order."""

    def optimizer(self, *, learning_rate: float, epsilon: float, max_gradient_norm: float | None) -> Any:
        """Adam over all parameters of ``policy``, kept flat in one buffer; has ``learning_rate`` to set."""

    def step(
        self,
        optimizer: Any,
        *,
        valid_count: int,
        loss_sum: torch.Tensor | None = None,
        outputs: Sequence[torch.Tensor] = (),
        gradients: Sequence[torch.Tensor] = (),
        backward: Callable[[], None] | None = None,
    ) -> float:
        """One gradient step; returns the gradient norm before clipping.

        Either ``loss_sum`` (sum over valid rows, not mean), or ``outputs`` with the gradients of the loss sum with
        respect to them, or ``backward``, which adds the gradients of the loss sum to the ``grad`` of the policy's
        parameters itself (a backward pass by hand). Divided by the global valid count.

        Raises:
            NonFiniteError: Loss or gradient is NaN or infinite; weights are left unchanged.
        """

    def to_device(self, values: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """Host memory on ``device``: aliased on the CPU, through pinned memory and beside computation on a GPU."""

    def reduce(self, value: float, op: Literal["sum", "max", "min"] = "sum") -> float:
        """A number combined over all trainer ranks."""

    def reduce_array(
        self, values: NDArray[np.float64], op: Literal["sum", "max", "min"] = "sum"
    ) -> NDArray[np.float64]:
        """Numbers combined over all trainer ranks, each for itself: one message for all of them.

        Args:
            values: ``float64[...]``, of the same shape on every rank; not changed.
            op: How.

        Returns:
            ``float64[...]``, equal bits on every rank.
        """

    def gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all ranks in order of rank; shape and dtype must be the same on every rank."""

    def agree(self, problem: NonFiniteError | None) -> None:
        """Raise on every rank if any rank has found something that is not finite; else do nothing.

        A rank that raised alone would leave the others waiting for it in their next reduction.

        Raises:
            NonFiniteError: ``problem``, or on ranks without one an error that names the rank that has.
        """


class Algorithm(ABC):
    """Base class of algorithms.

    Args:
        config: The options under ``algorithm``, as the plugin's ``config`` model.
        trainer: What the trainer worker offers.
    """

    def __init__(self, config: Any, trainer: TrainerContext) -> None:
        self.config = config
        self.trainer = trainer

    @abstractmethod
    def update(self, batch: Batch) -> dict[str, float]:
        """Train on one batch; returns metrics by name (``loss/policy``, ``entropy``, ...)."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything beside the policy's weights that a resume needs: arrays, numbers, nested dicts of them."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""


class AlgorithmPlugin(ABC):
    """What a registered algorithm type is, importable without torch: config, requirements, spec, recipe.

    Attributes:
        name: Registered name.
        config: Pydantic model of its options.
        implementation: ``package.module:Attr`` of the :class:`Algorithm` class, imported only in trainers.
    """

    name: ClassVar[str]
    config: ClassVar[type[BaseModel]]
    implementation: ClassVar[str]

    @classmethod
    def unread(cls, config: Any) -> Sequence[str]:
        """Options that these other options make meaningless (set, but never read); named in one warning.

        Options with their default value are left out by the caller.
        """
        return ()

    @classmethod
    def cautions(cls, config: Any, rows_per_update: int) -> Sequence[str]:
        """What is allowed but surely not meant, each named in a warning at the start.

        Args:
            config: This algorithm's config.
            rows_per_update: Rows of one update's blocks, valid or not.
        """
        return ()

    @classmethod
    @abstractmethod
    def requirements(cls, config: Any) -> DataRequirements:
        """What this algorithm asks of the data path."""

    @classmethod
    @abstractmethod
    def policy_spec(
        cls, name: str, config: Any, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """Resolve the policy for an environment.

        Args:
            name: Policy name.
            config: This algorithm's config.
            network: The experiment's ``network`` options as written (may be empty).
            environment: The environment.

        Raises:
            ExperimentError: If the spaces do not fit the algorithm, with key path, both spaces and what would fit.
        """

    @classmethod
    @abstractmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """A default experiment (as a plain mapping, the same form as YAML) for ``srl-run --algorithm``.

        Args:
            environment: The experiment's ``environment`` mapping, checked, overrides included. What is returned may
                have another one, such as with wrappers that bring observations into a form that the algorithm takes.
            spec: What that environment is.
            cores: Cores that this process may use.
        """
