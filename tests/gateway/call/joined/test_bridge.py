"""Bridged transfers by SIP, through a whole gateway: what both people hear, and what the application is told."""

import asyncio
import wave
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import numpy as np
import pytest

from gateway.seams.messages import Background, End, HoldLeg, Leave, ResumeLeg, Text, Transfer, Warm
from sip_bridge.message.sip import Request, response_to
from tests.gateway.call.joined.people import World, world
from tests.gateway.mixing.legs import level_of, tone
from tests.peers.ports import free_port
from tests.waiting import until

A_HZ, B_HZ = 600, 1000


async def joined(made: World, **transfer: object) -> None:
    made.app.say(Transfer(target=made.target, mode="bridge", **transfer))  # type: ignore[arg-type]
    await made.person.answers()
    await made.app.hears_of("answered")
    made.caller.talk(A_HZ)
    made.person.talk(B_HZ)


@pytest.mark.parametrize("codecs", [(0, 8), (0, 0)], ids=["mixed", "untouched"])
async def test_both_hear_each_other_and_the_callers_end_ends_both(tmp_path: Path, codecs: tuple[int, int]) -> None:
    async with world(tmp_path, codecs=codecs) as made:
        await joined(made)
        await made.caller.until_hears(B_HZ)
        await made.person.until_hears(A_HZ)
        assert made.caller.hears(A_HZ) < 0.01 and made.person.hears(B_HZ) < 0.01
        assert made.app.events == ["ringing", "answered"]
        await made.caller.bye()
        await made.person.hung_up()
        await made.app.over()


async def test_the_caller_hears_the_ringing_and_an_unanswered_call_comes_back_to_the_bot(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target=made.target, mode="bridge", ring_timeout_s=8.0))
        invite = await made.person.rings()
        await made.app.hears_of("ringing")
        await until(lambda: made.caller.hears(440) > 0.03 and made.caller.hears(480) > 0.03, "the ringback tone")
        cancel = await made.person.next("CANCEL")
        made.person.answer(cancel, 200)
        made.person.replies(invite, 487)
        await made.app.hears_of("noAnswer")
        await until(lambda: made.app.errors == ["transfer_failed"])
        assert not made.app.session.ending.decided and not made.app.session.seat.joined


@pytest.mark.parametrize(("status", "event"), [(486, "busy"), (603, "declined"), (404, "failed")])
async def test_a_person_who_is_not_reached_is_told(tmp_path: Path, status: int, event: str) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target=made.target, mode="bridge"))
        invite = await made.person.next("INVITE")
        made.person.replies(invite, status)
        await made.app.hears_of(event)
        await until(lambda: made.app.errors == ["transfer_failed"])
        (told,) = [each for each in made.app.told if getattr(each, "event", "") == event]
        assert told.cause.sip_status == status  # type: ignore[union-attr]
        assert not made.app.session.ending.decided
        await made.person.next("ACK")
        made.app.say(Transfer(target=made.target, mode="bridge"))  # and may be called again
        await made.person.answers()
        await made.app.hears_of("answered")


async def test_early_media_is_heard_before_the_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target=made.target, mode="bridge"))
        invite = await made.person.next("INVITE")
        made.person.replies(invite, 183, early=True)
        made.person.talk(B_HZ)
        made.caller.talk(A_HZ)
        await made.caller.until_hears(B_HZ)
        assert made.person.hears(A_HZ) < 0.01 and made.app.events == ["ringing"]
        made.person.replies(invite, 200)
        await made.app.hears_of("answered")
        await made.person.until_hears(A_HZ)


@pytest.mark.parametrize("on_hangup", ["end", "return"])
async def test_the_person_hangs_up(tmp_path: Path, on_hangup: str) -> None:
    async with world(tmp_path) as made:
        await joined(made, on_hangup=on_hangup)
        await made.caller.until_hears(B_HZ)
        session = made.app.session
        person = next(each for each in made.made.directory if each is not session)
        made.person.to_tag = ""
        await bye(made)
        await made.app.hears_of("hangup")
        await until(lambda: made.made.directory.get(person.call_id) is None)
        if on_hangup == "end":
            await made.caller.hung_up()
            await made.app.over()
            assert (session.ending.reason, session.ending.cause.by) == ("transferred", "agent")
        else:
            assert not session.ending.decided and not session.seat.joined


async def bye(made: World) -> None:
    """The person's BYE, in the dialog that the gateway's INVITE began."""
    person = made.person
    invite = person.invite
    assert invite is not None
    (call,) = [each for each in made.made.sip if each.direction == "outbound"]  # type: ignore[union-attr]
    dialog = call.dialog
    text = "\r\n".join(
        [
            f"BYE {invite.contact.uri} SIP/2.0",  # type: ignore[union-attr]
            f"Via: SIP/2.0/UDP 127.0.0.1:{person.port};branch=z9hG4bKbye",
            "Max-Forwards: 70",
            f"From: {dialog.remote}",
            f"To: {dialog.local}",
            f"Call-ID: {dialog.call_id}",
            "CSeq: 1 BYE",
            "Content-Length: 0",
            "",
            "",
        ]
    )
    person.server = ("127.0.0.1", made.made.sip.endpoint.port)  # type: ignore[union-attr]
    person.send(text.encode())


async def test_the_application_leaves_and_the_people_go_on(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await joined(made)
        await made.caller.until_hears(B_HZ)
        made.app.say(End())
        made.caller.heard.clear()
        await made.caller.until_hears(B_HZ)
        assert not made.app.session.ending.decided
        await bye(made)
        await made.caller.hung_up()
        await made.app.over()


async def test_people_go_on_when_the_application_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path, routes={"default": {"fallback": {"text": "One moment."}}}) as made:
        await joined(made, on_hangup="return")
        await made.caller.until_hears(B_HZ)
        made.app.session.on_dialogue_lost()
        made.app.session.on_dialogue_failed("gone")
        made.caller.heard.clear()
        await made.caller.until_hears(B_HZ)
        await made.person.until_hears(A_HZ)
        assert not made.app.session.ending.decided
        await bye(made)  # there is no bot to return to
        await made.caller.hung_up()
        await made.app.over()


async def test_people_go_on_when_the_engine_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await joined(made, on_hangup="return")
        await made.caller.until_hears(B_HZ)
        await made.engine.aclose()
        made.app.say(Text(token="May I help you?", last=True, turn="late"))
        await until(lambda: made.app.turn("late") == "failed")
        for phone, hz in ((made.caller, B_HZ), (made.person, A_HZ)):
            phone.heard.clear()
            await phone.until_hears(hz)
        assert not made.app.session.ending.decided and made.app.session.seat.joined


async def test_a_drain_lets_people_finish(tmp_path: Path) -> None:
    async with world(tmp_path, server={"drain_s": 60, "drain_notice_s": 0}) as made:
        await joined(made)
        await made.caller.until_hears(B_HZ)
        drain = asyncio.create_task(made.made.drain())
        await until(lambda: made.made.directory.draining)
        made.caller.heard.clear()
        await made.caller.until_hears(B_HZ)
        await made.caller.bye()
        await made.person.hung_up()
        await drain
        assert not len(made.made.directory)


async def test_the_end_of_a_drain_ends_both_calls(tmp_path: Path) -> None:
    async with world(tmp_path, server={"drain_s": 0.1, "drain_notice_s": 0}) as made:
        await joined(made)
        await made.made.drain()
        await made.caller.hung_up()
        await made.person.hung_up()
        assert made.app.session.ending.reason == "drained"


async def test_the_longest_time_ends_both_calls(tmp_path: Path) -> None:
    async with world(tmp_path, calling={"bridge_longest_s": 0.6}) as made:
        await joined(made, on_hangup="return")
        await made.caller.hung_up()
        await made.person.hung_up()
        await made.app.over()
        assert made.app.session.ending.reason == "too_long"


async def test_both_calls_are_recorded_and_their_records_belong_together(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "routes": {"default": {"recording": True}},
        "recording": {"folder": str(tmp_path / "sound")},
        "calls": {"folder": str(tmp_path / "calls")},
        "records": {"database_url": f"sqlite:///{tmp_path}/records.sqlite3"},
    }
    async with world(tmp_path, **sections) as made:
        await joined(made)
        first = made.app.session.call_id
        second = next(each.call_id for each in made.made.directory if each.call_id != first)
        await made.caller.until_hears(B_HZ)
        await made.person.until_hears(A_HZ)
        await until(lambda: len(made.caller.heard) > 80 and len(made.person.heard) > 80, "sound for the analysis")
        await made.caller.bye()
        await made.app.over()
        for call, hears, says in ((first, B_HZ, A_HZ), (second, A_HZ, B_HZ)):
            path = tmp_path / "sound" / f"{call}.wav"
            await until(path.exists)
            with wave.open(str(path)) as file:
                both = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, 2)
            for channel, hz in enumerate((says, hears)):
                found = max(
                    level_of(both[at : at + 4000, channel], hz, 8000) for at in range(0, len(both) - 4000, 2000)
                )
                assert found > 0.1, (call, channel)
        url = f"http://127.0.0.1:{made.made.server.port}"
        async with aiohttp.ClientSession() as http:

            async def ids(path: str, name: str) -> dict[str, str]:
                async with http.get(f"{url}{path}") as answer:
                    return {
                        each.get("callId") or each["id"]: each["correlationId"] for each in (await answer.json())[name]
                    }

            wanted = {first: first, second: first}

            async def stored() -> bool:
                return await ids("/v1/calls?ended=true", "calls") == await ids("/v1/records", "records") == wanted

            await until(stored)
            async with http.get(f"{url}/metrics") as answer:
                assert 'talkspurt_bridge_legs_total{event="answered"} 1.0' in await answer.text()


async def test_keys_reach_the_other_side_and_the_application(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await joined(made)
        await made.person.until_hears(A_HZ)
        made.caller.press(5)
        await until(lambda: made.person.keys == [5], "the caller's key")
        made.person.press(7)
        await until(lambda: made.caller.keys == [7], "the person's key")
        told = [repr(each) for each in made.app.told if "Dtmf" in repr(each)]
        assert "digit='5'" in told[0] and "OfLeg" in told[1] and "digit='7'" in told[1]


async def test_keys_may_be_the_applications_alone(tmp_path: Path) -> None:
    async with world(tmp_path, routes={"default": {"bridge_keys": "take"}}) as made:
        await joined(made)
        await made.person.until_hears(A_HZ)
        made.caller.press(5)
        await until(lambda: any("digit='5'" in repr(each) for each in made.app.told), "the caller's key")
        made.person.heard.clear()
        await made.person.until_hears(A_HZ)
        assert made.person.keys == []


# --- REFER first ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [405, 501, 603])
async def test_a_peer_that_refuses_any_transfer_is_bridged(tmp_path: Path, status: int) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target=made.target))
        refer = await made.caller.next("REFER")
        made.caller.send(response_to(refer, status))
        await made.person.answers()
        await made.app.hears_of("answered")
        assert made.app.errors == []


async def test_a_peer_that_does_not_list_refer_is_bridged_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, allow="INVITE, ACK, CANCEL, BYE") as made:
        made.app.say(Transfer(target=made.target))
        await made.person.answers()
        await made.app.hears_of("answered")


async def test_a_peer_that_tells_no_outcome_is_bridged(tmp_path: Path) -> None:
    async with world(tmp_path, sip={"timeouts": {"transfer_s": 0.5}}) as made:
        made.app.say(Transfer(target=made.target))
        refer = await made.caller.next("REFER")
        made.caller.send(response_to(refer, 202))
        await made.person.answers()
        await made.app.hears_of("answered")


async def test_a_transfer_by_refer_alone_is_never_bridged(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target=made.target, mode="refer"))
        refer = await made.caller.next("REFER")
        made.caller.send(response_to(refer, 405))
        await until(lambda: made.app.errors == ["transfer_failed"])
        assert made.person.nothing()


async def test_a_target_that_is_not_allowed_is_not_called(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target="sip:ann@elsewhere.example", mode="bridge"))
        await until(lambda: made.app.errors == ["target_not_allowed"])
        assert len(made.made.directory) == 1


@pytest.mark.parametrize("identity", ["trunk", "caller"])
async def test_the_person_sees_who_calls_as_the_policy_says(tmp_path: Path, identity: str) -> None:
    async with world(tmp_path, calling={"bridge_identity": identity}) as made:
        made.app.say(Transfer(target=made.target, mode="bridge"))
        invite = await made.person.answers()
        headers = invite.headers
        if identity == "trunk":
            assert "P-Asserted-Identity" not in headers and "Diversion" not in headers
            assert "+4930111" not in str(invite.from_)
        else:
            assert "+4930111" in str(invite.from_) and "+4930111" in str(headers.get("P-Asserted-Identity"))
            assert "+4930200@" in str(headers.get("Diversion"))


# --- warm transfer ----------------------------------------------------------------------------------------------------


async def briefed(made: World, **transfer: object) -> None:
    """A person who hears the briefing, and a caller who waits."""
    warm = Warm(briefing="Ms Ito asks about her invoice. Press one to take the call.")
    made.app.say(Transfer(target=made.target, warm=warm, **transfer))  # type: ignore[arg-type]
    await made.person.answers()
    await made.app.hears_of("answered")
    made.caller.talk(A_HZ)
    made.person.talk(B_HZ)
    await until(lambda: made.person.loudness() > 100, "the briefing")


async def test_the_briefed_person_accepts(tmp_path: Path) -> None:
    clip = made_clip(tmp_path)
    async with world(tmp_path, clips={"folder": str(tmp_path)}, routes={"default": {"hold_clip": clip}}) as made:
        await briefed(made)
        await made.caller.until_hears(1600)
        assert made.caller.hears(B_HZ) < 0.01 and made.person.hears(A_HZ) < 0.01
        assert made.app.events == ["ringing", "answered"]
        made.person.press(1)
        await made.app.hears_of("accepted")
        await made.caller.until_hears(B_HZ)
        await made.person.until_hears(A_HZ)
        made.caller.heard.clear()
        await made.caller.until_hears(B_HZ)
        assert made.caller.hears(1600) < 0.01
        await made.caller.bye()
        await made.person.hung_up()
        await made.app.over()


async def test_a_phone_that_answers_without_ringing_leaves_the_caller_with_music(tmp_path: Path) -> None:
    clip = made_clip(tmp_path)
    async with world(tmp_path, clips={"folder": str(tmp_path)}, routes={"default": {"hold_clip": clip}}) as made:
        made.app.say(Transfer(target=made.target, warm=Warm(briefing="")))
        made.person.replies(await made.person.next("INVITE"), 200)
        await made.app.hears_of("answered")
        await made.caller.until_hears(1600)
        assert made.app.events == ["answered"]


async def test_the_briefed_person_declines_and_another_one_accepts(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await briefed(made)
        made.person.press(2)
        await made.app.hears_of("declined")
        await until(lambda: made.app.errors == ["transfer_failed"])
        await made.person.hung_up()
        await until(lambda: len(made.made.directory) == 1)
        assert not made.app.session.ending.decided and not made.app.session.seat.joined
        made.app.told.clear()
        made.person.to_tag = ""
        made.app.say(Transfer(target=made.target, warm=Warm(briefing="", accept=("5",))))
        await made.person.answers()
        await made.app.hears_of("answered")
        made.person.press(5)
        await made.app.hears_of("accepted")
        await made.caller.until_hears(B_HZ)


async def test_a_person_who_does_not_decide_is_let_go(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.app.say(Transfer(target=made.target, warm=Warm(briefing=""), accept_timeout_s=1.0))
        await made.person.answers()
        await made.app.hears_of("noAnswer")
        await made.person.hung_up()
        await until(lambda: made.app.errors == ["transfer_failed"])


@pytest.mark.parametrize("who", ["caller", "person"])
async def test_one_hangs_up_in_the_briefing(tmp_path: Path, who: str) -> None:
    async with world(tmp_path) as made:
        await briefed(made)
        if who == "caller":
            await made.caller.bye()
            await made.person.hung_up()
            await made.app.over()
        else:
            await bye(made)
            await made.app.hears_of("hangup")
            await until(lambda: made.app.errors == ["transfer_failed"])
            assert not made.app.session.ending.decided


@pytest.mark.parametrize("accepted", [False, True])
async def test_the_application_takes_the_person_off(tmp_path: Path, accepted: bool) -> None:
    async with world(tmp_path) as made:
        await briefed(made)
        if accepted:
            made.person.press(1)
            await made.app.hears_of("accepted")
        made.app.say(Leave(leg="VX9"))
        assert made.app.errors == ["unknown_leg"]
        made.app.say(Leave())
        await made.app.hears_of("hangup")
        await made.person.hung_up()
        assert not made.app.session.ending.decided and not made.app.session.seat.joined


# --- the peer joins the two -----------------------------------------------------------------------------------------


async def handed_over(made: World) -> Request:
    """The REFER that asks the caller's peer to replace the person's leg."""
    await briefed(made, mode="refer", on_hangup="return")
    made.person.press(1)
    await made.app.hears_of("accepted")
    refer = await made.caller.next("REFER")
    invite = made.person.invite
    assert invite is not None
    assert f"Replaces={quote(str(invite.headers.get('Call-ID')), safe='')}" in str(refer.headers.get("Refer-To"))
    return refer


async def test_the_peer_joins_the_two_after_the_acceptance(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        refer = await handed_over(made)
        made.caller.send(response_to(refer, 202))
        headers = [("Event", "refer"), ("Subscription-State", "terminated;reason=noresource")]
        made.caller.send(made.caller.request("NOTIFY", *headers, body=b"SIP/2.0 200 OK\r\n", content="message/sipfrag"))
        await made.caller.response(200)
        await made.caller.hung_up()
        await made.person.hung_up()
        await made.app.over()
        assert made.app.session.ending.reason == "transferred" and made.app.errors == []


@pytest.mark.parametrize("status", [405, 603])
async def test_the_bridge_stays_if_the_peer_refuses_to_join_the_two(tmp_path: Path, status: int) -> None:
    async with world(tmp_path) as made:
        refer = await handed_over(made)
        made.caller.send(response_to(refer, status))
        for phone, hz in ((made.caller, B_HZ), (made.person, A_HZ)):
            phone.heard.clear()
            await phone.until_hears(hz)
        await bye(made)
        await made.app.hears_of("hangup")
        assert not made.app.session.ending.decided and not made.app.session.seat.joined, "the bot has returned"


async def test_a_replaced_leg_that_ends_first_is_the_success(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        refer = await handed_over(made)
        made.caller.send(response_to(refer, 202))
        await bye(made)
        await made.caller.hung_up()
        await made.app.over()
        assert made.app.session.ending.reason == "transferred"


# --- hold and background ----------------------------------------------------------------------------------------------


async def test_a_leg_on_hold_hears_the_clip_and_is_not_heard(tmp_path: Path) -> None:
    clip = made_clip(tmp_path)
    async with world(tmp_path, clips={"folder": str(tmp_path)}, routes={"default": {"hold_clip": clip}}) as made:
        await joined(made)
        await made.person.until_hears(A_HZ)
        made.app.say(HoldLeg())
        await made.caller.until_hears(1600)
        made.caller.heard.clear()
        await made.caller.until_hears(1600)
        assert made.caller.hears(B_HZ) < 0.01
        made.app.say(ResumeLeg())
        await made.caller.until_hears(B_HZ)
        await made.person.until_hears(A_HZ)
        person = next(each.call_id for each in made.made.directory if each is not made.app.session)
        made.app.say(HoldLeg(leg=person))
        await made.person.until_hears(1600)
        made.app.say(ResumeLeg(leg=person))
        await made.person.until_hears(A_HZ)
        made.app.say(HoldLeg(leg="VX9"))
        assert made.app.errors == ["unknown_leg"]


async def test_a_background_sounds_without_a_second_leg_until_it_is_ended(tmp_path: Path) -> None:
    clip = made_clip(tmp_path)
    async with world(tmp_path, clips={"folder": str(tmp_path)}) as made:
        made.app.say(Background(source=clip, level=0.0))
        await made.caller.until_hears(1600)
        made.app.say(Background(source=""))
        await until(lambda: not made.app.session.seat.joined)
        made.app.say(Background(source="missing.wav"))
        await until(lambda: made.app.errors == ["CLIP"])


def made_clip(folder: Path) -> str:
    with wave.open(str(folder / "hold.wav"), "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(8000)
        clip.writeframes(tone(1600, 8000, 1.0).tobytes())
    return "hold.wav"


async def test_a_caller_without_an_application_reaches_the_fallback_by_a_bridge(tmp_path: Path) -> None:
    """The operator's own target needs no list."""
    person = free_port()
    fallback = {"transfer": f"sip:desk@127.0.0.1:{person}"}
    nobody = {"allowed_targets": []}
    async with world(
        tmp_path,
        allow="INVITE, ACK, CANCEL, BYE",
        sip=nobody,
        routes={"default": {"fallback": fallback}},
        person=person,
    ) as made:
        made.app.session.on_dialogue_failed("gone")
        await made.person.answers()
        await made.app.hears_of("answered")
        made.caller.talk(A_HZ)
        await made.person.until_hears(A_HZ)
        await bye(made)
        await made.caller.hung_up()
        await made.app.over()
        assert made.app.session.ending.reason == "dialogue_failed"
