"""The URIs of targets that may be called."""

import pytest

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Uri
from sip_bridge.targets import domain_of, read_target


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("+49301234567", "sip:+49301234567@pbx.example:5070"),
        ("030123", "sip:030123@pbx.example:5070"),
        ("*21#", "sip:*21#@pbx.example:5070"),
        ("sip:ann@192.0.2.1", "sip:ann@192.0.2.1"),
        ("sips:ann@example.org:5062;transport=tcp", "sips:ann@example.org:5062;transport=tcp"),
    ],
)
def test_targets_are_uris_or_numbers(text: str, uri: str) -> None:
    assert str(read_target(text, "pbx.example:5070")) == uri


@pytest.mark.parametrize("text", ["ann", "http://example.org", "+4930123,,7", "VX" + "1" * 32, "sip:ann@", ""])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(SipProtocolError):
        read_target(text, "pbx.example")


@pytest.mark.parametrize("domain", ["pbx.example", "pbx.example:5070"])
def test_a_domain_has_its_port(domain: str) -> None:
    assert domain_of(Uri.parse(f"sip:100@{domain};transport=tcp")) == domain


def test_a_number_needs_a_trunk() -> None:
    with pytest.raises(SipProtocolError, match="proxy"):
        read_target("+4930123", "")
