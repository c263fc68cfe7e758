"""Event files for TensorBoard, written without torch, TensorFlow or a thread.

TensorBoard's own ``EventFileWriter`` starts a thread and ``torch.utils.tensorboard`` imports torch into the controller
(seconds, hundreds of megabytes). Its record writer and protobuf messages are all that is needed.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from srl.api.errors import MissingExtraError


class EventFile:
    """One event file; what one process writes in one trial.

    Args:
        directory: Where the file is made.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingExtraError(
                "no TensorBoard event files: the package tensorboard is not installed",
                hint="Install it with: pip install 'srl-dataflow[screen]'",
            ) from error
        self._event, self._summary, self._session_log = Event, Summary, SessionLog
        # The name's form is what TensorBoard looks for; sorted by time, a resumed trial's file comes after the first.
        name = f"events.out.tfevents.{time.time_ns() // 1_000_000:014d}.{socket.gethostname()}.{os.getpid()}.srl"
        self._file = open(directory / name, "xb")
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write numbers by name at ``step``; what is absent or not finite is left out, as the format has no null."""
        points = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if value is not None and math.isfinite(value)
        ]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=points)))

    def restart(self, step: int) -> None:
        """Tell TensorBoard that points behind ``step`` are void."""
        # TensorBoard takes out the points at and behind the step of a START event.
        log = self._session_log(status=self._session_log.START)
        self._write(self._event(wall_time=time.time(), step=step + 1, session_log=log))

    def flush(self) -> None:
        """Make the events visible to readers."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: object) -> None:
        self._writer.write(event.SerializeToString())  # type: ignore[attr-defined]
