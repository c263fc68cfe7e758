"""A saved policy that acts outside of a trial: one observation in, one action out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.policy import ActInput, ActOutput, NoiseSpec
from srl.distributed.evaluate import SavedPolicy, open_policy
from srl.system.actions import ActionTransformer
from srl.trials.spaces import batch_size, decode, encode


class LoadedPolicy:
    """One version of a policy.

    ::

        policy = srl.load("trials/first").policy
        observation, _ = environment.reset()
        policy.reset()
        action = policy.act(observation)

    Args:
        saved: The policy with its weights.
        seed: Of the noise of actions that are not deterministic.

    Attributes:
        spec: The policy as plain data.
        version: Policy version.
        env_steps: Env steps that the version was trained on.
        checkpoint: Directory of its checkpoint.
    """

    def __init__(self, saved: SavedPolicy, seed: int = 0) -> None:
        self.spec = saved.spec
        self.version = saved.checkpoint.version
        self.env_steps = int(saved.checkpoint.counters.get("env_steps", 0))
        self.checkpoint = saved.checkpoint.path
        self._acting = saved.acting
        self._transform = ActionTransformer(saved.spec)
        self._generator = np.random.default_rng(seed)
        self._state: NDArray[np.float32] | None = None
        self._starts: NDArray[np.bool_] | None = None

    @classmethod
    def open(cls, trial: Path, checkpoint: str | None = None, name: str | None = None) -> LoadedPolicy:
        """Load it from a trial; arguments and errors: :func:`srl.distributed.evaluate.open_policy`."""
        return cls(open_policy(trial, checkpoint, name))

    def reset(self, columns: Any = None) -> None:
        """An episode begins: recurrent state is forgotten. Needed between episodes of recurrent policies only.

        Args:
            columns: ``bool[B]``, which of a batch's environments begin an episode; ``None`` = all, and the next batch
                may have another size.
        """
        if columns is None or self._starts is None:
            self._state = self._starts = None
            return
        self._starts |= np.asarray(columns, np.bool_)

    def act(self, observation: Any, *, deterministic: bool = True, action_mask: Any = None) -> Any:
        """Decide.

        Args:
            observation: One observation as the environment gives it (dicts and tuples too), or a batch: the same with
                an axis in front of every array.
            deterministic: The mode of the distribution; else a sample.
            action_mask: ``bool[M]`` or ``bool[B, M]``, True where an action is legal; for policies that were trained
                with a mask.

        Returns:
            The action as the environment takes it; for a batch with an axis in front.

        Raises:
            UsageError: The observation or the mask does not fit, or the size of the batch changed in the midst of the
                episodes of a recurrent policy.
        """
        count = batch_size(self.spec.observation, observation)
        size = 1 if count is None else count
        self._begin(size)
        given = ActInput(
            observation=encode(self.spec.observation, observation, count),
            noise=self._noise(size, deterministic),
            episode_start=self._starts_of(size),
            valid=np.ones(size, np.bool_),
            action_mask=self._mask(action_mask, size),
            state=self._state,
        )
        out = ActOutput(
            action=np.zeros((size, *self.spec.action_array.shape), self.spec.action_array.dtype),
            extras={extra.name: np.zeros((size, *extra.shape), extra.dtype) for extra in self.spec.extras},
            state=None if self._state is None else np.zeros_like(self._state),
            used_state=None if self._state is None else np.zeros_like(self._state),
        )
        self._acting.act(given, out, deterministic=deterministic)
        self._state = out.state
        self._starts = np.zeros(size, np.bool_)
        return decode(self.spec.action, self._transform(out.action), count)

    def __repr__(self) -> str:
        """Name, version and spaces."""
        spaces = f"{self.spec.observation.describe()} -> {self.spec.action.describe()}"
        return f"<policy {self.spec.name}, version {self.version}: {spaces}>"

    def _begin(self, size: int) -> None:
        if self._starts is not None and len(self._starts) != size:
            if self.spec.state_size:
                raise UsageError(
                    "a recurrent policy gets another number of observations than before",
                    value=size,
                    expected=f"{len(self._starts)}, or a call of reset() in between",
                )
            self._state = self._starts = None
        if self._state is None and self.spec.state_size:
            self._state = np.zeros((size, self.spec.state_size), np.float32)

    def _starts_of(self, size: int) -> NDArray[np.bool_]:
        return np.ones(size, np.bool_) if self._starts is None else self._starts

    def _noise(self, size: int, deterministic: bool) -> NDArray[np.float32]:
        noise: NoiseSpec = self.spec.noise
        shape = (size, *noise.shape)
        if deterministic:
            return np.zeros(shape, np.float32)
        if noise.kind == "normal":
            return self._generator.standard_normal(shape, np.float32)
        return self._generator.random(shape, np.float32)

    def _mask(self, mask: Any, size: int) -> NDArray[np.bool_] | None:
        wanted = self.spec.action_mask
        if mask is None and wanted == 0:
            return None
        if mask is None or wanted == 0:
            raise UsageError(
                "this policy needs an action mask" if wanted else "this policy takes no action mask",
                where="action_mask",
                expected=f"bool[{wanted}]" if wanted else "none",
            )
        array = np.asarray(mask, np.bool_)
        if array.shape not in ((size, wanted), (wanted,)) or (array.ndim == 1 and size != 1):
            raise UsageError(
                "an action mask of another shape", where="action_mask", value=array.shape, expected=f"{(size, wanted)}"
            )
        return array.reshape(size, wanted)
