"""Filming environments: every frame in order, those between two episodes included."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from srl.api.errors import EnvironmentFault, UsageError
from srl.api.importing import import_target

SingleEnv = gymnasium.Env[Any, Any]
RENDER_MODE = "rgb_array"
FREE_CAMERA = -1


class FrameRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The outermost wrapper of an environment that is filmed: renders after every reset and every step.

    Whoever steps it resets it in the same call where an episode ends; that is why the frames are taken here, where the
    final observation's is still to be had.

    Args:
        env: Made with the render mode ``rgb_array``.
        frames: Receives ``uint8[height, width, 3]``.
        name: For messages.
    """

    def __init__(self, env: SingleEnv, frames: list[NDArray[np.uint8]], name: str) -> None:
        super().__init__(env)
        self._frames = frames
        self._name = name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode; its first frame."""
        result = self.env.reset(seed=seed, options=options)
        self._take()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; the frame of the observation it returns."""
        result = self.env.step(action)
        self._take()
        return result

    def _take(self) -> None:
        frame = self.env.render()
        array = np.asarray(frame)
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
            raise EnvironmentFault(
                "render() returned no picture",
                where=self._name,
                value=type(frame).__name__ if array.ndim == 0 else f"shape {array.shape}, dtype {array.dtype}",
                expected="uint8[height, width, 3]",
            )
        self._frames.append(array.copy())  # an environment may draw into one buffer again and again


def follow_the_body(env: SingleEnv) -> None:
    """Let a MuJoCo environment be filmed by its own camera that goes along, where nobody chose another.

    Left alone Gymnasium films from a camera that stays where it is: whoever runs has left the picture after a second.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is None or getattr(renderer, "camera_id", None) != FREE_CAMERA:
        return
    import mujoco  # the environment is made of it

    model: Any = env.unwrapped.model  # type: ignore[attr-defined]  # whoever has a renderer has a model
    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:
        renderer.camera_id = camera


def check_render_modes(name: str, entry: str | None) -> None:
    """Refuse environments whose class says that they cannot be rendered as pictures; functions say nothing.

    Args:
        name: The environment, for the message; its Gymnasium id if there is no entry.
        entry: ``package.module:Attr`` of the class or function; ``None`` = the id's.

    Raises:
        UsageError: Naming the render modes that there are.
    """
    if entry is not None:
        creator: Any = import_target(entry, "entry")
    else:
        point = gymnasium.registry[name].entry_point
        creator = load_env_creator(point) if isinstance(point, str) else point
    metadata = getattr(creator, "metadata", None)
    if not isinstance(metadata, dict):
        return
    modes = metadata.get("render_modes") or []
    if RENDER_MODE not in modes:
        raise cannot_be_filmed(name, f"its render modes are {', '.join(map(str, modes)) or 'none'}")


def cannot_be_filmed(name: str, why: str, hint: str = "") -> UsageError:
    """The one error for environments without pictures; without a hint, what an environment of one's own needs."""
    return UsageError(
        f"this environment cannot be filmed: {why}",
        where=name,
        expected=f"an environment with the render mode '{RENDER_MODE}'",
        hint=hint
        or "Its class says so in metadata['render_modes'], takes render_mode, and render() returns the picture.",
    )


def frames_per_second(env: SingleEnv, frames_per_step: int) -> float:
    """Env steps a second as the environment asks for; 30 where it says nothing.

    Args:
        env: The environment with its wrappers.
        frames_per_step: Steps of the environment that the wrappers put into one.
    """
    asked = env.metadata.get("render_fps")
    rate = float(asked) if isinstance(asked, int | float) and asked > 0 else 30.0
    return max(1.0, rate / frames_per_step)
