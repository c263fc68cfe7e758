"""Files of the repository outside `docs/` that are pages of the site, and links that lead out of it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

PAGES = {
    "changelog.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
    "algorithms/ppo.md": "srl/algorithms/ppo/README.md",
}
"""Page to file of the repository."""

HOME = {"README.md": "index.md"}
"""Files of the repository that a page of the site stands for."""

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def linked(markdown: str, page: str, repository: Path) -> str:
    """A page's text with the links that lead out of `docs/` mended.

    A link to a file that is a page of the site leads to the page. One to any other file of the repository (a module, a
    result) becomes text: the site does not hold it.

    Args:
        markdown: The text.
        page: Path of the page below `docs/`.
        repository: The repository's root.
    """
    source = PAGES.get(page, f"docs/{page}")

    def mended(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = _place(path)
        if place is None:
            return _as_text(text, path) if (repository / path).exists() else match[0]
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor})"

    return _outside_code(markdown, lambda part: LINK.sub(mended, part))


def _place(path: str) -> str | None:
    """Where a file of the repository is on the site."""
    pages = {file: page for page, file in PAGES.items()} | HOME
    if path in pages:
        return pages[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def _as_text(text: str, path: str) -> str:
    name = text.strip("`")
    return f"`{path}`" if path.endswith(name) or name in path else f"{text} (`{path}`)"


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a change everywhere but in fenced code; code in a line is only left alone where it is no link's text."""
    parts, end = [], 0
    for match in re.finditer(r"^```.*?^```", markdown, re.DOTALL | re.MULTILINE):
        parts += [change(markdown[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(markdown[end:])])
