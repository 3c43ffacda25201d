"""The protocol's page, schema and AsyncAPI say what the wire does."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import orjson
import pytest

from gateway.config import LimitsConfig
from gateway.dialogue import wire
from gateway.dialogue.description import FROM_MANAGER, TO_MANAGER, Message, documents, json_schema, schema_of
from gateway.seams import messages as m
from gateway.seams.end_cause import EndCause
from talkspurt import __version__

DOCS = Path(__file__).parents[3] / "docs"
LIMITS = LimitsConfig()
BOTH = [*(("fromManager", each) for each in FROM_MANAGER), *(("toManager", each) for each in TO_MANAGER)]
IDS = [f"{side} {message.kind}" for side, message in BOTH]

SAMPLES: tuple[m.Outbound, ...] = (
    m.Setup(
        session_id="VX1", call_sid="", account_sid="", parent_call_sid="", from_="", to="", forwarded_from="",
        caller_name="", direction="", call_type="", call_status="", custom_parameters={}, resumed=False,
        audio="/v1/audio/VX1",
    ),
    m.Prompt(voice_prompt="", lang="", last=False),
    m.Dtmf(digit="1"),
    m.Interrupt(utterance_until_interrupt="", duration_until_interrupt_ms=0),
    m.Error(description=""),
    m.Info(name="", value="", turn="t1"),
    m.TurnEvent(turn="", event="accepted"),
    m.Caption(turn="", text=""),
    m.MarkReached(name="", cleared=False),
    m.Withdrawn(what="end"),
    m.RoomEvent(room="r", leg="VX2", event="muted", muted=True),
    m.LegEvent(leg="VX2", event="busy", cause=EndCause(by="caller", sip_status=486, q850=17, text="x")),
    m.Beep(length_s=0.4),
    m.Answered(by="human", confidence=0.8, text="", waiting=False),
    m.BothSilent(seconds=1.0),
    m.Ended(reason="", duration_ms=0, cause=EndCause(by="caller", sip_status=200, q850=16, text="x")),
)  # fmt: skip


def read(body: dict[str, Any]) -> m.Inbound:
    return wire.decode(orjson.dumps(body), limits=LIMITS, multiplexed=False)[1]


@pytest.mark.parametrize("name", documents("x"))
def test_the_documents_are_those_that_the_description_makes(name: str) -> None:
    made = documents(__version__)[name]
    assert (DOCS / name).read_text() == made, "python -m gateway.dialogue.description docs"


def test_every_message_of_the_wire_is_described() -> None:
    assert [message.kind for message in FROM_MANAGER] == list(wire._READERS)
    assert {message.message_class for message in FROM_MANAGER} == set(get_args(m.Inbound)) - {m.Sound}
    written = {(made, kind) for made, (kind, _) in wire._WRITERS.items()}
    assert {(message.message_class, message.kind) for message in TO_MANAGER} == written


@pytest.mark.parametrize(("side", "message"), BOTH, ids=IDS)
def test_an_example_has_every_field_and_fits_its_schema(side: str, message: Message) -> None:
    assert message.example.keys() == {"type", *(field.name for field in message.fields)}
    schema = schema_of(message)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(message.example, schema)
    whole = json_schema()
    jsonschema.validate(message.example, {**whole, "anyOf": [{"$ref": f"#/$defs/{side}"}]})


@pytest.mark.parametrize("message", FROM_MANAGER, ids=lambda message: message.kind)
def test_the_reader_reads_every_described_field_and_no_other(message: Message) -> None:
    plain = read(message.example)
    assert isinstance(plain, message.message_class)
    for field in message.fields:
        without = {name: value for name, value in message.example.items() if name != field.name}
        if field.required:
            with pytest.raises(wire.BadMessage) as caught:
                read(without)
            assert caught.value.field == field.name
        elif message.example[field.name] is not False:  # which is the default of flags
            assert read(without) != plain, f"{field.name} is not read"
    described = {re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", field.name) for field in message.fields}
    named = {field.name.removesuffix("_ms") for field in dataclasses.fields(message.message_class)} - {
        "names",
        "ignored",
    }
    assert named <= described, "a field of the dataclass is not described"


@pytest.mark.parametrize("message", FROM_MANAGER, ids=lambda message: message.kind)
def test_what_the_schema_forbids_the_reader_refuses_and_names(message: Message) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(message))
    tried = 0
    for field in message.fields:
        limit = field.schema.get("maxLength", 10)
        for value in (17.5, "", "x" * (limit + 1), -1, 10**6, [1], {"a": 1}, True, "no such word"):
            body = copy.deepcopy(message.example) | {field.name: value}
            if isinstance(value, dict) and message.kind in ("config", "hints", "language"):
                continue  # a level of settings, in which nothing is known
            if not validator.is_valid(body):
                tried += 1
                with pytest.raises(wire.BadMessage) as caught:
                    read(body)
                assert caught.value.field == field.name, (field.name, value)
    assert tried or not message.fields


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_the_writer_writes_every_described_field_and_no_other(sample: m.Outbound) -> None:
    (message,) = (each for each in TO_MANAGER if each.message_class is type(sample))
    whole = wire.encode(sample, extensions=True)
    assert whole is not None
    assert orjson.loads(whole).keys() == {"type", *(field.name for field in message.fields)}
    plain = wire.encode(sample, extensions=False)
    assert (plain is None) == message.extension
    if plain is not None:
        assert orjson.loads(plain).keys() == {"type", *(f.name for f in message.fields if not f.extension)}


def test_asyncapi_names_what_the_schema_has() -> None:
    document = orjson.loads(documents("1")["asyncapi.yaml"])
    messages = document["components"]["messages"]
    assert set(document["components"]["schemas"]) == set(document["channels"]["dialogue"]["messages"])
    assert set(messages) == set(document["channels"]["audio"]["messages"])
    assert set(messages) - set(document["channels"]["dialogue"]["messages"]) == {"sound", "clear"}
    assert len(messages) == len(BOTH) + 2
    for operation in document["operations"].values():
        for reference in operation["messages"]:
            assert reference["$ref"].rsplit("/", 1)[1] in messages
