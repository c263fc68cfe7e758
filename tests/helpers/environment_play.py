"""Plays environments as a reader of blocks sees them; counting environments by every adapter and autoreset mode."""

from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.spaces import mask_size
from srl.environments.environment_list import EnvironmentList
from srl.environments.toy import Count, CountVector
from srl.environments.vector_adapter import VectorAdapter

MODES = {mode.name: mode for mode in AutoresetMode}


def output(environment: VectorEnvironment) -> StepOutput:
    """Arrays filled with what no correct step leaves behind."""
    count, observation = environment.count, environment.spec.observation
    size = mask_size(environment.spec.action)
    return StepOutput(
        observation=np.full((count, *observation.shape), 77, observation.dtype),
        reward=np.full(count, -77, np.float32),
        terminated=np.ones(count, np.bool_),
        truncated=np.ones(count, np.bool_),
        valid=np.zeros(count, np.bool_),
        episode_start=np.ones(count, np.bool_),
        action_mask=np.ones((count, size), np.bool_) if environment.spec.action_mask else None,
    )


@dataclass
class Transition:
    observation: float
    reward: float
    successor: float
    terminated: bool
    truncated: bool
    episode_start: bool


def play(environment: VectorEnvironment, steps: int) -> list[list[Transition]]:
    """The transitions of each column, as a reader of blocks sees them (one-element observations)."""
    columns: list[list[Transition]] = [[] for _ in range(environment.count)]
    rows = [output(environment)]
    environment.reset(rows[0])
    ends: list[Ended | None] = []
    for _ in range(steps):
        rows.append(output(environment))
        ends.append(environment.step(np.zeros(environment.count, np.int64), rows[-1]))
    for time, ended in enumerate(ends):
        row, result = rows[time], rows[time + 1]
        for column in range(environment.count):
            done = bool(result.terminated[column] or result.truncated[column])
            in_ended = ended is not None and column in ended.columns
            assert done == in_ended
            if not row.valid[column]:
                assert not done
                assert result.reward[column] == 0
                continue
            if done:
                assert ended is not None
                successor = ended.final_observation[list(ended.columns).index(column)]
            else:
                successor = next(
                    rows[u].observation[column] for u in range(time + 1, steps + 1) if rows[u].valid[column]
                )
            columns[column].append(
                Transition(
                    float(row.observation[column, 0]),
                    float(result.reward[column]),
                    float(successor[0]),
                    bool(result.terminated[column]),
                    bool(result.truncated[column]),
                    bool(row.episode_start[column]),
                )
            )
    return columns


def episode(length: int, end: str = "terminated") -> list[Transition]:
    return [
        Transition(
            observation=float(k),
            reward=1.0,
            successor=float(k + 1),
            terminated=end == "terminated" and k + 1 == length,
            truncated=end == "truncated" and k + 1 == length,
            episode_start=k == 0,
        )
        for k in range(length)
    ]


def wrapped(env: VectorEnv, seed: int = 5) -> VectorAdapter:
    return VectorAdapter(env, [seed + k for k in range(env.num_envs)], name="test")


def native(mode: str, lengths: list[int], end: str = "terminated", layout: str = "objects") -> VectorEnvironment:
    return wrapped(CountVector(len(lengths), lengths, end, mode.lower(), layout))


def synchronous(mode: str, lengths: list[int], end: str = "terminated") -> VectorEnvironment:
    functions = [lambda length=length: Count(length, end) for length in lengths]
    return wrapped(SyncVectorEnv(functions, autoreset_mode=MODES[mode]))


def listed(lengths: list[int], end: str = "terminated") -> VectorEnvironment:
    remaining = iter(lengths)
    return EnvironmentList(lambda: Count(next(remaining), end), list(range(len(lengths))), name="test")


def every_kind(lengths: list[int], end: str) -> dict[str, VectorEnvironment]:
    kinds = {f"native {mode}": native(mode, lengths, end) for mode in MODES}
    kinds |= {f"sync {mode}": synchronous(mode, lengths, end) for mode in MODES}
    return kinds | {"stacked": native("SAME_STEP", lengths, end, "stacked"), "list": listed(lengths, end)}
