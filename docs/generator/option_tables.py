"""Tables of options, made from the JSON Schema of the pydantic models that check them."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

JsonSchema = Mapping[str, Any]

UNITS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "env_steps": "env steps",
    "updates": "updates",
    "frames": "frames",
    "steps": "env steps",
    "episodes": "episodes",
    "rows": "rows",
    "lag": "versions",
    "coefficient": "factor",
    "return": "return",
}
"""Unit by the last words of a key: the keys of an experiment carry their units in their names."""

UNITS_BY_KEY = {
    "frames_per_step": "frames per env step",
    "frame_skip": "frames per env step",
    "max_frames_per_episode": "frames",
    "gamma": "factor per env step",
    "gae_lambda": "factor",
    "minibatch_rows": "transitions",
    "target_kl": "nats",
    "size": "",
}

NAME_PATTERN = "A-Za-z0-9_"


@dataclass(frozen=True)
class Section:
    """One model at one place of the experiment.

    Attributes:
        path: Key path of the mapping; placeholders in capitals. Empty = the top level.
        condition: What must hold there, such as ``kind: actor``; empty if nothing.
        schema: Schema of the mapping.
    """

    path: str
    condition: str
    schema: JsonSchema


def sections(model: type[BaseModel], path: str = "", condition: str = "", description: str = "") -> list[Section]:
    """The model and every model below it, each with the key path where it stands.

    Args:
        model: The model.
        path: Where it stands.
        condition: What must hold there.
        description: What it is for; empty = the model's own words.
    """
    schema = model.model_json_schema(by_alias=True)
    defs = schema.get("$defs", {})
    return list(_walk({**schema, "description": description or schema.get("description", "")}, defs, path, condition))


def table(section: Section) -> str:
    """Markdown table of a section's keys: type, unit, default, meaning; every key has an anchor of its own."""
    required = section.schema.get("required", [])
    if not section.schema.get("properties"):
        return "It has no options."
    rows = ["| Key | Type and unit | Default | Meaning |", "| --- | --- | --- | --- |"]
    for key, entry in section.schema.get("properties", {}).items():
        path = f"{section.path}.{key}" if section.path else key
        anchor = html.escape(anchor_of(path, section.condition))
        unit = _unit(key, entry)
        cells = (
            f'<code id="{anchor}">{key}</code>',
            f"{_type(entry)}; *{unit}*" if unit else _type(entry),
            "**required**" if key in required else _default(entry),
            _text(entry.get("description", "")),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def heading(section: Section, level: int) -> str:
    """Heading and description of a section."""
    title = f"`{section.path}`" if section.path else "Top level"
    if section.condition:
        title += f" with `{section.condition}`"
    anchor = f"at-{anchor_of(section.path or 'top', section.condition)}"
    return f"{'#' * level} {title} {{ #{anchor} }}\n\n{_text(section.schema.get('description', ''))}\n"


def anchor_of(path: str, condition: str = "") -> str:
    """The anchor of a key, such as ``workers.NAME.count-actor``."""
    suffix = condition.rpartition(" ")[2]
    return f"{path}-{suffix}" if suffix else path


def _walk(schema: JsonSchema, defs: Mapping[str, Any], path: str, condition: str) -> Iterator[Section]:
    yield Section(path, condition, schema)
    for key, entry in schema.get("properties", {}).items():
        below = f"{path}.{key}" if path else key
        for place, reference, inner in _models(entry, below):
            if reference != "PluginMapping":
                yield from _walk(defs[reference], defs, place, inner)


def _models(entry: JsonSchema, path: str) -> Iterator[tuple[str, str, str]]:
    """(path, name of the definition, condition) of every model an entry may hold."""
    if "$ref" in entry:
        yield path, _reference(entry), ""
    discriminator = entry.get("discriminator", {})
    for value, target in discriminator.get("mapping", {}).items():
        yield path, _reference({"$ref": target}), f"{discriminator['propertyName']}: {value}"
    if not discriminator:
        for choice in [*entry.get("anyOf", []), *entry.get("oneOf", []), *entry.get("allOf", [])]:
            yield from _models(choice, path)
    for values in _values_by_name(entry):
        yield from _models(values, f"{path}.NAME")
    if isinstance(entry.get("items"), Mapping):
        yield from _models(entry["items"], f"{path}.N")


def _values_by_name(entry: JsonSchema) -> list[JsonSchema]:
    """What the values of a mapping with free names may be."""
    found = [entry.get("additionalProperties"), *entry.get("patternProperties", {}).values()]
    return [values for values in found if isinstance(values, Mapping) and values]


def _reference(entry: JsonSchema) -> str:
    return str(entry["$ref"]).rpartition("/")[2]


def _type(entry: JsonSchema) -> str:
    """The type in words, with its bounds."""
    if "const" in entry:
        return f"`{_value(entry['const'])}`"
    if "enum" in entry:
        return ", ".join(f"`{_value(value)}`" for value in entry["enum"])
    choices = entry.get("anyOf") or entry.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices))
    if "$ref" in entry or "allOf" in entry:
        return "mapping"
    return _simple_type(entry)


def _simple_type(entry: JsonSchema) -> str:
    kind = entry.get("type")
    bounds = _bounds(entry)
    if kind == "array":
        items = entry.get("items") or entry.get("prefixItems", [{}])[0]
        inner = _type(items) if isinstance(items, Mapping) else "values"
        return f"list of: {inner}{bounds}"
    if kind == "object":
        inner = " or ".join(dict.fromkeys(_type(values) for values in _values_by_name(entry)))
        return f"mapping from names to: {inner}" if inner else "mapping"
    words = {
        "integer": "whole number",
        "number": "number",
        "boolean": "`true` or `false`",
        "null": "`null`",
        "string": "name" if NAME_PATTERN in entry.get("pattern", "") else "text",
        None: "any value",
    }
    return words[kind] + bounds


def _bounds(entry: JsonSchema) -> str:
    words = {
        "minimum": "at least {}",
        "exclusiveMinimum": "more than {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "less than {}",
        "minItems": "at least {} entries",
    }
    if entry.get("type") == "array" and entry.get("minItems") == entry.get("maxItems") and "minItems" in entry:
        words = {"minItems": "{} entries"}
    found = [text.format(f"{entry[key]:,}") for key, text in words.items() if key in entry]
    pattern = entry.get("pattern", "")
    if pattern and NAME_PATTERN not in pattern:
        found.append(f"of the form `{pattern}`")
    return ", " + ", ".join(found) if found else ""


def _unit(key: str, entry: JsonSchema) -> str:
    if key in UNITS_BY_KEY:
        return UNITS_BY_KEY[key]
    kinds = {entry.get("type")} | {choice.get("type") for choice in entry.get("anyOf", [])}
    if not kinds & {"integer", "number"}:
        return ""
    return next((unit for ending, unit in UNITS.items() if key == ending or key.endswith(f"_{ending}")), "")


def _value(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(one)}" for key, one in value.items()) + "}"
    return str(value) if value != "" else "''"


def _default(entry: JsonSchema) -> str:
    """The default in YAML; of a mapping without any: what its own keys have."""
    if "default" in entry:
        return f"`{_value(entry['default'])}`"
    return "its keys' defaults" if "$ref" in entry else "`[]`" if entry.get("type") == "array" else "`{}`"


def _text(text: str) -> str:
    """A docstring or description in Markdown, without line breaks inside a paragraph."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(text))]
    return re.sub(r"``([^`]+)``", r"`\1`", "\n\n".join(paragraphs)).replace("<", "&lt;")
