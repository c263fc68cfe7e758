"""Compares systems side by side: whole processes, alternating (A B C A B C ...), ratios of the rates in each round.

    python benchmarks/compare.py loop fused processes --rounds 5 --env-steps 2000000 --name cartpole

The first system named is the one the others are divided by. Absolute rates move with the machine and with whatever
else runs on it; the ratio of neighbouring runs does not, as long as the disturbance lasts longer than a round. Every
rate is the steady state: env steps trained per second after the start-up. Results go to benchmarks/results/NAME.json,
with the machine's load average before each run (what ran before counts in it too; above 2 on two cores something else
is running, and the figures are worth little).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
RESULTS = HERE / "results"
PEERS = PROJECT / "build" / "peers"

PYTHON = sys.executable
SRL_RUN = str(Path(sys.executable).parent / "srl-run")
SRL_OPTIONS = ("stop.env_steps={env_steps}", "--seed", "{seed}", "--screen", "off", "--trial-dir", "{directory}")
INLINE = str(HERE / "experiments" / "cartpole_inline.yaml")
REMOTE = str(HERE / "experiments" / "cartpole_remote.yaml")
LOOP = (PYTHON, str(HERE / "cartpole_loop.py"), "--env-steps", "{env_steps}", "--seed", "{seed}")
PACKAGES = ("srl-dataflow", "torch", "numpy", "gymnasium", "pyzmq")


@dataclass(frozen=True)
class System:
    """One system under comparison.

    Attributes:
        command: Its command line; ``{env_steps}``, ``{seed}`` and ``{directory}`` are filled in.
        peer: Name of the folder under build/peers that holds its virtual environment, or ``None`` = this one.
    """

    command: tuple[str, ...]
    peer: str | None = None


SYSTEMS = {
    "loop": System(LOOP),
    "loop_fast": System((*LOOP, "--maths", "fast")),
    "fused": System((SRL_RUN, INLINE, "placement=fused", *SRL_OPTIONS)),
    "processes": System((SRL_RUN, INLINE, "placement=processes", *SRL_OPTIONS)),
    "processes_tcp": System((SRL_RUN, INLINE, "placement=processes", "transport=tcp", *SRL_OPTIONS)),
    "remote": System((SRL_RUN, REMOTE, "placement=processes", *SRL_OPTIONS)),
    "sb3": System(
        ("{python}", str(HERE / "peers" / "sb3_cartpole.py"), "--env-steps", "{env_steps}", "--seed", "{seed}"),
        peer="sb3",
    ),
}


def peer_python(name: str) -> str:
    """The interpreter of a peer's own virtual environment, made on first use."""
    directory = PEERS / name
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        requirements = HERE / "peers" / f"{name}.txt"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)], check=True)
    return str(python)


def run_once(system: System, env_steps: int, seed: int, timeout_seconds: float) -> dict[str, Any]:
    """Run one system to its end and return what it measured of itself.

    Raises:
        RuntimeError: If it fails; with its output.
    """
    with tempfile.TemporaryDirectory(prefix="srl-benchmark-") as directory:
        values = {"env_steps": env_steps, "seed": seed, "directory": f"{directory}/trial", "python": ""}
        if system.peer:
            values["python"] = peer_python(system.peer)
        command = [word.format(**values) for word in system.command]
        load = os.getloadavg()[0]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=PROJECT, timeout=timeout_seconds, stdin=subprocess.DEVNULL
        )
        wall = time.monotonic() - began
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        metrics = Path(directory) / "trial" / "metrics.jsonl"
        if metrics.exists():
            summary = json.loads((Path(directory) / "trial" / "summary.json").read_text())
            shares = {name: worker["shares"] for name, worker in summary["workers"].items()}
            measured = {
                "env_steps_per_second": steady_rate(metrics.read_text()),
                "shares": shares.get("trainer/0", {}),
            }
        else:
            measured = json.loads(done.stdout.strip().splitlines()[-1])
        return {**measured, "process_seconds": wall, "load_before": load}


def steady_rate(metrics: str) -> float:
    """Env steps per second between the first and the last but one training record of a trial's metrics.

    The first record comes after the first update (lazy imports, first allocations), the last one after the draining
    at the end; records are a second apart, so that a run should take ten seconds or more.
    """
    records = [record for line in metrics.splitlines() if (record := json.loads(line))["kind"] == "training"]
    if len(records) < 5:
        raise RuntimeError(f"only {len(records)} seconds of training: give more --env-steps")
    first, last = records[0], records[-2]
    return float((last["env_steps"] - first["env_steps"]) / (last["seconds"] - first["seconds"]))


def machine() -> dict[str, Any]:
    """What the figures were measured on, without the machine's name."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    cpu = "unknown"
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    prefixes = ("OMP_", "MKL_", "OPENBLAS_", "MALLOC_")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)},
    }


def commit() -> str:
    """The commit measured, with a mark if the tree has changes."""
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    return result.stdout.strip() or "unknown"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Rates and, against the first system, ratios round by round."""
    rates = {name: [float(run["env_steps_per_second"]) for run in found] for name, found in runs.items()}
    baseline = next(iter(rates.values()))
    return {
        name: {
            "env_steps_per_second": spread(values),
            "ratio": spread([mine / base for mine, base in zip(values, baseline, strict=True)]),
            "process_seconds": spread([run["process_seconds"] for run in runs[name]]),
            "rates": values,
            "load_before": [run["load_before"] for run in runs[name]],
        }
        for name, values in rates.items()
    }


def table(summary: dict[str, dict[str, Any]]) -> str:
    """The summary as text."""
    first = next(iter(summary))
    lines = [f"{'system':<16}{'env steps/s':>12}   ratio to {first} (min..max)"]
    for name, found in summary.items():
        rate, ratio = found["env_steps_per_second"], found["ratio"]
        lines.append(
            f"{name:<16}{rate['median']:>12,.0f}   {ratio['median']:.3f} ({ratio['min']:.3f}..{ratio['max']:.3f})"
        )
    return "\n".join(lines)


def run_rounds(systems: dict[str, System], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Runs of every system in turn, ``options.rounds`` times; each rate is printed as it comes."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    for number in range(options.rounds):
        for name, one in systems.items():
            result = run_once(one, options.env_steps, seed=number + 1, timeout_seconds=options.timeout)
            runs[name].append(result)
            print(f"round {number + 1} {name:<16}{result['env_steps_per_second']:>12,.0f} env steps/s", flush=True)
    return runs


def write_results(script: str, options: argparse.Namespace, summary: dict[str, Any]) -> None:
    """Write ``results/NAME.json`` of systems that were compared."""
    figures = {"env_steps": options.env_steps, "rounds": options.rounds, "systems": summary}
    write_record(script, options.name, figures)


def write_record(script: str, name: str, figures: dict[str, Any]) -> None:
    """Write ``results/NAME.json``: figures with command, revision and machine."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "command": f"python benchmarks/{script}.py {' '.join(sys.argv[1:])}",
        "commit": commit(),
        "machine": machine(),
        **figures,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written: {path.relative_to(PROJECT)}")


def main() -> None:
    """Run the rounds, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", choices=sorted(SYSTEMS), help="systems; the first is the yardstick")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; each runs every system once (default 5)")
    parser.add_argument("--env-steps", type=int, default=2_000_000, help="env steps per run (default 2,000,000)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one run may take (default 900)")
    parser.add_argument("--name", help="name of the results file; default = do not write one")
    options = parser.parse_args()

    runs = run_rounds({name: SYSTEMS[name] for name in options.systems}, options)
    summary = summarise(runs)
    print(table(summary))
    if options.name:
        write_results("compare", options, summary)


if __name__ == "__main__":
    main()
