"""The lists of hashes that installations and images are made from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
LISTS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"base": (), "recogniser": ("recogniser",), "cosyvoice": ("cosyvoice",)}
"""Lists of our dependencies, and the extras that are in each."""


def entries(path: Path) -> dict[str, list[tuple[Requirement, int]]]:
    """Return a list's entries by name: each requirement (some differ by platform) with its number of hashes."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    found: dict[str, list[tuple[Requirement, int]]] = {}
    for line in filter(None, text.splitlines()):
        requirement, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
        parsed = Requirement(requirement)
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in hashes), line[:80]
        found.setdefault(canonical(parsed.name), []).append((parsed, len(hashes)))
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_release_is_exact_and_has_hashes_but_no_address(path: Path) -> None:
    for name, found in entries(path).items():
        for requirement, hashes in found:
            assert hashes and re.fullmatch(r"==[^*,]+", str(requirement.specifier)), name
    assert "://" not in path.read_text()


@pytest.mark.parametrize("name", EXTRAS)
def test_a_list_has_what_the_project_asks_for(name: str) -> None:
    locked = entries(ROOT / f"requirements/{name}.txt")
    extras = PROJECT["optional-dependencies"]
    for wanted in map(Requirement, [*PROJECT["dependencies"], *(line for key in EXTRAS[name] for line in extras[key])]):
        found = locked.get(canonical(wanted.name), [])
        versions = [str(requirement.specifier).removeprefix("==") for requirement, _ in found]
        assert versions, f"{wanted} is missing: make lock"
        assert all(wanted.specifier.contains(version, prereleases=True) for version in versions), f"{wanted}: make lock"


def test_the_build_uses_what_the_project_asks_for() -> None:
    (wanted,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    ((locked, _),) = entries(ROOT / "requirements/build.txt")["setuptools"]
    assert Requirement(wanted).specifier.contains(str(locked.specifier).removeprefix("=="))
    assert (ROOT / "requirements/build.in").read_text().split() == [wanted]


def test_images_bring_the_clients_of_what_gateways_share() -> None:
    extras = PROJECT["optional-dependencies"]
    assert (ROOT / "requirements/shared.in").read_text().split() == sorted(extras["redis"] + extras["postgres"])
    assert {"pg8000", "redis"} <= entries(ROOT / "requirements/shared.txt").keys()
    assert (ROOT / "Dockerfile").read_text().count("-r shared.txt") == 2  # images: cpu, cuda


def test_nothing_that_runs_is_installed_without_hashes() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    rule = re.search(r"^\$\(VENV\)/\.run:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.M)
    assert rule is not None
    installs = re.findall(r"pip\b[^&|\n]*? (?:install|wheel) [^&|\n]*", dockerfile + rule[1])
    assert len(installs) > 5
    for install in installs:
        assert "--require-hashes" in install or "--no-deps" in install, install
