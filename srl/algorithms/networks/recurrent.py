"""Recurrent cores: LSTM and GRU, one step and whole sequences, always in float32.

Parameters have the names, shapes and order of gates of ``torch.nn.LSTMCell`` and ``torch.nn.GRUCell``. Episodes begin
in the middle of sequences, in each column elsewhere, and torch's kernels know no resets. There are two ways through:
row by row (what does not depend on the state is computed for all rows at once), which is what every core has, and for
the LSTM on the CPU torch's fused kernel on pieces of sequences, 1.7 to 5 times as fast (``benchmarks/recurrent.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from srl.algorithms.networks.base import Memory
from srl.algorithms.networks.segments import cut_segments


class RecurrentCore(nn.Module, ABC):
    """A state that is carried from row to row, and features read from it.

    Args:
        state_size: S.
        features: Width of what it puts out.
        learned_initial_state: The state at episode starts is a parameter instead of zeros.
    """

    initial: torch.Tensor

    def __init__(self, state_size: int, features: int, *, learned_initial_state: bool) -> None:
        super().__init__()
        self.state_size = state_size
        self.features = features
        if learned_initial_state:
            self.initial = nn.Parameter(torch.zeros(state_size))
        else:
            self.register_buffer("initial", torch.zeros(state_size), persistent=False)

    @abstractmethod
    def project(self, inputs: torch.Tensor) -> torch.Tensor:
        """The part of a step that does not depend on the state: ``[N, G]`` of ``float32[N, F]``."""

    @abstractmethod
    def advance(self, projected: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The next state ``[N, S]``, from a row's projection ``[N, G]`` and the state used there ``[N, S]``."""

    @abstractmethod
    def output(self, state: torch.Tensor) -> torch.Tensor:
        """The features ``[..., features]`` of a row, from the state after it ``[..., S]``."""

    def unroll(self, inputs: torch.Tensor, memory: Memory) -> torch.Tensor:
        """C steps of N sequences, differentiable through time.

        Args:
            inputs: ``float32[C * N, F]``, time first.
            memory: Of the N sequences.

        Returns:
            The features ``[C * N, features]``; those of rows without a transition mean nothing.
        """
        advanced, _ = self._by_rows(inputs, memory)
        return self.output(torch.cat(advanced))

    def states(self, inputs: torch.Tensor, memory: Memory) -> torch.Tensor:
        """The states after each row ``[C * N, S]``; arguments as of :meth:`unroll`."""
        _, after = self._by_rows(inputs, memory)
        return torch.cat(after)

    def _by_rows(self, inputs: torch.Tensor, memory: Memory) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of each row the states ``[N, S]`` that a transition leads to, and those after it (idle rows keep theirs)."""
        rows, columns = memory.episode_start.shape
        # Unbound, not indexed row by row: the gradient of each index would be as large as the whole.
        projected = self.project(inputs).reshape(rows, columns, -1).unbind()
        start, valid = memory.episode_start.unsqueeze(2).unbind(), memory.valid.unsqueeze(2).unbind()
        # Whether any column starts or idles in a row is asked once for all rows: one wait for the device.
        some = torch.stack([memory.episode_start.any(dim=1), ~memory.valid.all(dim=1)]).tolist()
        state = memory.state
        advanced, after = [], []
        for row, (starts, idles) in enumerate(zip(*some, strict=True)):
            if starts:
                state = torch.where(start[row], self.initial, state)
            following = self.advance(projected[row], state)
            advanced.append(following)
            state = torch.where(valid[row], following, state) if idles else following
            after.append(state)
        return advanced, after


class _GatedCore(RecurrentCore):
    """What both cells have in common: two linear maps onto all gates."""

    def __init__(self, inputs: int, size: int, gates: int, states: int, *, learned_initial_state: bool) -> None:
        super().__init__(states * size, size, learned_initial_state=learned_initial_state)
        self.weight_ih = nn.Parameter(nn.init.orthogonal_(torch.empty(gates * size, inputs)))
        self.weight_hh = nn.Parameter(nn.init.orthogonal_(torch.empty(gates * size, size)))
        self.bias_ih = nn.Parameter(torch.zeros(gates * size))
        self.bias_hh = nn.Parameter(torch.zeros(gates * size))


class LSTMCore(_GatedCore):
    """Long short-term memory; the state is h, then c."""

    def __init__(self, inputs: int, size: int, *, learned_initial_state: bool) -> None:
        super().__init__(inputs, size, gates=4, states=2, learned_initial_state=learned_initial_state)

    def project(self, inputs: torch.Tensor) -> torch.Tensor:
        """As in the base class."""
        return functional.linear(inputs, self.weight_ih, self.bias_ih + self.bias_hh)

    def advance(self, projected: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """As in the base class."""
        hidden, cell = state.chunk(2, dim=1)
        gates = torch.addmm(projected, hidden, self.weight_hh.t())
        enter, keep, candidate, leave = gates.chunk(4, dim=1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.cat([torch.sigmoid(leave) * torch.tanh(cell), cell], dim=1)

    def output(self, state: torch.Tensor) -> torch.Tensor:
        """As in the base class: h."""
        return state[..., : self.features]

    def unroll(self, inputs: torch.Tensor, memory: Memory) -> torch.Tensor:
        """As in the base class."""
        # cuDNN would compute in TF32 by default, and copies weights that do not lie in one piece at every call.
        if inputs.device.type != "cpu":
            return super().unroll(inputs, memory)
        episode_start, valid = memory.episode_start, memory.valid
        if valid.all() and not episode_start[1:].any():  # nothing to cut: small networks save a third of the time
            state = torch.where(episode_start[:1].t(), self.initial, memory.state)
            return self._fused(inputs.reshape(*valid.shape, -1), state)
        segments = cut_segments(episode_start.numpy(), valid.numpy())
        source, place, column, fresh = map(
            torch.from_numpy, (segments.source, segments.place, segments.column, segments.fresh)
        )
        state = torch.where(fresh.unsqueeze(1), self.initial, memory.state.index_select(0, column))
        parts = torch.split(inputs.index_select(0, source), [rows * many for rows, many in segments.runs])
        states = torch.split(state, [many for _, many in segments.runs])
        hidden = [
            self._fused(part.view(*run, -1), first)
            for run, part, first in zip(segments.runs, parts, states, strict=True)
        ]
        # Place 0 is that of rows without a transition: zeros, through which no gradient flows.
        return torch.cat([inputs.new_zeros(1, self.features), *hidden]).index_select(0, place)

    def _fused(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The features ``[L * K, features]`` of ``[L, K, F]``, without resets. What c was, the kernel does not tell."""
        first = [part.unsqueeze(0).contiguous() for part in state.chunk(2, dim=1)]
        weights: list[torch.Tensor] = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        train = torch.is_grad_enabled()
        hidden, _, _ = torch.lstm(inputs, first, weights, True, 1, 0.0, train, False, False)
        return hidden.flatten(0, 1)


class GRUCore(_GatedCore):
    """Gated recurrent unit; the state is h."""

    def __init__(self, inputs: int, size: int, *, learned_initial_state: bool) -> None:
        super().__init__(inputs, size, gates=3, states=1, learned_initial_state=learned_initial_state)

    def project(self, inputs: torch.Tensor) -> torch.Tensor:
        """As in the base class."""
        return functional.linear(inputs, self.weight_ih, self.bias_ih)

    def advance(self, projected: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """As in the base class."""
        reset, update, candidate = projected.chunk(3, dim=1)
        by_state = functional.linear(state, self.weight_hh, self.bias_hh)
        reset_by_state, update_by_state, candidate_by_state = by_state.chunk(3, dim=1)
        reset = torch.sigmoid(reset + reset_by_state)
        update = torch.sigmoid(update + update_by_state)
        candidate = torch.tanh(candidate + reset * candidate_by_state)
        return candidate + update * (state - candidate)

    def output(self, state: torch.Tensor) -> torch.Tensor:
        """As in the base class: h."""
        return state


def build_core(recurrent: Mapping[str, Any], inputs: int) -> RecurrentCore:
    """The core that resolved options (key ``recurrent``) describe, behind an encoder with ``inputs`` features."""
    kind = LSTMCore if recurrent["type"] == "lstm" else GRUCore
    return kind(inputs, recurrent["size"], learned_initial_state=recurrent["learned_initial_state"])
