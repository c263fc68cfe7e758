"""What pydantic found wrong, as errors that say where, what was seen, what was expected and the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from srl.api.errors import SRLError
from srl.api.keys import KeyTree
from srl.api.suggest import nearest
from srl.api.yaml_text import COMMAND_LINE, KeyPath

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_long": "at most {max_length} characters",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "union_tag_invalid": "{expected_tags}",
    "none_required": "null",
}


def problems_of(
    error: ValidationError, raw: Any, *, tree: KeyTree, lines: Mapping[KeyPath, int], prefix: KeyPath = ()
) -> list[SRLError]:
    """One problem per key.

    Args:
        error: What pydantic raised.
        raw: The value that was validated.
        tree: The places of the whole experiment, for nearest names.
        lines: Line numbers by key path.
        prefix: Key path of ``raw`` in the experiment.
    """
    by_path: dict[KeyPath, list[Any]] = {}
    for detail in error.errors(include_url=False):
        path = prefix + key_path(detail["loc"], raw)
        if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
            path = (*path, "kind")
        by_path.setdefault(path, []).append(detail)
    return [
        _problem(path, details, tree, lines)
        for path, details in by_path.items()
        if details[0]["type"] != "too_short" or not _any_below(path, by_path)
    ]


def _any_below(path: KeyPath, paths: Iterable[KeyPath]) -> bool:
    """True if an entry of the list at ``path`` has a problem of its own; pydantic then also counts it as absent."""
    return any(len(other) > len(path) and other[: len(path)] == path for other in paths)


def unknown_keys(error: ValidationError, raw: Any) -> list[KeyPath]:
    """Paths of the keys that no model knows."""
    return [key_path(d["loc"], raw) for d in error.errors(include_url=False) if d["type"] == "extra_forbidden"]


def key_path(location: Sequence[int | str], raw: Any) -> KeyPath:
    """Pydantic's location without the names of union members, which are no keys of the experiment.

    Args:
        location: The location.
        raw: The value that was validated; ``None`` if it is not at hand, and the location stays as it is.
    """
    if raw is None:
        return tuple(map(str, location))
    path: list[str] = []
    value = raw
    for position, part in enumerate(location):
        if isinstance(value, Mapping):
            if part in value:
                value = value[part]
            elif position + 1 < len(location):
                continue
            else:
                value = None
        elif isinstance(value, list | tuple) and isinstance(part, int):
            value = value[part]
        else:
            continue
        path.append(str(part))
    return tuple(path)


def with_line(what: str, path: KeyPath, lines: Mapping[KeyPath, int]) -> str:
    """``what`` and the line of the key, or of the nearest mapping around it, where it is known."""
    for length in range(len(path), 0, -1):
        line = lines.get(path[:length])
        if line is not None:
            return f"{what} (override)" if line == COMMAND_LINE else f"{what} (line {line})"
    return what


def _problem(path: KeyPath, details: list[Any], tree: KeyTree, lines: Mapping[KeyPath, int]) -> SRLError:
    first, where = details[0], ".".join(path)
    if first["type"] == "extra_forbidden":
        return SRLError(with_line("unknown key", path, lines), where=where, hint=tree.suggestion(path))
    if first["type"] == "missing":
        return SRLError(with_line("missing key", path, lines), where=where, expected=_description(path, tree))
    if first["type"] == "union_tag_not_found":
        return SRLError(with_line("missing key", path, lines), where=where, expected=_kinds(path))
    if first["type"] == "value_error":
        return SRLError(
            with_line(str(first["ctx"]["error"]), path, lines), where=where, value=shown_value(first["input"])
        )
    expected = list(dict.fromkeys(expected_value(detail) for detail in details))
    value = first["ctx"]["tag"] if first["type"] == "union_tag_invalid" else first["input"]
    return SRLError(
        with_line("wrong value", path, lines) if value is not None else with_line("no value", path, lines),
        where=where,
        value=shown_value(value),
        expected=" or ".join(expected),
        hint=near_value(value, expected),
    )


def expected_value(detail: Any) -> str:
    """What one of pydantic's error details asks for, in our words."""
    template = _EXPECTED.get(detail["type"])
    if detail["type"].startswith("string_pattern") and "A-Za-z0-9_" in detail["ctx"]["pattern"]:
        return "a name: letters, digits, _ and -, beginning with a letter"
    context = {key: f"{value:g}" if isinstance(value, float) else value for key, value in detail.get("ctx", {}).items()}
    return template.format(**context) if template else str(detail["msg"])


def shown_value(value: Any) -> Any:
    """The value, short enough for a message."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def near_value(value: Any, expected: list[str]) -> str:
    """A question after the quoted value that is nearest; empty without one."""
    close = nearest(str(value), re.findall(r"'([^']+)'", " ".join(expected)), count=1)
    return f"Did you mean '{close[0]}'?" if close else ""


def _description(path: KeyPath, tree: KeyTree) -> str:
    parent = tree.at(path[:-1])
    return tree.description(parent, path[-1]) if parent else ""


def _kinds(path: KeyPath) -> str:
    return "kind: sample or inference" if path[0] == "streams" else "kind: actor, policy, trainer or evaluator"
