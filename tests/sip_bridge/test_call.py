"""A call carries out its protocol's wishes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.seams.end_cause import EndCause
from sip_bridge.dialog.transaction import cancel_of
from sip_bridge.message.sip import Headers, Request, Response
from tests.sip_bridge.virtual_bridge import Far, VirtualBridge, description, placed, played
from tests.virtual_loop import VirtualLoop


def run(script: Coroutine[Any, Any, None]) -> None:
    with played(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(script)


async def called() -> tuple[VirtualBridge, Far]:
    world = VirtualBridge()
    far = Far(world)
    far.calls()
    await world.run()
    far.ack()
    return world, far


def test_what_an_effect_leads_to_comes_behind_the_effects_before_it() -> None:
    """A session that hangs up while it is told of a key: the key's answer is out, and nothing is said twice."""

    async def script() -> None:
        world, far = await called()
        world.session.on_digit = lambda digit: world.session.call.hang_up("end")  # type: ignore[method-assign]
        far.send("INFO", body=b"5", content="application/dtmf")
        info, bye = world.sent[-2:]
        assert isinstance(info, Response) and info.status == 200 and info.cseq.method == "INFO"
        assert isinstance(bye, Request) and bye.method == "BYE"
        await world.run(40)
        assert not any(world.bridge.kept.values())

    run(script())


def test_an_effect_that_fails_ends_its_call_only_and_the_others_are_carried_out() -> None:
    async def script() -> None:
        world, far = await called()

        def fails(digit: str) -> None:
            raise RuntimeError("our bug")

        world.session.on_digit = fails  # type: ignore[method-assign]
        far.send("INFO", body=b"5", content="application/dtmf")
        await world.run(40)
        assert [line.partition(" ")[2] for line in world.lines if "session: closed" in line] == [
            "session: closed internal error"
        ]
        assert world.asked("BYE") and not any(world.bridge.kept.values())

    run(script())


def test_a_call_that_is_over_has_no_timer_left() -> None:
    async def script() -> None:
        world, far = await called()
        call = world.session.call
        assert call.deadline() is not None  # the session's interval
        far.send("BYE")
        assert call.deadline() is None and call._timer._timer.cancelled()

    run(script())


def test_keys_by_message_then_by_rtp_and_back_all_count() -> None:
    async def script() -> None:
        world, far = await called()
        call = world.session.call
        far.send("INFO", body=b"Signal=5", content="application/dtmf-relay")
        await far.reoffers(port=40010)
        call.on_digit("5")
        far.send("INFO", body=b"5", content="application/dtmf")  # the same key by the other way
        far.send("INFO", body=b"Signal=6", content="application/dtmf-relay")
        call.on_digit("7")
        keys = [line.rpartition(" ")[2] for line in world.lines if "session: digit" in line]
        assert keys == ["5", "5", "6", "7"]

    run(script())


PAI = "P-Asserted-Identity"


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
def test_another_party_is_told_once(method: str) -> None:
    """A PBX says it in this way after a transfer (RFC 3325, RFC 5876)."""

    async def script() -> None:
        world, far = await called()

        async def names(*headers: tuple[str, str]) -> None:
            far.send(method, *headers, body=description() if method == "INVITE" else b"")
            await world.run()
            if method == "INVITE":
                far.ack()

        await names()
        await names((PAI, '"Ann" <sip:+4930111@example.org>'))  # the caller herself
        await names((PAI, '"Bob" <sip:+4930222@example.org>'))
        await names((PAI, "<sip:bob@example.org>, <tel:+4930222>"))  # the same number, without the name
        await names(("Remote-Party-ID", '"Carl" <sip:333@example.org>;party=calling'))
        await names(("Remote-Party-ID", "unreadable <"))
        told = [line.partition("changed ")[2] for line in world.lines if "caller changed" in line]
        assert told == ["+4930222 Bob", "333 Carl"]

    run(script())


def test_another_party_in_the_answer_to_our_refresh_is_told() -> None:
    async def script() -> None:
        world = VirtualBridge(timeouts={"session_s": 90})
        far = Far(world)
        far.calls(
            ("Supported", "timer"), ("Session-Expires", "90;refresher=uas"), ("Allow", "INVITE, ACK, BYE, UPDATE")
        )
        await world.run()
        far.ack()
        await world.run(50)
        world.reply("UPDATE", 200, (PAI, "<tel:+4930222>"), tag="theirs")
        assert [line for line in world.lines if "caller changed +4930222" in line]

    run(script())


@pytest.mark.parametrize("answer", [b"", description(codecs="18"), description(port=0), b"no description"])
def test_a_reinvite_whose_ack_has_no_usable_answer_leaves_the_call_as_it_was(answer: bytes) -> None:
    async def script() -> None:
        world, far = await called()
        far.calls(body=b"")
        await world.run(0.2)
        far.ack(body=answer)
        await world.run(0.2)
        assert not [line for line in world.lines if "session: closed" in line]
        await far.reoffers(codecs="8 101", port=40010)
        assert any("media PCMA 8 8 127.0.0.9 40010" in line for line in world.lines)
        far.send("BYE")
        await world.run(0.2)
        assert any("session: closed hangup" in line for line in world.lines)

    run(script())


def sdp(codecs: str, port: int = 40000) -> bytes:
    return description(codecs=codecs, port=port)


ANSWERS = {
    "at once": ([(200, "a", sdp("8 0"))], "PCMA", 40000),
    "ringing first": ([(180, "a", b""), (200, "a", sdp("0"))], "PCMU", 40000),
    "early media is the answer": ([(183, "a", sdp("8")), (200, "a", b"")], "PCMA", 40000),
    "early media after ringing": (
        [(180, "a", b""), (183, "a", sdp("8")), (180, "a", b""), (200, "a", b"")], "PCMA", 40000
    ),
    "another codec after early media": ([(183, "a", sdp("0")), (200, "a", sdp("8", 40010))], "PCMA", 40010),
    "another fork with another codec": ([(183, "a", sdp("0")), (200, "b", sdp("8", 40010))], "PCMA", 40010),
    "two forks with early media, the second answers without": (
        [(183, "a", sdp("0")), (183, "b", sdp("8", 40010)), (200, "b", b"")], "PCMA", 40010
    ),
    "two forks with early media, the first answers without": (
        [(183, "a", sdp("0")), (183, "b", sdp("8", 40010)), (200, "a", b"")], "PCMU", 40000
    ),
    "the To tag changes and the answer has no description": (
        [(183, "a", sdp("8", 40010)), (200, "b", b"")], "PCMA", 40010
    ),
    "early media without a To tag": ([(183, "", sdp("8", 40010)), (200, "b", b"")], "PCMA", 40010),
    "early media that moves": ([(183, "a", sdp("0")), (183, "a", sdp("8", 40010)), (200, "a", b"")], "PCMA", 40010),
    "early media that cannot be used": ([(183, "a", sdp("18")), (200, "a", sdp("0"))], "PCMU", 40000),
    "early media that cannot be read": ([(183, "a", b"v=0\r\nm=audio x\r\n"), (200, "a", sdp("0"))], "PCMU", 40000),
    "a queue announces in G.722": (
        [(182, "a", b""), (183, "a", sdp("9")), (183, "b", sdp("0", 40006)), (200, "c", sdp("8 0", 40010))],
        "PCMA", 40010,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("early_media", [False, True])
def test_each_answer_to_our_invite_stands_alone(case: str, early_media: bool) -> None:
    """RFC 3261 sections 13.2.1 and 13.2.2.4."""
    responses, codec, port = ANSWERS[case]

    async def script() -> None:
        world = VirtualBridge(trunk={"early_media": early_media})
        attempt = await placed(world)
        for status, tag, body in responses:
            world.reply("INVITE", status, tag=tag, body=body)
            await world.run()
        assert (attempt.state, attempt.status) == ("answered", 200)
        ack = world.asked("ACK")
        assert ack.to.tag == responses[-1][1]
        media = [line for line in world.lines if " media " in line and "closed" not in line]
        assert f"media {codec} " in media[-1] and f"127.0.0.9 {port} sendrecv" in media[-1]
        assert not any(isinstance(m, Request) and m.method == "BYE" for m in world.sent)
        await world.finish()
        assert world.lines[-1].endswith("kept {}")

    run(script())


FAULT = 'Q.850;cause=38;text="Network out of order", SIP;cause=503'


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("", EndCause(by="caller")),
        ("Q.850;cause=16", EndCause(by="caller", q850=16)),
        (FAULT, EndCause(by="carrier", sip_status=503, q850=38, text="Network out of order")),
    ],
)
def test_a_bye_tells_the_session_its_reason(reason: str, cause: EndCause) -> None:
    """RFC 3326."""

    async def script() -> None:
        world, far = await called()
        far.send("BYE", *([("Reason", reason)] if reason else []))
        assert world.session.cause == cause

    run(script())


def test_a_cancel_tells_the_session_its_reason() -> None:
    async def script() -> None:
        world = VirtualBridge(trunk={"answer_at_once": False}, ready=False)
        far = Far(world)
        far.calls()
        await world.run()
        assert far.invite
        cancel = cancel_of(far.invite)
        reason = ("Reason", 'SIP;cause=200;text="Call completed elsewhere"')
        world.take(Request(cancel.method, cancel.uri, Headers([*cancel.headers, reason]), b""))
        assert world.session.cause == EndCause(by="caller", sip_status=200, text="Call completed elsewhere")

    run(script())


def test_lost_media_ends_a_call_by_the_gateway_and_the_bye_has_the_reason() -> None:
    async def script() -> None:
        world, _ = await called()
        world.session.call.on_leg_closed("media timeout")
        assert world.session.cause == EndCause(by="gateway", sip_status=408)
        assert world.asked("BYE").headers.all("Reason") == ('SIP;cause=408;text="media timeout"',)

    run(script())


def test_a_failed_attempt_has_the_cause_of_the_answer() -> None:
    async def script() -> None:
        world = VirtualBridge()
        attempt = await placed(world)
        world.reply("INVITE", 480, ("Reason", 'Q.850;cause=18;text="No user responding"'))
        await world.run()
        expected = EndCause(by="carrier", sip_status=480, q850=18, text="No user responding")
        assert attempt.cause == expected and world.causes == [expected]

    run(script())


def test_a_cancelled_attempt_is_ended_by_the_manager() -> None:
    async def script() -> None:
        world = VirtualBridge()
        attempt = await placed(world)
        assert world.bridge.outgoing.cancel(attempt.call_id)
        await world.run()
        assert attempt.cause == EndCause(by="manager", sip_status=487) and world.causes == [attempt.cause]

    run(script())
