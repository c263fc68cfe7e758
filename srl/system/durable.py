"""Files that are whole or absent: written beside, fsynced, renamed; disk errors become one clear message."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from srl.api.errors import ResourceError

_HINTS = {
    errno.ENOSPC: "Free some space, or choose another place with --trial-dir.",
    errno.EDQUOT: "The quota is used up: free some space, or choose another place with --trial-dir.",
    errno.EFBIG: "The file would be larger than the file system or 'ulimit -f' allows.",
    errno.EROFS: "The file system is read-only: choose another place with --trial-dir.",
    errno.EACCES: "Not writable for this user: choose another place with --trial-dir.",
    errno.EPERM: "Not permitted for this user: choose another place with --trial-dir.",
    errno.EIO: "The device reported an error; see the kernel's log.",
}


def free_bytes(path: Path) -> int | None:
    """Bytes free to this user on the file system of ``path`` or its nearest existing parent; ``None`` if unknown."""
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


@contextmanager
def disk_errors(what: str, path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an ``OSError`` of the body into a :class:`ResourceError` that names path, cause and both numbers.

    Args:
        what: What was not possible, such as ``"cannot write the checkpoint"``.
        path: Where.
        needed_bytes: How much was to be written, if known.
    """
    try:
        yield
    except OSError as error:
        expected = "" if needed_bytes is None else f"room for {needed_bytes:,} bytes"
        free = free_bytes(path)
        if expected and free is not None:
            expected += f" ({free:,} are free)"
        raise ResourceError(
            what,
            where=str(path),
            value=error.strerror or str(error),
            expected=expected,
            hint=_HINTS.get(error.errno or 0, ""),
        ) from error


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, whole or not at all.

    Raises:
        ResourceError: On a full or read-only disk; the file that was there before is intact.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with disk_errors(f"cannot write {path.name}", path.parent, len(data)):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
