"""Where calls may go, and nowhere else."""

import pytest

from sip_bridge.errors import ProtocolError
from sip_bridge.message.sip import Uri
from sip_bridge.targets import AllowedTargets, read_target


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("+49 (30) 123-45.67", "sip:+49301234567@pbx.example:5070"),
        ("tel:+4930123", "sip:+4930123@pbx.example:5070"),
        ("*21#", "sip:*21#@pbx.example:5070"),
        ("sip:ann@192.0.2.1", "sip:ann@192.0.2.1"),
        ("sips:ann@example.org:5062;transport=tcp", "sips:ann@example.org:5062;transport=tcp"),
    ],
)
def test_targets_are_uris_or_numbers(text: str, uri: str) -> None:
    assert str(read_target(text, "pbx.example:5070")) == uri


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://example.org", "http"),
        ("ann", "URI"),
        ("sip:ann@192.0.2.1?Route=%3Csip:evil%3E", "headers"),
        ("sip:ann@192.0.2.1;maddr=192.0.2.66", "parameters"),
        ("sip:ann@192.0.2.1;method=REGISTER", "parameters"),
        ("sip:ann @192.0.2.1", "spaces"),
        ("sip:ann@192.0.2.1>\r\nX: y", "expected"),
    ],
)
def test_what_is_more_than_an_address_is_refused(text: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        read_target(text, "pbx.example")


def test_a_number_needs_a_trunk() -> None:
    with pytest.raises(ProtocolError, match="proxy"):
        read_target("+4930123", "")


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("sip:+4930*@pbx.example", ["+4930123@pbx.example", "+4930@PBX.example:5070"], ["+4940123@pbx.example"]),
        ("*@pbx.example", ["a@pbx.example", "+1@pbx.example"], ["a@pbx.example.evil", "a@xpbx.example", "pbx.example"]),
        ("*@pbx.example:5070", ["a@pbx.example:5070"], ["a@pbx.example", "a@pbx.example:5071"]),
        ("100@*", ["100@192.0.2.1", "100@pbx.example:5080"], ["1000@192.0.2.1", "x100@192.0.2.1"]),
        ("pbx.example", ["pbx.example"], ["a@pbx.example"]),
        ("a.b@pbx.example", ["a.b@pbx.example"], ["axb@pbx.example"]),
        ("100@*.example", ["100@pbx.example"], ["100@a@pbx.evil", "200@100@pbx.example"]),
        ("*", [], ["a@pbx.example"]),
    ],
)
def test_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    targets = AllowedTargets([pattern])
    assert [text for text in allowed if not targets.allow(Uri.parse(f"sip:{text};transport=tcp"))] == []
    assert [text for text in refused if targets.allow(Uri.parse(f"sip:{text}"))] == []


def test_nothing_is_allowed_by_default() -> None:
    assert not AllowedTargets([]).allow(Uri.parse("sip:a@192.0.2.1"))
