"""``key.path=value`` on the command line, applied to an experiment as written; values are YAML."""

from __future__ import annotations

from typing import Any

from srl.api.errors import ExperimentError, SRLError
from srl.api.keys import KeyTree
from srl.api.suggest import nearest
from srl.api.yaml_text import KeyPath, parse_value

NAMED = ("policies", "streams", "workers", "sinks")


def split(text: str) -> tuple[KeyPath, Any]:
    """Key path and value of one override.

    Raises:
        SRLError: If it is not of the form ``key.path=value``, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise SRLError("not an override", value=text, expected="key.path=value, such as stop.env_steps=100000")
    try:
        return path, parse_value(value)
    except ExperimentError as error:
        raise SRLError(f"the value is {error.problems[0].what}", where=key, value=value) from None


def apply(raw: dict[str, Any], path: KeyPath, value: Any, tree: KeyTree) -> None:
    """Set a value in ``raw`` (changed in place). ``null`` removes a policy, stream, worker group or sink.

    Args:
        raw: The experiment as written; nested mappings and lists are its own.
        path: Where.
        value: What.
        tree: The places of ``raw``.

    Raises:
        SRLError: If there is no such place, with the nearest one.
    """
    _check_place(path, value, tree)
    target: Any = raw
    for key in path[:-1]:
        if isinstance(target, list):
            target = target[int(key)]
        else:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
    if isinstance(target, list):
        target[int(path[-1])] = value
    elif value is None and len(path) == 2 and path[0] in NAMED:
        del target[path[-1]]
    else:
        target[path[-1]] = value


def _check_place(path: KeyPath, value: Any, tree: KeyTree) -> None:
    place = tree.root
    for depth, key in enumerate(path):
        child = tree.children(place).get(key)
        if child is None:
            new_entry = depth == 1 and len(path) == 2 and path[0] in NAMED and isinstance(value, dict)
            # One option is enough to name a sink: sinks.wandb.mode=offline.
            new_entry = new_entry or (depth == 1 and path[0] == "sinks" and value is not None)
            if new_entry or tree.is_open(place):
                return
            raise SRLError("no such key", where=".".join(path), hint=_hint(path, tree))
        place = child


def _hint(path: KeyPath, tree: KeyTree) -> str:
    whole = nearest(".".join(path), tree.paths(), count=1)
    return f"Did you mean '{whole[0]}'?" if whole else tree.suggestion(path)
