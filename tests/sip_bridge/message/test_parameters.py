"""What an INVITE says of its caller, and data handed along."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.seams.plain_text import plain
from sip_bridge.message.parameters import (
    caller_of,
    custom_headers,
    headers_of,
    number_of,
    read_user_to_user,
    route_of,
    user_to_user,
)
from sip_bridge.message.sip import Headers, Uri, parse
from tests.sip_bridge.sip_messages import request


@pytest.mark.parametrize(
    ("uri", "number"),
    [
        ("sip:+49301@example.org", "+49301"),
        ("sip:%2B49301;phone-context=x@example.org;user=phone", "+49301"),
        ("sip:ann:secret@example.org", "ann"),
        ("tel:+49301;ext=7", "+49301"),
        ("sip:example.org", "sip:example.org"),
    ],
)
def test_the_number_of_a_uri(uri: str, number: str) -> None:
    assert number_of(Uri.parse(uri)) == number


def test_headers_become_parameters_by_pattern_and_never_those_of_the_protocol() -> None:
    headers = Headers([("X-A", "1"), ("x-a", "2"), ("Reason", "r"), ("Via", "v"), ("Authorization", "secret")])
    assert custom_headers(headers, ["X-*"]) == {"X-A": "1, 2"}
    assert custom_headers(headers, ["reason", "*"]) == {"X-A": "1, 2", "Reason": "r"}


def test_parameters_become_headers_and_cannot_smuggle_in_others() -> None:
    parameters = {"X-A": "1\r\nVia: evil", "X-B:": "2", "Route": "3", "Other": "4"}
    assert headers_of(parameters, ["X-*", "Route"]) == [("X-A", "1 Via: evil")]


def test_bytes_that_are_no_text_survive_as_replacement_characters() -> None:
    raw = request(headers=(("Contact", "<sip:a@b>"), ("X-Name", "M\udcfcller"))).serialise()
    caller = caller_of(parse(raw), ["X-*"])  # type: ignore[arg-type]
    assert caller.parameters == {"X-Name": "M\ufffdller"}
    assert (caller.from_, caller.to) == ("ann", "bot")


def test_hints_that_cannot_be_read_are_none() -> None:
    caller = caller_of(request(headers=(("P-Asserted-Identity", "<<"), ("Diversion", ""))), [])
    assert (caller.from_, caller.forwarded_from) == ("ann", "")


def test_the_longest_number_counts() -> None:
    numbers = {"20*": "b", "2*": "a", "2000": "c", "*": "d"}
    uris = ["sip:2000@h", "sip:2001@h", "sip:2@h", "sip:x@h", "<bad>"]
    assert [route_of(uri, numbers, "none") for uri in uris] == ["c", "b", "a", "d", "none"]


@given(st.text(min_size=1, max_size=500))
def test_handed_data_comes_back(data: str) -> None:
    handed = user_to_user(data)
    assert handed == [] or read_user_to_user(handed[0][1]) == plain(data.encode("utf-8", "replace").decode())


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("68656c6c6f;encoding=hex", "hello"),
        ("68656C6C6F", "hello"),
        ("00ff;encoding=hex;purpose=isdn-uui", "00ff"),
        ("plain text", "plain text"),
        ('"quoted";encoding=ascii', "quoted"),
    ],
)
def test_user_to_user_of_others(value: str, data: str) -> None:
    assert read_user_to_user(value) == data


def test_data_too_long_for_a_header_is_left_out() -> None:
    assert user_to_user("x" * 3000) == [] and user_to_user("") == []
