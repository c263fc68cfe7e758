"""The experiment as JSON Schema, for editors and other programs."""

from __future__ import annotations

from typing import Any

from srl.api.experiment import Experiment
from srl.api.registry import REGISTRY, Registry


def json_schema(registry: Registry = REGISTRY) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of an experiment, with the options of every registered algorithm.

    Args:
        registry: Where the algorithms come from.

    Raises:
        PluginError: If a registered algorithm cannot be imported.
    """
    schema = Experiment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    choices = []
    for name in registry.names("algorithm"):
        definition = f"algorithm.{name}"
        options = registry.resolve("algorithm", name).config.model_json_schema(
            ref_template=f"#/$defs/{definition}.{{model}}"
        )
        for inner, value in options.pop("$defs", {}).items():
            schema["$defs"][f"{definition}.{inner}"] = value
        options.setdefault("properties", {})["type"] = {"const": name}
        schema["$defs"][definition] = options
        choices.append(
            {"if": {"properties": {"type": {"const": name}}}, "then": {"$ref": f"#/$defs/{definition}"}},
        )
    schema["$defs"]["Policy"]["properties"]["algorithm"]["allOf"] = choices
    return schema
