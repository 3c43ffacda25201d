"""The changes that a load makes to the configuration of its server."""

from __future__ import annotations

from pathlib import Path

from talkspurt.bench.command import prepared
from talkspurt.config.settings import load


def test_a_route_of_the_configuration_keeps_its_language(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("routes: {bench: {language: es-ES}}")
    assert load(file, environment=prepared(file, 3)).routes["bench"].language == "es-ES"


def test_without_that_route_one_is_made(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("routes: {other: {language: es-ES}}")
    config = load(file, environment=prepared(file, 3))
    assert set(config.routes) == {"bench", "other"}
    assert config.limits.calls == 13
