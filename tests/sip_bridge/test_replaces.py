"""Calls that replace another one: INVITE with Replaces, against RFC 3891."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.seams.leg import TransferStart
from gateway.seams.originate import CallOrder
from tests.sip_bridge.dialog.test_transfer import up
from tests.sip_bridge.phone import Bridge, Phone, Told, bridge, offer, until
from tests.sip_bridge.test_outgoing import fresh, next_of, reply

AGENT = ("P-Asserted-Identity", '"Agent" <sip:+4930222@pbx.example>')


def dialog_of(phone: Phone, *, to_tag: str = "", from_tag: str = "", more: str = "") -> tuple[str, str]:
    """The Replaces header for a phone's call to us."""
    tags = f"to-tag={to_tag or phone.to_tag};from-tag={from_tag or phone.from_tag}"
    return ("Replaces", f"{phone.call_id};{tags}{more}")


async def speaks_to(told: Told, phone: Phone) -> None:
    told.call.send_frame(b"\x11" * 160, time.monotonic())
    await phone.hears(b"\x11" * 160)


async def taken_over(made: Bridge, told: Told, caller: Phone, agent: Phone) -> None:
    """The caller's call has ended, and its session is the agent's."""
    await caller.hung_up()
    assert made.sessions == [told] and told.closed == []
    assert told.parties == [("+4930222", "Agent")]
    assert told.call_sid == agent.call_id
    await until(lambda: told.call.state.value == "up")
    await speaks_to(told, agent)
    assert [call.call_sid for call in made.bridge] == [agent.call_id]


async def test_the_new_call_takes_the_session_over_and_the_old_one_ends() -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            ok = await agent.call(dialog_of(caller), AGENT)
            assert "replaces" in ok.headers.tokens("Supported")
            await taken_over(made, told, caller, agent)
            assert told.is_on_hold is False
            agent.speak(b"\x22" * 160)
            await until(lambda: told.heard)
            told.call.hang_up("end")
            await agent.hung_up()


async def test_a_call_that_replaces_one_may_be_replaced() -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            await agent.call(dialog_of(caller), AGENT)
            await taken_over(made, told, caller, agent)
            with Phone(made.bridge.endpoint.port) as third:
                await third.call(dialog_of(agent))
                await agent.hung_up()
                await until(lambda: told.call.state.value == "up")
                await speaks_to(told, third)
                await third.bye()
                assert told.closed == ["hangup"]


@pytest.mark.parametrize("codecs", ["0", "8", "9"])
async def test_another_codec_is_converted(codecs: str) -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            formats = told.call.outbound, told.call.inbound
            await agent.call(dialog_of(caller), body=offer(agent.rtp_port, codecs=codecs))
            await caller.hung_up()
            assert (told.call.outbound, told.call.inbound) == formats
            told.call.send_frame(b"\x11" * 160, time.monotonic())
            while (await agent.packet())[1] & 0x7F != int(codecs):
                pass
            await agent.bye()


async def test_a_call_on_hold_is_resumed_by_the_one_that_replaces_it() -> None:
    """A person who transfers puts the bot on hold first."""
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            await caller.call(body=offer(caller.rtp_port, codecs="0", more="a=sendonly", version=2))
            await until(lambda: told.is_on_hold)
            await agent.call(dialog_of(caller), AGENT)
            await taken_over(made, told, caller, agent)
            assert told.is_on_hold is False
            await agent.bye()


async def test_an_offer_of_ours_is_answered_before_the_session_moves() -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            ok = await agent.invited(dialog_of(caller), AGENT, body=b"")
            assert told.call.call_sid == caller.call_id
            agent.ack(ok, body=offer(agent.rtp_port, codecs="0"))
            await taken_over(made, told, caller, agent)
            await agent.bye()


async def test_a_transfer_of_the_replaced_call_is_given_up() -> None:
    async with bridge(allowed_targets=["*@pbx.example"]) as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            assert told.call.transfer("sip:sales@pbx.example") is TransferStart.UNDER_WAY
            caller.answer(await fresh(caller, "REFER"), 202)
            await agent.call(dialog_of(caller))
            await caller.hung_up()
            assert len(told.transferred) == 1 and "replaced" in told.transferred[0]
            await agent.bye()


async def test_a_full_trunk_still_takes_the_call_that_replaces_one() -> None:
    async with bridge(trunk={"max_calls": 1}) as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            await agent.call(dialog_of(caller), AGENT)
            await taken_over(made, told, caller, agent)
            await agent.bye()


@pytest.mark.parametrize(
    ("dialog", "more", "status"),
    [
        ({"to_tag": "other"}, [], 481),
        ({"from_tag": "other"}, [], 481),
        ({"more": ";early-only"}, [], 486),
        ({}, [("Join", "a;to-tag=1;from-tag=2")], 400),
        ({}, [("Replaces", "a;to-tag=1;from-tag=2")], 400),
        ({}, [("Require", "join")], 420),
        ({}, [("Require", "replaces"), ("Session-Expires", "60"), ("Supported", "timer")], 422),
    ],
)
async def test_a_call_that_may_not_replace_another_leaves_it_alone(
    dialog: dict[str, str], more: list[tuple[str, str]], status: int
) -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            await agent.invited(dialog_of(caller, **dialog), *more, status=status)
            await speaks_to(told, caller)
            assert told.parties == []
            await caller.bye()  # our BYE did not come before


async def test_an_offer_without_a_common_codec_leaves_the_call_alone() -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            await agent.invited(dialog_of(caller), body=offer(agent.rtp_port, codecs="18"), status=488)
            await speaks_to(told, caller)
            await caller.bye()


async def test_a_call_of_another_tenant_is_not_replaced() -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            told = await up(made, caller)
            told.call.route = "theirs"
            await agent.invited(dialog_of(caller), status=403)
            await caller.bye()


async def test_an_ended_call_is_declined() -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            await up(made, caller)
            await caller.bye()
            await agent.invited(dialog_of(caller), status=603)


async def test_a_call_that_rings_at_us_is_not_replaced() -> None:
    """Section 3: only the side that called may be asked to replace an early dialog."""
    async with bridge(ready=False) as made:
        with Phone(made.bridge.endpoint.port) as caller, Phone(made.bridge.endpoint.port) as agent:
            await caller.invited(status=180)
            await agent.invited(dialog_of(caller), status=481)
            made.session.ready.set_result(None)
            caller.ack(await caller.response(200))
            await caller.bye()


@pytest.mark.parametrize("method", ["BYE", "INFO", "MESSAGE", "REFER"])
async def test_only_an_invite_replaces(method: str) -> None:
    async with bridge() as made:
        with Phone(made.bridge.endpoint.port) as phone:
            await up(made, phone)
            phone.send(phone.request(method, dialog_of(phone)))
            await phone.response(501 if method == "MESSAGE" else 400)
            await phone.bye()


@pytest.mark.parametrize("more", ["", ";early-only"])
async def test_a_call_of_ours_that_rings_is_answered_by_the_one_that_replaces_it(more: str) -> None:
    """A colleague picks the call up."""
    options: dict[str, Any] = {"allowed_targets": ["*@127.0.0.1"]}
    async with bridge(**options) as made:
        with Phone(made.bridge.endpoint.port) as callee, Phone(made.bridge.endpoint.port) as agent:
            attempt = await made.bridge.outgoing.place(CallOrder(target=f"sip:ann@127.0.0.1:{callee.port}"))
            invite = await fresh(callee, "INVITE")
            reply(callee, invite, 180, tag="a")
            await until(lambda: attempt.state == "ringing")
            # The receiver's tag is the to-tag for calls in both directions.
            replaces = f"{invite.call_id};to-tag={invite.from_.tag};from-tag=a{more}"
            await agent.call(("Replaces", replaces), AGENT)
            cancel = (await next_of(callee, "CANCEL"))[0]
            reply(callee, cancel, 200)
            reply(callee, invite, 487)
            await next_of(callee, "ACK")
            await until(lambda: attempt.state == "answered")
            told = made.session
            assert (told.call.session_id, told.call.direction, told.call.caller.to) == (
                attempt.call_id,
                "outbound",
                "ann",
            )
            assert told.parties == [("+4930222", "Agent")]
            await speaks_to(told, agent)
            told.call.hang_up("end")
            await agent.hung_up()


async def test_a_call_of_ours_that_is_answered_is_replaced() -> None:
    async with bridge(allowed_targets=["*@127.0.0.1"]) as made:
        with Phone(made.bridge.endpoint.port) as callee, Phone(made.bridge.endpoint.port) as agent:
            await made.bridge.outgoing.place(CallOrder(target=f"sip:ann@127.0.0.1:{callee.port}"))
            invite = await fresh(callee, "INVITE")
            reply(callee, invite, 200, tag="a", body=offer(callee.rtp_port, codecs="0"))
            await next_of(callee, "ACK")
            await until(lambda: made.sessions)
            await agent.call(("Replaces", f"{invite.call_id};to-tag={invite.from_.tag};from-tag=a"), AGENT)
            await taken_over(made, made.session, callee, agent)
            await agent.bye()
