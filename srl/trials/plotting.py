"""Curves of one or several trials as a PNG: return against env steps, mean and band over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import MissingExtraError, UsageError
from srl.api.suggest import did_you_mean
from srl.system.durable import disk_errors
from srl.trials.comparing import differences, settings, short_names
from srl.trials.metrics import Curve
from srl.trials.pictures import check_suffix
from srl.trials.trial import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RETURN, EVALUATION = "episode/return", "evaluation/return_mean"
AXES = {"env_steps": "env steps", "frames": "frames", "seconds": "seconds of training"}
BANDS = ("std", "minmax")
_GRID_POINTS = 400
_SIZE_INCHES = (9.0, 5.5)
_DPI = 130

Points = tuple[NDArray[np.float64], NDArray[np.float64]]
"""x and y of one line, x ascending."""


@dataclass(frozen=True)
class Group:
    """Trials of one experiment with several seeds.

    Attributes:
        label: Name of the experiment, and the keys in which it differs from others of that name.
        trials: The trials.
    """

    label: str
    trials: tuple[Trial, ...]


def plot_trials(
    trials: Sequence[Trial],
    path: str | Path,
    *,
    x: str = "env_steps",
    metric: str | None = None,
    band: str = "std",
) -> Path:
    """Draw curves.

    Args:
        trials: At least one. Those whose experiments differ in nothing but the seed become one line: their mean, with a
            band, as far as all of them reach; every single one is drawn thin behind it.
        path: The PNG.
        x: ``env_steps``, ``frames`` or ``seconds``.
        metric: Name of a metric; ``None`` = the training return, and the mean returns of evaluations.
        band: ``std`` (mean plus and minus the standard deviation over seeds) or ``minmax``.

    Returns:
        ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: Nothing to draw, an unknown metric, axis or band, or a name that is no PNG's.
        ResourceError: The file cannot be written.
    """
    if x not in AXES or band not in BANDS:
        raise UsageError(
            "no such axis or band", value=f"{x}, {band}", expected=f"{', '.join(AXES)}; {', '.join(BANDS)}"
        )
    if not trials:
        raise UsageError("nothing to draw", expected="at least one trial")
    target = Path(path).expanduser()
    check_suffix(target, ".png")
    if metric is not None:
        _check_metric(trials, metric)
    figure_type, canvas_type = _matplotlib()
    figure = figure_type(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    groups = grouped(trials)
    for index, group in enumerate(groups):
        colour = f"C{index % 10}"
        for name in (RETURN, EVALUATION) if metric is None else (metric,):
            _draw(axes, group, name, x, band, colour)
    if not axes.has_data():
        raise UsageError(
            "the trials have no such points yet",
            value=metric or RETURN,
            hint="No episode has ended, perhaps; another metric can be named.",
        )
    axes.set_xlabel(AXES[x])
    axes.set_ylabel(metric or "return")
    axes.set_title(", ".join(dict.fromkeys(trial.experiment.name for trial in trials)))
    axes.grid(alpha=0.3)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    # Below the axes, where it hides nothing.
    figure.legend(loc="outside lower center", fontsize="small", ncols=1 if len(groups) > 1 else 2)
    if x == "env_steps":
        _frames_axis(axes, trials)
    with disk_errors("cannot write the picture", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        canvas_type(figure).print_png(target)
    return target


def grouped(trials: Sequence[Trial]) -> list[Group]:
    """Trials by their experiments up to the seed, in order of first appearance."""
    by_settings: dict[str, list[Trial]] = {}
    for trial in trials:
        by_settings.setdefault(json.dumps(settings(trial), sort_keys=True), []).append(trial)
    groups = list(by_settings.values())
    keys = differences([settings(group[0]) for group in groups])
    names = short_names([key for key in keys if key != "name"])
    labels = []
    for index, group in enumerate(groups):
        name = group[0].experiment.name
        rivals = [i for i, other in enumerate(groups) if other[0].experiment.name == name]
        told = [
            f"{names[key]}={keys[key][index]}" for key in names if len({json.dumps(keys[key][i]) for i in rivals}) > 1
        ]
        labels.append(f"{name} ({', '.join(told[:3])}{', ...' if len(told) > 3 else ''})" if told else name)
    return [Group(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]


def over_seeds(lines: Sequence[Points], band: str, *, by_point: bool = False) -> Any:
    """Mean and band of several lines.

    Args:
        lines: x and y each, at least two.
        band: As for :func:`plot_trials`.
        by_point: The n-th points of all lines belong together (evaluations), at the mean of their x, where all lines
            have equally many. Else lines are compared where all of them have values, by interpolation.

    Returns:
        ``float64[N]`` each: x, mean, lower and upper end of the band; ``None`` if the lines share nothing.
    """
    if by_point and len({len(line[0]) for line in lines}) == 1:
        grid = np.stack([line[0] for line in lines]).mean(axis=0)
        values = np.stack([line[1] for line in lines])
    else:
        low, high = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
        if low > high:
            return None
        grid = np.linspace(low, high, _GRID_POINTS if low < high else 1)
        values = np.stack([np.interp(grid, *line) for line in lines])
    mean = values.mean(axis=0)
    if band == "minmax":
        return grid, mean, values.min(axis=0), values.max(axis=0)
    std = values.std(axis=0, ddof=1)
    return grid, mean, mean - std, mean + std


def _draw(axes: Axes, group: Group, metric: str, x: str, band: str, colour: str) -> None:
    lines = [points for trial in group.trials if (points := _points(trial, metric, x)) is not None]
    if not lines:
        return
    is_evaluation = metric.startswith("evaluation/")
    style: dict[str, Any] = {"color": colour, "linestyle": "--" if is_evaluation else "-"}
    style |= {"marker": "o", "markersize": 4} if is_evaluation else {}
    what = {RETURN: "training", EVALUATION: "evaluation"}.get(metric, metric)
    if len(lines) == 1:
        style |= _visible(lines[0])
        seed = f", seed {group.trials[0].experiment.seed}" if len(group.trials) == 1 else ", one seed"
        axes.plot(*lines[0], **style, label=f"{group.label}{seed}: {what}")
        return
    for line in lines:
        axes.plot(*line, color=colour, alpha=0.25, linewidth=0.8, linestyle=style["linestyle"], **_visible(line))
    merged = over_seeds(lines, band, by_point=is_evaluation)
    if merged is None:  # no mean, as they share no env steps; the legend names the thin lines
        axes.plot([], [], **style | _visible(lines[0]), alpha=0.25, label=f"{group.label}: {what}, single seeds")
        return
    grid, mean, lower, upper = merged
    if len(grid) == _GRID_POINTS:
        style.pop("marker", None)  # interpolated: not where anything was scored
    band_text = "± std" if band == "std" else "min to max"
    style |= _visible((grid, mean))
    axes.plot(grid, mean, **style, label=f"{group.label}: {what}, mean of {len(lines)} seeds, band {band_text}")
    if len(grid) == 1:  # a band of one point has no width
        axes.vlines(grid, lower, upper, color=colour, alpha=0.3)
    axes.fill_between(grid, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _visible(line: Points) -> dict[str, Any]:
    """A line of one point has no length: without a marker nothing of it is seen."""
    return {"marker": "o", "markersize": 4} if len(line[0]) == 1 else {}


def _points(trial: Trial, metric: str, x: str) -> Points | None:
    """The curve, ascending; of several values at one x the last counts."""
    metrics = trial.metrics
    if metric not in metrics.names():
        return None
    curve: Curve = metrics.curve(metric)
    if not len(curve):
        return None
    at = np.asarray(getattr(curve, x), np.float64)
    order = np.argsort(at, kind="stable")
    at, values = at[order], curve.values[order]
    last = np.append(at[1:] != at[:-1], True)
    return at[last], values[last]


def _check_metric(trials: Sequence[Trial], metric: str) -> None:
    """One trial that has it is enough: others may lack evaluations, or have just begun."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.metrics.names()))
    if metric not in names:
        raise UsageError(
            "there is no such metric", value=metric, hint=did_you_mean(metric, names, "metrics of these trials")
        )


def _frames_axis(axes: Axes, trials: Sequence[Trial]) -> None:
    """Frames on top where they are not the same as env steps, if the ratio is one for all trials."""
    ratios = set()
    for trial in trials:
        columns = trial.metrics.columns()
        if len(columns["env_steps"]) and columns["env_steps"][-1] > 0:
            ratios.add(round(float(columns["frames"][-1] / columns["env_steps"][-1]), 3))
    if len(ratios) == 1 and (ratio := ratios.pop()) != 1.0:
        functions = (lambda steps: np.multiply(steps, ratio), lambda frames: np.divide(frames, ratio))
        top = axes.secondary_xaxis("top", functions=functions)
        top.set_xlabel("frames")
        top.xaxis.set_major_formatter("{x:,.0f}")


def _matplotlib() -> tuple[Any, Any]:
    """The figure and the canvas, past pyplot: no global state, no window, also in a notebook."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "drawing needs matplotlib", hint='Install it: pip install "srl-dataflow[screen]"'
        ) from error
    return Figure, FigureCanvasAgg
