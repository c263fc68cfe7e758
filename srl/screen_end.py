"""What is shown when a trial is over: the result, where the files are, what to do next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from srl.screen_format import Glyphs, number

_REASONS = {
    "env_steps": "the budget of env steps is used up",
    "updates": "all updates are made",
    "wall_seconds": "the time is up",
    "evaluation_return": "the evaluation reached the target return",
    "interrupted": "interrupted by Ctrl-C",
    "terminated": "ended by SIGTERM",
    "failed": "failed",
}


def end_lines(summary: Mapping[str, Any], trial: Path, glyphs: Glyphs) -> list[Text]:
    """The lines to print.

    Args:
        summary: As in ``summary.json``; what is not there is left out.
        trial: The trial directory.
        glyphs: Characters to draw with.
    """
    reason = str(summary.get("exit_reason"))
    title = Text.assemble(("SRL ", "bold cyan"), (str(summary.get("experiment", "")), "bold"), " is over: ")
    title.append(_REASONS.get(reason, reason), "red" if reason == "failed" else "green")
    rows = [*_result(summary, glyphs), *_effort(summary), *_flow(summary)]
    place = _shortest(trial)
    files = [
        ("trial", place),
        ("", "summary.json, metrics.jsonl, experiment.yaml, main.log, checkpoints/, tensorboard/, logs/"),
    ]
    quoted = shlex.quote(place)
    following = [
        ("next", f"srl-run evaluate {quoted} --episodes 100"),
        ("", f"srl-run video {quoted}"),
        ("", f"srl-run plot {quoted}"),
        (
            "",
            f"srl-run {shlex.quote(os.path.join(place, 'experiment.yaml'))} --seed {int(summary.get('seed') or 0) + 1}",
        ),
        ("", f"tensorboard --logdir {shlex.quote(os.path.join(place, 'tensorboard'))}"),
    ]
    return [title, *(_line(name, text) for name, text in [*rows, *files, *following])]


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"  {name:<12}", "dim"), text)


def _result(summary: Mapping[str, Any], glyphs: Glyphs) -> list[tuple[str, str]]:
    rows = []
    for key, name in (("evaluation", "evaluation"), ("best_evaluation", "best")):
        result = summary.get(key)
        if result and not (key == "best_evaluation" and result == summary.get("evaluation")):
            spread = f"{glyphs.plus_minus} {number(result.get('std'))}"
            rows.append(
                (
                    name,
                    f"return {number(result.get('mean_return'))} {spread} over {result.get('episodes')} episodes, "
                    f"version {number(result.get('policy_version'), 0)}",
                )
            )
    episodes = summary.get("episodes") or {}
    if episodes.get("count"):
        mean = number(episodes.get("return_mean_last_100"))
        rows.append(
            ("training", f"return {mean} over the last {min(100, episodes['count'])} of {episodes['count']:,} episodes")
        )
    elif not rows:
        rows.append(("result", "no episode finished"))
    return rows


def _effort(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    steps = f"{number(summary.get('env_steps'), 0)} env steps, {number(summary.get('frames'), 0)} frames"
    seconds = number(summary.get("training_seconds"))
    speed = f"{number(summary.get('env_steps_per_second'), 0)} env steps/s"
    start_up = number(summary.get("start_up_seconds"))
    lag = summary.get("policy_lag") or {}
    return [
        ("effort", f"{steps} in {seconds} s of training ({speed}); start-up {start_up} s"),
        (
            "updates",
            f"{number(summary.get('updates'), 0)} with {number(summary.get('gradient_steps'), 0)} gradient steps; "
            f"policy lag mean {number(lag.get('mean'), 2)}, max {number(lag.get('max'), 0)}",
        ),
    ]


def _flow(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    blocks = summary.get("blocks")
    if not blocks:
        return []
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in blocks["dropped"].items() if count)
    text = (
        f"{blocks['produced']:,} produced = {blocks['trained']:,} trained + {blocks['in_flight']:,} in flight "
        f"+ {sum(blocks['dropped'].values()):,} dropped"
    )
    if blocks.get("unaccounted"):
        text += f" + {blocks['unaccounted']:,} unaccounted for"
    return [("blocks", f"{text} ({dropped})" if dropped else text)]


def _shortest(path: Path) -> str:
    """Relative to the current directory where that is shorter, as a person would type it."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) and not relative.startswith("..") else str(path)
