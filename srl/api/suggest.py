"""Nearest known names for messages about unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that look like ``word``, nearest first; at most ``count``."""
    names = list(dict.fromkeys(known))
    folded = {name.casefold(): name for name in reversed(names)}
    matches = difflib.get_close_matches(word.casefold(), list(folded), n=count, cutoff=0.6)
    return [folded[match] for match in matches]


def did_you_mean(word: str, known: Iterable[str], noun: str = "names") -> str:
    """One sentence for a hint: the nearest names, or the known ones where nothing is near; empty if none is known."""
    names = list(dict.fromkeys(known))
    close = nearest(word, names)
    if close:
        return "Did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:12]) + (", ..." if len(names) > 12 else "")
    return f"Known {noun}: {shown}"
