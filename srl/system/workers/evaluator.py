"""The evaluator worker: scores frozen versions inline, deterministic, with a quota of episodes per environment.

A quota fixed in advance keeps the mean unbiased: taking the first episodes that finish would prefer short ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import EnvironmentFactory, VectorEnvironment
from srl.api.errors import EnvironmentFault
from srl.api.policy import ActingPolicy, ActInput, PolicySpec
from srl.system.actions import ActionTransformer
from srl.system.decisions import new_output
from srl.system.report import Activity, Evaluation, TimeShares, WorkerReport
from srl.system.worker import Worker, WorkerId
from srl.system.workers.acting import VersionedPolicy
from srl.system.workers.best import keep_if_best
from srl.system.workers.episodes import EpisodeTracker
from srl.system.workers.legal import LegalActions
from srl.system.workers.recurrent import RecurrentState
from srl.system.workers.rows import new_step_output

POLL_SECONDS = 0.02

ENDLESS_STEPS = 1_000_000
"""Steps of an environment in which no counted episode ended, after which none is expected to.

A policy that decides without noise may stand still for ever where the one that is trained does not.
"""

FIRST_VERSION_SECONDS = 30.0
"""How long the last evaluation waits for a trainer that has not published anything yet."""

_ENDLESS_HINT = "Give the environment a time limit, such as max_episode_steps."


def quotas(episodes: int, parts: int) -> list[int]:
    """Episodes dealt out as evenly as possible: the first parts get one more."""
    return [episodes // parts + (1 if part < episodes % parts else 0) for part in range(parts)]


class EpisodeRunner:
    """Runs a fixed number of episodes in each environment of a batch; recurrent states begin with it.

    Args:
        environment: The environments; not owned.
        spec: The policy that acts.
        quota: Episodes per environment.
        policy: Decides, deterministic.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        spec: PolicySpec,
        quota: Sequence[int],
        policy: ActingPolicy | VersionedPolicy,
    ) -> None:
        columns = environment.count * environment.spec.slots
        self._environment = environment
        self._policy = policy
        self._left: NDArray[np.int64] = np.array(quota, np.int64)
        self._tracker = EpisodeTracker(environment.spec, columns)
        self._transform = ActionTransformer(spec)
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self._row = new_step_output(spec, columns)
        self._valid: NDArray[np.bool_] = np.zeros(columns, np.bool_)
        self._memory = RecurrentState(columns, spec.state_size) if spec.state_size else None
        self._legal = LegalActions(environment.spec) if spec.action_mask else None
        self._steps = 0
        self._ended_at = 0
        self._input = ActInput(
            observation=self._row.observation,
            noise=np.zeros((columns, *spec.noise.shape), np.float32),
            episode_start=self._row.episode_start,
            valid=self._row.valid,
            action_mask=self._row.action_mask,
            state=None if self._memory is None else self._memory.current,
        )
        self._output = new_output(spec, columns)
        if self._memory is not None:
            self._output.state, self._output.used_state = self._memory.following, self._memory.used
        environment.reset(self._row)

    def done(self) -> bool:
        """True when every environment has finished its quota, or one of them has no end (:meth:`is_endless`)."""
        return not self._left.any() or self._steps - self._ended_at >= ENDLESS_STEPS

    def is_endless(self) -> bool:
        """True when episodes are missing, and none has ended for so long that none is expected to."""
        return bool(self._left.any()) and self._steps - self._ended_at >= ENDLESS_STEPS

    def step(self, version: int) -> None:
        """Step every environment once; episodes beyond a quota are not counted.

        Raises:
            EnvironmentFault: An environment leaves no legal action.
        """
        if self._legal is not None and self._row.action_mask is not None:
            self._legal.check(self._row.action_mask, self._row.valid, "evaluation", self._steps)
        self._policy.act(self._input, self._output, deterministic=True)
        self._valid[:] = self._row.valid
        if self._memory is not None:
            self._memory.advance(self._valid)
        self._steps += 1
        ended = self._environment.step(self._transform(self._output.action), self._row)
        self._tracker.add(self._row.reward, self._valid)
        if ended is None:
            return
        finished = ended.columns if ended.counted is None else ended.columns[ended.counted]
        for column, episode in zip(finished, self._tracker.ended(ended, version), strict=True):
            if self._left[column]:
                self._left[column] -= 1
                self._ended_at = self._steps
                self.returns.append(episode.episode_return)
                self.lengths.append(episode.length)


def run_episodes(
    factory: EnvironmentFactory,
    policy: ActingPolicy,
    spec: PolicySpec,
    *,
    episodes: int,
    environments: int,
    seeds: Sequence[int],
) -> tuple[list[float], list[int]]:
    """Run ``episodes`` deterministic episodes to their end.

    Args:
        factory: Makes the environments.
        policy: Loaded with the weights to score.
        spec: That policy as plain data.
        episodes: Number of episodes, dealt out over the environments in advance.
        environments: Number of environments; at most ``episodes`` are made.
        seeds: One per environment.

    Returns:
        Returns (before clipping) and lengths (env steps), one entry per episode.

    Raises:
        EnvironmentFault: An episode has no end.
    """
    count = min(environments, episodes)
    environment = factory.make(count, list(seeds[:count]))
    try:
        runner = EpisodeRunner(environment, spec, quotas(episodes, count), policy)
        while not runner.done():
            runner.step(0)
        if runner.is_endless():
            raise EnvironmentFault("an episode has no end", value=f"{ENDLESS_STEPS} steps", hint=_ENDLESS_HINT)
        return runner.returns, runner.lengths
    finally:
        environment.close()


@dataclass(slots=True)
class _Round:
    """One evaluation under way."""

    version: int
    env_steps: int
    runner: EpisodeRunner
    began: float = field(default_factory=time.monotonic)


class EvaluatorWorker(Worker):
    """Evaluates whenever enough env steps have been trained on since the last time, and the last version at the end.

    Args:
        worker: Who it is.
        spec: The policy to score.
        policy: Follows that policy's weights; owned.
        environment: Its environments; owned.
        episodes: Episodes of one evaluation.
        interval_env_steps: Env steps between evaluations of the whole group; ``None`` = only the last version.
        workers: Evaluators in the group. They take turns, so that an evaluation has one version and exactly its
            number of episodes; the first one scores the last version.
        best_root: Where the version that scored highest is kept, weights only; ``None`` = nowhere.
    """

    def __init__(
        self,
        worker: WorkerId,
        spec: PolicySpec,
        policy: VersionedPolicy,
        environment: VectorEnvironment,
        *,
        episodes: int,
        interval_env_steps: int | None,
        workers: int = 1,
        best_root: Path | None = None,
    ) -> None:
        self._worker = worker
        self._spec = spec
        self._policy = policy
        self._environment = environment
        self._quota = quotas(episodes, environment.count)
        self._interval = interval_env_steps
        self._workers = workers
        self._next = None if interval_env_steps is None else interval_env_steps * (worker.index + 1)
        self._looked = 0
        self._best_root = best_root
        self._best = -math.inf
        self._round: _Round | None = None
        self._evaluated = -1
        self._draining = False
        self._waits_until = 0.0
        self._finished: list[Evaluation] = []
        self._messages: list[str] = []
        self._time = TimeShares()
        self._counters = {"evaluations": 0, "episodes": 0, "evaluation_env_steps": 0}

    def start(self) -> None:
        """Nothing to prepare: environments are reset at each evaluation."""

    def poll(self) -> bool:
        """Go on with the evaluation under way, or begin one that is due."""
        if self._round is None and not self._begin_if_due():
            return False
        self._time.switch(Activity.EVALUATING)
        end = time.perf_counter() + POLL_SECONDS
        current = self._round
        while current is not None and not current.runner.done() and time.perf_counter() < end:
            current.runner.step(current.version)
        if current is not None and current.runner.done():
            end_round = self._give_up if current.runner.is_endless() else self._complete
            end_round(current)
        self._time.switch(Activity.IDLE)
        return True

    def wait_descriptors(self) -> Iterable[int]:
        """Versions are looked up at the shell's next timeout."""
        return ()

    def drain(self) -> None:
        """Score the last version too, then rest."""
        self._draining = True
        self._waits_until = time.monotonic() + FIRST_VERSION_SECONDS

    def drained(self) -> bool:
        """True when the newest published version is scored.

        A trial can be over before its trainer has started, which still publishes the version it begins with.
        """
        if not self._draining or self._round is not None:
            return False
        newest = self._policy.latest_version()
        awaits_first = newest < 0 and self._worker.index == 0 and time.monotonic() < self._waits_until
        return not self._due(newest) and not awaits_first

    def finished(self) -> str | None:
        """An evaluator never ends by itself."""
        return None

    def report(self) -> WorkerReport:
        """Finished evaluations and shares of time."""
        finished, self._finished = self._finished, []
        messages, self._messages = self._messages, []
        return WorkerReport(
            worker=self._worker.name,
            kind="evaluator",
            incarnation=self._worker.incarnation,
            seconds=self._time.seconds(),
            counters=dict(self._counters),
            evaluations=finished,
            messages=messages,
        )

    def close(self) -> None:
        """Close reader and environments."""
        self._policy.close()
        self._environment.close()

    def abort(self) -> None:
        """Close the reader; environments are left to the end of the process."""
        self._policy.close()

    def _begin_if_due(self) -> bool:
        newest = self._policy.latest_version()
        if not self._due(newest):
            return False
        self._looked = newest
        version = self._policy.use(0, exact=False)
        env_steps = self._policy.published_env_steps()
        if not self._draining and self._next is not None and env_steps < self._next:
            return False
        if self._interval is not None and self._next is not None:
            stride = self._interval * self._workers
            first = self._interval * (self._worker.index + 1)
            self._next = first + ((max(env_steps - first, 0)) // stride + 1) * stride
        runner = EpisodeRunner(self._environment, self._spec, self._quota, self._policy)
        self._round = _Round(version, env_steps, runner)
        return True

    def _due(self, newest: int) -> bool:
        """Whether it is worth looking at the env steps of the newest version."""
        if self._draining:
            return self._worker.index == 0 and newest > self._evaluated
        return self._next is not None and newest > self._looked

    def _give_up(self, current: _Round) -> None:
        """The trial is not to wait for ever for a score: it goes on, and ends, without this one."""
        self._round = None
        self._evaluated = current.version
        self._messages.append(
            f"version {current.version} was not scored: no episode ended in {ENDLESS_STEPS:,} steps. {_ENDLESS_HINT}"
        )

    def _complete(self, current: _Round) -> None:
        runner = current.runner
        self._round = None
        self._evaluated = current.version
        self._keep_if_best(current)
        self._counters["evaluations"] += 1
        self._counters["episodes"] += len(runner.returns)
        self._counters["evaluation_env_steps"] += sum(runner.lengths)
        self._finished.append(
            Evaluation(
                policy=self._spec.name,
                policy_version=current.version,
                env_steps=current.env_steps,
                returns=runner.returns,
                lengths=runner.lengths,
                wall_seconds=time.monotonic() - current.began,
            )
        )

    def _keep_if_best(self, current: _Round) -> None:
        mean = float(np.mean(current.runner.returns))
        if self._best_root is None or mean <= self._best:
            return
        self._best = mean
        keep_if_best(
            self._best_root,
            version=current.version,
            mean_return=mean,
            env_steps=current.env_steps,
            weights=self._policy.weights(),
        )
