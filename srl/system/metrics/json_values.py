"""Values as valid JSON: NaN and infinity become ``null``, numpy scalars and arrays become numbers and lists."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def json_safe(value: Any) -> Any:
    """A copy of ``value`` that :func:`json.dumps` turns into valid JSON; what JSON has no form for becomes text."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_safe(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return json_safe(value.tolist())
    return str(value) if isinstance(value, Path) else repr(value)


def dump_json(value: Any, indent: int | None = None) -> str:
    """``value`` as valid JSON text, keys in the order given."""
    return json.dumps(json_safe(value), allow_nan=False, indent=indent, ensure_ascii=False)
