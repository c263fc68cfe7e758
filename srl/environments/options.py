"""Options of environment factories: validation with every problem at once, and near matches for names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from srl.api.errors import ExperimentError, SRLError


class Options(BaseModel):
    """Base of the options models: frozen, unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, populate_by_name=True)


AnyOptions = TypeVar("AnyOptions", bound=Options)


def near_matches(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names close to this one, whatever the case, best first."""
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(candidate.casefold(), candidate)
    return [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=count, cutoff=0.6)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'a', 'b'?``, or the empty text where nothing is near."""
    matches = near_matches(name, known)
    return f"Did you mean {', '.join(repr(match) for match in matches)}?" if matches else ""


def option_problems(model: type[Options], options: Mapping[str, Any]) -> list[SRLError]:
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
        return [_problem(model, dict(detail)) for detail in error.errors(include_url=False)]
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


def known_keys(model: type[Options]) -> list[str]:
    """The keys of the model as a person writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _problem(model: type[Options], detail: dict[str, Any]) -> SRLError:
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        keys = known_keys(model)
        return SRLError(
            "unknown key", where=where, expected=f"one of {', '.join(keys)}", hint=did_you_mean(str(where), keys)
        )
    value = None if detail["type"] in ("missing", "value_error") else detail["input"]
    return SRLError(str(detail["msg"]).removeprefix("Value error, "), where=where, value=value)
