"""A trial whose workers have processes of their own: performs what the trial machine decides.

One thread waits for control messages, ends of processes and signals; what came is fed to the machine, in the order
messages before ends: a worker's last words arrive before its end is believed to have no cause.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import subprocess
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from srl.api.errors import SRLError
from srl.distributed import control_pb2 as pb
from srl.distributed.certificates import CertificateFiles
from srl.distributed.graph import ResolvedGraph
from srl.distributed.launchers.base import LaunchRequest, WorkerExit
from srl.distributed.launchers.local import LocalLauncher
from srl.distributed.messages import assignment_json, command, gone
from srl.distributed.run_directory import run_directory
from srl.distributed.server import ControlServer
from srl.distributed.stopping import Bounds
from srl.distributed.trial_events import (
    AbortRequested,
    Assign,
    CommandKind,
    DumpStacks,
    Event,
    Exited,
    Instruction,
    Kill,
    Launch,
    Note,
    Refuse,
    ReportFailure,
    Send,
    StopRequested,
    TellGone,
    Tick,
)
from srl.distributed.trial_machine import TrialMachine
from srl.distributed.trial_run import Outcome, TrialRun
from srl.distributed.wiring import consumers_of, meeting_files, needs_torch, ranks_beside, shared_memory_plan
from srl.distributed.worker_process import ShellOptions
from srl.system.streams.shared_memory.descriptors import DescriptorPlan, close_descriptors, create_descriptors
from srl.system.streams.tcp.keys import make_trial_keys
from srl.system.worker import WorkerId

WAIT_SECONDS = 0.1
CLOSE_SECONDS = 3.0


@dataclass(frozen=True)
class Site:
    """What a run has on its host.

    Attributes:
        run_dir: Directory of sockets and keys.
        plan: Descriptors that workers share.
        descriptors: The same, name to descriptor in this process.
        keys: The trial's certificates; ``None`` where the control plane is a unix socket.
        server: The control server.
        address: Its address.
        launcher: Starts the processes.
    """

    run_dir: Path
    plan: tuple[DescriptorPlan, ...]
    descriptors: Mapping[str, int]
    keys: CertificateFiles | None
    server: ControlServer
    address: str
    launcher: LocalLauncher


@contextlib.contextmanager
def _site(graph: ResolvedGraph, run: TrialRun) -> Iterator[Site]:
    """Everything a run needs, opened in the order in which it depends on each other, closed in the reverse one."""
    limits = graph.experiment.limits
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(run_directory())
        launcher = LocalLauncher(run.trial.logs, grace_seconds=limits.shutdown_seconds)
        stack.callback(_close, launcher.close, run)
        launcher.scale(len(graph.workers))
        # Processes come before threads: nothing of gRPC runs in this process yet.
        torch_users = [needs_torch(graph, worker) for worker in graph.workers]
        launcher.prepare(light=not all(torch_users), torch=any(torch_users))
        plan = shared_memory_plan(graph) if graph.transport == "shared_memory" else ()
        descriptors = create_descriptors(plan, graph.room.available_bytes)
        stack.callback(close_descriptors, descriptors)
        keys, bind = None, f"unix:{run_dir}/control"
        if graph.transport == "tcp":
            make_trial_keys(run_dir)
            keys, bind = CertificateFiles.create(run_dir / "certificates"), f"{_loopback()}:0"
        server = ControlServer(
            run_dir.name, bind, keys.server if keys else None, max_connections=16 + 2 * len(graph.workers)
        )
        stack.callback(_close, server.close, run)
        address = server.start(limits.connect_seconds)
        yield Site(run_dir, plan, descriptors, keys, server, address, launcher)


def _close(close: Callable[[float], None], run: TrialRun) -> None:
    """What cannot be closed in time is told, and no more: the trial is over, and its outcome is not to be lost."""
    try:
        close(CLOSE_SECONDS)
    except (SRLError, subprocess.TimeoutExpired) as error:
        run.note(f"at the end of the run: {error}", is_warning=True)


def _loopback() -> str:
    """The loopback address there is: hosts without IPv4 have only the second one."""
    try:
        with socket.socket(socket.AF_INET) as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError:
        return "[::1]"
    return "127.0.0.1"


def run_processes(graph: ResolvedGraph, run: TrialRun) -> Outcome:
    """Run the trial; every process is gone on return.

    Raises:
        ResourceError: Something could not be had before any worker was started.
    """
    run.signals.raises_at = None
    with _site(graph, run) as site:
        return _ProcessRun(graph, run, site).run()


class _ProcessRun:
    def __init__(self, graph: ResolvedGraph, run: TrialRun, site: Site) -> None:
        limits = graph.experiment.limits
        self._graph = graph
        self._run = run
        self._site = site
        self._bounds = Bounds(
            connect_seconds=limits.connect_seconds,
            heartbeat_seconds=limits.heartbeat_seconds,
            shutdown_seconds=limits.shutdown_seconds,
            are_suspended=run.is_debug,
        )
        self._machine = TrialMachine(graph.workers, self._bounds)
        self._workers = {worker.name: worker for worker in graph.workers}
        self._requested: StopRequested | AbortRequested | None = None
        self._fault: str | None = None
        self._ends: deque[WorkerExit] = deque()

    def run(self) -> Outcome:
        machine = self._machine
        self._perform(machine.begin(time.monotonic()))
        while machine.end is None:
            self._wait()
            try:
                self._turn()
            except Exception as error:
                self._stop_after_fault(error)
        return Outcome(
            machine.end.reason,
            machine.end.exit_code,
            tuple(machine.failures) if self._fault is None else (("controller", self._fault), *machine.failures),
            machine.refused + self._site.server.refused,
        )

    def _stop_after_fault(self, error: Exception) -> None:
        """A fault of the controller's own: the workers are stopped in order, so that the last checkpoint is written.

        From here on nothing is counted or shown, which is where the fault may lie.

        Raises:
            Exception: It is the second one.
        """
        if self._fault is not None:
            raise error
        self._fault = f"{type(error).__name__}: {error}"
        self._run.failure("controller", "".join(traceback.format_exception(error)), with_log=False)
        self._feed(StopRequested("failed", exit_code=1, is_orderly=False))

    def _wait(self) -> None:
        signals = self._run.signals.descriptor
        descriptors = [self._site.server.event_descriptor, *self._site.launcher.wait_descriptors()]
        poller = select.poll()
        for descriptor in [*descriptors, *([signals] if signals >= 0 else [])]:
            poller.register(descriptor, select.POLLIN)
        poller.poll(WAIT_SECONDS * 1000.0)
        if signals >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(signals, 4096)

    def _turn(self) -> None:
        # Ends are fetched first and fed last: what a worker said before its end is in the server's queue by then.
        self._ends.extend(self._site.launcher.poll())
        for inbound in self._site.server.take():
            if inbound.report is not None and self._fault is None:
                self._run.take(inbound.report)
            self._feed(inbound.event)
        while self._ends:
            end = self._ends.popleft()
            self._feed(Exited(end.worker, end.incarnation, end.code, end.description))
        request = self._run.stop_request() if self._fault is None else self._run.signals.request()
        if request is not None and request != self._requested:
            self._requested = request
            self._feed(request)
        if self._fault is None and self._run.tick():
            for name, state in self._machine.states().items():
                self._run.monitor.worker_state(name, state)
        self._feed(Tick())

    def _feed(self, event: Event) -> None:
        self._perform(self._machine.handle(event, time.monotonic()))

    def _perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ReportFailure():
                    self._run.failure(instruction.worker, instruction.text, with_log=instruction.with_log)
                case Note():
                    self._run.note(instruction.text, is_warning=instruction.is_warning)
                case Launch():
                    self._launch(replace(self._workers[instruction.worker], incarnation=instruction.incarnation))
                case Kill():
                    self._site.launcher.cancel(instruction.worker, self._incarnation(instruction.worker))
                case DumpStacks():
                    self._dump_stacks(instruction.worker)
                case _:
                    self._speak(instruction)

    def _speak(self, instruction: Instruction) -> None:
        """Perform what is a message."""
        match instruction:
            case Assign():
                self._assign(instruction)
            case Send():
                self._send(instruction.worker, instruction.command)
            case TellGone():
                self._tell_gone(replace(self._workers[instruction.worker], incarnation=instruction.incarnation))
            case Refuse():
                self._site.server.refuse(instruction.connection, "", instruction.reason)

    def _incarnation(self, name: str) -> int:
        return self._workers[name].incarnation

    def _launch(self, worker: WorkerId) -> None:
        self._workers[worker.name] = worker
        limits, site = self._bounds, self._site
        options = ShellOptions(
            worker=worker,
            trial=site.run_dir.name,
            address=site.address,
            keys=str(site.keys.directory) if site.keys else "",
            run_dir=str(site.run_dir),
            connect_seconds=limits.connect_seconds,
            # A controller that stands at a debugger's breakpoint is silent, too.
            heartbeat_seconds=math.inf if limits.are_suspended else limits.heartbeat_seconds,
            grace_seconds=limits.shutdown_seconds,
        )
        held = {item.name: site.descriptors[item.name] for item in site.plan if worker.name in item.holders}
        site.launcher.submit(
            LaunchRequest(
                worker=worker,
                options=options.to_dict(),
                log=self._run.trial.worker_log(worker.name),
                threads=self._graph.threads[worker.group],
                needs_torch=needs_torch(self._graph, worker),
                descriptors=held,
            )
        )

    def _assign(self, instruction: Assign) -> None:
        worker = self._workers[instruction.worker]
        assignment = self._graph.assignment(worker, self._run.trial.path)
        endpoints = {**instruction.endpoints, **meeting_files(self._graph, self._site.run_dir)}
        text = assignment_json(replace(assignment, endpoints=endpoints))
        connection = self._machine.connection(worker.name)
        if connection is not None:
            message = pb.ToWorker(worker=worker.name, assignment=pb.Assignment(assignment_json=text))
            self._site.server.send(connection, message)

    def _send(self, name: str, kind: CommandKind) -> None:
        if kind is CommandKind.START:
            self._run.started()
        connection = self._machine.connection(name)
        if connection is not None:
            self._site.server.send(connection, command(name, kind))

    def _tell_gone(self, worker: WorkerId) -> None:
        for name in [*consumers_of(self._graph, worker), *ranks_beside(self._graph, worker)]:
            connection = self._machine.connection(name)
            if connection is not None:
                self._site.server.send(connection, gone(name, worker))

    def _dump_stacks(self, name: str) -> None:
        if not self._site.launcher.dump_stacks(name, self._incarnation(name)):
            self._send(name, CommandKind.DUMP_STACKS)
