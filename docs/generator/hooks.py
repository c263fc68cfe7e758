"""What mkdocs calls while it builds the site: adds the generated pages and the files that lie elsewhere.

Nothing generated is committed, so nothing generated can be out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import command_reference
import experiment_reference
import introductions
import repository_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

RESULTS = "Recorded runs"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every recorded run into the navigation."""
    for entry in _entries(config.nav):
        if isinstance(entry.get(RESULTS), list):
            entry[RESULTS] += [{name: f"results/{name}/README.md"} for name in _recorded(config)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files below `docs/`."""
    root = Path(config.docs_dir).parent
    pages = {
        "reference/experiment.md": experiment_reference.experiment_page(),
        "reference/algorithms.md": experiment_reference.algorithms_page(introductions.ALGORITHMS),
        "reference/networks.md": experiment_reference.networks_page(introductions.NETWORKS),
        "reference/environments.md": experiment_reference.environments_page(introductions.ENVIRONMENTS),
        "reference/bundled.md": experiment_reference.bundled_page(introductions.BUNDLED),
        "reference/sinks.md": experiment_reference.sinks_page(introductions.SINKS),
        "reference/commands.md": command_reference.commands_page(),
        "results/index.md": _results_page(config),
    }
    pages |= {page: (root / file).read_text(encoding="utf-8") for page, file in repository_pages.PAGES.items()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend links that lead out of `docs/`."""
    return repository_pages.linked(markdown, page.file.src_uri, Path(config.docs_dir).parent)


def _entries(nav: Any) -> list[dict[str, Any]]:
    """All mappings of the navigation, at every depth."""
    found = []
    for entry in nav if isinstance(nav, list) else []:
        if isinstance(entry, dict):
            found.append(entry)
            for below in entry.values():
                found += _entries(below)
    return found


def _recorded(config: MkDocsConfig) -> list[str]:
    return sorted(path.parent.name for path in Path(config.docs_dir, "results").glob("*/README.md"))


def _results_page(config: MkDocsConfig) -> str:
    rows = []
    for name in _recorded(config):
        text = Path(config.docs_dir, "results", name, "README.md").read_text(encoding="utf-8")
        paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if not part.startswith("#")]
        rows.append(f"| [{name}]({name}/README.md) | {' '.join(paragraphs[0].split())} |")
    return "\n".join([introductions.RESULTS, "| Recorded run | What it is |", "| --- | --- |", *rows]) + "\n"
