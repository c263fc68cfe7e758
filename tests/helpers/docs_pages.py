"""Reading the pages of the site: code blocks and the names that tables list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]+)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block: page below docs/, line, language, text without the fence's indentation."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> dict[str, str]:
    """Every page that is written by hand here, by its path below docs/; plugins.md has tests of its own."""
    return {
        str(path.relative_to(DOCS)): path.read_text(encoding="utf-8")
        for path in sorted(DOCS.rglob("*.md"))
        if "results" not in path.parts and path.name != "plugins.md"
    }


def code_blocks(*languages: str) -> list[CodeBlock]:
    """The fenced blocks of all pages in one of the languages."""
    found = []
    for page, text in pages().items():
        for match in FENCE.finditer(text):
            if match["language"] in languages:
                indent = len(match["indent"])
                lines = [line[indent:] for line in match["text"].splitlines()]
                number = text.count("\n", 0, match.start()) + 1
                found.append(CodeBlock(page, number, match["language"], "\n".join(lines) + "\n"))
    return found


def listed_names(text: str) -> set[str]:
    """Code in the first column of every table of a text."""
    names: set[str] = set()
    for line in text.splitlines():
        if line.startswith("| `"):
            names.update(re.findall(r"`([^`]+)`", line.split(" | ")[0]))
    return names
