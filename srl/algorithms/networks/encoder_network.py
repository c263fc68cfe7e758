"""Any encoder, then maybe a recurrent core, then two heads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from srl.algorithms.networks.base import (
    POLICY_GAIN,
    VALUE_GAIN,
    ActorCritic,
    Inputs,
    Memory,
    Prepared,
    ValueHead,
    initialise,
)
from srl.algorithms.networks.encoders import Encoder
from srl.algorithms.networks.recurrent import RecurrentCore


class EncoderActorCritic(ActorCritic):
    """The network around an encoder.

    Args:
        encoder: From inputs to features.
        outputs: P.
        core: Between encoder and heads; ``None`` = the network has no state.
        dtype: What the encoder computes in (its parameters stay float32); core and heads compute in float32.
    """

    def __init__(
        self, encoder: Encoder, outputs: int, core: RecurrentCore | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(dtype)
        self.encoder = encoder
        self.core = core
        self.state_size = 0 if core is None else core.state_size
        features = encoder.features if core is None else core.features
        self.policy_head = nn.Linear(features, outputs)
        self.value_head = ValueHead(features)
        initialise(self.policy_head, POLICY_GAIN)
        initialise(self.value_head, VALUE_GAIN)

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """What the encoder takes."""
        return self.encoder.inputs(observation)

    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """What the encoder takes, by torch's operators alone."""
        return self.encoder.inputs_of(leaves)

    def prepare(self) -> Prepared:
        """Nothing: the pass takes the module's own parameters."""
        return ()

    def compute(
        self, inputs: Inputs, prepared: Prepared, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """As in the base class.

        Raises:
            TypeError: If the network has a state and none is given.
        """
        features = self._encoded(inputs)
        if self.core is None:
            return *self._heads(features), None
        if state is None:
            raise TypeError("a recurrent network needs a state")
        following = self.core.advance(self.core.project(features), state)
        return *self._heads(self.core.output(following)), following

    def initial_state(self) -> torch.Tensor:
        """As in the base class."""
        return super().initial_state() if self.core is None else self.core.initial

    def sequence(self, inputs: Inputs, memory: Memory) -> tuple[torch.Tensor, torch.Tensor]:
        """As in the base class; all rows are encoded at once."""
        if self.core is None:
            return super().sequence(inputs, memory)
        return self._heads(self.core.unroll(self._encoded(inputs), memory))

    def states(self, inputs: Inputs, memory: Memory) -> torch.Tensor:
        """As in the base class; all rows are encoded at once."""
        if self.core is None:
            return super().states(inputs, memory)
        return self.core.states(self._encoded(inputs), memory)

    def _encoded(self, inputs: Inputs) -> torch.Tensor:
        first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs.values()))
        exact = self.dtype == torch.float32
        with nullcontext() if exact else torch.autocast(first.device.type, self.dtype):
            features: torch.Tensor = self.encoder(inputs)
        return features.float()

    def _heads(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy_head(features), functional.linear(features, *self.value_head()).squeeze(1)
