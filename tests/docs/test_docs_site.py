"""The site: built without a warning, self-contained, and with every key, option and command in its reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import docs_pages
import pytest

from srl.api.experiment import Experiment
from srl.api.registry import BUILT_IN, REGISTRY
from srl.cli import main

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""What a browser fetches by itself."""


class Fetched(HTMLParser):
    """Collects what a page makes the browser fetch, and the page's ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        target = values.get(LOADED.get(tag, ""))
        if target and values.get("rel") not in ("canonical", "next", "prev"):
            self.targets.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    target = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).with_name("mkdocs")), "build", "--strict", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=docs_pages.PROJECT, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_nothing_is_fetched_from_another_host(site):
    files = list(site.rglob("*.html"))
    assert len(files) > 20
    fetched = {target for file in files for target in Fetched(file.read_text(encoding="utf-8")).targets}
    assert len(fetched) > 5
    assert {target for target in fetched if re.match(r"(\w+:)?//", target)} == set()
    assert not [file for file in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", file.read_text())]


def test_what_is_fetched_is_there(site):
    for file in site.rglob("*.html"):
        for target in Fetched(file.read_text(encoding="utf-8")).targets:
            if not target.startswith("data:") and file.name != "404.html":
                assert (file.parent / target.partition("?")[0].partition("#")[0]).exists(), f"{file}: {target}"


def test_search_finds_the_reference(site):
    assert "max_policy_lag" in (site / "search" / "search_index.json").read_text()


def test_generator_is_no_part_of_the_site(site):
    assert not list(site.rglob("*.py"))


def test_every_page_is_reachable_from_the_navigation(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    linked = {target.partition("#")[0].strip("./") for target in re.findall(r'href="([^"]*)"', home)}
    built = {str(file.parent.relative_to(site)) for file in site.rglob("index.html")} - {"."}
    assert built - linked == set()


def keys(schema: dict, path: str = "") -> set[str]:
    """Key paths of the experiment, worked out apart from the generator: names are NAME, list entries N."""

    def below(entry: dict, where: str) -> set[str]:
        found = set()
        for part in [entry, *entry.get("anyOf", []), *entry.get("oneOf", [])]:
            if "$ref" in part:
                definition = schema["$defs"][part["$ref"].rpartition("/")[2]]
                if not definition.get("additionalProperties"):  # options of plugins are elsewhere
                    found |= walk(definition, where)
            for values in [part.get("additionalProperties"), *part.get("patternProperties", {}).values()]:
                if isinstance(values, dict):
                    found |= below(values, f"{where}.NAME")
            if isinstance(part.get("items"), dict):
                found |= below(part["items"], f"{where}.N")
        return found

    def walk(definition: dict, where: str) -> set[str]:
        found = set()
        for key, entry in definition.get("properties", {}).items():
            name = f"{where}.{key}" if where else key
            found |= {name} | below(entry, name)
        return found

    return walk(schema, path)


def test_every_key_of_the_experiment_is_in_the_reference(site):
    wanted = keys(Experiment.model_json_schema())
    assert {"stop.env_steps", "workers.NAME.agents.N.samples", "streams.NAME.on_straggler"} <= wanted
    anchors = Fetched(page(site, "reference/experiment")).ids
    assert len(anchors) == len(set(anchors))
    kinds = r"-(actor|policy|trainer|evaluator|sample|inference)\Z"
    assert wanted <= {re.sub(kinds, "", anchor) for anchor in anchors}


def test_every_option_of_every_algorithm_is_in_the_reference(site):
    anchors = set(Fetched(page(site, "reference/algorithms")).ids)
    for name in BUILT_IN["algorithm"]:
        for key in REGISTRY.resolve("algorithm", name).config.model_fields:
            assert f"policies.NAME.algorithm.{key}-{name}" in anchors


def test_every_environment_type_is_in_the_reference(site):
    anchors = set(Fetched(page(site, "reference/environments")).ids)
    for name in BUILT_IN["environment"]:
        assert any(anchor.startswith("environment.") and anchor.endswith(f"-{name}") for anchor in anchors), name


@pytest.mark.parametrize("name", ["experiment", "algorithms", "networks", "environments"])
def test_every_key_has_a_meaning_and_null_is_explained(site, name):
    """A row is: key, type and unit, default, meaning. Where null is allowed, the meaning says what it stands for."""
    rows = re.findall(r'<tr>\s*<td><code id="([^"]+)">.*?</td>(.*?)</tr>', page(site, f"reference/{name}"), re.DOTALL)
    assert len(rows) > 2
    for key, rest in rows:
        kind, default, meaning = (
            re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", rest, re.DOTALL)
        )
        is_fixed = re.split(r"[.-]", key)[-2 if "-" in key else -1] in ("kind", "type")
        assert meaning or is_fixed, key
        assert default, key
        if "null" in kind:
            assert "null" in meaning, f"{key}: what does null mean?"


def test_every_command_is_in_the_reference(site, capsys):
    assert main(["--help"]) == 0
    commands = re.findall(r"^  ([a-z]+) ", capsys.readouterr().out.partition("other commands")[2], re.MULTILINE)
    assert {"check", "list", "evaluate"} <= set(commands)
    text = re.sub(r"<[^>]+>", "", page(site, "reference/commands"))
    assert [name for name in commands if f"srl-run {name}" not in text] == []


def test_every_recorded_run_has_a_page(site):
    for file in (docs_pages.DOCS / "results").glob("*/README.md"):
        assert (site / "results" / file.parent.name / "index.html").exists()
        assert file.parent.name in page(site, "results")


def test_site_names_nothing_of_the_machine_it_was_built_on(site):
    for file in site.rglob("*.html"):
        assert str(docs_pages.PROJECT) not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize("name", ["index.md", "quick_start.md", "comparison.md"])
def test_figures_of_speed_are_those_of_the_benchmarks(name):
    """Every number of five digits and more that is quoted stands in the benchmarks' own table."""
    quoted = set(re.findall(r"\b\d{2,3},\d{3}\b", docs_pages.pages()[name]))
    measured = (docs_pages.PROJECT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert {figure for figure in quoted if figure not in measured} == set()
    assert quoted or name != "index.md"
