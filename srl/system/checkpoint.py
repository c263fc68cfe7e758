"""Checkpoints: whole sets or nothing, whatever happens while one is written.

A set is a directory ``version-000000042`` with ``weights.safetensors``, ``state.safetensors`` (arrays of the state),
``state.json`` (its structure) and ``manifest.json`` (version, counters, size and SHA-256 of each file). It is written
under a temporary name, fsynced, then renamed; a killed writer leaves a ``.tmp-`` directory that nobody reads and that
the next save removes. Nothing in a set is executable. One process at a time writes below one root.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from srl.api.errors import NonFiniteError, SRLError
from srl.system.durable import disk_errors, sync_directory
from srl.system.hashed_files import write_arrays, write_text
from srl.system.parameters import weights_sha256
from srl.system.structure import flatten, unflatten

FORMAT = 1
WEIGHTS, STATE_ARRAYS, STATE, MANIFEST = "weights.safetensors", "state.safetensors", "state.json", "manifest.json"
_FILES = (WEIGHTS, STATE_ARRAYS, STATE)
_NAME = re.compile(r"version-(\d{9,})(?:-(\d+))?")
_TEMPORARY = ".tmp-"

_log = logging.getLogger(__name__)


class CheckpointError(SRLError):
    """A checkpoint is incomplete, damaged, or of another format; ``where`` is its directory."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete set; its files had the hashes of their manifest when this was made.

    Attributes:
        path: The directory.
        version: Policy version.
        counters: ``env_steps``, ``updates``, ... as they were saved.
        weights_sha256: Digest of the weights (:func:`srl.system.parameters.weights_sha256`).
    """

    path: Path
    version: int
    counters: dict[str, Any]
    weights_sha256: str

    def weights(self) -> dict[str, NDArray[Any]]:
        """Weights by name."""
        return dict(load_file(self.path / WEIGHTS))

    def state(self) -> Any:
        """The nested state as it was saved."""
        structure = json.loads((self.path / STATE).read_text())
        return unflatten(structure, load_file(self.path / STATE_ARRAYS))


def save_checkpoint(
    root: Path,
    *,
    version: int,
    weights: Mapping[str, NDArray[Any]],
    state: Mapping[str, Any],
    counters: Mapping[str, int | float],
) -> Path:
    """Write one set; earlier sets are never touched.

    Args:
        root: Directory of all sets; made if absent.
        version: Policy version, from 0.
        weights: Arrays by name.
        state: Nested dict of arrays, numbers, text, bool, ``None``, lists and tuples.
        counters: Numbers that go on after a resume.

    Returns:
        The directory of the set: the one already there if the same version, weights and counters were saved before.

    Raises:
        NonFiniteError: A weight is NaN or infinite; nothing is written.
        StructureError: The state holds something that cannot be saved; nothing is written.
        ResourceError: Disk full, read-only, not permitted; nothing is left behind.
    """
    _check_finite(weights, version)
    structure, arrays = flatten(state)
    digest = weights_sha256(weights)
    needed = sum(array.nbytes for array in weights.values()) + sum(array.nbytes for array in arrays.values())
    with disk_errors(f"cannot write the checkpoint of version {version}", root, needed):
        root.mkdir(parents=True, exist_ok=True)
        _remove_temporary(root)
        final = _free_name(root, version, digest, counters)
        if final.exists():
            return final
        temporary = root / f"{_TEMPORARY}{final.name}-{os.getpid()}"
        try:
            temporary.mkdir()
            files = {
                WEIGHTS: write_arrays(temporary / WEIGHTS, weights),
                STATE_ARRAYS: write_arrays(temporary / STATE_ARRAYS, arrays),
                STATE: write_text(temporary / STATE, json.dumps(structure, allow_nan=False)),
            }
            manifest = {
                "format": FORMAT,
                "version": version,
                "weights_sha256": digest,
                "counters": dict(counters),
                "files": files,
            }
            write_text(temporary / MANIFEST, json.dumps(manifest, indent=2))
            sync_directory(temporary)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(root)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """A set whose files all have the sizes and hashes of its manifest.

    Raises:
        CheckpointError: It is incomplete, damaged, or of another format; says which file and how.
    """
    manifest = _read_manifest(path)
    for name in _FILES:
        _check_file(path, name, manifest["files"][name])
    return Checkpoint(path, manifest["version"], dict(manifest["counters"]), manifest["weights_sha256"])


def newest_complete(root: Path) -> Checkpoint | None:
    """The newest complete set below ``root``, ``None`` if there is none; skipped sets are named in a warning."""
    for path in reversed(list_checkpoints(root)):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            _log.warning("Skipped a checkpoint that is not complete: %s", error)
    return None


def list_checkpoints(root: Path) -> list[Path]:
    """Directories of sets below ``root``, oldest version first; not verified."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()), key=_order)


def prune(root: Path, keep: int, pinned: Collection[int] = ()) -> list[Path]:
    """Remove what is older than the newest ``keep`` complete sets, except sets of ``pinned`` versions.

    Completeness is judged by the manifest and the files' sizes, without hashing.

    Returns:
        What was removed.

    Raises:
        ResourceError: Not permitted, or read-only.
    """
    removed = []
    kept = 0
    with disk_errors("cannot remove an old checkpoint", root):
        for path in reversed(list_checkpoints(root)):
            if kept < keep:
                kept += _looks_complete(path)
            elif _order(path)[0] not in pinned:
                _remove(path)
                removed.append(path)
    return removed


def _order(path: Path) -> tuple[int, int]:
    """(version, n-th set of that version) by the directory's name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError("no name of a checkpoint", where=str(path), expected="version-NNNNNNNNN")
    return int(match[1]), int(match[2] or 1)


def _check_finite(weights: Mapping[str, NDArray[Any]], version: int) -> None:
    for name, array in weights.items():
        if array.dtype.kind != "f":
            continue
        bad = ~np.isfinite(array)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            raise NonFiniteError(
                f"weights of version {version} are not finite and were not saved",
                where=f"{name}{list(index)}",
                value=float(array[index]),
                expected="finite weights",
                hint="Earlier checkpoints are intact.",
            )


def _free_name(root: Path, version: int, digest: str, counters: Mapping[str, Any]) -> Path:
    """The directory for a set of ``version``, or the one that holds exactly this already."""
    path = root / f"version-{version:09d}"
    number = 1
    while path.exists():
        if _holds(path, digest, counters):
            return path
        number += 1
        path = root / f"version-{version:09d}-{number}"
    return path


def _holds(path: Path, digest: str, counters: Mapping[str, Any]) -> bool:
    try:
        checkpoint = load_checkpoint(path)
    except CheckpointError:
        return False
    return checkpoint.weights_sha256 == digest and checkpoint.counters == dict(counters)


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, its form checked.

    Raises:
        CheckpointError: Missing, damaged, or of another format.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"no {MANIFEST}", where=str(path), expected="a complete checkpoint") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read", where=str(path), value=str(error)) from error
    kinds = {"format": int, "version": int, "weights_sha256": str, "counters": dict, "files": dict}
    for key, kind in kinds.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(key), kind):
            raise CheckpointError(f"{MANIFEST} has no valid {key!r}", where=str(path))
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            "this checkpoint has another format", where=str(path), value=manifest["format"], expected=str(FORMAT)
        )
    if set(manifest["files"]) != set(_FILES):
        raise CheckpointError(
            f"{MANIFEST} names other files", where=str(path), value=sorted(manifest["files"]), expected=str(_FILES)
        )
    return dict(manifest)


def _looks_complete(path: Path) -> bool:
    try:
        manifest = _read_manifest(path)
        return all((path / name).stat().st_size == manifest["files"][name]["size_bytes"] for name in _FILES)
    except (CheckpointError, OSError, KeyError, TypeError):
        return False


def _check_file(path: Path, name: str, entry: Any) -> None:
    """Compare a file with its manifest entry ``{"size_bytes": int, "sha256": hex}``."""
    try:
        with open(path / name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read", where=str(path), value=error.strerror) from error
    if not isinstance(entry, dict) or (size, digest) != (entry.get("size_bytes"), entry.get("sha256")):
        raise CheckpointError(f"{name} is not what {MANIFEST} says", where=str(path), value=f"{size} bytes, {digest}")


def _remove(path: Path) -> None:
    """Remove a set; renamed first, so that a kill in between leaves no half set under a set's name."""
    doomed = path.with_name(f"{_TEMPORARY}{path.name}-removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed)


def _remove_temporary(root: Path) -> None:
    for path in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path)
