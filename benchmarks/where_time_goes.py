"""Where one update's time goes: the fused run beside the hand-written loop of the same maths, in alternating runs.

    python benchmarks/where_time_goes.py --rounds 3 --env-steps 800000 > benchmarks/results/where_time_goes.json

Milliseconds per update (16 environments x 128 rows). Of the fused run by the shares in its summary, of the loop by
timing its three parts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cartpole_loop
from compare import INLINE, SRL_RUN, commit, machine

Split = dict[str, float]


def loop_split(env_steps: int) -> Split:
    """Milliseconds per update of the loop's parts: ``collect``, ``samples_of`` (targets) and ``train``."""
    seconds: Split = {}

    def timed(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = part(*arguments)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
            return result

        return run

    originals = [(cartpole_loop.Collector, "collect"), (cartpole_loop, "samples_of"), (cartpole_loop, "train")]
    kept = [(owner, name, getattr(owner, name)) for owner, name in originals]
    for owner, name, part in kept:
        setattr(owner, name, timed(name, part))
    result = cartpole_loop.run(cartpole_loop.Settings(env_steps=env_steps, maths="fast"))
    for owner, name, part in kept:
        setattr(owner, name, part)
    return {name: 1000 * value / result["updates"] for name, value in seconds.items()}


def fused_split(env_steps: int) -> Split:
    """Milliseconds per update of the fused run: the actor's ``stepping`` and ``inferring``, ``training`` and others."""
    with tempfile.TemporaryDirectory() as directory:
        trial = Path(directory) / "trial"
        options = [f"stop.env_steps={env_steps}", "placement=fused", "--screen", "off", "--trial-dir", str(trial)]
        subprocess.run([SRL_RUN, INLINE, *options], check=True)
        summary = json.loads((trial / "summary.json").read_text())
    per_update = 1000 * summary["training_seconds"] / summary["updates"]
    waits = ("idle", "waiting_for_credit")
    shares = [worker["shares"] for worker in summary["workers"].values()]
    return {name: share * per_update for one in shares for name, share in one.items() if name not in waits}


def medians(splits: list[Split]) -> Split:
    """The median of each part, and of the sum."""
    parts = {name: round(statistics.median(split[name] for split in splits), 2) for name in splits[0]}
    return {**parts, "sum": round(statistics.median(sum(split.values()) for split in splits), 2)}


def main() -> None:
    """Print the medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=800_000)
    options = parser.parse_args()
    rounds = [(loop_split(options.env_steps), fused_split(options.env_steps)) for _ in range(options.rounds)]
    loops, fused = zip(*rounds, strict=True)
    result = {"unit": "ms per update", "loop_fast": medians(list(loops)), "fused": medians(list(fused))}
    print(json.dumps({**result, "rounds": options.rounds, "commit": commit(), "machine": machine()}, indent=2))


if __name__ == "__main__":
    main()
