"""The site of the documentation: whole, and without links that lead nowhere. `make docs` builds it."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted(path for folder in ("docs", "examples") for path in (ROOT / folder).glob("*.md")),
    *sorted((ROOT / "docs/decisions").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)


class _NavLoader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names a Python function."""


_NavLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as the site and code hosts make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#{1,6} (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_document_and_a_heading(path: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", path.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_site_has_every_document_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_NavLoader)["nav"]

    def pages(part: object) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [page for each in (part.values() if isinstance(part, dict) else part) for page in pages(each)]

    found = pages(nav)
    assert sorted(found) == sorted(str(path.relative_to(ROOT)) for path in DOCUMENTS)


def test_the_site_is_built_of_every_document() -> None:
    line = re.search(r"^SITE = (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    assert line is not None
    built = [ROOT / name for name in line[1].split()]
    assert all({path, *path.parents} & set(built) for path in DOCUMENTS)


_FILE = re.compile(r"\.(?:py|js|jsonl?|yaml|txt|sqlite3|pem|local)$")


def test_the_keys_that_a_document_names_exist() -> None:
    """Names in code that begin with a section of the configuration are keys of the reference, unless they are files."""
    reference = (ROOT / "docs/configuration.md").read_text()
    sections = set(re.findall(r"(?:^### |The same keys stand in )`([^`]+)`", reference, flags=re.M))
    roots = {section.partition(".")[0] for section in sections}
    known = {part.strip("[]") for section in sections for part in section.split(".")}
    known |= {"NAME", *re.findall(r"^\* `(\w+)` \(", reference, flags=re.M)}
    named = {
        (str(path.relative_to(ROOT)), whole)
        for path in DOCUMENTS
        if path.name not in ("configuration.md", "CHANGELOG.md")
        for whole, root in re.findall(r"`((\w+)(?:\.[a-zA-Z]\w*)+)`", path.read_text())
        if root in roots and not _FILE.search(whole)
    }
    assert len(named) > 100
    assert not sorted(each for each in named if not set(each[1].split(".")[1:]) <= known)


def test_figures_of_the_sizing_table_are_those_of_the_results() -> None:
    """Numbers with a unit that the results measure; what is computed stands under its own heading."""
    measured = (ROOT / "docs/sizing.md").read_text().partition("## Ports")[0]
    results = (ROOT / "benchmarks/RESULTS.md").read_text()
    for number, _ in re.findall(r"(\d+(?:\.\d+)?) (ms|MB|GiB|%)", measured):
        assert number in results, number


def test_results_are_short_and_name_the_files_that_are_kept() -> None:
    text = (ROOT / "benchmarks/RESULTS.md").read_text()
    assert len(text.encode()) <= 25_000
    kept = {path.name for path in (ROOT / "benchmarks/results").iterdir()}
    assert kept == set(re.findall(r"`(\w+\.jsonl?)`", text))


def test_every_benchmark_is_named_where_somebody_looks_for_it() -> None:
    """A script that no document, verb or other benchmark names is of no use to anyone."""
    readers = [*DOCUMENTS, ROOT / "Makefile", *(ROOT / "benchmarks").glob("*.py"), ROOT / "tts_engine/config.py"]
    for script in (ROOT / "benchmarks").glob("*.py"):
        others = (path.read_text() for path in readers if path != script)
        assert any(re.search(rf"\b{script.stem}(\.py\b| import)", text) for text in others), script.name


def test_the_page_of_carriers_is_short_and_names_the_evidence_of_each() -> None:
    page = (ROOT / "docs/carriers.md").read_text()
    assert len(page.encode()) <= 12_000
    for title in ("Twilio", "Telnyx", "Plivo", "Exotel", "Vonage", "SignalWire", "Genesys", "jambonz", "FreeSWITCH"):
        (section,) = re.findall(rf"^## {title}.*?(?=^## |\Z)", page, flags=re.M | re.S)
        assert "| evidence |" in section, title
