"""Nested state (dicts, lists, numbers, text, arrays) as one JSON structure and a flat mapping of arrays.

Nothing in it is executable, and what comes out equals what went in: dtypes of arrays and numpy scalars, tuples, keys
that are no text, integers of any size, NaN and infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import SRLError

Arrays = dict[str, NDArray[Any]]


class StructureError(SRLError):
    """A value that state cannot hold, or a structure that was not made here; ``where`` is the path to it."""


def flatten(value: Any) -> tuple[Any, Arrays]:
    """Split ``value`` into a JSON-compatible structure and arrays by name (``a0``, ``a1``, ... in order).

    Raises:
        StructureError: For anything but dict, list, tuple, str, numbers, bool, ``None``, numpy arrays and scalars.
    """
    arrays: Arrays = {}
    return _flatten(value, "state", arrays), arrays


def unflatten(structure: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The inverse of :func:`flatten`.

    Raises:
        StructureError: The structure names an array that is not there, or has an unknown form.
    """
    if isinstance(structure, list):
        return [unflatten(item, arrays) for item in structure]
    if not isinstance(structure, dict):
        return structure
    tag = next((key for key in structure if key.startswith("$")), None)
    if tag is None:
        return {key: unflatten(item, arrays) for key, item in structure.items()}
    return _untag(tag, structure[tag], arrays)


def _flatten(value: Any, path: str, arrays: Arrays) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _flatten_array(value, path, arrays)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Mapping):
        return _flatten_mapping(value, path, arrays)
    if isinstance(value, (list, tuple)):
        items = [_flatten(item, f"{path}[{index}]", arrays) for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    raise StructureError(
        "this kind of value cannot be saved",
        where=path,
        value=f"{type(value).__module__}.{type(value).__qualname__}",
        expected="dict, list, tuple, str, int, float, bool, None or numpy arrays of them",
        hint="Tensors: save tensor.detach().cpu().numpy().",
    )


def _flatten_array(value: NDArray[Any] | np.generic, path: str, arrays: Arrays) -> dict[str, str]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise StructureError("arrays of this dtype cannot be saved", where=path, value=str(array.dtype))
    name = f"a{len(arrays)}"
    arrays[name] = array
    return {"$array" if isinstance(value, np.ndarray) else "$scalar": name}


def _flatten_mapping(value: Mapping[Any, Any], path: str, arrays: Arrays) -> dict[str, Any]:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {str(key): _flatten(item, f"{path}.{key}", arrays) for key, item in value.items()}
    return {
        "$items": [
            [_flatten(key, f"{path} key {key!r}", arrays), _flatten(item, f"{path}[{key!r}]", arrays)]
            for key, item in value.items()
        ]
    }


def _untag(tag: str, content: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if tag == "$float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "$tuple":
        return tuple(unflatten(item, arrays) for item in content)
    if tag == "$items":
        return {unflatten(key, arrays): unflatten(item, arrays) for key, item in content}
    if tag in ("$array", "$scalar") and content in arrays:
        return arrays[content] if tag == "$array" else arrays[content][()]
    raise StructureError("the structure is damaged", where=tag, value=repr(content)[:80])
