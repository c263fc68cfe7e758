"""What is wrong with a plugin, found when it is looked up or asked: each problem with the file and line.

The base classes say what a plugin must have and what its methods return; whatever is missing or of another form would
otherwise show as a TypeError in some process.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.errors import PluginError, SRLError
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


def ask(plugin: type[AlgorithmPlugin], method: str, where: str, *arguments: Any) -> Any:
    """What a method of an algorithm's plugin returns.

    Raises:
        SRLError: As the plugin raised it.
        PluginError: It raised something else.
    """
    try:
        return getattr(plugin, method)(*arguments)
    except SRLError:
        raise
    except Exception as error:
        raise failure(f"{method}() of {plugin.__name__}", error, plugin, where) from error


def misfit(plugin: type[AlgorithmPlugin], method: str, where: str, value: Any, expected: str) -> PluginError:
    """The error for a method that returned something that it must not return."""
    return PluginError(
        f"{method}() of {plugin.__name__} returned something else",
        where=where,
        value=value,
        expected=expected,
        hint=_defined(plugin),
    )


def requirements_of(plugin: type[AlgorithmPlugin], config: Any, where: str) -> DataRequirements:
    """What a plugin asks of the data path.

    Raises:
        SRLError: As the plugin raised it.
        PluginError: It raised something else, or returned what nothing can be made of.
    """
    found = ask(plugin, "requirements", where, config)
    if not isinstance(found, DataRequirements):
        raise misfit(plugin, "requirements", where, type(found).__name__, _name(DataRequirements))
    counts = (("rows", 1, False), ("blocks_per_update", 1, True), ("default_lag_versions", 0, True))
    for name, least, may_be_none in counts:
        value = getattr(found, name)
        if not (is_count(value, least) or (may_be_none and value is None)):
            expected = f"'{name}' a whole number, at least {least}{', or None' if may_be_none else ''}"
            raise misfit(plugin, "requirements", where, f"{name}={value!r}", expected)
    if found.mode != "fragment":
        raise misfit(plugin, "requirements", where, f"mode={found.mode!r}", "mode='fragment': there is no other yet")
    return found


def texts_of(plugin: type[AlgorithmPlugin], method: str, where: str, *arguments: Any) -> Sequence[str]:
    """What a method of a plugin returns that is to return several texts; errors as :func:`requirements_of`."""
    found = ask(plugin, method, where, *arguments)
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(text, str) for text in found):
        raise misfit(plugin, method, where, found, "a list or tuple of texts; () if there are none")
    return found


def is_count(value: Any, least: int) -> bool:
    """Whether a value is a whole number, at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


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
