"""Names of the files that people look at."""

from __future__ import annotations

from pathlib import Path

from srl.api.errors import UsageError


def check_suffix(path: Path, suffix: str) -> None:
    """Refuse a file whose name says that it holds something else, before any work is done for it.

    Raises:
        UsageError: The name does not end in ``suffix``, or belongs to a directory.
    """
    if path.expanduser().is_dir():
        raise UsageError("this is a directory", where=str(path), expected=f"a file {path / ('name' + suffix)}")
    if path.suffix.lower() != suffix:
        raise UsageError("another kind of file", where=str(path), value=path.suffix or "no ending", expected=suffix)
