"""What is wrong with a plugin's class, found when it is looked up: each problem with the class's file and line.

The base classes say what a plugin must have; a missing method would otherwise show as a TypeError in some process.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from srl.api.algorithm import AlgorithmPlugin
from srl.api.errors import PluginError
from srl.api.importing import import_target, is_target, place_of
from srl.api.suggest import nearest


def check_class(value: Any, base: type[Any], what: str, target: str, where: str = "") -> None:
    """Check that a class can be used as a plugin.

    Args:
        value: What the plugin's name leads to.
        base: The class that it must be derived from.
        what: What it is to be, such as ``plugin of kind 'algorithm'``.
        target: Its name, for messages.
        where: Key path for messages.

    Raises:
        PluginError: It is no class, not derived from ``base``, or lacks something; with its file and line.
    """
    if not (isinstance(value, type) and issubclass(value, base)):
        raise PluginError(
            f"not {'an' if what[0] in 'aeiou' else 'a'} {what}",
            where=where,
            value=target,
            expected=f"a subclass of {_name(base)}",
            hint=_defined(value),
        )
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise PluginError(
            f"this {what} lacks methods",
            where=where,
            value=target,
            expected=f"{', '.join(f'{name}()' for name in missing)} as described in {_name(base)}",
            hint=f"{_misspelt(value, base, missing)}{_defined(value)}",
        )
    for problem, expected in _misfits(value, base):
        raise PluginError(problem, where=where, value=target, expected=expected, hint=_defined(value))


def load_class(target: str, base: type[Any], what: str, where: str = "") -> Any:
    """Import a class by name and check it.

    Args:
        target: ``package.module:Attr`` or ``/path/file.py:Attr``.
        base: The class that it must be derived from.
        what: What it is to be, for messages.
        where: Key path for messages.

    Raises:
        PluginError: See :func:`check_class` and :func:`srl.api.importing.import_target`.
    """
    value = import_target(target, where)
    check_class(value, base, what, target, where)
    return value


def failure(doing: str, error: BaseException, owner: Any, where: str = "", expected: str = "") -> PluginError:
    """The error for what a plugin raised, with the place; raise it from the original, which keeps the traceback.

    Args:
        doing: What the plugin was to do, such as ``policy_spec() of 'my.module:Mine'``.
        error: What it raised.
        owner: The plugin's class or function; the innermost line in its file is named.
        where: Key path for messages.
        expected: What it should have done.
    """
    return PluginError(
        f"{doing} raised {type(error).__name__}: {error}",
        where=where,
        expected=expected,
        hint=f"Raised at {_place_in(error, owner)}",
    )


def definition(value: Any) -> str:
    """``file:line`` of a class or function; ``""`` if Python does not know it."""
    try:
        return f"{inspect.getsourcefile(value)}:{inspect.getsourcelines(value)[1]}"
    except (TypeError, OSError):
        return ""


def _place_in(error: BaseException, owner: Any) -> str:
    """The innermost line of the owner's file that an exception went through; of any file if of none there."""
    try:
        file = inspect.getsourcefile(owner)
    except TypeError:
        file = None
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else place_of(error)


def _misfits(value: type[Any], base: type[Any]) -> Iterator[tuple[str, str]]:
    """Problem and expectation of each attribute that is there but of the wrong form."""
    for name in dir(base):
        wanted, found = inspect.getattr_static(base, name), inspect.getattr_static(value, name)
        if isinstance(wanted, classmethod) and not isinstance(found, classmethod | staticmethod):
            yield f"{name}() is called on the class, not on an object of it", f"@classmethod above def {name}(cls, ...)"
    if issubclass(value, AlgorithmPlugin):
        yield from _algorithm_misfits(value)


def _algorithm_misfits(plugin: type[AlgorithmPlugin]) -> Iterator[tuple[str, str]]:
    name, config, implementation = (getattr(plugin, key, None) for key in ("name", "config", "implementation"))
    if not isinstance(name, str) or not name:
        yield f"its attribute 'name' is {name!r}", "the registered name, as text"
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        yield f"its attribute 'config' is {config!r}", "a pydantic.BaseModel class with the algorithm's options"
    if not isinstance(implementation, str) or not is_target(implementation):
        yield (
            f"its attribute 'implementation' is {implementation!r}",
            "the name of the srl.api.algorithm.Algorithm class as text: 'package.module:Attr' or f'{__file__}:Attr'",
        )


def _misspelt(value: type[Any], base: type[Any], missing: list[str]) -> str:
    """A hint for a method that is there under nearly the right name."""
    own = [name for name in vars(value) if name not in vars(base) and not name.startswith("__")]
    pairs = [(name, close[0]) for name in missing if (close := nearest(name, own, count=1))]
    return "".join(f"Is '{mine}' meant as '{name}'? " for name, mine in pairs)


def _defined(value: Any) -> str:
    place = definition(value)
    return f"Defined at {place}" if place else ""


def _name(base: type[Any]) -> str:
    return f"{base.__module__}.{base.__qualname__}"
