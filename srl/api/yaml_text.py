"""YAML in and out: safe, with line numbers, duplicate keys as errors, and numbers such as ``1e-3`` read as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from srl.api.errors import ExperimentError, SRLError

KeyPath = tuple[str, ...]
COMMAND_LINE = 0
"""In place of a line number: the value comes from an override."""

_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
MAXIMUM_NODES = 100_000  # aliases can blow a small file up without bound


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, except that ``1e-3`` is a number (as in YAML 1.2) and not text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)


@dataclass
class Document:
    """What a YAML text says.

    Attributes:
        value: Mappings, lists and scalars.
        lines: Key path (list positions as text) to line number, counted from 1.
        problems: Duplicate keys and keys that are not text; the value is usable nevertheless.
    """

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[SRLError] = field(default_factory=list)


def parse(text: str, source: str = "") -> Document:
    """Read one YAML document.

    Raises:
        ExperimentError: The text is not YAML, or uses tags that a safe loader does not know; with line and column.
    """
    loader = _Loader(text)
    document = Document(None)
    try:
        node = loader.get_single_node()
        if node is not None:
            document.value = _Builder(loader, document).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = f"not valid YAML: {error.problem or error.context}"
        raise ExperimentError([SRLError(what, where=place)], source) from None
    except yaml.YAMLError as error:
        raise ExperimentError([SRLError(f"not valid YAML: {error}")], source) from None
    finally:
        loader.dispose()
    return document


def parse_value(text: str) -> Any:
    """One value as it would stand behind a key, for overrides.

    Raises:
        ExperimentError: If it is not YAML.
    """
    return parse(text).value


def dump(value: Mapping[str, Any]) -> str:
    """YAML text of plain data, keys in the order given."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)


class _Builder:
    """Turns a node tree into values, noting lines and duplicate keys."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self.loader = loader
        self.document = document
        self.nodes = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAXIMUM_NODES or len(path) > 100:
            raise yaml.MarkedYAMLError(problem="too large or too deeply nested", problem_mark=node.start_mark)
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            raise yaml.MarkedYAMLError(problem=f"no constructor for the tag {node.tag}", problem_mark=node.start_mark)
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, str(index))) for index, child in enumerate(node.value)]
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._note_duplicates(node, path)
        self.loader.flatten_mapping(node)
        result = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            self.document.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.build(value_node, (*path, key))
        return result

    def _note_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = self._key(key_node), key_node.start_mark.line + 1
            if key in first and key != "<<":
                self.document.problems.append(
                    SRLError(f"key given twice, on lines {first[key]} and {line}", where=".".join((*path, key)))
                )
            first.setdefault(key, line)

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=node.start_mark)
        return str(node.value)
