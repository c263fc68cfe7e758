"""Films of a trial's policy: a playable file, one frame per env step, from the first observation to the last."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import Recording
from srl.api.errors import MissingExtraError, ResourceError, UsageError
from srl.api.registry import environment_factory
from srl.distributed.evaluate import SavedPolicy, open_policy
from srl.system.durable import disk_errors
from srl.system.seeding import check_seed, environment_seeds
from srl.system.workers.evaluator import EpisodeRunner
from srl.trials.pictures import check_suffix

Frame = NDArray[np.uint8]

MAX_FRAMES = 30_000
SUFFIX = ".mp4"
HEADLESS = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
"""How environments draw without a display; set where a person has not."""


@dataclass(frozen=True)
class Video:
    """A finished film.

    Attributes:
        path: The file.
        frames: Number of frames.
        frames_per_second: Env steps a second.
        returns: One per episode.
        lengths: One per episode, in env steps.
        policy_version: Who acts.
        is_cut: The last episode was still under way when the largest number of frames was reached.
    """

    path: Path
    frames: int
    frames_per_second: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    policy_version: int
    is_cut: bool


def make_video(
    trial: Path,
    path: str | Path | None = None,
    *,
    episodes: int = 1,
    checkpoint: str | None = None,
    policy: str | None = None,
    seed: int | None = None,
    max_frames: int = MAX_FRAMES,
    progress: Callable[[int], None] | None = None,
) -> Video:
    """Film episodes of a saved version in the trial's own environment: deterministic actions.

    Args:
        trial: The trial directory.
        path: The file (H.264, mp4); ``None`` = ``video-VERSION.mp4`` in the trial directory.
        episodes: Number of episodes, one after the other.
        checkpoint: As for :func:`srl.distributed.evaluate.evaluate_trial`.
        policy: Policy name; ``None`` = the evaluators' policy, or the first one.
        seed: Of the environment; ``None`` = from the experiment's seed.
        max_frames: Bound on the length.
        progress: Told the number of frames so far after each one.

    Raises:
        UsageError: No episode asked for, no trial, no checkpoint, no mp4, no seed, or an environment that cannot be
            filmed.
        MissingExtraError: imageio-ffmpeg is not installed.
        ResourceError: The file cannot be written.
    """
    if episodes < 1 or max_frames < 1:
        raise UsageError("nothing to film", value=f"{episodes} episodes, {max_frames} frames", expected="at least 1")
    if seed is not None:
        check_seed(seed)
    if path is not None:
        check_suffix(Path(path), SUFFIX)
    _ffmpeg()
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)
    saved = open_policy(trial, checkpoint, policy)
    target = Path(path).expanduser() if path else trial / f"video-{saved.checkpoint.version}.mp4"
    recording = environment_factory(saved.experiment.model_dump(mode="json")["environment"]).record(
        environment_seeds(saved.experiment.seed, kind="video", worker=0, incarnation=0, ring_group=0, count=1)[0]
        if seed is None
        else seed
    )
    try:
        _check_spaces(saved, recording)
        return _film(saved, recording, target, episodes, max_frames, progress or (lambda frames: None))
    finally:
        recording.environment.close()


def episode_frames(runner: EpisodeRunner, recording: Recording) -> Iterator[Frame]:
    """Frames of the runner's episodes: the first is that of the first observation, the last that of the final one."""
    yield from _taken(recording)
    while not runner.done():
        runner.step(0)
        taken = _taken(recording)
        # At the very end the next episode has begun already; its first frame belongs to nothing that is shown.
        yield from taken[:1] if runner.done() else taken


def _film(
    saved: SavedPolicy,
    recording: Recording,
    target: Path,
    episodes: int,
    max_frames: int,
    progress: Callable[[int], None],
) -> Video:
    runner = EpisodeRunner(recording.environment, saved.spec, [episodes], saved.acting)
    count = 0
    with _writer(target, recording.frames_per_second) as write:
        for frame in episode_frames(runner, recording):
            write(frame)
            count += 1
            progress(count)
            if count == max_frames:
                break
    return Video(
        target,
        count,
        recording.frames_per_second,
        tuple(runner.returns),
        tuple(runner.lengths),
        saved.checkpoint.version,
        is_cut=not runner.done(),
    )


@contextmanager
def _writer(target: Path, frames_per_second: float) -> Iterator[Any]:
    """A function that takes frames; the file has its name only when it is whole."""
    temporary = target.with_name(f".tmp-{target.name}")
    sink: Generator[None, Any, None] | None = None
    size: tuple[int, ...] = ()

    def write(frame: Frame) -> None:
        nonlocal sink, size
        frame = _even(frame)
        if sink is None:
            size = frame.shape
            sink = _ffmpeg().write_frames(
                str(temporary),
                (size[1], size[0]),
                fps=frames_per_second,
                codec="libx264",
                pix_fmt_in="rgb24",
                pix_fmt_out="yuv420p",
                macro_block_size=2,
                ffmpeg_log_level="error",
                output_params=["-movflags", "+faststart"],
            )
            sink.send(None)
        if frame.shape != size:
            raise UsageError("the pictures change their size", value=frame.shape, expected=str(size))
        try:
            sink.send(np.ascontiguousarray(frame))
        except OSError as error:  # its text is ffmpeg's whole command line
            raise ResourceError(
                "ffmpeg ended in the midst of the film", where=str(target), hint="It said why above; a full disk?"
            ) from error

    with disk_errors("cannot write the video", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()  # what is wrong with the place is told by the system, not by ffmpeg
        try:
            yield write
            if sink is not None:
                sink.close()
            if not temporary.exists() or temporary.stat().st_size == 0:
                raise ResourceError("ffmpeg wrote no video", where=str(target))
            temporary.rename(target)
        finally:
            if sink is not None:
                sink.close()
            temporary.unlink(missing_ok=True)


def _even(frame: Frame) -> Frame:
    """Padded to even numbers of pixels, which H.264's common pixel format needs."""
    height, width = frame.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _taken(recording: Recording) -> list[Frame]:
    taken = list(recording.frames)
    recording.frames.clear()
    return taken


def _check_spaces(saved: SavedPolicy, recording: Recording) -> None:
    given, wanted = recording.environment.spec.observation, saved.spec.observation
    if given != wanted:
        raise UsageError(
            "the environment that is filmed has other observations than the policy takes",
            where=recording.environment.spec.name,
            value=given.describe(),
            expected=wanted.describe(),
        )


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingExtraError(
            "filming needs imageio-ffmpeg", hint='Install it: pip install "srl-dataflow[screen]"'
        ) from error
    return imageio_ffmpeg
