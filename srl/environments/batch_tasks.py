"""The tasks of :mod:`srl.environments.tasks`, batches in numpy."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray

from srl.environments.batch_task import BatchTask, Mask


class TimedTask(BatchTask):
    """A task whose episodes all have the same number of steps.

    Args:
        num_envs: B.
        observation: Space of one observation.
        action: Space of one action.
        steps: Steps of an episode.
    """

    def __init__(
        self, num_envs: int, observation: gymnasium.Space[Any], action: gymnasium.Space[Any], steps: int
    ) -> None:
        super().__init__(num_envs, observation, action)
        if steps < 1:
            raise ValueError(f"an episode needs at least one step, got steps = {steps}")
        self.steps = steps
        self.time = np.zeros(num_envs, np.int64)

    def begin(self, mask: Mask) -> None:
        """Time 0, and something new to see."""
        self.time[mask] = 0
        self.draw(mask)

    def draw(self, mask: Mask) -> None:
        """What is to be seen anew where ``mask`` is set."""

    def _tick(self) -> Mask:
        """One step further; True where the episode ends, something new to see everywhere."""
        self.time += 1
        self.draw(np.ones(self.num_envs, np.bool_))
        ended: Mask = self.time >= self.steps
        return ended

    def _no(self) -> Mask:
        return np.zeros(self.num_envs, np.bool_)


class Combination(TimedTask):
    """Repeat the digits that are shown: the reward is the share of digits that are right, new digits every step.

    Args:
        num_envs: B.
        values: Number of values of each digit.
        steps: Steps of an episode.
    """

    def __init__(self, num_envs: int = 1, values: tuple[int, ...] = (3, 4, 5), steps: int = 10) -> None:
        super().__init__(num_envs, MultiDiscrete(list(values)), MultiDiscrete(list(values)), steps)
        self._values = np.array(values)
        self._digits = np.zeros((num_envs, len(values)), np.int64)

    @property
    def optimum(self) -> float:
        """1 per step."""
        return float(self.steps)

    def draw(self, mask: Mask) -> None:
        """New digits."""
        self._digits[mask] = self.np_random.integers(0, self._values, (np.count_nonzero(mask), len(self._values)))

    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """Compare."""
        reward = (np.asarray(actions) == self._digits).mean(axis=1)
        return reward, self._tick(), self._no()

    def observe(self) -> Any:
        """The digits."""
        return self._digits.copy()


class LegalMoves(TimedTask):
    """Take the best of the moves that are legal; which ones are is in the mask only, never in the observation.

    The observation holds what every move pays: 1/M, 2/M, ..., 1 in random order. An illegal move costs 1.

    Args:
        num_envs: B.
        moves: M.
        legal: How many of them are legal in every step, drawn evenly.
        steps: Steps of an episode.
        strict: Raise on an illegal move, for tests.
    """

    def __init__(
        self, num_envs: int = 1, moves: int = 8, legal: int = 4, steps: int = 16, strict: bool = False
    ) -> None:
        super().__init__(num_envs, Box(0.0, 1.0, (moves,), np.float32), Discrete(moves), steps)
        if not 1 <= legal <= moves:
            raise ValueError(f"1 to {moves} moves can be legal, got legal = {legal}")
        self._moves, self._count, self._strict = moves, legal, strict
        self._pays = np.zeros((num_envs, moves), np.float32)
        self._legal = np.zeros((num_envs, moves), np.bool_)

    @property
    def optimum(self) -> float:
        """Expected maximum of ``legal`` out of M ranks, over M, per step."""
        return self.steps * self._count * (self._moves + 1) / ((self._count + 1) * self._moves)

    @property
    def unmasked_optimum(self) -> float:
        """Without the mask nothing beats the move that pays most, which is illegal in 1 - legal/M of the steps."""
        return self.steps * (2.0 * self._count / self._moves - 1.0)

    def draw(self, mask: Mask) -> None:
        """New payments, other moves legal."""
        order = self.np_random.random((2, np.count_nonzero(mask), self._moves)).argsort(axis=2)
        self._pays[mask] = (order[0] + 1) / self._moves
        self._legal[mask] = order[1] < self._count

    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """Pay."""
        rows = np.arange(self.num_envs)
        legal = self._legal[rows, actions]
        if self._strict and not legal.all():
            raise ValueError(f"illegal move in environment {int(np.flatnonzero(~legal)[0])}")
        reward = np.where(legal, self._pays[rows, actions], -1.0)
        return reward, self._tick(), self._no()

    def observe(self) -> Any:
        """What every move pays."""
        return self._pays.copy()

    def legal(self) -> NDArray[np.bool_]:
        """The legal moves."""
        return self._legal.copy()


class Recall(TimedTask):
    """A cue is shown in the first observation; the last action must name it (a T-maze without walls).

    The observation is the cue one-hot, all zero after the first, and a flag that is 1 when the answer is due.

    Args:
        num_envs: B.
        cues: Number of cues.
        delay: Steps between the cue and the answer.
    """

    def __init__(self, num_envs: int = 1, cues: int = 4, delay: int = 8) -> None:
        super().__init__(num_envs, Box(0.0, 1.0, (cues + 1,), np.float32), Discrete(cues), delay + 1)
        if delay < 1:
            raise ValueError(f"without a delay there is nothing to recall, got delay = {delay}")
        self._cues = cues
        self._cue = np.zeros(num_envs, np.int64)

    @property
    def optimum(self) -> float:
        """1 for the right answer."""
        return 1.0

    @property
    def memoryless_optimum(self) -> float:
        """All cues look the same in the end."""
        return 1.0 / self._cues

    def begin(self, mask: Mask) -> None:
        """A new cue."""
        super().begin(mask)
        self._cue[mask] = self.np_random.integers(0, self._cues, np.count_nonzero(mask))

    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """Only the last action counts."""
        ended = self._tick()
        return (ended & (np.asarray(actions) == self._cue)).astype(np.float64), ended, self._no()

    def observe(self) -> Any:
        """Cue and flag."""
        seen = np.zeros((self.num_envs, self._cues + 1), np.float32)
        first = self.time == 0
        seen[first, self._cue[first]] = 1.0
        seen[:, -1] = self.time == self.steps - 1
        return seen


class Forever(TimedTask):
    """Reward 1 per step for ever, cut after some steps; the observation never changes and does not tell the time.

    Its value is 1 / (1 - gamma) where the cut is a time limit, and lower where it is taken for an end.

    Args:
        num_envs: B.
        steps: Steps of an episode.
        end: Which flags the last step sets.
    """

    def __init__(
        self, num_envs: int = 1, steps: int = 20, end: Literal["truncated", "terminated", "both"] = "truncated"
    ) -> None:
        super().__init__(num_envs, Box(0.0, 1.0, (1,), np.float32), Discrete(2), steps)
        self._end = end

    @property
    def optimum(self) -> float:
        """1 per step."""
        return float(self.steps)

    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """Whatever the action."""
        ended, no = self._tick(), self._no()
        terminated = no if self._end == "truncated" else ended
        return np.ones(self.num_envs), terminated, no if self._end == "terminated" else ended.copy()

    def observe(self) -> Any:
        """1."""
        return np.ones((self.num_envs, 1), np.float32)


class Mixed(TimedTask):
    """Repeat what is shown, in spaces of every kind; the reward is the mean of the four parts' shares that are right.

    Observation: Dict of ``choice`` (Discrete from 1), ``point`` (Tuple of a Box and a MultiDiscrete: target and digits)
    and ``picture`` (bytes, a bright pixel for every flag that is set). Action: Dict of ``choice`` (Discrete from 1),
    ``move`` (float64 Box), ``rest`` (Tuple of MultiDiscrete digits and MultiBinary flags). The share of a move is 1
    less half its mean distance to the target.

    Args:
        num_envs: B.
        steps: Steps of an episode.
    """

    DIGITS = (2, 3)

    def __init__(self, num_envs: int = 1, steps: int = 10) -> None:
        digits = MultiDiscrete(list(self.DIGITS))
        observation = Dict(
            choice=Discrete(3, start=1),
            point=Tuple([Box(-1.0, 1.0, (2,), np.float32), digits]),
            picture=Box(0, 255, (2, 2), np.uint8),
        )
        action = Dict(
            choice=Discrete(3, start=1),
            move=Box(-1.0, 1.0, (2,), np.float64),
            rest=Tuple([MultiDiscrete(list(self.DIGITS)), MultiBinary(4)]),
        )
        super().__init__(num_envs, observation, action, steps)
        self._choice = np.zeros(num_envs, np.int64)
        self._target = np.zeros((num_envs, 2), np.float32)
        self._digits = np.zeros((num_envs, 2), np.int64)
        self._flags = np.zeros((num_envs, 4), np.int8)

    @property
    def optimum(self) -> float:
        """1 per step."""
        return float(self.steps)

    def draw(self, mask: Mask) -> None:
        """New things to show."""
        count = np.count_nonzero(mask)
        self._choice[mask] = self.np_random.integers(1, 4, count)
        self._target[mask] = self.np_random.uniform(-1.0, 1.0, (count, 2))
        self._digits[mask] = self.np_random.integers(0, self.DIGITS, (count, 2))
        self._flags[mask] = self.np_random.integers(0, 2, (count, 4))

    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """Compare."""
        digits, flags = actions["rest"]
        distance = np.abs(np.clip(actions["move"], -1.0, 1.0) - self._target).mean(axis=1)
        shares = [
            np.asarray(actions["choice"]) == self._choice,
            1.0 - distance / 2.0,
            (np.asarray(digits) == self._digits).mean(axis=1),
            (np.asarray(flags) == self._flags).mean(axis=1),
        ]
        return np.mean(shares, axis=0), self._tick(), self._no()

    def observe(self) -> Any:
        """What is to be repeated."""
        return {
            "picture": (self._flags * np.uint8(255)).astype(np.uint8).reshape(-1, 2, 2),
            "point": (self._target.copy(), self._digits.copy()),
            "choice": self._choice.copy(),
        }


class Target(TimedTask):
    """Hit the point that is shown: the reward is 1 less the mean squared distance, a new point every step.

    Args:
        num_envs: B.
        dimensions: Coordinates of a point.
        steps: Steps of an episode.
    """

    def __init__(self, num_envs: int = 1, dimensions: int = 2, steps: int = 10) -> None:
        space = Box(-1.0, 1.0, (dimensions,), np.float32)
        super().__init__(num_envs, space, Box(-1.0, 1.0, (dimensions,), np.float32), steps)
        self._point = np.zeros((num_envs, dimensions), np.float32)

    @property
    def optimum(self) -> float:
        """1 per step."""
        return float(self.steps)

    def draw(self, mask: Mask) -> None:
        """A new point."""
        self._point[mask] = self.np_random.uniform(-1.0, 1.0, (np.count_nonzero(mask), self._point.shape[1]))

    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """Measure."""
        reward = 1.0 - np.square(np.asarray(actions, np.float64) - self._point).mean(axis=1)
        return reward, self._tick(), self._no()

    def observe(self) -> Any:
        """The point."""
        return self._point.copy()
