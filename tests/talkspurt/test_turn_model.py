"""The conditions under which a gateway has a turn model."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.config import EndOfThoughtConfig, RouteConfig
from gateway.recognition.smart_turn import TurnModelError
from talkspurt import recognisers
from talkspurt.config.settings import load
from talkspurt.config.yaml_file import ConfigError
from talkspurt.recognisers import turn_model_for_gateway

LISTENS = RouteConfig(recogniser="external")


@pytest.mark.parametrize("route", [RouteConfig(), RouteConfig(recogniser="external", end_of_thought=False)])
async def test_no_model_is_loaded_that_no_route_wants(route: RouteConfig, tmp_path: Path) -> None:
    async with turn_model_for_gateway({"r": route}, EndOfThoughtConfig(model=str(tmp_path / "missing"))) as model:
        assert model is None


async def test_where_none_is_installed_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognisers, "model_file", lambda: None)
    async with turn_model_for_gateway({"r": LISTENS}, EndOfThoughtConfig()) as model:
        assert model is None


async def test_a_broken_installation_is_told_and_a_broken_file_of_the_configuration_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no network")
    monkeypatch.setattr(recognisers, "model_file", lambda: broken)
    with caplog.at_level(logging.WARNING):
        async with turn_model_for_gateway({"r": LISTENS}, EndOfThoughtConfig()) as model:
            assert model is None
    assert [record.message for record in caplog.records] == ["without a turn model"]
    with pytest.raises(TurnModelError, match=r"broken\.onnx cannot be used"):
        async with turn_model_for_gateway({"r": LISTENS}, EndOfThoughtConfig(model=str(broken))):
            pass


def test_a_missing_file_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("recogniser:\n  end_of_thought:\n    model: turn.onnx\n")
    with pytest.raises(ConfigError) as told:
        load(tmp_path / "c.yaml")
    assert [str(problem).partition(": ")[2] for problem in told.value.problems] == [
        f"recogniser.end_of_thought.model: no such file: {tmp_path}/turn.onnx"
    ]
