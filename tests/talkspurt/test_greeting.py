"""The text that `serve` prints when it is ready."""

import sys
import time
from pathlib import Path

import pytest

from gateway.credentials import api_keys
from talkspurt.config.settings import load
from talkspurt.greeting import greeting, without_keys
from talkspurt.invocation import command

DEMO = Path(__file__).parents[2] / "configs/demo.yaml"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``.venv/bin/talkspurt``, which is what was started."""
    program = tmp_path / ".venv/bin/talkspurt"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/talkspurt", "serve"])
    return program


def test_a_command_is_named_as_it_was_started(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command() == ".venv/bin/talkspurt"
    monkeypatch.setenv("PATH", str(environment.parent))
    assert command() == "talkspurt"
    monkeypatch.setattr(sys, "argv", ["/x/talkspurt/__main__.py"])
    assert command().endswith(" -m talkspurt")


def test_the_demo_names_its_pages_and_a_command_that_can_be_pasted(environment: Path) -> None:
    lines = "\n".join(greeting(load(DEMO, environment={}), 8080, ["heart"]))
    assert lines.splitlines()[0].endswith("is ready: http://127.0.0.1:8080/")
    assert "web phone   http://127.0.0.1:8080/phone\n" in lines
    assert '.venv/bin/talkspurt call --text "Hello, this is talkspurt." -o heard.wav' in lines
    assert "hear:" not in lines and "names the voice" not in lines


def test_another_port_is_in_the_command(environment: Path) -> None:
    lines = "\n".join(greeting(load(DEMO, environment={}), 9000, ["heart"]))
    assert "call ws://127.0.0.1:9000/media/twilio --text" in lines


def test_an_address_of_all_interfaces_is_shown_as_one_to_open(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("server: {host: 0.0.0.0, insecure: true}\nroutes: {a: {recogniser: ''}}\n")
    (first, console, phone) = greeting(load(path, environment={}), 8080, ["heart"])
    assert first.endswith("http://127.0.0.1:8080/") and phone.endswith("http://127.0.0.1:8080/phone")


def test_a_file_without_a_key_is_told_until_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("auth: {keys_file: keys.json}\nroutes: {a: {recogniser: ''}}\n")
    (*_, told) = greeting(load(path, environment={}), 8080, ["heart"])
    assert "has no key" in told and "keys create" in told
    api_keys.create(tmp_path / "keys.json", now=time.time(), tenant="default")
    assert without_keys(load(path, environment={})) == ""


def test_a_deaf_route_and_an_unknown_voice_are_told(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("engine: {kind: cosyvoice3}\nroutes: {a: {voice: nosuch}}\n")
    lines = list(greeting(load(path, environment={}), 8080, ["anna", "bert"]))
    assert any(line.startswith("route a cannot hear: ") for line in lines)
    assert lines[-1] == "route a names the voice 'nosuch', which the engine does not have; it has anna, bert"
    assert not any("voice" in line for line in greeting(load(path, environment={}), 8080, None))


def test_the_sip_listener_is_told(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("sip: {host: 127.0.0.1}\nroutes: {a: {recogniser: ''}}\n")
    config = load(path, environment={})
    assert list(greeting(config, 8080, sip=(5060, 0)))[-1] == "  sip         127.0.0.1:5060 UDP and TCP"
    assert list(greeting(config, 8080, sip=(5060, 5061)))[-1].endswith("UDP and TCP, 127.0.0.1:5061 TLS")
