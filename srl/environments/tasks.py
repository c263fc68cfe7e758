"""Tasks of known optimum, registered with Gymnasium when this module is imported; ids of the namespace ``srl`` do that.

======================== ===================================== ============================= =====================
id                       action                                what it takes                 best return (default)
======================== ===================================== ============================= =====================
srl/Combination-v0       MultiDiscrete                         all heads of one decision     10
srl/LegalMoves-v0        Discrete; ``action_mask: info``       masks: illegal moves tempt    14.4 (unmasked: 0)
srl/Recall-v0            Discrete                              memory: a cue in the first    1 (without memory: 0.25)
                                                               observation only
srl/CartPolePositions-v0 Discrete                              memory: velocities are hidden 500
srl/Forever-v0           Discrete                              value 1 / (1 - gamma): only   20
                                                               where limits are no ends
srl/Mixed-v0             Dict of all kinds                     nested spaces both ways       10
srl/Target-v0            Box                                   continuous actions            10
======================== ===================================== ============================= =====================

Each is a batch in numpy; wrappers get single environments of the same. ``optimum`` of an environment says its best
expected return for the arguments given.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from srl.environments import batch_tasks
from srl.environments.batch_task import BatchTask, SingleTask

POSITIONS = [0, 2]
"""Place and angle among CartPole's observations."""


class CartPolePositions(CartPoleVectorEnv):
    """Gymnasium's vector CartPole whose observation is place and angle alone: velocities must be remembered.

    Args:
        num_envs: B.
        arguments: Those of Gymnasium's CartPole.
    """

    optimum = 500.0

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, **arguments)
        self.single_observation_space = _positions(self.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, **arguments: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New episodes."""
        observation, infos = super().reset(**arguments)
        return observation[:, POSITIONS], infos

    def step(self, action: NDArray[Any]) -> Any:
        """One step."""
        observation, *others = super().step(action)
        return observation[:, POSITIONS], *others


class CartPolePositionsEnv(CartPoleEnv):
    """The same as a single environment, for wrappers.

    Args:
        arguments: Those of Gymnasium's CartPole.
    """

    optimum = 500.0

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.observation_space = _positions(self.observation_space)

    def reset(self, **arguments: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new episode."""
        observation, info = super().reset(**arguments)
        return observation[POSITIONS], info

    def step(self, action: Any) -> Any:
        """One step."""
        observation, *others = super().step(action)  # type: ignore[no-untyped-call]
        return observation[POSITIONS], *others


def _positions(space: gymnasium.Space[Any]) -> Box:
    assert isinstance(space, Box)  # CartPole's own
    return Box(space.low[POSITIONS], space.high[POSITIONS], dtype=np.float32)


def _single(task: type[BatchTask]) -> type[SingleTask]:
    # The signature is what unknown arguments are found by.
    taken = inspect.signature(task)
    own = taken.replace(parameters=[one for name, one in taken.parameters.items() if name != "num_envs"])
    members = {"task": task, "__module__": __name__, "__signature__": own, "__doc__": task.__doc__}
    return type(f"Single{task.__name__}", (SingleTask,), members)


SINGLE = {
    name: _single(getattr(batch_tasks, name))
    for name in ("Combination", "LegalMoves", "Recall", "Forever", "Mixed", "Target")
}
"""Single environments by name of the task."""


def _register() -> None:
    for name, single in SINGLE.items():
        gymnasium.register(
            f"srl/{name}-v0", entry_point=single, vector_entry_point=f"srl.environments.batch_tasks:{name}"
        )
    gymnasium.register(
        "srl/CartPolePositions-v0",
        entry_point=CartPolePositionsEnv,
        vector_entry_point="srl.environments.tasks:CartPolePositions",
        max_episode_steps=500,
        reward_threshold=475.0,
    )


_register()
