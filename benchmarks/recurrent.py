"""The recurrent cores alone, forward and backward through sequences: SRL's, row by row, and torch's without resets.

    python benchmarks/recurrent.py --name recurrent

One thread, pinned to one core. Every round runs every way once, in turn, on the same random rows:

- `rows`: row by row by torch's operators, as the GRU does everywhere and the LSTM where it is not on the CPU;
- `srl`: what training calls, in sequences without resets;
- `srl, episodes of E`: the same with episode starts at random, E rows apart on average;
- `torch`: `torch.nn.LSTM` or `torch.nn.GRU`, which know no resets: what could be had at best.

The result is the time of `rows` and, for every other way, how many times as fast it is, round by round (median, 10th
and 90th percentile). Times are of the processor, so that what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
from compare import write_record
from torch import nn

from srl.algorithms.networks.base import Memory
from srl.algorithms.networks.recurrent import RecurrentCore, build_core

SHAPES = ((16, 8, 64), (32, 16, 64), (32, 64, 64), (32, 32, 128), (32, 8, 256), (32, 64, 256), (128, 16, 64))
"""Rows C, columns N, size of input and state."""
EPISODES = (200, 20)
TURN_SECONDS = 0.05
"""How long `rows` runs in every round: what else runs on the machine disturbs a single call."""


def random_memory(core: RecurrentCore, rows: int, columns: int, episode: int | None) -> Memory:
    """Episodes of so many rows on average; the row of a start has no transition, as where environments reset."""
    start = torch.zeros(rows, columns, dtype=torch.bool) if episode is None else torch.rand(rows, columns) < 1 / episode
    return Memory(torch.randn(columns, core.state_size), start, ~start)


def ways(kind: str, rows: int, columns: int, size: int) -> dict[str, Callable[[], None]]:
    """What is measured, `rows` first."""
    core = build_core({"type": kind, "size": size, "learned_initial_state": False}, size)
    torchs = (nn.LSTM if kind == "lstm" else nn.GRU)(size, size)
    inputs = torch.randn(rows * columns, size, requires_grad=True)
    gradient = torch.randn(rows * columns, size)
    whole = random_memory(core, rows, columns, None)
    state = [part[None].contiguous() for part in whole.state.chunk(core.state_size // size, dim=1)]
    first = tuple(state) if kind == "lstm" else state[0]

    def unrolled(unroll: Callable[..., torch.Tensor], memory: Memory) -> Callable[[], None]:
        return lambda: torch.autograd.backward(unroll(inputs, memory), gradient)

    def fused() -> None:
        features, _ = torchs(inputs.view(rows, columns, size), first)
        torch.autograd.backward(features, gradient.view(rows, columns, size))

    def row_by_row(inputs: torch.Tensor, memory: Memory) -> torch.Tensor:
        return RecurrentCore.unroll(core, inputs, memory)

    found = {"rows": unrolled(row_by_row, whole), "srl": unrolled(core.unroll, whole)}
    for episode in EPISODES:
        found[f"srl, episodes of {episode}"] = unrolled(core.unroll, random_memory(core, rows, columns, episode))
    return {**found, "torch": fused}


def seconds(action: Callable[[], None], calls: int = 1) -> float:
    """Processor seconds of one call, the mean of several in a row."""
    start = time.process_time()
    for _ in range(calls):
        action()
    return (time.process_time() - start) / calls


def measure(found: dict[str, Callable[[], None]], rounds: int) -> dict[str, Any]:
    """Milliseconds of `rows`, and how many times as fast the others are."""
    for action in found.values():
        action()  # first calls compile kernels
    calls = max(1, round(TURN_SECONDS / seconds(found["rows"])))
    times = [{name: seconds(action, calls) for name, action in found.items()} for _ in range(rounds)]
    ratios = {name: [one["rows"] / one[name] for one in times] for name in found if name != "rows"}
    return {
        "rows_milliseconds": round(1e3 * statistics.median(one["rows"] for one in times), 2),
        "ratio": {name: spread(values) for name, values in ratios.items()},
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    tenths = statistics.quantiles(values, n=10)
    return {"median": round(statistics.median(values), 2), "p10": round(tenths[0], 2), "p90": round(tenths[-1], 2)}


def main() -> None:
    """Measure, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=["lstm", "gru"], default=["lstm", "gru"], help="default: both")
    parser.add_argument("--rounds", type=int, default=21, help="rounds (default %(default)s)")
    parser.add_argument("--name", help="name of the results file; default = do not write one")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    figures = []
    for kind in options.kinds:
        for rows, columns, size in SHAPES:
            found = measure(ways(kind, rows, columns, size), options.rounds)
            figures.append({"kind": kind, "rows": rows, "columns": columns, "size": size, **found})
            ratios = (f"{name} {one['median']} ({one['p10']}..{one['p90']})" for name, one in found["ratio"].items())
            print(f"{kind} {rows}x{columns}, {size}: {found['rows_milliseconds']} ms; {'; '.join(ratios)}", flush=True)
    if options.name:
        figures_and_load = {"rounds": options.rounds, "load": os.getloadavg(), "shapes": figures}
        write_record("recurrent", options.name, figures_and_load)


if __name__ == "__main__":
    main()
