"""Problems of a configuration that only this machine shows, as ``config check`` and ``serve`` report them."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from talkspurt.cli import main
from talkspurt.config.reference import _places
from talkspurt.config.settings import Config


def checked(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str, str]:
    (tmp_path / "my.yaml").write_text(text)
    code = main([*(command or ("config", "check")), str(tmp_path / "my.yaml")])
    out = capsys.readouterr()
    return code, out.out.replace(f"{tmp_path}/", ""), out.err.replace(f"{tmp_path}/", "")


FOLDERS = "server: {port: 0}\ncalls: {folder: taken/calls}\nrecording: {folder: taken}\nclips: {folder: none}\n"
MODELS = "server: {port: 0}\nengine:\n  kind: cosyvoice3\n  model_folder: none\n"


def test_folders_that_cannot_be_written_are_named_with_their_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    code, _, err = checked(tmp_path, FOLDERS, capsys)
    assert (code, err.splitlines()) == (
        2,
        [
            "my.yaml: recording.folder: taken cannot be written: taken is no folder",
            "my.yaml: calls.folder: taken/calls cannot be written: taken is no folder",
            "my.yaml: clips.folder: no such folder: none",
        ],
    )
    code, _, err = checked(tmp_path, FOLDERS, capsys, "serve", "-c")
    assert code == 2 and err.count("\n") == 1
    assert err.startswith("talkspurt serve: recording.folder: ") and "and 2 more" in err


def test_a_missing_model_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = checked(tmp_path, MODELS, capsys)
    assert (code, err) == (2, "my.yaml: engine.model_folder: no such folder: none\n")


def test_files_that_the_start_reads_are_named_with_their_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.pem").write_text("")
    jwt = "{jwks_file: ., issuer: a, audience: b, algorithms: [RS256]}"
    text = f"server: {{port: 0, tls: {{certificate: my.pem, key: none.key}}}}\nauth: {{jwt: {jwt}}}\n"
    code, _, err = checked(tmp_path, text, capsys)
    assert (code, [line.split(": ")[1] for line in err.splitlines()]) == (2, ["server.tls.key", "auth.jwt.jwks_file"])


EVERY_PATH = """
server: {port: 0, tls: {certificate: none, key: none}}
engine:
  kind: cosyvoice3
  model_folder: none
  more_models: {two: {kind: cosyvoice2, model_folder: none}}
  voices_folder: taken/a
  cache_folder: taken/a
  models_folder: none
  tls: {certificate: none, key: none, client_ca: none, ca: none}
  embedded: {mandarin: {voices_folder: none}}
recogniser: {whisper: {folder: none}}
sip: {port: 0, tls: {certificate: none, key: none, authorities: none}}
recording: {folder: taken/a}
calls: {folder: taken/a}
records: {database_url: "sqlite:///taken/a/records.sqlite3"}
clips: {folder: none}
auth: {keys_file: taken, jwt: {jwks_file: none, issuer: a, audience: b, algorithms: [RS256]}}
"""
READ_WITH_THE_CONFIGURATION = {"routes.NAME.dialogue.script", "recogniser.end_of_thought.model"}


def test_every_path_of_a_configuration_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    code, _, err = checked(tmp_path, EVERY_PATH, capsys)
    found = {line.split(": ")[1].replace(".two.", ".NAME.") for line in err.splitlines()}
    assert code == 2 and found | READ_WITH_THE_CONFIGURATION == {*paths(), "records.database_url"}


def paths() -> set[str]:
    """Return the keys that name a path, as the configuration's models say."""
    return {
        f"{path}.{name}"
        for path, model in _places(Config, "")
        for name, info in model.model_fields.items()
        if isinstance(info.json_schema_extra, dict) and "access" in info.json_schema_extra
    }


def test_a_setting_that_is_described_as_a_path_is_one() -> None:
    described = {
        f"{path}.{name}"
        for path, model in _places(Config, "")
        for name, info in model.model_fields.items()
        if info.annotation is str and re.match(r"(\S+ )?(file|folder|directory|PEM)\b", info.description or "", re.I)
    }
    assert described <= paths()


def test_paths_may_begin_with_the_home_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = "server: {port: 0}\nclips: {folder: ~/clips}\nengine: {models_folder: ~/models}\n"
    code, _, err = checked(tmp_path, text, capsys)
    assert (code, err.splitlines()) == (
        2,
        [
            "my.yaml: engine.models_folder: no such folder: home/models",
            "my.yaml: clips.folder: no such folder: home/clips",
        ],
    )


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="only Linux has /proc")
def test_a_folder_in_which_not_even_root_may_write_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = checked(tmp_path, "server: {port: 0}\ncalls: {folder: /proc/calls}\n", capsys)
    assert code == 2 and "calls.folder: /proc/calls cannot be written: " in err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["serve", "--prot", "1"], "talkspurt serve: unrecognized arguments: --prot 1, did you mean --port?"),
        (
            ["keys", "create", "--tennant", "a"],
            "talkspurt keys create: unrecognized arguments: --tennant a, did you mean --tenant?",
        ),
        (["say", "a", "--engine", "gpu"], "--engine: expected host:port or unix:/path, got 'gpu'"),
        (["config", "init", "twillio"], ", did you mean twilio?"),
        (["sreve"], ", did you mean serve?"),
    ],
)
def test_a_wrong_option_or_choice_is_told_with_the_nearest_right_one(
    capsys: pytest.CaptureFixture[str], command: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2 and told in capsys.readouterr().err


def test_what_may_be_intended_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        text = f"server: {{host: 0.0.0.0, port: {taken.getsockname()[1]}}}\nroutes: {{default: {{recogniser: ''}}}}\n"
        code, out, err = checked(tmp_path, text, capsys)
    closed, used, ok = out.splitlines()
    assert (code, err, ok) == (0, "", "my.yaml: ok")
    assert "there are no keys" in closed and "auth.api_keys" in closed
    assert "is in use" in used


def test_a_listener_without_an_address_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "server: {host: nosuch.invalid, insecure: true}\nroutes: {default: {recogniser: ''}}\n"
    code, out, _ = checked(tmp_path, text, capsys)
    assert code == 0 and "server.host: 'nosuch.invalid' has no address: " in out


def test_a_registrar_without_an_address_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "server: {port: 0}\nroutes: {default: {recogniser: ''}}\nsip:\n  port: 0\n  registrations:\n"
        "    - {registrar: 'sip:pbx.invalid', username: a, password: b, trunk: t}\n  trunks: {t: {route: default}}\n"
    )
    code, out, _ = checked(tmp_path, text, capsys)
    assert code == 0 and "pbx.invalid has no address" in out
