"""What is shown when a trial is over: the result, where the files are, what to do next."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from srl.screen_format import Glyphs, number

_INDENT = 14
_REASONS = {
    "env_steps": "the budget of env steps is used up",
    "updates": "all updates are made",
    "wall_seconds": "the time is up",
    "evaluation_return": "the evaluation reached the target return",
    "interrupted": "interrupted by Ctrl-C",
    "terminated": "ended by SIGTERM",
    "failed": "failed",
}


def end_lines(summary: Mapping[str, Any], trial: Path, glyphs: Glyphs, width: int | None = None) -> list[Text]:
    """The lines to print.

    Args:
        summary: As in ``summary.json``; what is not there is left out.
        trial: The trial directory.
        glyphs: Characters to draw with.
        width: Of the terminal, in columns; what is longer goes on in the next line, but commands stay whole. ``None`` =
            no bound.
    """
    reason = str(summary.get("exit_reason"))
    title = Text.assemble(("SRL ", "bold cyan"), (str(summary.get("experiment", "")), "bold"), " is over: ")
    title.append(_REASONS.get(reason, reason), "red" if reason == "failed" else "green")
    rows = [*_result(summary, glyphs), *_effort(summary), *_flow(summary)]
    if summary.get("updates") and not _has_weights(summary):
        rows.append(("weights", "none: it ended before a checkpoint was complete"))
    place = _shortest(trial)
    files = [
        ("trial", place),
        ("", "summary.json, metrics.jsonl, experiment.yaml, main.log, checkpoints/, tensorboard/, logs/"),
    ]
    told = [(name if not index else "", part) for name, text in [*rows, *files] for index, part in _parts(text, width)]
    following = [("" if index else "next", command) for index, command in enumerate(_next(summary, reason, place))]
    return [title, *(_line(name, text) for name, text in [*told, *following])]


def _parts(text: str, width: int | None) -> Iterator[tuple[int, str]]:
    if width is None:
        return enumerate([text])
    return enumerate(textwrap.wrap(text, max(30, width - _INDENT), break_long_words=False, break_on_hyphens=False))


def _next(summary: Mapping[str, Any], reason: str, place: str) -> list[str]:
    """Commands that make sense now: nothing can be scored without weights, or drawn where nothing was trained."""
    quoted = shlex.quote(place)
    again = f"srl-run {shlex.quote(os.path.join(place, 'experiment.yaml'))}"
    commands = [f"less {shlex.quote(os.path.join(place, 'main.log'))}"] if reason == "failed" else []
    if summary.get("updates") == 0:
        return [*commands, again]
    if _has_weights(summary):
        commands += [f"srl-run evaluate {quoted} --episodes 100", f"srl-run video {quoted}"]
    return [
        *commands,
        f"srl-run plot {quoted}",
        f"{again} --seed {int(summary.get('seed') or 0) + 1}",
        f"tensorboard --logdir {shlex.quote(os.path.join(place, 'tensorboard'))}",
    ]


def _has_weights(summary: Mapping[str, Any]) -> bool:
    """Whether the trial left a checkpoint, or a version that was the best of an evaluation."""
    return bool(summary.get("weights_sha256") or summary.get("best_evaluation"))


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"  {name:<{_INDENT - 2}}", "dim"), text)


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
