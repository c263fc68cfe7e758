"""``srl-run video``: film a trial's policy."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TextIO

from srl.commands.parsing import add_saved_policy, add_trial, at_least_one, make_parser


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = make_parser(
        "video",
        "Film a trial's policy in its own environment, wrappers included: deterministic actions, one frame per env\n"
        "step, an mp4 that plays everywhere. Needs no display.",
        "examples:\n"
        "  srl-run video trials/first\n"
        "  srl-run video trials/first --episodes 3 --checkpoint newest --out pole.mp4",
    )
    add_trial(made)
    add_saved_policy(made)
    made.add_argument("--episodes", type=int, default=1, metavar="N", help="one after the other (default: 1)")
    made.add_argument("--out", type=Path, metavar="FILE", help="the file (default: video-VERSION.mp4 in the trial)")
    made.add_argument("--seed", type=int, metavar="N", help="of the environment (default: from the experiment's)")
    made.add_argument(
        "--max-frames", type=int, default=30_000, metavar="N", help="bound on the length (default: 30000)"
    )
    return made


def run(options: argparse.Namespace) -> int:
    """Film, and say what is to be seen."""
    at_least_one(options.episodes, "--episodes", "nothing to film")
    at_least_one(options.max_frames, "--max-frames", "nothing to film")
    from srl.trials.trial import load
    from srl.trials.video import make_video

    progress = _Progress(sys.stderr) if sys.stderr.isatty() else None
    try:
        video = make_video(
            load(options.trial).path,
            options.out,
            episodes=options.episodes,
            checkpoint=options.checkpoint,
            policy=options.policy,
            seed=options.seed,
            max_frames=options.max_frames,
            progress=progress,
        )
    finally:
        if progress:
            progress.end()
    print(video.path)
    seconds = video.frames / video.frames_per_second
    returns = ", ".join(f"{value:g}" for value in video.returns) or "none ended"
    print(
        f"version {video.policy_version}: {video.frames:,} frames, {seconds:.1f} s at {video.frames_per_second:g} "
        f"frames/s; returns {returns}"
    )
    if video.is_cut:
        print(f"cut at --max-frames {options.max_frames} in the midst of an episode")
    return 0


_CLEAR = "\r\x1b[K"


class _Progress:
    """One line that counts frames: without a GPU some environments draw ten a second, and silence looks like a hang."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = time.monotonic() + 1.0

    def __call__(self, frames: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.5
            self._stream.write(f"{_CLEAR}filming: {frames:,} frames so far")
            self._stream.flush()

    def end(self) -> None:
        self._stream.write(_CLEAR)
        self._stream.flush()
