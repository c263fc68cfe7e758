"""Wrappers named for environments that are batches in C++: none goes around these; an option may do the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from srl.api.errors import SRLError
from srl.api.registry import BUILT_IN
from srl.api.suggest import did_you_mean

KEY = "wrappers"


def refused_wrappers(
    options: Mapping[str, Any], kind: str, instead: Mapping[str, str], otherwise: str
) -> list[SRLError]:
    """One error per wrapper, with the option that does the same.

    Args:
        options: The environment's options as written.
        kind: The environment type.
        instead: Wrapper to what does the same here, as ``key (what it says)``.
        otherwise: What to do for all other wrappers.
    """
    if KEY not in options:
        return []
    what = f"no wrapper goes around environments of the type '{kind}', which are a batch of its own"
    given = options[KEY]
    entries = list(given) if isinstance(given, list | tuple) else [given]
    if not entries:
        return [SRLError(what, where=KEY, hint="Leave the key out.")]
    return [_refused(what, f"{KEY}.{index}", entry, instead, otherwise) for index, entry in enumerate(entries)]


def without_wrappers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that remain to be checked."""
    return {key: value for key, value in options.items() if key != KEY}


def _refused(what: str, where: str, entry: Any, instead: Mapping[str, str], otherwise: str) -> SRLError:
    name = entry.get("type") if isinstance(entry, Mapping) else entry
    if isinstance(name, str) and name in instead:
        return SRLError(what, where=where, value=name, hint=f"Here the option {instead[name]} does the same.")
    near = ""
    if isinstance(name, str) and ":" not in name and name not in BUILT_IN["wrapper"]:
        near = f" {did_you_mean(name, instead, 'wrappers with an option here')}"
    return SRLError(what, where=where, value=name, hint=otherwise + near)
