"""What an environment is, found by making one in a process of its own: environment code never runs in the controller.

``python -m srl.distributed.probing`` reads the experiment as JSON from standard input and writes one JSON object to
standard output; whatever the environment itself prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from srl.api import errors
from srl.api.environment import EnvironmentSpec
from srl.api.errors import EnvironmentFault, ExperimentError, SRLError, WaitTimeout
from srl.api.experiment import Experiment
from srl.api.importing import refuse_while_importing
from srl.api.registry import environment_factory, load_plugins

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_TAIL_CHARACTERS = 4000


def probe_environment(experiment: Experiment, *, timeout_seconds: float | None = None) -> EnvironmentSpec:
    """Make the experiment's environment once, in a child process, and say what it is.

    Args:
        experiment: The experiment.
        timeout_seconds: Bound; ``limits.connect_seconds`` if ``None``.

    Raises:
        EnvironmentFault: The environment could not be made, with the original traceback, exit code or signal.
        WaitTimeout: It took too long.
        SRLError: Whatever the environment's factory raised.
    """
    refuse_while_importing("starts a trial")
    bound = experiment.limits.connect_seconds if timeout_seconds is None else timeout_seconds
    where = f"environment (type {experiment.environment.type})"
    request = json.dumps({"experiment": experiment.model_dump(mode="json"), "path": sys.path})
    package_parent = str(Path(errors.__file__).resolve().parents[2])  # where this very package was found
    child = subprocess.Popen(
        [sys.executable, "-m", "srl.distributed.probing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": package_parent},
    )
    try:
        output, log = child.communicate(request.encode(), timeout=bound)
    except subprocess.TimeoutExpired:
        raise WaitTimeout(
            "making one environment to read its spaces took too long",
            where=where,
            expected=f"at most {bound:g} s",
            hint="Raise limits.connect_seconds if the environment is that slow.",
        ) from None
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    return _read(output, log.decode(errors="replace"), child.returncode, where)


def main(source: TextIO, answer: TextIO) -> int:
    """The child: one experiment in, one answer out.

    Args:
        source: Where the request comes from.
        answer: Where the answer goes.
    """
    request = json.loads(source.read())
    sys.path[:] = request["path"]
    try:
        experiment = Experiment.model_validate(request["experiment"])
        load_plugins(experiment.plugin_paths({"environment", "wrapper"}))
        result: dict[str, Any] = {"spec": environment_factory(request["experiment"]["environment"]).probe().to_dict()}
    except SRLError as error:
        result = {"error": _to_dict(error)}
    except Exception as error:
        result = {"exception": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    answer.write(json.dumps(result))
    answer.flush()
    return 0


def _read(output: bytes, log: str, code: int, where: str) -> EnvironmentSpec:
    if code != 0 or not output:
        how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise EnvironmentFault(f"the process that made one environment {how}", where=where, hint=_tail(log))
    result = json.loads(output)
    if "spec" in result:
        return EnvironmentSpec.from_dict(result["spec"])
    if "error" in result:
        raise _from_dict(result["error"])
    raise EnvironmentFault(
        f"making one environment failed: {result['exception']}", where=where, hint=_tail(result["traceback"])
    )


def _tail(text: str) -> str:
    return f"It said:\n{text.strip()[-_TAIL_CHARACTERS:]}" if text.strip() else "It printed nothing."


def _to_dict(error: SRLError) -> dict[str, Any]:
    problems = [_to_dict(problem) for problem in error.problems] if isinstance(error, ExperimentError) else []
    return {"type": type(error).__name__, "fields": error.to_dict(), "problems": problems}


def _from_dict(data: dict[str, Any]) -> SRLError:
    if data["problems"]:
        return ExperimentError([_from_dict(problem) for problem in data["problems"]], data["fields"]["where"])
    kind = getattr(errors, data["type"], SRLError)
    error: SRLError = kind(**data["fields"])
    return error


def _run_child() -> int:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return main(sys.stdin, answer)


if __name__ == "__main__":
    sys.exit(_run_child())
