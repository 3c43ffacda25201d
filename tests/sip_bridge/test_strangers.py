"""Strangers send datagrams, whose source address anybody can write, to a whole bridge. They get no more bytes than
they send, no lasting memory, and no service of others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sip_bridge.local import METHODS
from sip_bridge.message.digest import ClientAuth, authorization
from sip_bridge.message.sip import Request
from tests.sip_bridge.torture import Torturer, message
from tests.sip_bridge.virtual_bridge import Far, description, played

STRANGER = ("198.51.100.7", 5070)
TRUNKS: dict[str, dict[str, Any]] = {
    "by address": {"addresses": ["127.0.0.0/8"]},
    "by password": {"addresses": [], "username": "ann", "password": "secret"},
}
"""The ways to know the one trunk. With a password alone, every stranger might be its peer."""

IN_DIALOG = "To: <sip:bot@example.com>;tag=none"
REQUESTS = {
    **{method: message(method) for method in (*METHODS, "REGISTER", "PUBLISH", "SUBSCRIBE", "FOO")},
    **{f"{method} in a dialog": message(method, IN_DIALOG) for method in METHODS},
    "INVITE with an offer": message("INVITE", body=description()),
    "INVITE without Contact": message("INVITE", without="Contact"),
    "INVITE of many hops": message("INVITE", *(f"Record-Route: <sip:{n}.example;lr>" for n in range(30))),
    "INVITE with credentials": message("INVITE", 'Authorization: Digest username="ann", realm="talkspurt", nonce="x"'),
    "INVITE with credentials that cannot be read": message("INVITE", "Authorization: Digest ="),
    "unknown extension": message("OPTIONS", "Require: foo, bar"),
    "unknown scheme": message("OPTIONS foo:bar SIP/2.0"),
    "wrong version": message("OPTIONS sip:bot@example.com SIP/7.0"),
    "wrong length": message("INVITE", "Content-Length: 9"),
    "wrong CSeq": message("INVITE", "CSeq: x"),
    "Via alone": b"INVITE sip:a SIP/2.0\r\nv:a\r\n\r\n",
    "response": message("SIP/2.0 200 OK", "CSeq: 8 INVITE", IN_DIALOG),
    "nonsense": b"nonsense",
}


@pytest.mark.virtual_time
@pytest.mark.parametrize("state", ["open", "draining", "full"])
@pytest.mark.parametrize("trunk", TRUNKS)
async def test_no_request_of_a_stranger_gets_more_bytes_than_it_has(trunk: str, state: str) -> None:
    with played():
        world = Torturer(trunk=TRUNKS[trunk])
        world.bridge.endpoint.draining = state == "draining"
        if state == "full":
            world.bridge.endpoint._transactions._limit = 0
        for name, data in REQUESTS.items():
            for padding in (0, 60, 250, 600):
                world.wire.clear()
                asked = data.replace(b"\r\n", b"\r\nUser-Agent: " + b"x" * padding + b"\r\n", 1) if padding else data
                world.hear(asked, STRANGER)
                await world.run(60)  # nor is anything repeated
                answered = sum(map(len, world.wire))
                assert answered <= len(asked), f"{name}: {answered} bytes for {len(asked)}"
                assert world.bridge.endpoint.transactions == 0, name
        await world.finish()


@pytest.mark.virtual_time
async def test_an_invite_of_usual_length_is_challenged() -> None:
    """A shorter one for MD5 alone, and one without a body not at all."""
    with played():
        world = Torturer(trunk=TRUNKS["by password"])
        challenges: list[int] = []
        for body in (b"", b"x" * 150, description()):
            world.wire.clear()
            world.hear(message("INVITE", body=body), STRANGER)
            challenges.append(sum(data.count(b"WWW-Authenticate") for data in world.wire))
            assert all(b"algorithm=MD5" in data for data in world.wire)
        assert challenges == [0, 1, 2]
        await world.finish()


@pytest.mark.virtual_time
@pytest.mark.parametrize("trunk", TRUNKS)
async def test_calls_are_taken_beside_a_thousand_forged_packets_a_second(trunk: str) -> None:
    """Every packet from an address of its own. Each source has a bucket, so the trunk's stays full;
    and no packet leaves a transaction, which could fill the table."""
    chance = random.Random(5)
    forged = [data for name, data in REQUESTS.items() if "many hops" not in name]
    auth = ClientAuth("ann", "secret")
    with played():
        world = Torturer(trunk=TRUNKS[trunk])
        for number in range(1500):
            source = f"198.18.{chance.randrange(256)}.{chance.randrange(256)}"
            world.hear(chance.choice(forged).replace(b"torture", b"%d" % number), (source, 5060))
            if number % 100 == 0:
                far = Far(world)
                far.call_id = f"call-{number}"
                far.calls()
                if world.replied().status == 401:
                    assert isinstance(far.invite, Request)
                    credentials = authorization(world.replied(), far.invite, auth)
                    assert credentials
                    far.calls(credentials)
                await world.run(0.01)
                assert (world.replied().status, world.replied().call_id) == (200, far.call_id), number
                far.ack()
                far.send("BYE")
                assert world.replied("BYE").status == 200
                assert world.bridge.endpoint.transactions < 200
            await world.run(0.001)
        assert world.bridge.endpoint.counts["limited"] == 0
        await world.finish()
