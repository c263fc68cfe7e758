"""The environment type ``envpool``: EnvPool's C++ environments (extra ``envpool``).

::

    environment: {type: envpool, id: Pong-v5, kwargs: {episodic_life: true, reward_clip: true}}

Version 1.2.5 was looked at by experiment. Left alone, it resets on the step after an end and ignores that step's
action; here the ended environments are reset at once (it takes a mask), so that every row holds a transition. Four
things are done here instead of there:

- *Both flags*: EnvPool says ``truncated`` where an episode ends by itself on the very step of its limit. So that the
  two are told apart, it gets a limit one step later, and the limit is kept here.
- *Lost lives* (``episodic_life`` of Atari) end the episode for the learner while the game goes on, with its step limit
  and its reported return. EnvPool's own way spends a step on every lost life.
- *Clipping* (``reward_clip``): the reported return is the sum of the rewards before.
- *Bounds*: some observation spaces declare the smallest positive number as their lower bound (LunarLander,
  BipedalWalker, dm_control). Bounds of floating-point observations are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srl.api.environment import Ended, EnvironmentFactory, EnvironmentSpec, Recording, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault, MissingExtraError, SRLError
from srl.api.importing import place_of
from srl.api.suggest import did_you_mean
from srl.environments.atari_recording import FRAMES_PER_SECOND
from srl.environments.masks import MaskReader, split_mask
from srl.environments.native_wrappers import refused_wrappers, without_wrappers
from srl.environments.options import Options, option_problems, parse_options, worker_threads
from srl.environments.recording import RENDER_MODE, cannot_be_filmed
from srl.environments.sources import INSTALL_COMMANDS, making
from srl.environments.spaces import MASK_KEY, check_seeds, environment_spec, unbounded
from srl.environments.values import ActionReader, ObservationWriter

OWN_ARGUMENTS = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "max_episode_steps", "max_num_players")
# Where a step has emulator frames under it; in physics simulations ``frame_skip`` counts substeps.
EMULATORS = ("envpool.atari", "envpool.vizdoom")
# MuJoCo's renderer ends the process where it finds no OpenGL context, and EnvPool makes none without a window.
SIMULATIONS = "envpool.mujoco"
OTHER_TYPE = "Environments of the type gymnasium can be filmed."
# No limit: EnvPool writes the largest int32.
NO_LIMIT = 2**30


INSTEAD = {
    "frame_skip": "kwargs.frame_skip (of Atari, VizDoom and simulations)",
    "frame_stack": "kwargs.stack_num (of Atari and VizDoom) or kwargs.frame_stack (of simulations)",
    "gray_scale": "kwargs.gray_scale (of Atari)",
    "resize": "kwargs.img_height with kwargs.img_width (of Atari and VizDoom)",
    "reward_clip": "kwargs.reward_clip (of Atari)",
    "sticky_action": "kwargs.repeat_action_probability (of Atari)",
    "time_limit": "max_episode_steps",
}
"""Wrappers to options."""
OTHERWISE = "With type: gymnasium wrappers go around single environments, more slowly."


class EnvPoolOptions(Options):
    """Options of the environment type ``envpool``."""

    id: str = Field(min_length=1, description="EnvPool's id, such as Pong-v5, CartPole-v1 or HalfCheetah-v4.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="EnvPool's own options of the environment, such as stack_num or frame_skip."
    )
    max_episode_steps: int | None = Field(
        default=None, ge=1, description="Env steps after which an episode is truncated; null = as EnvPool has it."
    )
    action_mask: Literal["info", "observation"] | None = Field(
        default=None,
        description="Where legal actions are said: info = info['action_mask']; observation = the key action_mask of a "
        "Dict observation, which is taken out of it; null = nowhere.",
    )
    num_threads: int | None = Field(
        default=None, ge=1, description="Threads per worker; null = OMP_NUM_THREADS of the worker, else 1."
    )


class EnvPoolFactory(EnvironmentFactory):
    """Makes environments from :class:`EnvPoolOptions`."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[SRLError]:
        """Problems with the options, an unknown id or option (near matches) or the missing extra."""
        problems = refused_wrappers(options, "envpool", INSTEAD, OTHERWISE)
        options = without_wrappers(options)
        problems += (wrong := option_problems(EnvPoolOptions, options))
        if not wrong:
            try:
                _check(parse_options(EnvPoolOptions, options))
            except SRLError as error:
                problems.append(error)
        return problems

    def probe(self) -> EnvironmentSpec:
        """Make one environment, read its spaces, close it."""
        environment = self.make(1, [0])
        environment.close()
        return environment.spec

    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """``count`` environments; see :meth:`EnvironmentFactory.make`."""
        check_seeds(count, seeds)
        options = parse_options(EnvPoolOptions, self.options)
        _check(options)
        return EnvPoolEnvironment(options, seeds)

    def record(self, seed: int) -> Recording:
        """One environment that EnvPool draws; the same as the others, which it does not draw.

        Raises:
            UsageError: EnvPool has no pictures of it.
        """
        options = parse_options(EnvPoolOptions, self.options)
        _check(options)
        frames: list[NDArray[np.uint8]] = []
        environment = FilmedPool(options, seed, frames)
        return Recording(environment, frames, environment.frames_per_second)


class EnvPoolEnvironment(VectorEnvironment):
    """A batch of one of EnvPool's environments; every row is valid.

    Args:
        options: The options, checked.
        seeds: One per environment.
        render_mode: As Gymnasium has it; ``None`` = nothing is drawn.

    Raises:
        EnvironmentFault: If it cannot be made, has several players, or spaces that SRL cannot carry.
    """

    def __init__(self, options: EnvPoolOptions, seeds: Sequence[int], render_mode: str | None = None) -> None:
        self.count = len(seeds)
        self._render_mode = render_mode
        registered = _envpool().registration.registry.specs[options.id]
        self._is_atari = registered[0] == "envpool.atari"
        # The spaces of some environments warn that their bounds do not fit float32.
        with making(options.id), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._limit, self._env = self._make(options, seeds)
            spec = environment_spec(self._env, options.id, action_mask=options.action_mask)
            self._actions = ActionReader(spec.action, self._env.single_action_space)
        config = self._env.spec.config._asdict()
        frames = int(config.get("frame_skip", 1)) if registered[0] in EMULATORS else 1
        self.spec = replace(spec, observation=unbounded(spec.observation), frames_per_step=frames)
        self._episodic_life = self._is_atari and bool(options.kwargs.get("episodic_life", False))
        self._masks = None if options.action_mask is None else MaskReader(spec.action, options.action_mask)
        self._writer = ObservationWriter(self.spec.observation)
        self._lives = np.zeros(self.count, np.int64)
        self._returns = np.zeros(self.count, np.float64)
        self._step = 0

    def reset(self, out: StepOutput) -> None:
        """Start every environment; EnvPool has their seeds from the beginning."""
        observation, info = self._call("reset")
        self._write(observation, info, out, np.ones(self.count, np.bool_))
        out.valid[...] = True
        out.episode_start[...] = True
        self._returns[...] = 0.0
        if self._is_atari:
            self._lives[...] = info["lives"]

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every environment once; see :meth:`VectorEnvironment.step`.

        Raises:
            EnvironmentFault: If EnvPool raises or returns what its spaces do not allow.
        """
        self._step += 1
        self._check_action(action)
        observation, reward, terminated, truncated, info = self._call("step", self._actions.batch(action))
        out.reward[...] = reward
        out.terminated[...] = terminated
        np.logical_or(truncated, info["elapsed_step"] >= self._limit, out=out.truncated)
        over = out.terminated | out.truncated
        lost = self._lost_lives(info)
        out.terminated |= lost
        self._returns += info["reward"] if self._is_atari else reward
        ended = over | lost
        self._write(observation, info, out, ~over)
        out.valid[...] = True
        out.episode_start[...] = ended
        return self._end(ended, over, out) if np.count_nonzero(ended) else None

    def close(self) -> None:
        """Release the environments; may be called twice."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _make(self, options: EnvPoolOptions, seeds: Sequence[int]) -> tuple[int, Any]:
        """The step limit, and the pool."""
        envpool = _envpool()
        arguments = {**options.kwargs, "num_envs": len(seeds), "batch_size": len(seeds)}
        own = envpool.make_spec(options.id, **options.kwargs).config.max_episode_steps
        limit = int(options.max_episode_steps or own)
        arguments["max_episode_steps"] = limit if limit >= NO_LIMIT else limit + 1
        if self._is_atari:
            arguments["episodic_life"] = False
        env = envpool.make_gymnasium(
            options.id,
            **arguments,
            env_seed=[int(seed) for seed in seeds],
            num_threads=options.num_threads or worker_threads(),
            render_mode=self._render_mode,
        )
        players = env.spec.config._asdict().get("max_num_players", 1)
        if players != 1:
            raise EnvironmentFault(
                "this environment has several players", where=options.id, value=players, expected="one player"
            )
        return limit, env

    def _lost_lives(self, info: dict[str, Any]) -> NDArray[np.bool_]:
        """``bool[B]`` games that lost a life; all False where lives do not end episodes."""
        if not self._episodic_life:
            return np.zeros(self.count, np.bool_)
        lost: NDArray[np.bool_] = info["lives"] < self._lives
        self._lives[...] = info["lives"]
        return lost

    def _end(self, ended: NDArray[np.bool_], over: NDArray[np.bool_], out: StepOutput) -> Ended:
        """The rare path: final observations are what the step gave; then what is over starts anew."""
        columns = np.flatnonzero(ended)
        final, returns = out.observation[columns], self._returns[columns]
        if np.count_nonzero(over):
            self._restart(over, out)
        counted = None if over[columns].all() else over[columns]
        return Ended(columns, final, returns if self._is_atari else None, counted)

    def _restart(self, over: NDArray[np.bool_], out: StepOutput) -> None:
        observation, info = self._call("reset", options={"reset_mask": over})
        rows = np.asarray(info["env_id"])
        fresh = replace(
            out,
            observation=np.zeros((len(rows), *self.spec.observation.shape), self.spec.observation.dtype),
            action_mask=None if out.action_mask is None else np.ones((len(rows), out.action_mask.shape[1]), np.bool_),
        )
        self._write(observation, info, fresh, np.ones(len(rows), np.bool_))
        out.observation[rows] = fresh.observation
        if out.action_mask is not None and fresh.action_mask is not None:
            out.action_mask[rows] = fresh.action_mask
        if self._is_atari:
            self._lives[rows] = info["lives"]
        self._returns[over] = 0.0

    def _write(self, observation: Any, info: dict[str, Any], out: StepOutput, masked: NDArray[np.bool_]) -> None:
        if self._masks is not None:
            mask = info.get(MASK_KEY)
            if self._masks.source == "observation":
                observation, mask = split_mask(observation, self._where)
            if out.action_mask is not None:
                self._masks.write_batch(mask, None, masked, out.action_mask, self._where)
        self._writer.write_batch(observation, out.observation, self._where)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._env, name)(*arguments, **options)
        except Exception as error:
            raise EnvironmentFault(
                f"EnvPool raised {type(error).__name__} in {name}: {error}",
                where=self._where(),
                hint=f"Raised at {place_of(error)}",
            ) from error

    def _check_action(self, action: NDArray[Any]) -> None:
        """What lies outside crashes some of the C++ environments."""
        space = self.spec.action
        if space.kind == "discrete" and (action.min() < 0 or action.max() >= space.n):
            raise EnvironmentFault(
                "the environment does not have this action",
                where=self._where(),
                value=action.tolist(),
                expected=f"0 to {space.n - 1}",
            )

    def _where(self) -> str:
        return f"{self.spec.name}, {self.count} environments, step {self._step}"


class FilmedPool(EnvPoolEnvironment):
    """One environment, drawn after every reset and step.

    Args:
        options: The options, checked.
        seed: Of the environment.
        frames: Receives ``uint8[height, width, 3]``.

    Attributes:
        frames_per_second: Env steps a second as a person should see them.
    """

    def __init__(self, options: EnvPoolOptions, seed: int, frames: list[NDArray[np.uint8]]) -> None:
        self._frames = frames
        if _envpool().registration.registry.specs[options.id][0].startswith(SIMULATIONS):
            raise cannot_be_filmed(options.id, "EnvPool draws no simulations without a window", OTHER_TYPE)
        super().__init__(options, [seed], RENDER_MODE)
        self.frames_per_second = FRAMES_PER_SECOND / self.spec.frames_per_step if self._is_atari else 30.0

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        result = super()._call(name, *arguments, **options)
        try:
            picture = np.asarray(self._env.render())
        except Exception as error:
            why = f"EnvPool cannot draw it: {type(error).__name__}: {error}"
            raise cannot_be_filmed(self.spec.name, why, OTHER_TYPE) from error
        if picture.ndim != 4 or picture.dtype != np.uint8:
            raise cannot_be_filmed(self.spec.name, "EnvPool has no pictures of it", OTHER_TYPE)
        self._frames.append(picture[0].copy())
        return result


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise MissingExtraError(
            f"the environment type 'envpool' needs EnvPool: {type(error).__name__}: {error}",
            where="type",
            hint=f"Install it: {INSTALL_COMMANDS['envpool']}",
        ) from error
    return envpool


def _check(options: EnvPoolOptions) -> None:
    envpool = _envpool()
    known = envpool.list_all_envs()
    if options.id not in known:
        raise SRLError(
            "EnvPool has no environment of this id",
            where="id",
            value=options.id,
            hint=did_you_mean(options.id, known, "ids"),
        )
    for name in options.kwargs:
        if name in OWN_ARGUMENTS:
            raise SRLError("SRL gives this option itself", where=f"kwargs.{name}", hint="See the keys beside kwargs.")
    defaults = envpool.make_spec(options.id).config._asdict()
    names = [*defaults, "from_pixels", "render_width", "render_height"]
    for name, value in options.kwargs.items():
        if name not in names:
            offered = [one for one in names if one not in OWN_ARGUMENTS]
            raise SRLError(
                "the environment has no such option",
                where=f"kwargs.{name}",
                hint=did_you_mean(name, offered, "options"),
            )
        expected = _expected(value, defaults.get(name))
        if expected:
            raise SRLError("wrong value", where=f"kwargs.{name}", value=value, expected=expected)


def _expected(value: Any, default: Any) -> str:
    """What the value should have been by the default's type; empty if it is that."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(default, float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    if isinstance(default, str):
        return "" if isinstance(value, str) else "text"
    return ""
