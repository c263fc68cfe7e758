"""Which keys may stand where in an experiment: the typed model, walked along the values given."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from srl.api.experiment import Experiment, PluginMapping
from srl.api.suggest import nearest
from srl.api.yaml_text import KeyPath

OptionsOf = Callable[[KeyPath, Mapping[str, Any]], type[BaseModel] | None]
"""Key path and value of a plugin mapping to the model of its options; ``None`` where it is not known."""


@dataclass(frozen=True)
class Place:
    """One place in an experiment: its path, the type that belongs there, the value given (``None`` if none)."""

    path: KeyPath
    annotation: Any
    value: Any


class KeyTree:
    """The places of an experiment.

    Args:
        raw: The experiment as written.
        options_of: Finds the options model of a plugin mapping.
    """

    def __init__(self, raw: Mapping[str, Any], options_of: OptionsOf) -> None:
        self.root = Place((), Experiment, raw)
        self._options_of = options_of

    def at(self, path: KeyPath) -> Place | None:
        """The place at a path, ``None`` if there is no such place."""
        place: Place | None = self.root
        for key in path:
            place = self.children(place).get(key) if place is not None else None
        return place

    def children(self, place: Place) -> dict[str, Place]:
        """Places below, by key; empty for scalars."""
        annotation = _member(place.annotation, place.value)
        value: Mapping[str, Any] = place.value if isinstance(place.value, Mapping) else {}

        def below(keys: Mapping[str, Any]) -> dict[str, Place]:
            return {key: Place((*place.path, key), kind, value.get(key)) for key, kind in keys.items()}

        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return below(self._fields(annotation, place.path, value))
        if get_origin(annotation) is dict:
            return below(dict.fromkeys(value, get_args(annotation)[1]))
        if get_origin(annotation) is tuple and isinstance(place.value, list | tuple):
            kind = get_args(annotation)[0]
            return {str(i): Place((*place.path, str(i)), kind, entry) for i, entry in enumerate(place.value)}
        return {}

    def description(self, place: Place, key: str) -> str:
        """What the model says about a key below a place; empty if it says nothing."""
        annotation = _member(place.annotation, place.value)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        options = self._options_of(place.path, place.value or {}) if issubclass(annotation, PluginMapping) else None
        for model in (annotation, options):
            if model is not None and key in model.model_fields:
                return model.model_fields[key].description or ""
        return ""

    def is_open(self, place: Place) -> bool:
        """True if any key may stand below: free-form options, and those of plugins whose options are not known."""
        annotation = _member(place.annotation, place.value)
        if annotation is Any:
            return True
        if get_origin(annotation) is dict:
            return get_args(annotation)[1] is Any
        if isinstance(annotation, type) and issubclass(annotation, PluginMapping):
            return self._options_of(place.path, place.value or {}) is None
        return False

    def paths(self, place: Place | None = None) -> Iterator[str]:
        """All known places below one (the root if ``None``), as dotted paths."""
        for child in self.children(place or self.root).values():
            yield ".".join(child.path)
            yield from self.paths(child)

    def suggestion(self, path: KeyPath) -> str:
        """A hint for a path that does not exist: nearest key at its level, else nearest path anywhere; may be empty."""
        parent = self.at(path[:-1])
        siblings = list(self.children(parent)) if parent else []
        close = [".".join((*path[:-1], key)) for key in nearest(path[-1], siblings)]
        known = list(self.paths())
        close = close or [name for name in known if name.rpartition(".")[2] == path[-1]]
        close = close or nearest(".".join(path), known)
        if close:
            return "Did you mean " + " or ".join(f"'{name}'" for name in close[:3]) + "?"
        return f"Known keys here: {', '.join(sorted(siblings))}" if siblings else ""

    def _fields(self, model: type[BaseModel], path: KeyPath, value: Mapping[str, Any]) -> dict[str, Any]:
        fields = {name: field.annotation for name, field in model.model_fields.items()}
        if not issubclass(model, PluginMapping):
            return fields
        options = self._options_of(path, value)
        if options is None:
            return {**dict.fromkeys(value, Any), **fields}
        return {**fields, **{name: field.annotation for name, field in options.model_fields.items()}}


def _member(annotation: Any, value: Any) -> Any:
    """The annotation without ``Annotated``; of a union the model that the value's ``kind`` chooses."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    models = [kind for kind in get_args(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    if not isinstance(value, Mapping) or not models:
        return None
    if len(models) == 1:
        return models[0]
    return next((model for model in models if model.model_fields["kind"].default == value.get("kind")), None)
