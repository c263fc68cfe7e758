"""The environment type ``atari``: Atari 2600 games through ale-py's own vectoriser (extra ``atari``).

::

    environment: {type: atari, game: Pong}

Observations are ``uint8[stack, height, width]`` (``[3 * stack, ...]`` in colour), newest frame last. ale-py does the
frame skip, the maximum over the last two frames, resizing and stacking; three things are done here instead:

- *Clipping*: ale-py would report clipped rewards only; here ``reward`` is clipped and the return is not.
- *Lost lives*: ale-py's ``episodic_life`` restarts the whole game at every lost life, so that later lives are never
  seen. Here a lost life ends the episode for the learner (``terminated``) while the game goes on, and the reported
  return runs over all lives.
- *The frame limit*: ale-py stops inside the last step before that step's last frame is taken, so the final observation,
  from which the value at a time limit is computed, would be a frame behind. Here the step is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srl.api.environment import Ended, EnvironmentFactory, EnvironmentSpec, Recording, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault, MissingExtraError, SRLError
from srl.api.spaces import SpaceSpec
from srl.api.suggest import did_you_mean
from srl.environments.atari_recording import FRAMES_PER_SECOND, SCREEN, FilmedGame
from srl.environments.native_wrappers import refused_wrappers, without_wrappers
from srl.environments.options import Options, option_problems, parse_options, worker_threads
from srl.environments.sources import INSTALL_COMMANDS
from srl.environments.spaces import check_seeds

# More frames than any run plays, and far enough below 2**31 that ale-py's counters do not overflow.
NO_FRAME_LIMIT = 2**30


Pixels = Annotated[int, Field(ge=1)]  # ale-py ends the process, or never returns, where there are none
INSTEAD = {
    "frame_skip": "frame_skip",
    "frame_stack": "stack",
    "gray_scale": "grayscale",
    "resize": "size",
    "reward_clip": "reward_clipping",
    "sticky_action": "repeat_action_probability",
    "time_limit": "max_frames_per_episode (in frames)",
}
"""Wrappers to options."""
OTHERWISE = "With type: gymnasium, id: ALE/..., vectorization: sync wrappers go around single games, more slowly."


class AtariOptions(Options):
    """Options of the environment type ``atari``."""

    game: str = Field(min_length=1, description="Game: Pong, pong and ALE/Pong-v5 are the same.")
    frame_skip: int = Field(default=4, ge=1, description="Frames under one env step.")
    stack: int = Field(default=4, ge=1, description="Frames in one observation.")
    size: Pixels | tuple[Pixels, Pixels] = Field(
        default=84, description="Height and width of a frame in pixels; one = square."
    )
    grayscale: bool = Field(default=True, description="One channel per frame; false = three.")
    noop_max: int = Field(default=30, ge=0, description="Bound on the random number of idle frames after a reset.")
    fire_reset: bool = Field(default=True, description="Press FIRE after a reset where the game has that action.")
    episodic_life: bool = Field(
        default=False, description="A lost life ends the episode for the learner; the game and its return go on."
    )
    reward_clipping: bool = Field(default=True, description="Rewards in -1..1; returns are never clipped.")
    repeat_action_probability: float = Field(default=0.0, ge=0, le=1, description="Sticky actions.")
    full_action_space: bool = Field(default=False, description="All 18 actions instead of those the game uses.")
    max_frames_per_episode: int = Field(
        default=108_000, ge=1, lt=NO_FRAME_LIMIT, description="Frames after which an episode is truncated (30 min)."
    )
    num_threads: int | None = Field(
        default=None, ge=1, description="Threads per worker; null = OMP_NUM_THREADS of the worker, else 1."
    )

    @property
    def frame_shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def steps_per_episode(self) -> int:
        """Env steps after which an episode is truncated."""
        return -(-self.max_frames_per_episode // self.frame_skip)


class AtariFactory(EnvironmentFactory):
    """Makes Atari games from :class:`AtariOptions`."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[SRLError]:
        """Problems with the options, an unknown game (near matches) or the missing extra."""
        problems = refused_wrappers(options, "atari", INSTEAD, OTHERWISE)
        options = without_wrappers(options)
        problems += (wrong := option_problems(AtariOptions, options))
        if not wrong:
            try:
                rom_id(parse_options(AtariOptions, options).game)
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
        return AtariEnvironment(parse_options(AtariOptions, self.options), seeds)

    def record(self, seed: int) -> Recording:
        """The game, and the same in colour beside it; see :class:`srl.environments.atari_recording.FilmedGame`."""
        options = parse_options(AtariOptions, self.options)
        picture = options.model_copy(update={"grayscale": False, "stack": 1, "size": SCREEN})
        frames: list[NDArray[np.uint8]] = []
        game = FilmedGame(AtariEnvironment(options, [seed]), AtariEnvironment(picture, [seed]), frames)
        return Recording(game, frames, FRAMES_PER_SECOND / options.frame_skip)


class AtariEnvironment(VectorEnvironment):
    """A batch of one game. Every row is valid: ale-py resets on the same step.

    Args:
        options: The options.
        seeds: One per environment, for the first reset.

    Raises:
        SRLError: For an unknown game.
        MissingExtraError: If ale-py is not installed.
    """

    def __init__(self, options: AtariOptions, seeds: Sequence[int]) -> None:
        game = rom_id(options.game)
        self.count = len(seeds)
        self._env: Any = _make(game, self.count, options)
        height, width = options.frame_shape
        channels = options.stack * (1 if options.grayscale else 3)
        self.spec = EnvironmentSpec(
            name=game,
            observation=SpaceSpec("box", (channels, height, width), "uint8", low=0.0, high=255.0),
            action=SpaceSpec("discrete", (), "int64", n=int(self._env.single_action_space.n)),
            frames_per_step=options.frame_skip,
        )
        self._options = options
        self._seeds = np.array(seeds, np.int64)
        self._returns = np.zeros(self.count, np.float64)
        self._steps = np.zeros(self.count, np.int64)
        self._lives = np.zeros(self.count, np.int64)
        self._step = 0

    def reset(self, out: StepOutput) -> None:
        """Start every game with its seed (the only time seeds are given)."""
        observation, infos = self._env.reset(seed=self._seeds)
        out.observation[...] = self._channels_first(observation)
        out.valid[...] = True
        out.episode_start[...] = True
        self._returns[...] = 0.0
        self._steps[...] = 0
        self._lives[...] = infos["lives"]

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every game once; see :meth:`VectorEnvironment.step`.

        Raises:
            EnvironmentFault: For an action that the game does not have (ale-py would wait for ever).
        """
        self._step += 1
        self._check_action(action)
        observation, reward, game_over, _, infos = self._env.step(action.astype(np.int64))
        self._returns += reward
        self._steps += 1
        out.observation[...] = self._channels_first(observation)
        out.reward[...] = reward
        if self._options.reward_clipping:
            np.clip(out.reward, -1.0, 1.0, out=out.reward)
        out.terminated[...] = game_over
        np.greater_equal(self._steps, self._options.steps_per_episode, out=out.truncated)
        out.valid[...] = True
        out.episode_start[...] = False
        lost = self._lost_lives(infos["lives"], out.terminated)
        if not np.count_nonzero(out.terminated) and not np.count_nonzero(out.truncated) and lost is None:
            return None
        return self._end(infos, lost, out)

    def close(self) -> None:
        """End ale-py's threads and release the games."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _end(self, infos: dict[str, Any], lost: NDArray[np.bool_] | None, out: StepOutput) -> Ended:
        """The rare path: at least one game or life ended in this step."""
        game_over = out.terminated.copy()
        counted = game_over | out.truncated
        if lost is not None:
            out.terminated |= lost
        ended = counted if lost is None else counted | lost
        columns = np.flatnonzero(ended)
        final = out.observation[columns]
        over = game_over[columns]
        if over.any():
            final[over] = self._channels_first(infos["final_obs"][game_over])
        out.episode_start[columns] = True
        returns = self._returns[columns]
        self._restart(out, counted, counted & ~game_over)
        return Ended(columns, final, returns, counted[columns])

    def _restart(self, out: StepOutput, counted: NDArray[np.bool_], cut: NDArray[np.bool_]) -> None:
        """Counters of ended games back to the start; games cut at the frame limit are still to be reset."""
        self._returns[counted] = 0.0
        self._steps[counted] = 0
        if cut.any():
            observation, infos = self._env.reset(options={"reset_mask": cut})
            out.observation[cut] = self._channels_first(observation[cut])
            self._lives[...] = infos["lives"]

    def _lost_lives(self, lives: NDArray[Any], game_over: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """``bool[B]`` games that lost a life and go on; ``None`` where none did, or lives do not end episodes."""
        if not self._options.episodic_life:
            return None
        lost: NDArray[np.bool_] = (lives < self._lives) & ~game_over
        self._lives[...] = lives
        return lost if lost.any() else None

    def _channels_first(self, observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``[B, stack, height, width(, 3)]`` to ``[B, channels, height, width]``."""
        if self._options.grayscale:
            return observation
        shape = (len(observation), *self.spec.observation.shape)
        return observation.transpose(0, 1, 4, 2, 3).reshape(shape)

    def _check_action(self, action: NDArray[Any]) -> None:
        if action.min() < 0 or action.max() >= self.spec.action.n:
            raise EnvironmentFault(
                "the game does not have this action",
                where=f"{self.spec.name}, step {self._step}",
                value=action.tolist(),
                expected=f"0 to {self.spec.action.n - 1}",
            )


def rom_id(game: str) -> str:
    """ale-py's name of a game: ``ms_pacman`` for ``MsPacman``, ``ms_pacman`` or ``ALE/MsPacman-v5``.

    Raises:
        SRLError: If there is no such game, with near matches.
        MissingExtraError: If ale-py is not installed.
    """
    _ale_py()
    from ale_py import roms

    known = roms.get_all_rom_ids()
    plain = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", game.removeprefix("ALE/"))
    by_letters = {name.replace("_", ""): name for name in known}
    found = by_letters.get(re.sub(r"[\s_]", "", plain).casefold())
    if found is None:
        raise SRLError(
            "ale-py has no game of this name",
            where="game",
            value=game,
            hint=did_you_mean(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain), known, "games"),
        )
    return str(found)


def _ale_py() -> Any:
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtraError(
            f"the environment type 'atari' needs ale-py: {type(error).__name__}: {error}",
            where="type",
            hint=f"Install it: {INSTALL_COMMANDS['ale_py']}",
        ) from error
    return ale_py


def _make(game: str, count: int, options: AtariOptions) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    height, width = options.frame_shape
    return AtariVectorEnv(
        game,
        count,
        num_threads=options.num_threads or worker_threads(),
        max_num_frames_per_episode=NO_FRAME_LIMIT,
        repeat_action_probability=options.repeat_action_probability,
        full_action_space=options.full_action_space,
        autoreset_mode="SameStep",
        img_height=height,
        img_width=width,
        grayscale=options.grayscale,
        stack_num=options.stack,
        frameskip=options.frame_skip,
        noop_max=options.noop_max,
        episodic_life=False,
        reward_clipping=False,
        use_fire_reset=options.fire_reset,
    )
