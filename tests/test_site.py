"""The docs as a site, without its builder: places, links, anchors, and YAML that is what it says (decision 52)."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from headworks.config.load import load_bytes

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
READ = [*(f"docs/{page}" for page in PAGES), "docs/llms.txt", "README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"]
SECRET = "a-secret-of-the-test-0123456789abcdef"


@cache
def site() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "mkdocs.yml").read_text()))


def navigation() -> Any:
    spec = importlib.util.spec_from_file_location("site_nav", ROOT / "scripts" / "site_nav.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.spelled_out(site()["nav"], DOCS)


def leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for one in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(one)


# places


def test_every_page_has_one_place_in_the_navigation() -> None:
    assert sorted(leaves(navigation())) == PAGES


def test_the_navigation_goes_by_who_reads() -> None:
    titles = [title for entry in site()["nav"] for title in entry]
    assert titles[:5] == ["headworks", "Platform engineer", "SRE", "Application developer", "Finance"]


def test_a_warning_of_the_builder_is_an_error_and_no_page_asks_another_server() -> None:
    assert site()["strict"] is True and site()["theme"]["font"] is False
    assert {"omitted_files", "anchors", "unrecognized_links"} <= site()["validation"].keys()
    assert [key for key in ("extra_javascript", "extra_css", "extra") if key in site()] == []


def test_llms_txt_names_every_page_but_decisions_and_runbooks() -> None:
    named = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text())
    assert sorted(named) == [page for page in PAGES if "/" not in page and page != "index.md"]


# links


def text_of(page: str) -> str:
    """Without blocks and code, where brackets are something else."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.S | re.M))


def anchors(path: Path) -> set[str]:
    """The headings of a page, as both the repository and the site name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", READ)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: str) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(target)
    assert lost == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_links_to_nothing_outside_of_it(page: str) -> None:
    outside = []
    for target in re.findall(r"\]\(([^)\s#:]+)\)", text_of(f"docs/{page}")):
        if not (DOCS / page).parent.joinpath(target).resolve().is_relative_to(DOCS):
            outside.append(target)
    assert outside == []


def test_the_threat_model_names_tests_that_exist() -> None:
    page = (DOCS / "threat-model.md").read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > 25
    assert [name for name in named if f"def {name}(" not in tests] == []
    assert [path for path in re.findall(r"`(tests/[\w./]+)`", page) if not (ROOT / path).exists()] == []


# YAML


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in READ:
        found += [(page, block) for block in re.findall(r"^```yaml\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)]
    return found


def is_whole(block: str) -> bool:
    value = yaml.safe_load(block)
    return isinstance(value, dict) and bool(value.get("pools")) and all("replicas" in pool for pool in value["pools"].values())


def test_yaml_blocks_are_yaml_and_some_are_whole_configurations() -> None:
    whole = [page for page, block in blocks() if is_whole(block)]
    assert {"README.md", "docs/configuration.md", "docs/migrating.md", "docs/money.md"} <= set(whole)


@pytest.mark.parametrize(("page", "block"), [pytest.param(*one, id=f"{one[0]}-{place}") for place, one in enumerate(blocks())])
def test_a_block_that_is_a_whole_configuration_passes_the_check(page: str, block: str) -> None:
    if not is_whole(block):
        return
    environment = {name: f"{name}-{SECRET}" for name in re.findall(r"env:(\w+)", block)}
    loaded = load_bytes(block.encode(), page, environment)
    assert loaded.config is not None
    assert [str(problem) for problem in loaded.problems if "not in force" not in str(problem)] == []
