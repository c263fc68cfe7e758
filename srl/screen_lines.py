"""The live screen as lines of text: a pure function of a snapshot and the size of the terminal.

Every line is one row, so what is shown always fits; where rows are few, what matters least is left out first: messages,
legend, single workers (their groups are shown instead), streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from srl.screen_format import (
    ACTIVITIES,
    UNICODE,
    Glyphs,
    duration,
    largest,
    number,
    progress_bar,
    sparkline,
    time_bar,
)
from srl.system.metrics.snapshot import EdgeRow, GroupRow, Progress, TrialSnapshot, WorkerRow

_MESSAGES = 8
_MIN_SHARE = 0.005
_WIDE = 100
_PROBLEM_STATES = frozenset({"failed", "hung"})


@dataclass(frozen=True, slots=True)
class Frame:
    """The space there is, and what can be drawn in it."""

    width: int
    height: int
    glyphs: Glyphs = UNICODE
    has_colour: bool = True


def screen_lines(snapshot: TrialSnapshot, frame: Frame) -> list[Text]:
    """The screen: at most ``frame.height`` lines of at most ``frame.width`` cells."""
    lines = _header(snapshot, frame) + _figures(snapshot, frame)
    rest = frame.height - len(lines)
    parts = _parts(snapshot, frame, rest)
    is_roomy = rest - sum(len(part) for part in parts) >= len(parts)
    for part in parts:
        lines += [Text()] * is_roomy + part
    for line in lines:
        line.truncate(frame.width, overflow="ellipsis" if frame.glyphs is UNICODE else "crop")
    return lines[: frame.height]


def _parts(snapshot: TrialSnapshot, frame: Frame, rows: int) -> list[list[Text]]:
    """What is shown below the figures, in ``rows`` rows: each part takes what the more important ones left."""
    bottleneck = _wrapped(snapshot.bottleneck.split(), "bold yellow", frame, 2)
    rows -= len(bottleneck)
    # Two rows for the newest message, if there is one, before workers may take them.
    messages = _messages(snapshot, frame, min(1, rows))
    rows -= len(messages)
    workers = _workers(snapshot, frame, rows)
    rows -= len(workers)
    edges = _edges(snapshot.edges, frame, rows)
    rows -= len(edges)
    legend = _legend(snapshot, frame, rows)
    rows -= len(legend)
    # A blank row before each part, if possible, counts more than older messages.
    messages = _messages(snapshot, frame, min(_MESSAGES, max(len(messages) - 1, len(messages) - 1 + rows - 4)))
    return [part for part in (workers + legend, edges, bottleneck, messages) if part]


def _header(snapshot: TrialSnapshot, frame: Frame) -> list[Text]:
    title = Text.assemble(("SRL ", "bold cyan"), (snapshot.experiment, "bold"))
    colour = {"training": "green", "starting": "yellow"}.get(snapshot.phase, "magenta")
    clock = Text.assemble((snapshot.phase, colour), f" {duration(snapshot.wall_seconds)}")
    gap = max(2, frame.width - title.cell_len - clock.cell_len - 2)
    title.append(f" {frame.glyphs.rule * (gap)} " if gap > 2 else "  ", "dim")
    title.append_text(clock)
    return [title, *(_progress(one, snapshot, frame) for one in snapshot.progress)]


def _progress(one: Progress, snapshot: TrialSnapshot, frame: Frame) -> Text:
    # A target return below zero has no share; the bar then only says whether it is reached.
    share = 0.0 if one.value is None else one.value / one.target if one.target > 0 else float(one.value >= one.target)
    unit = " s" if one.name.endswith("seconds") else ""
    digits = 0 if one.name in ("env_steps", "updates") else 1
    figures = f"{number(one.value, digits)} / {number(one.target, digits)}{unit}"
    left = _left(one, snapshot)
    line = Text(f"{one.name:<18}")
    line.append_text(progress_bar(share, max(10, frame.width - 18 - 34 - 16), frame.glyphs))
    line.append(f" {min(1.0, max(0.0, share)):>4.0%}  {figures}")
    return line.append(f"  {left}", "dim") if left else line


def _left(one: Progress, snapshot: TrialSnapshot) -> str:
    if one.value is None or one.value >= one.target or one.name == "evaluation_return":
        return ""
    rate = snapshot.env_steps_per_second
    if one.name == "wall_seconds":
        return f"{duration(one.target - one.value)} left"
    if one.name == "updates":
        rate = snapshot.updates / snapshot.training_seconds if snapshot.training_seconds > 0 else 0.0
    return f"about {duration((one.target - one.value) / rate)} left" if rate > 0 else ""


def _figures(snapshot: TrialSnapshot, frame: Frame) -> list[Text]:
    dot = f" {frame.glyphs.dot} "
    returns = [value for _, value in snapshot.return_history]
    means = [result.mean for result in snapshot.evaluations]
    episodes = f"last {min(100, snapshot.episodes)} of {snapshot.episodes:,} episodes" if snapshot.episodes else ""
    speed = f"{number(snapshot.env_steps_per_second, 0)} env steps/s"
    frames = f"{number(snapshot.frames_per_second, 0)} frames/s"
    counts = f"{snapshot.env_steps:,} env steps, {snapshot.frames:,} frames"
    updates = f"version {snapshot.policy_version:,}{dot}{snapshot.gradient_steps:,} gradient steps"
    return [
        _figure("return", number(snapshot.episode_return), episodes, returns, frame),
        _figure("evaluation", number(means[-1]) if means else "-", _evaluation(snapshot, frame), means, frame),
        _figure("speed", speed, f"{frames}{dot}{counts}", (), frame),
        _figure("updates", number(snapshot.updates, 0), updates, (), frame),
        _lag(snapshot, frame),
    ]


def _evaluation(snapshot: TrialSnapshot, frame: Frame) -> str:
    if not snapshot.evaluations:
        return "none yet"
    last = snapshot.evaluations[-1]
    best = max(result.mean for result in snapshot.evaluations)
    spread = (
        f"{frame.glyphs.plus_minus} {number(last.std)}, {len(last.returns)} episodes of version {last.policy_version:,}"
    )
    return f"{spread}, best {number(best)}"


def _figure(name: str, value: str, detail: str, history: Sequence[float], frame: Frame) -> Text:
    line = Text.assemble((f"{name:<12}", "dim"), (value, "bold"), f"  {detail}" if detail else "")
    room = min(40, frame.width - line.cell_len - 2)
    if len(history) >= 2 and room >= 6:
        line.append("  ")
        line.append(sparkline(history, room, frame.glyphs), "cyan")
    return line


def _lag(snapshot: TrialSnapshot, frame: Frame) -> Text:
    bound = "no bound" if snapshot.lag_bound is None else f"bound {snapshot.lag_bound}"
    is_above = None not in (snapshot.lag_max, snapshot.lag_bound) and snapshot.lag_max > snapshot.lag_bound  # type: ignore[operator]
    detail = f"mean of the last seconds, max {number(snapshot.lag_max, 0)}, {bound}"
    line = _figure("policy lag", number(snapshot.lag_mean, 2), detail, (), frame)
    if is_above:
        line.append("  above the bound", "bold red")
    return line


def _workers(snapshot: TrialSnapshot, frame: Frame, rows: int) -> list[Text]:
    """One row per worker where there is room, else one per group."""
    workers = sum(group.workers for group in snapshot.groups)
    shown: Sequence[WorkerRow | GroupRow] = snapshot.groups
    if workers == len(snapshot.workers) and workers + 1 + len(snapshot.edges) + 1 <= rows:
        shown = snapshot.workers
    names = [_worker_name(row) for row in shown]
    name_width = max((len(name) for name in names), default=0)
    bar_width = min(40, max(8, frame.width - name_width - 16 - 34))
    head = Text(f"{'worker':<{name_width}}  {'state':<10}  {'where the time goes':<{bar_width}}", "dim")
    lines = [_worker(name, row, name_width, bar_width, frame) for name, row in zip(names, shown, strict=True)]
    return [head, *lines[: rows - 1]] if rows >= 2 else []


def _worker_name(row: WorkerRow | GroupRow) -> str:
    return row.name if isinstance(row, WorkerRow) or row.workers == 1 else f"{row.name} x{row.workers}"


def _worker(name: str, row: WorkerRow | GroupRow, name_width: int, bar_width: int, frame: Frame) -> Text:
    if isinstance(row, WorkerRow):
        state = row.state
    else:
        state = "/".join(row.states) if len(row.states) == 1 else "mixed"
    colour = "red" if state in _PROBLEM_STATES else "green" if state == "running" else "yellow"
    line = Text.assemble(f"{name:<{name_width}}  ", (f"{state[:10]:<10}", colour), "  ")
    line.append_text(time_bar(row.shares, bar_width, has_colour=frame.has_colour))
    return line.append(f"  {largest(row.shares, 2)}")


def _legend(snapshot: TrialSnapshot, frame: Frame, rows: int) -> list[Text]:
    present = {name for group in snapshot.groups for name, share in group.shares.items() if share >= _MIN_SHARE}
    lines = [Text()]
    for name, style in ACTIVITIES.items():
        if name not in present:
            continue
        sample = ("  ", f"on {style.colour}") if frame.has_colour else (style.letter, "")
        entry = Text.assemble(sample, (f" {style.words}   ", "dim"))
        if lines[-1].cell_len + entry.cell_len > frame.width:
            lines.append(Text())
        lines[-1].append_text(entry)
    return lines if present and len(lines) <= rows else []


def _edges(edges: Sequence[EdgeRow], frame: Frame, rows: int) -> list[Text]:
    if not edges or rows < len(edges) + 1:
        return []
    width = max(6, *(len(edge.name) for edge in edges))
    is_wide = frame.width >= _WIDE
    head = f"{'stream':<{width}} {'sent':>10} {'received':>10} {'in flight':>9} {'dropped':>7}  who waits"
    return [Text(head, "dim")] + [_edge(edge, width, is_wide=is_wide) for edge in edges]


def _edge(edge: EdgeRow, name_width: int, *, is_wide: bool) -> Text:
    dropped = sum(edge.dropped.values())
    ends = ("producers", "consumers") if is_wide else ("", "")
    what = ("for credit", "for blocks") if edge.kind == "sample" else ("for replies", "for requests")
    # The ends report at different times: what is received already was sent, even if its sender has not said so yet.
    sent = max(edge.sent, edge.received)
    line = Text(f"{edge.name:<{name_width}} {sent:>10,} {edge.received:>10,} {edge.in_flight:>9,} ")
    line.append(f"{dropped:>7,}", "yellow" if dropped else "")
    waits = zip(ends, (edge.producers_wait, edge.consumers_wait), what, strict=True)
    line.append("  " + ", ".join(f"{end} {wait:.0%} {which}".strip() for end, wait, which in waits))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in edge.dropped.items())
    return line.append(f"  (dropped: {reasons})", "yellow") if reasons and is_wide else line


def _messages(snapshot: TrialSnapshot, frame: Frame, rows: int) -> list[Text]:
    if rows < 1 or not snapshot.messages:
        return []
    lines = [Text("messages", "dim")]
    for message in snapshot.messages[-rows:]:
        times = f" (x{message.count:,})" if message.count > 1 else ""
        text = " ".join(message.text.split())
        lines.append(Text.assemble((f"{duration(message.seconds)} {message.worker}: ", "dim"), f"{text}{times}"))
    return lines


def _wrapped(words: Sequence[str], style: str, frame: Frame, rows: int) -> list[Text]:
    lines: list[str] = [""] if words else []
    for word in words:
        if len(lines[-1]) + len(word) + 1 > frame.width and len(lines) < rows:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return [Text(line, style) for line in lines]
