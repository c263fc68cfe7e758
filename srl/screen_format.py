"""Small pieces of the screen: numbers, durations, sparklines and bars as text of an exact width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters to draw with: ``blocks`` ascend from low to high; ``full`` and ``empty`` fill bars."""

    blocks: str
    full: str
    empty: str
    rule: str
    dot: str
    plus_minus: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "━", "─", "─", "·", "±")
ASCII = Glyphs("_.,-=+*#", "=", "-", "-", "|", "+-")


@dataclass(frozen=True, slots=True)
class Style:
    """How an activity is shown: its words, its colour, and the letter that stands for it in a bar without colours."""

    words: str
    colour: str
    letter: str


ACTIVITIES: Mapping[str, Style] = {
    "stepping": Style("stepping", "green", "s"),
    "inferring": Style("inferring", "cyan", "i"),
    "assembling": Style("assembling", "blue", "a"),
    "training": Style("training", "magenta", "t"),
    "publishing": Style("publishing", "bright_blue", "p"),
    "evaluating": Style("evaluating", "bright_green", "e"),
    "waiting_for_credit": Style("wait: credit", "yellow", "C"),
    "waiting_for_inference": Style("wait: inference", "red", "W"),
    "waiting_for_ranks": Style("wait: ranks", "bright_red", "R"),
    "idle": Style("idle", "bright_black", "."),
}


def number(value: float | None, digits: int = 1) -> str:
    """``12,345``, ``12.3``, or a dash where there is no number; fraction digits only below 1,000."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or digits == 0 else f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """``0:01:23``; days in front where there are any."""
    whole = int(seconds)
    days, rest = divmod(whole, 86_400)
    text = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {text}" if days else text


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """The values as a line of at most ``width`` characters; each stands for the mean of its share of them."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high <= low:
        return glyphs.blocks[len(glyphs.blocks) // 2] * count
    top = len(glyphs.blocks) - 1
    return "".join(glyphs.blocks[round((mean - low) / (high - low) * top)] for mean in means)


def progress_bar(share: float, width: int, glyphs: Glyphs) -> Text:
    """A bar that is filled to ``share`` (cut to 0..1)."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return Text.assemble((glyphs.full * filled, "bold green"), (glyphs.empty * (width - filled), "bright_black"))


def cells(shares: Mapping[str, float], width: int) -> dict[str, int]:
    """Whole cells per activity that add up to ``width`` (largest remainders), in the order of :data:`ACTIVITIES`."""
    total = sum(shares.get(name, 0.0) for name in ACTIVITIES)
    if total <= 0 or width < 1:
        return {}
    exact = {name: shares.get(name, 0.0) / total * width for name in ACTIVITIES}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: width - sum(counts.values())]:
        counts[name] += 1
    return {name: count for name, count in counts.items() if count}


def time_bar(shares: Mapping[str, float], width: int, *, has_colour: bool) -> Text:
    """Where the time goes, as a bar of ``width`` cells; letters instead of colours where there are none."""
    bar = Text()
    for name, count in cells(shares, width).items():
        style = ACTIVITIES[name]
        bar.append((" " if has_colour else style.letter) * count, f"on {style.colour}" if has_colour else "")
    bar.append(" " * (width - bar.cell_len))
    return bar


def largest(shares: Mapping[str, float], count: int) -> str:
    """The ``count`` largest shares in words, such as ``training 88%, idle 9%``."""
    ordered = sorted(((share, name) for name, share in shares.items() if share >= 0.005), reverse=True)
    return ", ".join(f"{ACTIVITIES[name].words if name in ACTIVITIES else name} {s:.0%}" for s, name in ordered[:count])
