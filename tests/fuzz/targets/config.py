"""The configuration file."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pydantic import ValidationError

from talkspurt.commands.import_twiml import TwimlError, convert
from talkspurt.config.settings import Config, _problems
from talkspurt.config.yaml_file import ConfigError, parse
from tests.fuzz.target import Target

_EXAMPLES = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"), key=lambda path: path.stat().st_size)


def run_config(data: bytes) -> None:
    """A file is a configuration, or a list of problems that each name a place."""
    try:
        document = parse(data, "file.yaml", {"SECRET": "x", "EMPTY": ""})
        assert len(document.places) <= 4 * len(data) + 4
        with contextlib.suppress(ValidationError):
            Config.model_validate(document.root)
            return
        try:
            Config.model_validate(document.root)
        except ValidationError as exc:
            raise ConfigError(_problems(exc, document)) from None
    except ConfigError as error:
        assert error.problems and all(problem.place.startswith("file.yaml") for problem in error.problems)


def run_import_twiml(data: bytes) -> None:
    """A file is refused, or becomes YAML in which nothing but the token of Twilio is taken from the environment."""
    with contextlib.suppress(TwimlError):
        document = parse(convert(data).encode(), "route.yaml", {"TWILIO_AUTH_TOKEN": "x"})
        assert isinstance(document.root["routes"], dict)


TARGETS = [
    Target(
        name="import-twiml", run=run_import_twiml, without_text="the operator's own file",
        covers=("talkspurt/commands/import_twiml.py",), quick=100,
        seeds=[
            b'<Response><Connect action="https://a.example/done"><ConversationRelay url="wss://a.example/ws"'
            b' welcomeGreeting="A ${B} $$" hints="a, b" interruptible="speech" dtmfDetection="true" voice="x"'
            b' events="speaker-events x"><Language code="de-DE" voice="y"/><Parameter name="a" value="b"/>'
            b"</ConversationRelay></Connect></Response>",
            b"<Response><Connect><Stream url='wss://a'/></Connect></Response>",
        ],
    ),
    Target(
        name="config", run=run_config, without_text="the operator's own file",
        covers=("talkspurt/config/yaml_file.py",), quick=100,
        seeds=[
            b"server: {port: 1, host: '::'}\nroutes:\n  default: &a\n    dialogue: {url: 'ws://x'}\n"
            b"  other:\n    <<: *a\n",
            b"engine: {kind: tone}\nsip:\n  listen: ${SECRET}\n  trunks: {a: {route: default, numbers: {'+49*': x}}}\n",
            *(path.read_bytes() for path in _EXAMPLES[:6]),
        ],
        words=(b"<<: *a", b"&a ", b"*a", b"${SECRET}", b"${", b"$$", b"!!python/name:os", b"%YAML 1.1\n", b"---\n",
               b"? ", b"- ",
               b"|\n", b">-\n", b"\"\\UFFFFFFFF\"", b"[", b"]", b"{", b"}", b": ", b"\t", b"#", b"null", b"~"),
    )
]  # fmt: skip
