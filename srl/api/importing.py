"""From text to Python objects: ``package.module:Attr`` and ``/path/file.py:Attr``, resolvable in every process.

A file is imported under a module name that follows from its absolute path, so that every process that imports the same
file has the same module, whatever its start method; the file is never ``__main__`` there.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from srl.api.errors import PluginError, UsageError
from srl.api.suggest import did_you_mean

TARGET = re.compile(r"^(?P<module>[A-Za-z_][\w.]*|.*\.py):(?P<attribute>[A-Za-z_][\w.]*)$")

_Result = TypeVar("_Result")
_loading: list[str] = []


def is_target(text: str) -> bool:
    """True for ``package.module:Attr`` and ``path/file.py:Attr``."""
    return TARGET.match(text) is not None


def is_file(text: str) -> bool:
    """True if ``text`` names a Python file rather than a module."""
    return text.endswith(".py")


def absolute(text: str, base: Path) -> str:
    """``file.py`` and ``file.py:Attr`` with the path made absolute against ``base``; anything else unchanged."""
    path, colon, attribute = text.rpartition(":") if is_target(text) else (text, "", "")
    if not is_file(path):
        return text
    return str((base / Path(path).expanduser()).resolve()) + colon + attribute


def import_module(name: str, where: str = "") -> ModuleType:
    """Import a module, or a file by its absolute path.

    Raises:
        PluginError: With the type, message and place of what was raised inside.
    """
    if is_file(name):
        return _import_file(Path(name), where)
    try:
        return _guarded(name, lambda: importlib.import_module(name))
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(name, error, where) from error


def import_target(target: str, where: str = "") -> Any:
    """The object that ``package.module:Attr`` or ``/path/file.py:Attr`` names.

    Args:
        target: The text.
        where: Key path for messages.

    Raises:
        PluginError: If the text has another form, the import fails, or the module has no such attribute.
    """
    match = TARGET.match(target)
    if match is None:
        raise PluginError(
            "not the name of a Python object", where=where, value=target, expected="package.module:Attr or file.py:Attr"
        )
    value: Any = import_module(match["module"], where)
    module = value
    for part in match["attribute"].split("."):
        if not hasattr(value, part):
            known = [name for name in vars(module) if not name.startswith("_")]
            raise PluginError(
                f"'{match['module']}' has no '{match['attribute']}'",
                where=where,
                value=target,
                hint=did_you_mean(match["attribute"], known, "attributes"),
            )
        value = getattr(value, part)
    return value


def target_of(value: Any, where: str = "") -> str:
    """The text under which another process finds a class or function.

    Raises:
        PluginError: For what no other process can import: lambdas, classes and functions defined in functions, and
            what was typed into an interactive session.
    """
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if "<lambda>" in name or "<locals>" in name:
        raise PluginError(
            "a lambda, or something defined inside a function, cannot be found by other processes",
            where=where,
            value=name,
            expected="a class or function at the top level of a module or file",
        )
    module = sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None)
    if value.__module__ == "__main__" and not file:
        raise PluginError(
            "what is defined in an interactive session cannot be found by other processes",
            where=where,
            value=name,
            expected="a class or function in a file",
            hint=f"Write it into one (in a notebook with %%writefile mine.py) and name it './mine.py:{name}'.",
        )
    if value.__module__ == "__main__" or value.__module__.startswith("srl_plugin_"):
        return f"{Path(str(file)).resolve()}:{name}"
    return f"{value.__module__}:{name}"


def refuse_while_importing(action: str) -> None:
    """Called by whatever starts processes: an experiment or plugin that is only being imported must not do so.

    Raises:
        UsageError: If a plugin or experiment file is being imported in this process, naming the file.
    """
    if _loading:
        raise UsageError(
            f"this file {action} while it is being imported by a trial",
            where=_loading[-1],
            hint="Every worker imports the file that defines its environment or algorithm. Put what starts a trial "
            'under: if __name__ == "__main__":',
        )


def place_of(error: BaseException) -> str:
    """``file:line`` of the innermost frame of an exception that is not part of the import system."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"


def _import_file(path: Path, where: str) -> ModuleType:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"srl_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise PluginError("no such file", where=where, value=str(path), expected="a Python file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError("not a Python file", where=where, value=str(path))
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: modules beside the file are found and shadow nothing
    sys.modules[name] = module
    try:
        _guarded(str(path), lambda: loader.exec_module(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, PluginError | UsageError):
            raise
        raise _failure(str(path), error, where) from error
    return module


def _guarded(name: str, action: Callable[[], _Result]) -> _Result:
    _loading.append(name)
    try:
        return action()
    finally:
        _loading.pop()


def _failure(name: str, error: BaseException, where: str) -> PluginError:
    return PluginError(
        f"importing '{name}' failed: {type(error).__name__}: {error}", where=where, hint=f"Raised at {place_of(error)}"
    )
