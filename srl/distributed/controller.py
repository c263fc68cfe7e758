"""The controller: from an experiment to a finished trial, whatever its placement."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

from srl.api.errors import SRLError, WorkerFailure
from srl.api.experiment import Experiment
from srl.api.importing import import_target
from srl.api.loading import resolved_yaml
from srl.distributed.fused import FusedRun
from srl.distributed.graph import ResolvedGraph, resolve
from srl.distributed.memory import describe_total
from srl.distributed.probing import probe_environment
from srl.distributed.process_setup import set_threads, tune_allocator
from srl.distributed.signals import handled_signals
from srl.distributed.trial_events import StopRequested
from srl.distributed.trial_run import Outcome, TrialResult, TrialRun, trial_run
from srl.system.trial import TrialDirectory

SCREEN = "srl.screen:make_screen"
"""Reached by name: the screen may import anything, the controller may not."""


def run_trial(
    experiment: Experiment, *, trial_dir: Path | None = None, screen: str = "auto", debug: bool = False
) -> TrialResult:
    """Run an experiment to its end.

    Args:
        experiment: The experiment.
        trial_dir: New or empty directory for results; ``None`` = ``trials/NAME-TIME``.
        screen: ``auto``, ``live``, ``plain`` or ``off``.
        debug: Suspend the bounds on waits (a debugger's breakpoint is no hang).

    Returns:
        Exit code, summary and directory, however the trial ended once its directory was there.

    Raises:
        SRLError: The experiment is wrong, or something it needs is not there; no worker was started.
        KeyboardInterrupt: Ctrl-C before that.
        SystemExit: SIGTERM before that (code 143).
    """
    began = time.monotonic()
    make_screen = import_target(SCREEN)
    with handled_signals() as signals:
        try:
            shown = make_screen(screen)
            graph = resolve(experiment, probe_environment(experiment))
            trial = TrialDirectory.create(experiment, trial_dir)
            trial.write_experiment(resolved_yaml(experiment))
            trial.write_policies(
                graph.environment.to_dict(), {name: spec.to_dict() for name, spec in graph.policies.items()}
            )
            with trial_run(graph, trial, shown, signals, began=began, is_debug=debug) as run:
                run.note(f"{len(graph.workers)} workers, placement {graph.placement}, transport {graph.transport}")
                run.note(describe_total(graph.needs, graph.room))
                for caution in graph.cautions:
                    run.note(caution, is_warning=True)
                return run.finish(_run(graph, run))
        except KeyboardInterrupt:
            if signals.received and signals.reason == "terminated":
                raise SystemExit(signals.exit_code) from None
            raise


def _run(graph: ResolvedGraph, run: TrialRun) -> Outcome:
    try:
        if graph.placement == "fused":
            return run_in_this_thread(graph, run)
        # Not needed by fused trials, and gRPC takes its time to import.
        from srl.distributed.process_run import run_processes

        return run_processes(graph, run)
    except KeyboardInterrupt:
        if not run.signals.received:
            raise
        return Outcome(run.signals.reason, run.signals.exit_code)


def run_in_this_thread(graph: ResolvedGraph, run: TrialRun) -> Outcome:
    """Run a fused trial; a second signal ends it wherever it is."""
    run.signals.raises_at = 2
    # Threads belong to roles; where all share one thread of control, the trainer's count for all.
    groups = {worker.group: worker.kind for worker in graph.workers}
    set_threads(max(graph.threads[group] for group, kind in groups.items() if kind == "trainer"))
    tune_allocator()
    assignments = [graph.assignment(worker, run.trial.path) for worker in graph.workers]

    def stop() -> StopRequested | None:
        run.tick()
        request = run.stop_request()
        return request if isinstance(request, StopRequested) else None

    def started() -> None:
        run.started()
        for worker in graph.workers:
            run.monitor.worker_state(worker.name, "running")
        run.note("trial is running")

    fused = FusedRun(assignments, on_report=run.take, stop=stop, on_started=started)
    try:
        request = fused.run()
    except WorkerFailure as failure:
        cause = failure.__cause__ or failure
        run.failure(failure.where, f"{failure}\n{''.join(traceback.format_exception(cause))}", with_log=False)
        return Outcome("failed", 1, ((failure.where, str(failure)),))
    except SRLError as error:
        run.failure(error.where or "trial", str(error), with_log=False)
        return Outcome("failed", 1, ((error.where, str(error)),))
    except Exception as error:  # a fault of the controller's own, in counting or showing
        run.failure("controller", "".join(traceback.format_exception(error)), with_log=False)
        return Outcome("failed", 1, (("controller", f"{type(error).__name__}: {error}"),))
    return Outcome(request.reason, request.exit_code)
