"""The configurations that ``config init`` writes, as ``config check`` then reads them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from talkspurt.cli import main
from talkspurt.commands.config_init import PROFILES, written
from talkspurt.config.settings import load

NAMES = ("PUBLIC_HOST", "DIALOGUE_URL", "SIP_ADDRESS", "PBX_NETWORK", "PBX_HOST", "TALKSPURT_API_KEY")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_passes_the_check_where_nothing_is_set(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "init", profile]) == 0
    assert main(["config", "check", "talkspurt.yaml"]) == 0
    text = Path("talkspurt.yaml").read_text()
    assert "configs/" + PROFILES[profile] not in text, "its comments name the file that was written"
    assert text.count("#") > 10


def test_a_written_file_is_the_owners_and_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "init", "twilio", "-o", "my.yaml"]) == 0
    assert stat.S_IMODE(Path("my.yaml").stat().st_mode) == 0o600
    before = Path("my.yaml").read_text()
    assert main(["config", "init", "laptop", "-o", "my.yaml"]) == 2
    assert "exists already" in capsys.readouterr().err and Path("my.yaml").read_text() == before


def test_a_variable_that_is_set_stays_a_reference_and_its_value_out_of_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = written("twilio", "my.yaml", {"TWILIO_AUTH_TOKEN": "confidential"})
    assert "auth_token: ${TWILIO_AUTH_TOKEN}" in text and "confidential" not in text
    Path("my.yaml").write_text(text)
    config = load(Path("my.yaml"), environment={"TWILIO_AUTH_TOKEN": "confidential"})
    assert config.server.public_url == "https://voice.example.com"
    Path("other.yaml").write_text(written("twilio", "other.yaml", {}))
    other = load(Path("other.yaml"), environment={})
    assert config.auth.api_keys[0].key != other.auth.api_keys[0].key, "keys are made by chance"
