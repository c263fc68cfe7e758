"""Options as plain data: what can be written to a file and read by any process. Used for experiments made in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from srl.api.errors import PluginError, SRLError
from srl.api.importing import absolute, is_target, target_of


def plain(value: Any, path: str, problems: list[SRLError]) -> Any:
    """``value`` with classes and functions replaced by their import names, tuples by lists, paths by text.

    Args:
        value: Anything a Python experiment may hold.
        path: Its key path, for messages.
        problems: Receives one entry for each part that no other process could be given, by key path.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            problems.append(SRLError("not a finite number", where=path, value=value))
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry, f"{path}.{key}" if path else str(key), problems) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{path}.{index}", problems) for index, entry in enumerate(value)]
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return _importable(value, path, problems)
    problems.append(
        SRLError(
            f"a {type(value).__name__} cannot be written to a file and read by another process",
            where=path,
            expected="text, numbers, true or false, null, lists, mappings, or a class or function of a module",
            hint="Make the object inside the environment's or algorithm's own constructor.",
        )
    )
    return None


def absolute_paths(value: Any, base: Any) -> Any:
    """Plain data with ``./file.py`` and ``./file.py:Attr`` made absolute against the directory ``base``."""
    if isinstance(value, Mapping):
        return {key: absolute_paths(entry, base) for key, entry in value.items()}
    if isinstance(value, list):
        return [absolute_paths(entry, base) for entry in value]
    return absolute(value, base) if isinstance(value, str) else value


def code_names(value: Any, path: str) -> list[tuple[str, str]]:
    """(key path, text) of every text in plain data that names code to import: ``module:Attr``, ``module:Id-v0``.

    What stands under a key ``modules`` counts whatever its form.
    """
    if isinstance(value, Mapping):
        listed = [(f"{path}.modules", str(value["modules"]))] if value.get("modules") else []
        return [*listed, *(found for key, entry in value.items() for found in code_names(entry, f"{path}.{key}"))]
    if isinstance(value, list):
        return [found for index, entry in enumerate(value) for found in code_names(entry, f"{path}.{index}")]
    if isinstance(value, str) and (is_target(value) or _names_module(value)):
        return [(path, value)]
    return []


def _names_module(text: str) -> bool:
    module, colon, rest = text.partition(":")
    return bool(colon and rest and not rest[0].isspace()) and all(part.isidentifier() for part in module.split("."))


def _importable(value: Any, path: str, problems: list[SRLError]) -> str | None:
    try:
        return target_of(value, path)
    except PluginError as error:
        problems.append(error)
        return None
