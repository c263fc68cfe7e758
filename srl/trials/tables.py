"""Tables for terminals and notebooks, from the same rows."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


def cell(value: Any) -> str:
    """One value as a person reads it: numbers with separators, a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3g}"
    return str(value)


def text_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of aligned columns: numbers to the right, text to the left."""
    columns = list(zip(*([cell(value) for value in row] for row in rows), strict=True)) or [()] * len(names)
    right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(names))]
    widths = [max(len(text) for text in (name, *column)) for name, column in zip(names, columns, strict=True)]

    def line(texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(texts, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line(names), *(line([cell(value) for value in row]) for row in rows)]


def html_table(names: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """The same as HTML, for notebooks; every value is escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell(value))}</td>" for value in row) + "</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
