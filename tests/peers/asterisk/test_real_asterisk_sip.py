"""SIP calls of a real Asterisk: touch tones in each of its modes, direct media, reliable ringing, and accounts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.seams.originate import CallOrder
from sip_bridge.call import SipCall
from sip_bridge.message.sip import Request, parse, response_to
from tests.peers.asterisk.peer import Asterisk, asterisk
from tests.peers.ports import free_port
from tests.peers.programs import needs_asterisk
from tests.sip_bridge.phone import Bridge, Phone, Told, bridge, offer, until
from tests.waiting import PATIENCE_S
from tests.waiting import until as patient

pytestmark = [pytest.mark.asterisk, needs_asterisk]

MODULES = (
    "res_sorcery_astdb", "res_rtp_asterisk", "res_pjproject", "res_statsd", "res_pjsip", "res_pjsip_session",
    "res_pjsip_sdp_rtp", "res_pjsip_pubsub", "res_pjsip_caller_id", "res_pjsip_dtmf_info",
    "res_pjsip_endpoint_identifier_ip", "res_pjsip_endpoint_identifier_user", "res_pjsip_registrar",
    "res_pjsip_authenticator_digest", "res_pjsip_outbound_authenticator_digest", "res_pjsip_outbound_registration",
    "res_pjsip_rfc3326", "bridge_native_rtp", "chan_pjsip",
)  # fmt: skip

LOUD = bytes(range(160))


def files(
    bot: int, phone: int, *, dtmf: str = "rfc4733", more: str = "", sections: str = "", port: int = 0
) -> dict[str, str]:
    """A switch between the bot and one phone.

    Args:
        more: further lines of both endpoints.
        sections: further sections of the SIP stack.
        port: of the switch; 0: any.
    """
    port = port or free_port()
    endpoints = "".join(
        f"[{name}]\ntype=endpoint\ncontext=in\naors={name}\ndisallow=all\nallow=ulaw,alaw\ndtmf_mode={dtmf}\n{more}\n"
        f"[{name}]\ntype=aor\ncontact=sip:{name}@127.0.0.1:{to}\n"
        for name, to in (("bot", bot), ("phone", phone))
    )
    return {
        "pjsip.conf": f"[udp]\ntype=transport\nprotocol=udp\nbind=127.0.0.1:{port}\n{endpoints}{sections}",
        "rtp.conf": "[general]\nrtpstart=30000\nrtpend=30999\n",
        "extensions.conf": (
            "[in]\n"
            "exten => keys,1,Answer()\n same => n,Wait(1)\n same => n,SendDTMF(15*#0,200)\n same => n,Wait(20)\n"
            "exten => talk,1,Dial(PJSIP/phone)\n"
            "exten => early,1,Progress()\n same => n,Wait(0.2)\n same => n,Answer()\n same => n,Echo()\n"
        ),
    }


@asynccontextmanager
async def switch(folder: Path, made: Bridge, phone: Phone, **more: Any) -> AsyncIterator[Asterisk]:
    own = files(made.bridge.endpoint.port, phone.port, **more)
    async with asterisk(folder, own, modules=MODULES) as running:
        yield running


@pytest.mark.parametrize("dtmf", ["rfc4733", "info", "auto", "auto_info"])
async def test_each_key_is_heard_once_in_every_mode(dtmf: str, tmp_path: Path) -> None:
    async with bridge() as made:
        with Phone(0) as phone:
            async with switch(tmp_path, made, phone, dtmf=dtmf) as server:
                await server.cli("channel originate PJSIP/bot extension keys@in")
                # A key that came twice would come before the next one.
                await until(lambda: bool(made.sessions) and made.session.digits.endswith("0"), "the last key")
                assert made.session.digits == "15*#0"
                made.session.call.hang_up("end")
                await until(lambda: not list(made.bridge))
                await server.over()


@pytest.mark.parametrize("method", ["invite", "update"])
async def test_direct_media_goes_to_the_other_phone(method: str, tmp_path: Path) -> None:
    """The switch takes itself out of the media by re-INVITE or UPDATE, while its own stream still comes."""
    async with bridge() as made:
        with Phone(0) as phone:
            more = f"direct_media=yes\ndirect_media_method={method}"
            async with switch(tmp_path, made, phone, dtmf="rfc4733", more=more) as server:
                task = asyncio.create_task(server.cli("channel originate PJSIP/bot extension talk@in"))
                await until(lambda: bool(made.sessions))
                changed = asyncio.create_task(answers(phone, server))
                call = made.session.call
                port = ports_of(call)

                def direct() -> bool:
                    """True if the bot's packets come to the phone from the bot's own port."""
                    call.send_frame(LOUD, time.monotonic())
                    try:
                        data, source = phone.rtp.recvfrom(4096)
                    except BlockingIOError:
                        return False
                    return data[12:] == LOUD and source[1] == port

                await until(direct, "direct media")
                changed.cancel()
                await task
                call.hang_up("end")
                await until(lambda: not list(made.bridge))


async def test_the_party_that_the_switch_connects_is_told(tmp_path: Path) -> None:
    async with bridge() as made:
        with Phone(0) as phone:
            more = "send_pai=yes\ntrust_id_outbound=yes\ncallerid=Bob <+4930222>"
            async with switch(tmp_path, made, phone, dtmf="rfc4733", more=more) as server:
                task = asyncio.create_task(server.cli("channel originate PJSIP/bot extension talk@in"))
                await until(lambda: bool(made.sessions))
                changed = asyncio.create_task(answers(phone, server))
                await until(lambda: ("+4930222", "Bob") in made.session.parties)
                changed.cancel()
                await task
                made.session.call.hang_up("end")
                await until(lambda: not list(made.bridge))


async def test_a_switch_that_requires_reliable_ringing_calls_and_is_called(tmp_path: Path) -> None:
    """RFC 3262: it refuses calls without PRACK, in both directions."""
    port = free_port()
    own = {"proxy": f"sip:127.0.0.1:{port}"}
    identify = "[by-address]\ntype=identify\nendpoint=bot\nmatch=127.0.0.1\n"
    async with bridge(ready=False, trunk=own, allowed_targets=["*@127.0.0.1"]) as made:
        with Phone(0) as phone:
            more: dict[str, Any] = {"more": "100rel=required", "sections": identify, "port": port}
            async with switch(tmp_path, made, phone, **more) as server:
                await server.cli("channel originate PJSIP/bot extension early@in")
                await until(lambda: made.sessions)
                call = made.session.call
                await until(lambda: call.protocol.reliable.deadline() is None, "the PRACK")
                made.session.ready.set_result(None)
                await until(lambda: made.session.is_on_hold is False, "the answer")
                call.hang_up("end")
                await until(lambda: not list(made.bridge))

                made.sessions.clear()
                attempt = await made.bridge.outgoing.place(
                    CallOrder(target=f"sip:early@127.0.0.1:{port}", trunk="office")
                )
                await until(lambda: attempt.state == "early_media", "the reliable 183")
                await until(lambda: attempt.state in ("answered", "failed"))
                assert (attempt.state, attempt.status) == ("answered", 200)
                await echoes(made.session)
                made.session.call.hang_up("end")
                await until(lambda: not list(made.bridge))
                await server.over()


ACCOUNT = """
[account]
type=aor
max_contacts=1
minimum_expiration=60
[account]
type=auth
auth_type=digest
username=account
password=secret
[account]
type=endpoint
context=in
aors=account
auth=account
disallow=all
allow=ulaw
"""


async def test_an_account_of_the_switch_calls_and_is_called(tmp_path: Path) -> None:
    port = free_port()
    account = {"registrar": f"sip:127.0.0.1:{port}", "username": "account", "password": "secret", "trunk": "pbx"}
    trunks: dict[str, Any] = {"pbx": {}}
    more: dict[str, Any] = {"timeouts": {"t1_s": 0.2}, "allowed_targets": ["*@127.0.0.1"]}
    async with bridge(trunks=trunks, registrations=[account], **more) as made:
        (registration,) = made.bridge.registrations
        with Phone(0) as phone:
            async with switch(tmp_path, made, phone, sections=ACCOUNT, port=port) as server:
                await until(lambda: registration.registered, "the registration")
                await server.cli("channel originate PJSIP/account extension early@in")
                await until(lambda: made.sessions)
                await echoes(made.session)
                assert made.session.call.trunk.username == "account"
                made.session.call.hang_up("end")
                await until(lambda: not list(made.bridge))

                made.sessions.clear()
                attempt = await made.bridge.outgoing.place(CallOrder(target=f"sip:early@127.0.0.1:{port}", trunk="pbx"))
                await until(lambda: attempt.state in ("answered", "failed"))
                assert (attempt.state, attempt.status) == ("answered", 200)
                await echoes(made.session)
                made.session.call.hang_up("end")
                await until(lambda: not list(made.bridge))
                await server.over()
                await registration.close()
                assert "account" not in await server.cli("pjsip show contacts")


REGISTERING = """
[theirs]
type=registration
server_uri=sip:127.0.0.1:{bot}
client_uri=sip:theirs@127.0.0.1:{bot}
retry_interval=1
max_random_initial_delay=1
"""


async def test_a_switch_that_registers_here_is_refused_and_may_call_nevertheless(tmp_path: Path) -> None:
    """The gateway is no registrar."""
    async with bridge() as made:
        with Phone(0) as phone:
            sections = REGISTERING.format(bot=made.bridge.endpoint.port)
            async with switch(tmp_path, made, phone, sections=sections) as server:

                async def refused() -> bool:
                    return "Rejected" in await server.cli("pjsip show registrations")

                await patient(refused, "the refusal")
                await server.cli("channel originate PJSIP/bot extension early@in")
                await until(lambda: made.sessions)
                await echoes(made.session)
                made.session.call.hang_up("end")
                await until(lambda: not list(made.bridge))


async def echoes(told: Told) -> None:
    """The switch sends back what is said."""

    def heard() -> bool:
        told.call.send_frame(LOUD, time.monotonic())
        return LOUD in told.heard

    await until(heard, "the echo")


def ports_of(call: SipCall) -> int:
    """The bot's RTP port."""
    assert call.rtp._ports is not None
    return call.rtp._ports.port


async def answers(phone: Phone, server: Asterisk) -> None:
    """Answer every request of the switch as a phone does."""
    loop = asyncio.get_running_loop()
    while True:
        data, source = await asyncio.wait_for(loop.sock_recvfrom(phone.sip, 65536), PATIENCE_S)
        phone.server = source
        message = parse(data)
        if not isinstance(message, Request) or message.method == "ACK":
            continue
        contact = ("Contact", f"<sip:phone@127.0.0.1:{phone.port}>")
        body = offer(phone.rtp_port, codecs="0 101") if message.body or message.method == "INVITE" else b""
        more = [contact, ("Allow", "INVITE, ACK, BYE, CANCEL, UPDATE")]
        more += [("Content-Type", "application/sdp")] if body else []
        phone.send(response_to(message, 200, to_tag="phone", headers=more, body=body))
