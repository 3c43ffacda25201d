"""Section ``sip``: what is refused, and the shipped file."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sip_bridge.config import SipConfig
from talkspurt.config.settings import load

ROOT = Path(__file__).parent.parent.parent
TRUNK = {"addresses": ["192.0.2.0/24"]}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"host": "0.0.0.0"}, "set sip.public_address"),
        ({"host": "::", "public_address": "192.0.2.4"}, "expected both of one family: 0.0.0.0 listens"),
        ({"host": "192.0.2.4", "public_address": "2001:db8::4"}, "expected both of one family: :: listens"),
        ({"public_address": "pbx.example"}, "expected an IP address"),
        ({"rtp_ports": "20000-10000"}, "expected LOW-HIGH"),
        ({"trunks": {"a": {}}}, "who may call?"),
        ({"trunks": {"a": {"addresses": ["pbx.example"]}}}, "expected an IP address or network"),
        ({"trunks": {"a": {"username": "ann"}}}, "username and password, or neither"),
        ({"trunks": {"a": TRUNK | {"proxy": "pbx.example"}}}, "expected scheme:address"),
        ({"trunks": {"a": TRUNK | {"codecs": []}}}, "at least 1"),
        ({"registrations": [{"registrar": "sip:r", "username": "u", "trunk": "b"}]}, "names trunk 'b'"),
        ({"timeouts": {"media_s": 0}}, "greater than 0"),
    ],
)
def test_what_cannot_work_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("?", r"\?")):
        SipConfig.model_validate(section)


def test_the_shipped_file_is_right() -> None:
    names = "SIP_ADDRESS PBX_NETWORK PBX_HOST CARRIER_PASSWORD TALKSPURT_API_KEY DIALOGUE_URL".split()
    values = dict(zip(names, ["10.0.0.12", "10.0.0.0/28", "pbx.example", "x", "y", "wss://m.example"], strict=True))
    config = load(ROOT / "configs/callcenter-sip.yaml", environment=values)
    assert config.sip and config.sip.trunks["pbx"].numbers["2000"] == "sales"
