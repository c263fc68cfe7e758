"""Options of environment factories: validation with every problem at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from srl.api.errors import ExperimentError, SRLError
from srl.api.problems import expected_value, key_path, near_value, shown_value
from srl.api.suggest import did_you_mean


class Options(BaseModel):
    """Base of the options models: frozen, unknown keys forbidden."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, populate_by_name=True, allow_inf_nan=False
    )


AnyOptions = TypeVar("AnyOptions", bound=Options)


def option_problems(model: type[BaseModel], options: Mapping[str, Any]) -> list[SRLError]:
    """What is wrong with the options, every problem at once.

    Args:
        model: The options model.
        options: The mapping as written.

    Returns:
        One error per problem; ``where`` is the key.
    """
    try:
        model.model_validate(dict(options))
    except ValidationError as error:
        by_path: dict[str, list[dict[str, Any]]] = {}
        for detail in error.errors(include_url=False):
            path = ".".join(key_path(detail["loc"], options))  # the members of a union are no keys
            by_path.setdefault(path, []).append(dict(detail))
        return [_problem(model, path, details) for path, details in by_path.items()]
    return []


def parse_options(model: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
    """The options as a model.

    Raises:
        ExperimentError: With every problem.
    """
    problems = option_problems(model, options)
    if problems:
        raise ExperimentError(problems, source="environment")
    return model.model_validate(dict(options))


def worker_threads() -> int:
    """The worker's share of the cores, which its shell put into OMP_NUM_THREADS; 1 if it did not."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(text)) if text.isdecimal() else 1


def known_keys(model: type[BaseModel]) -> list[str]:
    """The keys of the model as a person writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _problem(model: type[BaseModel], where: str, details: list[dict[str, Any]]) -> SRLError:
    first = details[0]
    if first["type"] == "extra_forbidden":
        keys = known_keys(model)
        return SRLError("unknown key", where=where, hint=did_you_mean(where, keys, "keys"))
    if first["type"] == "missing":
        return SRLError("missing key", where=where)
    if first["type"] == "value_error":
        return SRLError(str(first["ctx"]["error"]), where=where)
    expected = list(dict.fromkeys(expected_value(detail) for detail in details))
    value = shown_value(first["input"])
    what = "no value" if value is None else "wrong value"
    return SRLError(what, where=where, value=value, expected=" or ".join(expected), hint=near_value(value, expected))
