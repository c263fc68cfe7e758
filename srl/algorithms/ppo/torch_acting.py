"""Acting in torch: CNNs, nested observations, recurrent networks, networks of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from srl.algorithms.networks.actor_critic import Inputs, Prepared
from srl.algorithms.ppo.acting import Decision
from srl.algorithms.ppo.policy import PPOPolicy
from srl.api.policy import ActingPolicy, ActInput, ActOutput, PolicySpec


class TorchActing(ActingPolicy):
    """PPO's policy with any network; weights are converted (bfloat16, channels last) once per version."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        with torch.random.fork_rng(devices=[]):  # initial weights are replaced by load; nobody else's stream moves
            # Whatever a plugin's network does in training alone (dropout): acting is a function of its input.
            self._policy = PPOPolicy(spec).requires_grad_(False).eval()
        # A tensor that has two names in the network has one among the weights.
        self._names = {name for name, _ in (*self._policy.named_parameters(), *self._policy.named_buffers())}
        self._decision = Decision(spec)
        self._prepared: Prepared = ()
        self._device = torch.device("cpu")
        self._initial_state = np.zeros(spec.state_size, np.float32)
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._observation: NDArray[Any] = np.empty(0)

    def to(self, device: str) -> None:
        """Compute on a device; before the first :meth:`load`."""
        self._device = torch.device(device)
        self._policy.to(self._device)

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Take over a version's weights."""
        network = self._policy.network
        with torch.inference_mode():
            for name, tensor in self._policy.state_dict().items():
                if name in self._names:
                    tensor.copy_(torch.from_numpy(np.array(parameters[name])))
            # Cloned: what needs no conversion would otherwise alias the parameters.
            self._prepared = [tensor.clone() for tensor in network.prepare()]
            if self.spec.state_size:
                self._initial_state = network.initial_state().cpu().numpy().copy()
        self._decision.load(parameters)

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide for a batch."""
        observation = self._copied(batch.observation)
        if self._decision.normalizes:
            self._decision.normalizer.apply(observation)
        used = self._used_state(batch)
        with torch.inference_mode():
            state = None if used is None else torch.from_numpy(used).to(self._device)
            inputs = self._placed(self._policy.network.inputs(observation))
            head, value, following = self._policy.network.compute(inputs, self._prepared, state)
        if used is not None and following is not None and out.state is not None and out.used_state is not None:
            out.used_state[...] = used
            out.state[...] = np.where(batch.valid[:, None], following.cpu().numpy(), used)
        self._decision.decide(head.cpu().numpy(), value.cpu().numpy(), batch, out, deterministic=deterministic)

    def _used_state(self, batch: ActInput) -> NDArray[np.float32] | None:
        if batch.state is None:
            return None
        used = np.array(batch.state, np.float32)
        used[batch.episode_start] = self._initial_state
        return used

    def _placed(self, inputs: Inputs) -> Inputs:
        if isinstance(inputs, torch.Tensor):
            return inputs.to(self._device)
        return {name: tensor.to(self._device) for name, tensor in inputs.items()}

    def _copied(self, observation: NDArray[Any]) -> NDArray[Any]:
        """The observation in memory of torch's own: its alignment, and with it the result, is the same everywhere."""
        if self._observation.shape != observation.shape:
            self._memory = torch.empty(observation.size * observation.itemsize, dtype=torch.uint8)
            self._observation = self._memory.numpy().view(observation.dtype).reshape(observation.shape)
        np.copyto(self._observation, observation)
        return self._observation
