"""The wrappers that experiments name: Gymnasium's own with checked options, and what it does not have.

They see one environment. Running statistics are not among them: those belong to the policy, where all actors share them
and evaluators leave them alone (``policies.NAME.algorithm.normalize_observations``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    ClipReward,
    FilterObservation,
    FlattenObservation,
    FrameStackObservation,
    GrayscaleObservation,
    RescaleObservation,
    ReshapeObservation,
    ResizeObservation,
    StickyAction,
    TimeAwareObservation,
    TimeLimit,
    TransformObservation,
    TransformReward,
)
from numpy.typing import NDArray
from pydantic import Field, model_validator

from srl.environments.options import Options
from srl.environments.wrapping import SingleEnv, wrapper_options


class NoOptions(Options):
    """Of wrappers without options."""


class FrameStackOptions(Options):
    """Options of ``frame_stack``."""

    frames: int = Field(ge=1, description="Observations in one, the newest last.")
    padding: Literal["reset", "zero"] = Field(
        default="reset", description="What stands in for those before the first: the first itself, or zeros."
    )
    concatenate: bool = Field(
        default=False,
        description="Join along the first axis (images with channels first) instead of a new one in front.",
    )


@wrapper_options(FrameStackOptions)
def frame_stack(env: SingleEnv, options: FrameStackOptions) -> SingleEnv:
    """The last observations in one, ``[frames, ...]``, or ``[frames * n, ...]`` joined."""
    stacked: SingleEnv = FrameStackObservation(env, options.frames, padding_type=options.padding)
    if not options.concatenate:
        return stacked
    shape = _box_of(env, "concatenate").shape
    return ReshapeObservation(stacked, (options.frames * shape[0], *shape[1:]))


class FrameSkipOptions(Options):
    """Options of ``frame_skip``."""

    frames: int = Field(ge=1, description="Steps of the environment below under one env step.")
    max_pool: bool = Field(
        default=False, description="The observation is the maximum of the last two instead of the last (flicker)."
    )


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats an action and sums the rewards; an end on an inner frame stops there.

    Args:
        env: The environment.
        frames: Steps below under one above.
        max_pool: Take the maximum of the last two observations of this step.
    """

    def __init__(self, env: SingleEnv, frames: int, max_pool: bool) -> None:
        super().__init__(env)
        self._frames = frames
        self._max_pool = max_pool

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Up to ``frames`` steps."""
        total = 0.0
        seen: list[NDArray[Any]] = []
        for _ in range(self._frames):
            # An environment that writes into its action must not change that of the next frame.
            observation, reward, terminated, truncated, info = self.env.step(_copied(action))
            total += float(reward)
            if self._max_pool:
                seen = [*seen[-1:], np.array(observation)]
            if terminated or truncated:
                break
        return np.maximum.reduce(seen) if self._max_pool else observation, total, terminated, truncated, info


@wrapper_options(FrameSkipOptions, frames=lambda options: options.frames)
def frame_skip(env: SingleEnv, options: FrameSkipOptions) -> SingleEnv:
    """Every action is played for some frames; counted in ``frames_per_step``."""
    if options.max_pool:
        _box_of(env, "max_pool")
    return FrameSkip(env, options.frames, options.max_pool)


class StickyActionOptions(Options):
    """Options of ``sticky_action``."""

    probability: float = Field(ge=0, lt=1, description="Probability that the previous action is played instead.")


@wrapper_options(StickyActionOptions)
def sticky_action(env: SingleEnv, options: StickyActionOptions) -> SingleEnv:
    """Sometimes the previous action is repeated, by the environment's own generator."""
    return StickyAction(env, options.probability)


class TimeLimitOptions(Options):
    """Options of ``time_limit``."""

    steps: int = Field(ge=1, description="Steps after which an episode is truncated; counted where the wrapper stands.")


@wrapper_options(TimeLimitOptions)
def time_limit(env: SingleEnv, options: TimeLimitOptions) -> SingleEnv:
    """Truncates episodes. It can only shorten: a registered limit is raised by ``kwargs: {max_episode_steps: ...}``."""
    return TimeLimit(env, options.steps)


class TimeAwareOptions(Options):
    """Options of ``time_aware``."""

    flatten: bool = Field(default=True, description="One Box; false = a Dict with obs and time.")
    normalize: bool = Field(default=True, description="Time as a share of the limit instead of a number of steps.")


@wrapper_options(TimeAwareOptions)
def time_aware(env: SingleEnv, options: TimeAwareOptions) -> SingleEnv:
    """The observation tells the time; the environment needs a time limit."""
    return TimeAwareObservation(env, flatten=options.flatten, normalize_time=options.normalize)


class RewardClipOptions(Options):
    """Options of ``reward_clip``."""

    low: float | None = Field(default=-1.0, description="Lower bound; null = none.")
    high: float | None = Field(default=1.0, description="Upper bound; null = none.")

    @model_validator(mode="after")
    def _ordered(self) -> RewardClipOptions:
        if self.low is None and self.high is None:
            raise ValueError("give a low or a high bound")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError("low must be below high")
        return self


@wrapper_options(RewardClipOptions)
def reward_clip(env: SingleEnv, options: RewardClipOptions) -> SingleEnv:
    """Rewards between bounds; reported returns are those before."""
    return ClipReward(env, options.low, options.high)


class RewardScaleOptions(Options):
    """Options of ``reward_scale``."""

    scale: float = Field(description="Factor.")
    shift: float = Field(default=0.0, description="Added after the factor.")


@wrapper_options(RewardScaleOptions)
def reward_scale(env: SingleEnv, options: RewardScaleOptions) -> SingleEnv:
    """Rewards times a factor; reported returns are those before."""
    return TransformReward(env, lambda reward: float(reward) * options.scale + options.shift)


class FilterObservationOptions(Options):
    """Options of ``filter_observation``."""

    keys: tuple[str, ...] | tuple[int, ...] = Field(
        min_length=1, description="Entries that stay: keys of a Dict, indices of a Tuple."
    )


@wrapper_options(FilterObservationOptions)
def filter_observation(env: SingleEnv, options: FilterObservationOptions) -> SingleEnv:
    """Some entries of a Dict or Tuple observation."""
    return FilterObservation(env, options.keys)


@wrapper_options(NoOptions)
def flatten_observation(env: SingleEnv, options: NoOptions) -> SingleEnv:
    """One vector of any observation; discrete entries one-hot."""
    return FlattenObservation(env)


class NormalizeObservationOptions(Options):
    """Options of ``normalize_observation``."""

    mean: float | tuple[float, ...] = Field(
        description="What is subtracted: one number, or one per element (C order). Fixed numbers: for statistics that "
        "follow the data set normalize_observations of the algorithm."
    )
    standard_deviation: float | tuple[float, ...] = Field(description="What is divided by, likewise.")

    @model_validator(mode="after")
    def _positive(self) -> NormalizeObservationOptions:
        if np.min(self.standard_deviation) <= 0:
            raise ValueError("standard_deviation must be positive")
        return self


@wrapper_options(NormalizeObservationOptions)
def normalize_observation(env: SingleEnv, options: NormalizeObservationOptions) -> SingleEnv:
    """Observations minus a mean, divided by a standard deviation, both fixed; float32."""
    box = _box_of(env, "normalize_observation")
    mean = _elements(options.mean, box.shape, "mean")
    deviation = _elements(options.standard_deviation, box.shape, "standard_deviation")
    with np.errstate(over="ignore"):  # a bound beyond float32 is infinite
        low, high = (
            ((bound.astype(np.float64) - mean) / deviation).astype(np.float32) for bound in (box.low, box.high)
        )
    return TransformObservation(
        env,
        lambda observation: ((observation - mean) / deviation).astype(np.float32),
        spaces.Box(low, high, box.shape, np.float32),
    )


class RescaleObservationOptions(Options):
    """Options of ``rescale_observation``."""

    low: float = Field(default=0.0, description="New lower bound.")
    high: float = Field(default=1.0, description="New upper bound.")

    @model_validator(mode="after")
    def _ordered(self) -> RescaleObservationOptions:
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self


@wrapper_options(RescaleObservationOptions)
def rescale_observation(env: SingleEnv, options: RescaleObservationOptions) -> SingleEnv:
    """Observations linearly from the bounds of their Box to new ones; float32."""
    box = _box_of(env, "rescale_observation")
    if not (np.isfinite(box.low).all() and np.isfinite(box.high).all()):
        raise ValueError(f"rescale_observation needs finite bounds, and the observation space is {box}")
    if box.dtype.kind != "f":
        kept = spaces.Box(box.low.astype(np.float32), box.high.astype(np.float32), box.shape, np.float32)
        env = TransformObservation(env, lambda observation: np.asarray(observation, np.float32), kept)
    return RescaleObservation(env, np.float32(options.low), np.float32(options.high))


class GrayScaleOptions(Options):
    """Options of ``gray_scale``."""

    keep_channel: bool = Field(default=False, description="[height, width, 1] instead of [height, width].")


@wrapper_options(GrayScaleOptions)
def gray_scale(env: SingleEnv, options: GrayScaleOptions) -> SingleEnv:
    """Images ``uint8[height, width, 3]`` in gray."""
    return GrayscaleObservation(env, keep_dim=options.keep_channel)


class ResizeOptions(Options):
    """Options of ``resize`` (extra: ``images``)."""

    height: int = Field(ge=1, description="New height in pixels.")
    width: int = Field(ge=1, description="New width in pixels.")


@wrapper_options(ResizeOptions)
def resize(env: SingleEnv, options: ResizeOptions) -> SingleEnv:
    """Images ``uint8[height, width(, channels)]`` in another size; needs OpenCV."""
    return ResizeObservation(env, (options.height, options.width))


@wrapper_options(NoOptions)
def channels_first(env: SingleEnv, options: NoOptions) -> SingleEnv:
    """Images ``[height, width, channels]`` as ``[channels, height, width]``, the form that the networks take."""
    box = _box_of(env, "channels_first")
    if len(box.shape) != 3:
        raise ValueError(f"channels_first needs images [height, width, channels], and the observation space is {box}")
    turned = spaces.Box(_turned(box.low), _turned(box.high), dtype=box.dtype.type)
    return TransformObservation(env, _turned, turned)


def _turned(image: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(np.asarray(image), -1, 0)


def _box_of(env: SingleEnv, what: str) -> spaces.Box:
    if not isinstance(env.observation_space, spaces.Box) or not env.observation_space.shape:
        raise ValueError(f"{what} needs arrays, and the observation space is {env.observation_space}")
    return env.observation_space


def _elements(numbers: float | Sequence[float], shape: tuple[int, ...], name: str) -> NDArray[np.float64]:
    array = np.asarray(numbers, np.float64)
    if array.shape and array.size != int(np.prod(shape)):
        raise ValueError(f"{name} has {array.size} numbers, and an observation has shape {shape}")
    return array.reshape(shape) if array.shape else array


def _copied(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _copied(entry) for key, entry in action.items()}
    if isinstance(action, tuple):
        return tuple(_copied(entry) for entry in action)
    return action.copy() if isinstance(action, np.ndarray) else action
