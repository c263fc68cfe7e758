"""A file of JSON objects, one a line, that survives crashes and resumes without broken or void lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srl.system.durable import write_file
from srl.system.metrics.json_values import dump_json


class JsonLinesFile:
    """Appends to a file; a half line that a crash left at its end is taken away first.

    Args:
        path: The file; made if absent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _drop_half_line(path)
        self._file = open(path, "a", encoding="utf-8")

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append one object; NaN and infinity become ``null``."""
        self._file.write(dump_json(entry) + "\n")

    def cut(self, env_steps: int) -> None:
        """Take out every line whose ``env_steps`` is larger: training went back to there."""
        self.close()
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _env_steps(line) <= env_steps]
        write_file(self._path, "".join(kept).encode())
        self._file = open(self._path, "a", encoding="utf-8")

    def flush(self) -> None:
        """Make the lines visible to readers."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _env_steps(line: str) -> float:
    """The line's place on the axis; a damaged line has none and goes with whatever is cut."""
    try:
        return float(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _drop_half_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            write_file(path, whole)
