"""Records finished trials as a folder of docs/results: command, revision, machine, summaries, and the curve as PNG.

    python benchmarks/record.py NAME TRIAL [TRIAL ...] --note "what was run, and why"

Every trial of the run is named, the bad ones too: one per seed. The curve shows the training return (mean of the last
100 episodes) and the evaluations of every trial over env steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from compare import commit, machine

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


def read_records(trial: Path) -> list[dict[str, Any]]:
    """The points of a trial's curves."""
    return [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]


def draw(trials: list[Path], target: Path, title: str) -> None:
    """The curve of all trials in one picture."""
    figure, axes = plt.subplots(figsize=(11, 5), layout="constrained")
    for number, trial in enumerate(trials):
        records = read_records(trial)
        seed = f"run {number + 1}, seed {json.loads((trial / 'summary.json').read_text())['seed']}"
        training = [(r["env_steps"], r["episode/return"]) for r in records if r.get("episode/return") is not None]
        evaluations = [(r["env_steps"], r["evaluation/return_mean"]) for r in records if r["kind"] == "evaluation"]
        (line,) = axes.plot(*zip(*training, strict=True), label=f"{seed}: training, last 100 episodes", alpha=0.7)
        if evaluations:
            axes.plot(*zip(*evaluations, strict=True), "o--", color=line.get_color(), label=f"{seed}: evaluation")
    axes.set_xlabel("env steps")
    axes.set_ylabel("return")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(target, dpi=110)


def row(summary: dict[str, Any]) -> str:
    """One trial as a row of the table."""
    evaluation = summary["evaluation"] or {}
    score = evaluation.get("mean_return")
    lag = summary["policy_lag"]
    return (
        f"| {summary['seed']} | {'-' if score is None else f'{score:.1f}'} | {evaluation.get('episodes', '-')} "
        f"| {summary['episodes']['return_mean_last_100']} | {summary['env_steps']:,} | {summary['frames']:,} "
        f"| {summary['training_seconds']:.1f} | {summary['env_steps_per_second']:,.0f} "
        f"| {lag['mean']:.2f} / {lag['max']} | {summary['exit_reason']} |"
    )


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("trials", nargs="+", type=Path)
    parser.add_argument("--note", default="")
    parser.add_argument("--revision", default=None, help="revision that ran, where it is not the present one")
    options = parser.parse_args()
    folder = RESULTS / options.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    summaries = []
    for number, trial in enumerate(options.trials):
        summary = json.loads((trial / "summary.json").read_text())
        words = summary["command"]
        if "--trial-dir" in words:  # where it was written is nobody's business
            place = words.index("--trial-dir")
            del words[place : place + 2]
        summaries.append(summary)
        suffix = f"-{number + 1}" if len(options.trials) > 1 else ""
        (folder / f"summary{suffix}.json").write_text(json.dumps(summary, indent=2) + "\n")
        shutil.copy(trial / "experiment.yaml", folder / f"experiment{suffix}.yaml")
    draw(options.trials, folder / "curve.png", options.name)
    commands = "\n".join("    " + " ".join(summary["command"]) for summary in summaries)
    rows = "\n".join(row(summary) for summary in summaries)
    here = machine()
    here |= {name: number for name, number in here.pop("packages").items()} | here.pop("environment")
    place = ", ".join(f"{key} {value}" for key, value in here.items())
    (folder / "README.md").write_text(
        f"# {options.name}\n\n{options.note}\n\nCommand:\n\n{commands}\n\nRevision {options.revision or commit()}. "
        f"Machine: {place}.\n\n"
        "| seed | evaluation return | episodes | training return, last 100 | env steps | frames | training s "
        "| env steps/s | lag mean / max | ended by |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"{rows}\n\n![curve](curve.png)\n"
    )


if __name__ == "__main__":
    main()
