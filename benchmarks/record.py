"""Records finished trials as a folder of docs/results: command, revision, machine, summaries, and the curve as PNG.

    python benchmarks/record.py NAME TRIAL [TRIAL ...] --note "what was run, and why" [--peer RESULT.json ...]

Every trial of the run is named, the bad ones too: one per seed. The curve shows the training return (mean of the last
100 episodes) and the evaluations of every trial over env steps. Results of a peer on the same task (as
benchmarks/peers/sb3_continuous.py writes them) stand beside them, in grey.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path
from statistics import mean, stdev
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


def peer_curve(result: dict[str, Any]) -> list[tuple[int, float]]:
    """A peer's training return over env steps: the mean of the last 100 episodes, at 200 points."""
    points = result["curve"]
    ends = sorted({round((index + 1) * len(points) / 200) for index in range(200)} - {0})
    return [(points[end - 1][0], mean(value for _, value in points[max(0, end - 100) : end])) for end in ends]


def draw(trials: list[Path], target: Path, title: str, peers: list[dict[str, Any]]) -> None:
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
    for result in peers:
        label = f"Stable-Baselines3, seed {result['seed']}: training, last 100 episodes"
        axes.plot(*zip(*peer_curve(result), strict=True), color="0.5", alpha=0.7, label=label)
        axes.plot(result["env_steps"], result["evaluation_mean"], "s", color="0.5")
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
        f"| {summary['episodes']['return_mean_last_100']:.1f} | {summary['env_steps']:,} | {summary['frames']:,} "
        f"| {summary['training_seconds']:.1f} | {summary['env_steps_per_second']:,.0f} "
        f"| {lag['mean']:.2f} / {lag['max']} | {summary['exit_reason']} |"
    )


def over_seeds(name: str, values: list[float]) -> str:
    """Mean and sample standard deviation of several runs."""
    spread = f" ± {stdev(values):,.0f}" if len(values) > 1 else ""
    return f"{name} {mean(values):,.1f}{spread}"


def comparison(summaries: list[dict[str, Any]], peers: list[dict[str, Any]]) -> str:
    """Ours beside the peer's, over all seeds."""
    ours = [summary["evaluation"]["mean_return"] for summary in summaries]
    training = [summary["episodes"]["return_mean_last_100"] for summary in summaries]
    theirs = [result["evaluation_mean"] for result in peers]
    their_training = [result["last_100_training_episodes_mean"] for result in peers]
    rows = "\n".join(
        f"| {result['seed']} | {result['evaluation_mean']:.1f} | {len(result['evaluation_returns'])} "
        f"| {result['last_100_training_episodes_mean']:.2f} | {result['env_steps']:,} | {result['seconds']:.0f} |"
        for result in peers
    )
    return (
        "\nStable-Baselines3 on the same task (`sb3-*.json`; benchmarks/peers/sb3_continuous.py):\n\n"
        "| seed | evaluation return | episodes | training return, last 100 | env steps | seconds |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"{rows}\n\n"
        f"Over seeds (mean ± standard deviation): {over_seeds('evaluation', ours)} against "
        f"{over_seeds('Stable-Baselines3', theirs)}; {over_seeds('training, last 100 episodes,', training)} against "
        f"{over_seeds('Stable-Baselines3', their_training)}.\n"
    )


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("trials", nargs="+", type=Path)
    parser.add_argument("--note", default="")
    parser.add_argument("--peer", nargs="*", type=Path, default=[], metavar="FILE", help="results of a peer")
    parser.add_argument("--revision", default=None, help="revision that ran, where it is not the present one")
    options = parser.parse_args()
    folder = RESULTS / options.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    summaries = []
    for number, trial in enumerate(options.trials):
        summary = json.loads((trial / "summary.json").read_text())
        words = summary["command"]
        words[0] = "srl-run"  # however it was called: python -m srl.cli is the same
        if "--trial-dir" in words:  # where it was written is nobody's business
            place = words.index("--trial-dir")
            del words[place : place + 2]
        summaries.append(summary)
        suffix = f"-{number + 1}" if len(options.trials) > 1 else ""
        (folder / f"summary{suffix}.json").write_text(json.dumps(summary, indent=2) + "\n")
        shutil.copy(trial / "experiment.yaml", folder / f"experiment{suffix}.yaml")
    peers = [json.loads(file.read_text()) for file in options.peer]
    for result in peers:
        kept = {key: value for key, value in result.items() if key != "curve"}
        kept["curve"] = peer_curve(result)
        (folder / f"sb3-{result['seed']}.json").write_text(json.dumps(kept) + "\n")
    draw(options.trials, folder / "curve.png", options.name, peers)
    commands = "\n".join("    " + shlex.join(summary["command"]) for summary in summaries)
    rows = "\n".join(row(summary) for summary in summaries)
    here = machine()
    here |= {name: number for name, number in here.pop("packages").items()} | here.pop("environment")
    place = ", ".join(f"{key} {value}" for key, value in here.items())
    (folder / "README.md").write_text(
        f"# {options.name}\n\n{options.note}\n\nCommand:\n\n{commands}\n\nRevision {options.revision or commit()}. "
        f"Machine: {place}.\n\n"
        "| seed | evaluation return | episodes | training return, last 100 | env steps | frames | training s "
        "| env steps/s | lag mean / max | ended by |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"{rows}\n{comparison(summaries, peers) if peers else ''}\n![curve](curve.png)\n"
    )


if __name__ == "__main__":
    main()
