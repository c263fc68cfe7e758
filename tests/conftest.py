"""Fixtures for all tests: one thread per process, trials as subprocesses with a deadline, a check for leaks."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Before anything imports numpy or torch; equal thread counts are part of what lockstep trials compare.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")

# Assertions of shared helpers show their values too.
pytest.register_assert_rewrite("environment_play", "transport_wiring")

MARK = "SRL_TEST_MARK"

hypothesis.settings.register_profile("srl", deadline=None, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("srl")


def _marked_processes(mark: str) -> dict[int, str]:
    """Live processes that carry the mark in their environment: descendants, re-parented ones included."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found[int(entry.name)] = command
    return found


def _wait_until(condition: Callable[[], bool], timeout_seconds: float, interval_seconds: float = 0.02) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_seconds)
    return True


@dataclass
class FinishedTrial:
    """What one `srl-run` left.

    Attributes:
        arguments: The command's arguments.
        returncode: Exit code; negative = ended by that signal.
        stdout: What it printed.
        stderr: What it complained.
        trial_dir: Its trial directory (may not exist).
        seconds: Wall seconds from start to exit.
        leftovers: Processes of the trial still alive ten seconds after the command's exit, pid to command line.
    """

    arguments: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    trial_dir: Path
    seconds: float
    leftovers: dict[int, str]

    @property
    def output(self) -> str:
        """Both outputs, for assertions on messages."""
        return self.stdout + self.stderr

    @property
    def summary(self) -> dict[str, Any]:
        """The parsed ``summary.json``; NaN and infinities are refused, as strict JSON does."""

        def refuse(text: str) -> Any:
            raise AssertionError(f"summary.json contains {text}")

        return json.loads((self.trial_dir / "summary.json").read_text(), parse_constant=refuse)

    def check(self, returncode: int = 0) -> FinishedTrial:
        """Assert the exit code (showing the output otherwise) and that no process is left."""
        assert self.returncode == returncode, (
            f"srl-run {' '.join(self.arguments)} ended with {self.returncode}, expected {returncode}\n"
            f"--- stdout\n{self.stdout[-6000:]}\n--- stderr\n{self.stderr[-6000:]}"
        )
        assert not self.leftovers, f"processes left behind: {self.leftovers}"
        return self


class RunningTrial:
    """One `srl-run` under way, in a session of its own with its outputs in files (a pipe nobody reads would block)."""

    def __init__(self, arguments: tuple[str, ...], directory: Path, trial_dir: Path, options: dict[str, Any]) -> None:
        self.arguments = arguments
        self.trial_dir = trial_dir
        self.mark = uuid.uuid4().hex
        self._stdout = directory / "stdout"
        self._stderr = directory / "stderr"
        self._started = time.monotonic()
        environment = {**os.environ, "TMPDIR": str(directory), "XDG_RUNTIME_DIR": str(directory), MARK: self.mark}
        environment.update(options.pop("env", None) or {})
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).parent / "srl-run"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
                **options,
            )

    @property
    def pid(self) -> int:
        """The command's own pid (the controller's)."""
        return self.process.pid

    def processes(self) -> dict[int, str]:
        """Every live process of this trial, pid to command line."""
        return _marked_processes(self.mark)

    def output(self) -> str:
        """What it printed and complained so far."""
        return self._stdout.read_text(errors="replace") + self._stderr.read_text(errors="replace")

    def wait_for_output(self, text: str, timeout_seconds: float = 120) -> None:
        """Wait until the output contains a text."""
        self.wait_for(lambda: text in self.output(), f"the text {text!r} in the output", timeout_seconds)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_seconds: float = 120) -> None:
        """Wait until a condition holds; fails at once if the command ends first."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            ended = self.process.poll() is not None
            if ended and condition():
                return
            if ended or time.monotonic() > deadline:
                reason = (
                    f"the command ended with {self.process.returncode}" if ended else f"{timeout_seconds} s ran out"
                )
                pytest.fail(f"waiting for {what}: {reason}\n{self.output()[-6000:]}")
            time.sleep(0.02)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command itself (not to its group)."""
        self.process.send_signal(number)

    def interrupt_group(self) -> None:
        """What a terminal does on Ctrl-C: SIGINT to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self, timeout_seconds: float = 60) -> FinishedTrial:
        """Wait for the end; past the deadline everything is killed and the test fails with the output."""
        try:
            code = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            alive = self.processes()
            self.kill_all()
            pytest.fail(
                f"srl-run {' '.join(self.arguments)} did not end within {timeout_seconds} s; alive: {alive}\n"
                f"{self.output()[-6000:]}"
            )
        seconds = time.monotonic() - self._started
        _wait_until(lambda: not self.processes(), timeout_seconds=10)
        return FinishedTrial(
            arguments=self.arguments,
            returncode=code,
            stdout=self._stdout.read_text(errors="replace"),
            stderr=self._stderr.read_text(errors="replace"),
            trial_dir=self.trial_dir,
            seconds=seconds,
            leftovers=self.processes(),
        )

    def kill_all(self) -> None:
        """Kill every process of the trial and wait until they are gone."""

        def gone() -> bool:
            alive = self.processes()
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not alive

        _wait_until(gone, timeout_seconds=30)
        self.process.wait(timeout=30)


class TrialRunner:
    """Starts `srl-run`; see the fixture ``trial_run``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trials: list[tuple[RunningTrial, Path]] = []

    def start(
        self, *arguments: str | Path, trial_dir: Path | None = None, without_trial_dir: bool = False, **options: Any
    ) -> RunningTrial:
        """Start `srl-run` with the arguments and return at once.

        Args:
            arguments: Of the command; ``--trial-dir`` is added unless it is among them.
            trial_dir: The trial directory; default = a new one.
            without_trial_dir: Add no ``--trial-dir`` (sub-commands such as ``check`` take none).
            options: ``env`` (added to the environment), ``cwd`` and whatever else ``Popen`` takes.
        """
        directory = self._root / str(len(self._trials))
        directory.mkdir(mode=0o700)
        words = [str(argument) for argument in arguments]
        chosen = trial_dir or directory / "trial"
        if "--trial-dir" in words:
            chosen = Path(words[words.index("--trial-dir") + 1])
        elif not without_trial_dir:
            words += ["--trial-dir", str(chosen)]
        trial = RunningTrial(tuple(words), directory, chosen, {"cwd": directory, **options})
        self._trials.append((trial, directory))
        return trial

    def __call__(self, *arguments: str | Path, timeout_seconds: float = 90, **options: Any) -> FinishedTrial:
        """Run `srl-run` to its end; the options are those of :meth:`start`."""
        return self.start(*arguments, **options).finish(timeout_seconds)

    def close(self) -> list[str]:
        """Kill what still runs and say what was left behind: processes, sockets, run directories, segments."""
        complaints = []
        for trial, directory in self._trials:
            left = trial.processes()
            if left:
                complaints.append(f"srl-run {' '.join(trial.arguments)} left processes: {left}")
            trial.kill_all()
            sockets = [path for path in directory.rglob("*") if path.is_socket()]
            runs = [path for path in directory.iterdir() if path.name.startswith("srl")]
            if sockets or runs:
                complaints.append(f"srl-run {' '.join(trial.arguments)} left files: {sockets + runs}")
        return complaints


@contextmanager
def _runner() -> Iterator[TrialRunner]:
    root = Path(tempfile.mkdtemp(prefix="st"))  # short: the path of a socket has at most 107 characters
    runner = TrialRunner(root)
    segments = _segments()
    try:
        yield runner
        complaints = runner.close()
        complaints += [f"new segment /dev/shm/{name}" for name in sorted(_segments() - segments)]
        assert not complaints, "\n".join(complaints)
    finally:
        runner.close()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def trial_run() -> Iterator[TrialRunner]:
    """Runs `srl-run` as a person would: ``trial_run("cartpole_ppo", "stop.updates=2").check().summary``.

    Every trial has its own TMPDIR; processes, sockets, run directories or segments left behind fail the test.
    """
    with _runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared_trial_run() -> Iterator[TrialRunner]:
    """As ``trial_run`` for a whole module: one launched trial serves many assertions."""
    with _runner() as runner:
        yield runner


def _segments() -> set[str]:
    """Entries of /dev/shm that are SRL's, Python's or torch's."""
    try:
        names = os.listdir("/dev/shm")
    except OSError:
        return set()
    return {name for name in names if name.startswith(("srl", "psm_", "torch_"))}


def _descriptors() -> Counter[str]:
    """What this process has open, by kind: sockets, eventfds, memfds, files by path."""
    kinds: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        kinds[target.split(":[")[0] if target.startswith(("socket:", "pipe:")) else target] += 1
    return kinds


def _children() -> set[int]:
    text = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for pid in text.split()}


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails if the test leaves threads, child processes, file descriptors or segments in this process.

    gRPC keeps its own pollers for the life of a process; where it is loaded, epoll and eventfd descriptors are not
    counted.
    """
    gc.collect()
    threads, children, segments, descriptors = set(threading.enumerate()), _children(), _segments(), _descriptors()

    def leaked() -> dict[str, list[str]]:
        gc.collect()
        opened = (_descriptors() - descriptors).elements()
        pollers = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]") if "grpc" in sys.modules else ()
        found = {
            "threads": [thread.name for thread in threading.enumerate() if thread not in threads],
            "children": [str(pid) for pid in _children() - children],
            "segments": sorted(_segments() - segments),
            "descriptors": [target for target in opened if target not in pollers],
        }
        return {kind: items for kind, items in found.items() if items}

    yield
    # Closing is asynchronous in places (the I/O thread of ZeroMQ): what goes away by itself soon is no leak.
    _wait_until(lambda: not leaked(), timeout_seconds=20)
    assert not leaked(), f"left behind: {leaked()}"


@pytest.fixture
def policy_spec_for() -> Callable[..., Any]:
    """Makes the policy spec of a test's own acting policy: ``policy_spec_for(environment_spec, acting="...")``."""
    from srl.api.block import FieldSpec  # here: numpy must not be loaded before the thread counts are set
    from srl.api.policy import NoiseSpec, PolicySpec

    def make(environment: Any, acting: str = "") -> PolicySpec:
        return PolicySpec(
            name="main",
            module="",
            acting=acting,
            backend="numpy",
            observation=environment.observation,
            action=environment.action,
            action_array=environment.action.array,
            extras=(FieldSpec("value", (), "float32"),),
            noise=NoiseSpec("uniform", (1,)),
        )

    return make


@pytest.fixture
def untrained_trial(tmp_path: Path) -> Callable[..., Path]:
    """Makes a trial directory with one checkpoint, without training: ``untrained_trial(experiment) -> path``.

    All weights and statistics are moved away from where they begin, so that decisions are far from one another.
    """
    import numpy as np

    from srl.api.loading import resolved_yaml
    from srl.api.registry import environment_factory
    from srl.distributed.graph import resolve
    from srl.system.checkpoint import save_checkpoint
    from srl.system.trial import TrialDirectory
    from srl.system.workers.training import Training

    def make(experiment: Any, name: str = "trial", version: int = 1, seed: int = 0) -> Path:
        graph = resolve(experiment, environment_factory(experiment.model_dump(mode="json")["environment"]).probe())
        trial = TrialDirectory.create(experiment, tmp_path / name)
        trial.write_experiment(resolved_yaml(experiment))
        trial.write_policies(
            graph.environment.to_dict(), {name: spec.to_dict() for name, spec in graph.policies.items()}
        )
        (spec,) = graph.policies.values()
        training = Training(spec, seed=experiment.seed)
        generator = np.random.default_rng(seed)
        weights = {}
        for key, array in training.layout.views(training.flat_weights()).items():
            moved = array + generator.normal(0.0, 0.1, array.shape)
            positive = key.endswith(("count", "m2", "moments"))
            weights[key] = (np.abs(moved) + 1.0 if positive else moved).astype(array.dtype)
        save_checkpoint(
            trial.checkpoints, version=version, weights=weights, state={}, counters={"env_steps": 10 * version}
        )
        return trial.path

    return make
