"""Scripted and random calls by SIP. Each gives the lines that ``VirtualBridge`` notes; ``tests/vectors/sip`` keeps a
table of them for reviewers, and digests.

    python -m tests.sip_bridge.recorded_calls check         compare all of them
    python -m tests.sip_bridge.recorded_calls show 471      every line of a random call, or of a script by its name
    python -m tests.sip_bridge.recorded_calls record        write the vectors anew, after an intended change
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from gateway.errors import Rejected
from sip_bridge.message.sip import Request
from tests.sip_bridge.call_table import digest, set_up, table
from tests.sip_bridge.virtual_bridge import FAR, Far, VirtualBridge, description, placed, played
from tests.virtual_loop import VirtualLoop

VECTORS = Path(__file__).parents[1] / "vectors/sip"
RANDOM, BLOCK = 2000, 25

Script = Callable[[VirtualBridge, Far], Awaitable[None]]
Header = tuple[str, str]

UPDATES = ("Allow", "INVITE, ACK, BYE, UPDATE")
TIMER = ("Supported", "timer")
NEW_TARGET = ("Contact", "<sip:ann@127.0.0.8:7100>")
ELSEWHERE = ("Contact", "<sip:bob@127.0.0.8:7200>;q=0.3, <sip:carl@127.0.0.9>;q=0.9, x")
RELAY = "application/dtmf-relay"
CHALLENGE = ("WWW-Authenticate", 'Digest realm="far", nonce="n1", qop="auth", algorithm=MD5')
PROXY_CHALLENGE = ("Proxy-Authenticate", 'Digest realm="proxy", nonce="n2", algorithm=SHA-256')
STALE = ("WWW-Authenticate", 'Digest realm="far", nonce="n3", qop="auth", stale=true')

# --- events in a call that is up -------------------------------------------------------------------------------


async def bye(w: VirtualBridge, far: Far) -> None:
    far.send("BYE")


async def bye_twice(w: VirtualBridge, far: Far) -> None:
    request = far.send("BYE")
    await w.run(0.5)
    w.take(request)
    far.send("BYE")


async def hang_up(w: VirtualBridge, far: Far) -> None:
    w.session.call.hang_up("end", "case=7")
    w.session.call.hang_up("end")


async def hang_up_too_long(w: VirtualBridge, far: Far) -> None:
    w.session.call.hang_up("end", "x" * 3000)


async def hang_up_unanswered(w: VirtualBridge, far: Far) -> None:
    w.answers.clear()
    w.session.call.hang_up("end")


async def byes_cross(w: VirtualBridge, far: Far) -> None:
    w.answers.clear()
    w.session.call.hang_up("end")
    far.send("BYE")
    w.reply("BYE", 481)


async def bye_challenged(w: VirtualBridge, far: Far) -> None:
    w.answers.clear()
    w.session.call.hang_up("end")
    w.reply("BYE", 401, CHALLENGE)
    await w.run(0.1)
    w.reply("BYE", 200)


async def media_lost(w: VirtualBridge, far: Far) -> None:
    w.session.call.on_leg_closed("media timeout")


async def server_closes(w: VirtualBridge, far: Far) -> None:
    await w.bridge.aclose()


async def hold_and_resume(w: VirtualBridge, far: Far) -> None:
    await far.reoffers(more="a=sendonly")
    await w.run(5)
    await far.reoffers()


async def inactive(w: VirtualBridge, far: Far) -> None:
    await far.reoffers(more="a=inactive")
    w.session.call.hang_up("end")


async def hold_by_address(w: VirtualBridge, far: Far) -> None:
    await far.reoffers(host="0.0.0.0")
    await far.reoffers(port=40010)


async def hold_by_update(w: VirtualBridge, far: Far) -> None:
    far.send("UPDATE", body=description(more="a=sendonly"))
    far.send("UPDATE", NEW_TARGET)
    far.send("UPDATE", body=description(), cseq=1)
    await w.run(1)
    far.send("UPDATE", body=description())


async def other_codec(w: VirtualBridge, far: Far) -> None:
    await far.reoffers(codecs="9")
    await far.reoffers(codecs="18")
    far.send("UPDATE", body=description(codecs="18"))
    await far.reoffers(codecs="8 101")


async def unreadable_offers(w: VirtualBridge, far: Far) -> None:
    part = b"--x\r\nContent-Type: application/sdp\r\n\r\n" + description() + b"--x--\r\n"
    for body, content in (
        (b"v=1", "application/sdp"),
        (b"x", "text/plain"),
        (b"x", "multipart/mixed"),
        (part, 'multipart/mixed; boundary="x"'),
    ):
        far.invite = far.send("INVITE", body=body, content=content)
        await w.run(0.1)
        far.ack()


async def new_target(w: VirtualBridge, far: Far) -> None:
    await far.reoffers(NEW_TARGET)
    w.session.call.hang_up("end")


async def ask_for_an_offer(w: VirtualBridge, far: Far) -> None:
    far.calls(body=b"")
    await w.run(0.2)
    far.ack(body=description(port=40020))


async def offer_asked_for_and_left(w: VirtualBridge, far: Far) -> None:
    far.calls(body=b"")
    await w.run(0.2)
    far.ack()


async def offer_asked_for_and_refused(w: VirtualBridge, far: Far) -> None:
    far.calls(body=b"")
    await w.run(0.2)
    far.ack(body=description(codecs="18"))


async def offer_while_ours_is_open(w: VirtualBridge, far: Far) -> None:
    far.calls(body=b"")
    await w.run(0.2)
    far.send("UPDATE", body=description())
    far.send("UPDATE")
    far.send("INVITE", body=description())
    await w.run(0.2)


async def reinvite_without_ack(w: VirtualBridge, far: Far) -> None:
    far.calls()
    await w.run(3)
    far.send("INVITE", body=description(port=40030))
    await w.run(40)


async def reinvite_repeated(w: VirtualBridge, far: Far) -> None:
    far.calls()
    assert far.invite
    w.take(far.invite)
    await w.run(0.7)
    w.take(far.invite)
    far.ack()
    far.ack()


async def hang_up_in_a_reinvite(w: VirtualBridge, far: Far) -> None:
    far.calls()
    await w.run(0.1)
    w.session.call.hang_up("end")
    await w.run(0.2)
    far.ack()


async def old_number(w: VirtualBridge, far: Far) -> None:
    far.send("INFO", body=b"Signal=1\r\n", content=RELAY)
    far.send("INFO", body=b"Signal=2\r\n", content=RELAY, cseq=1)
    far.send("BYE", cseq=1)


async def wrong_tag(w: VirtualBridge, far: Far) -> None:
    far.send("BYE", to_tag="other")
    far.send("INVITE", to_tag="other", body=description())
    far.send("ACK", to_tag="other")


async def digits(w: VirtualBridge, far: Far) -> None:
    for body, content in (
        (b"Signal=5\r\nDuration=160\r\n", RELAY),
        (b"signal= # ", RELAY),
        (b"Signal=55", RELAY),
        (b"d", "application/dtmf"),
        (b"12", "application/dtmf"),
        (b"hello", "text/plain"),
        (b"", ""),
    ):
        far.send("INFO", body=body, content=content)
        await w.run(0.1)
    w.session.call.on_digit("7")


async def digits_by_media(w: VirtualBridge, far: Far) -> None:
    w.session.call.on_digit("7")
    far.send("INFO", body=b"7", content="application/dtmf")
    w.session.call.on_digit("8")
    w.note("sends", w.session.call.send_dtmf("12"))


async def other_requests(w: VirtualBridge, far: Far) -> None:
    for method in ("OPTIONS", "PUBLISH", "CANCEL", "NOTIFY", "REFER", "MESSAGE"):
        far.send(method)
        await w.run(0.1)
    far.send("INFO", ("Require", "foo"))


async def notify_of_nothing(w: VirtualBridge, far: Far) -> None:
    far.send("NOTIFY", ("Event", "refer"), body=b"SIP/2.0 200 OK", content="message/sipfrag")
    far.send("NOTIFY", ("Event", "talk"))


async def asked_to_transfer(w: VirtualBridge, far: Far) -> None:
    for target in ("<sip:bob@127.0.0.9:7000>", "<tel:+1>", "", "<sip:bob@10.0.0.1>"):
        far.send("REFER", *([("Refer-To", target)] if target else []))
        await w.run(0.1)
    await w.run(1)
    for request in [m for m in w.sent if isinstance(m, Request) and m.method in ("NOTIFY", "INVITE")]:
        w.answer(request, 486 if request.method == "INVITE" and not request.to.tag else 200)
    await w.run(2)


async def silence_for_ever(w: VirtualBridge, far: Far) -> None:
    """Nothing is answered, so the side that refreshes gives up."""
    await w.run(2000)


async def refreshed(w: VirtualBridge, far: Far, *answers: Any) -> None:
    """Answer each of our refreshes in turn."""
    for answer in answers:
        seen = len(w.sent)
        for _ in range(100):
            await w.run(20)
            new = [m for m in w.sent[seen:] if isinstance(m, Request) and m.method in ("UPDATE", "INVITE")]
            if new:
                break
        else:
            return
        status, headers, body = (*answer, b"")[:3]
        w.answer(new[-1], status, *headers, body=body)
        await w.run(0.3)


async def refresh_accepted(w: VirtualBridge, far: Far) -> None:
    yes = (200, [("Session-Expires", "300;refresher=uac")], description())
    await refreshed(w, far, yes, yes)
    await w.run(500)


async def refresh_accepted_without_timer(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (200, [], description()), (200, []))
    await w.run(2000)


async def refresh_handed_over(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (200, [("Session-Expires", "300;refresher=uas")], description()))
    await w.run(100)
    far.send("UPDATE", ("Session-Expires", "300;refresher=uac"), TIMER)
    await w.run(400)


async def refresh_too_small(w: VirtualBridge, far: Far) -> None:
    no = (422, [("Min-SE", "2400")])
    await refreshed(w, far, no, (200, [("Session-Expires", "2400;refresher=uac")], description()))
    await refreshed(w, far, no, no, no)


async def refresh_unknown_method(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (501, []), (405, []), (200, [("Session-Expires", "x")], description()))


async def refresh_crosses(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (491, []), (491, []), (200, [("Session-Expires", "300")], description()))


async def refresh_while_they_offer(w: VirtualBridge, far: Far) -> None:
    for _ in range(40):
        await w.run(25)
        new = [m for m in w.sent if isinstance(m, Request) and m.method in ("UPDATE", "INVITE") and m.to.tag]
        if new:
            far.calls()
            far.send("UPDATE", body=description())
            await w.run(0.1)
            w.answer(new[-1], 491)
            await w.run(5)
            break


async def refresh_to_nobody(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (481, []))


async def refresh_refused(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (403, []), (500, []), (408, []))


async def refresh_challenged(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (401, [CHALLENGE]), (200, [("Session-Expires", "300")], description()))
    await refreshed(w, far, (407, [PROXY_CHALLENGE]), (407, [PROXY_CHALLENGE]))


async def refresh_answered_badly(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (200, [], description(codecs="18")), (200, [], b"v=1"))


async def refresh_answered_twice(w: VirtualBridge, far: Far) -> None:
    await refreshed(w, far, (200, [("Session-Expires", "300")], description()))
    for method in {m.method for m in w.sent if isinstance(m, Request) and m.to.tag} & {"UPDATE", "INVITE"}:
        w.reply(method, 200)
    await w.run(1)


async def they_refresh(w: VirtualBridge, far: Far) -> None:
    for _ in range(3):
        far.send("UPDATE", ("Session-Expires", "200;refresher=uac"), TIMER)
        await w.run(100)
    far.send("UPDATE", ("Session-Expires", "60"), TIMER)
    far.send("UPDATE", ("Session-Expires", "60"))
    far.send("UPDATE", ("Session-Expires", "none"))
    await w.run(59)
    await far.reoffers(("Session-Expires", "200;refresher=uas"), TIMER)
    await w.run(300)


def transfer(w: VirtualBridge, target: str = "sip:bob@127.0.0.9") -> None:
    w.note("transfer", w.session.call.transfer(target, "case=7").value)  # the session has asked the policy before


def tells(far: Far, fragment: str, state: str = "active") -> None:
    far.send(
        "NOTIFY", ("Event", "refer"), ("Subscription-State", state), body=fragment.encode(), content="message/sipfrag"
    )


async def transferred(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    transfer(w)
    w.reply("REFER", 202)
    for fragment in ("SIP/2.0 100 Trying", "SIP/2.0 200 OK", "SIP/2.0 200 OK"):
        tells(far, fragment)
        await w.run(0.1)


async def transfer_refused(w: VirtualBridge, far: Far) -> None:
    for target in ("nobody", "sip:bob@127.0.0.9"):
        transfer(w, target)
        await w.run(0.1)
    w.reply("REFER", 603)
    transfer(w, "sip:carl@127.0.0.9")
    w.reply("REFER", 202, ("Refer-Sub", "false"))
    await w.run(0.1)


async def transfer_to_nobody(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    w.reply("REFER", 202)
    tells(far, "SIP/2.0 486 Busy Here", "terminated")
    transfer(w, "+4930123")
    w.reply("REFER", 202)
    tells(far, "", "terminated;reason=noresource")


async def transfer_without_outcome(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    w.reply("REFER", 202)
    await w.run(40)


async def transfer_without_answer(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    await w.run(40)


async def transfer_challenged(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    w.reply("REFER", 401, CHALLENGE)
    await w.run(0.1)
    w.reply("REFER", 401, CHALLENGE)
    await w.run(0.1)


async def hang_up_in_a_transfer(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    w.session.call.hang_up("end", "case=8")
    w.reply("REFER", 202)
    await w.run(1)
    tells(far, "SIP/2.0 200 OK")


async def bye_in_a_transfer(w: VirtualBridge, far: Far) -> None:
    transfer(w)
    w.reply("REFER", 202)
    far.send("BYE")


UP: list[Script] = [
    bye, bye_twice, hang_up, hang_up_too_long, hang_up_unanswered, byes_cross, bye_challenged, media_lost,
    server_closes, hold_and_resume, inactive, hold_by_address, hold_by_update,
    other_codec, unreadable_offers, new_target,
    ask_for_an_offer, offer_asked_for_and_left, offer_asked_for_and_refused, offer_while_ours_is_open,
    reinvite_without_ack, reinvite_repeated, hang_up_in_a_reinvite, old_number, wrong_tag, digits, digits_by_media,
    other_requests, notify_of_nothing, asked_to_transfer, silence_for_ever, refresh_accepted,
    refresh_accepted_without_timer, refresh_handed_over, refresh_too_small, refresh_unknown_method, refresh_crosses,
    refresh_while_they_offer, refresh_to_nobody, refresh_refused, refresh_challenged, refresh_answered_badly,
    refresh_answered_twice, they_refresh, transferred, transfer_refused, transfer_to_nobody, transfer_without_outcome,
    transfer_without_answer, transfer_challenged, hang_up_in_a_transfer, bye_in_a_transfer,
]  # fmt: skip

# --- calls to us: what an INVITE says --------------------------------------------------------------------------------

INVITES: dict[str, tuple[list[Header], bytes]] = {
    "plain": ([], description()),
    "without offer": ([], b""),
    "we refresh": ([("Session-Expires", "600;refresher=uas"), TIMER], description()),
    "they refresh": ([("Session-Expires", "600;refresher=uac"), TIMER], description()),
    "updates": ([UPDATES, TIMER, ("Min-SE", "120")], description()),
    "routed": ([("Record-Route", "<sip:127.0.0.8;lr>, <sip:127.0.0.7>")], description()),
    "strictly routed": ([("Record-Route", "<sip:127.0.0.8:7300>")], description(codecs="9 101")),
    "translated": (
        [("Via", "SIP/2.0/UDP 10.1.1.1:7000;branch=z9hG4bK-nat;rport"), ("Contact", "<sip:ann@10.1.1.1:7000>")],
        description(),
    ),
    "encrypted": (
        [],
        description(
            more="a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:" + "A" * 40, protocol="RTP/SAVP"
        ),
    ),
}  # fmt: skip

TRUNKS: dict[str, dict[str, Any]] = {
    "": {},
    "early media": {"trunk": {"early_media": True}},
    "with a password": {"trunk": {"addresses": ["127.0.0.0/8"], "transfers": "follow"}, "user_to_user": False},
    "no timer asked": {"timeouts": {"session_s": 0}},
}

# --- calls to us, before they are up ---------------------------------------------------------------------------------


async def cancel(w: VirtualBridge, far: Far) -> None:
    assert far.invite
    w.take(far.request("CANCEL", cseq=far.invite.cseq.number, branch=far.invite.via.branch, to_tag=""))
    await w.run(0.6)
    if w.replied().status >= 300:
        far.ack()


async def bye_before_the_answer(w: VirtualBridge, far: Far) -> None:
    far.send("BYE", to_tag=w.replied().to.tag)


async def repeated_invite(w: VirtualBridge, far: Far) -> None:
    assert far.invite
    w.take(far.invite)
    far.send("INVITE", body=description(), cseq=far.invite.cseq.number)
    await w.run(1)


async def session_ends(w: VirtualBridge, far: Far) -> None:
    w.call.hang_up("end")
    await w.run(0.1)


async def session_fails(w: VirtualBridge, far: Far) -> None:
    w.call.hang_up("dialogue_failed", "case=7")
    await w.run(5)


async def becomes_ready(w: VirtualBridge, far: Far) -> None:
    await w.run(1)
    for session in w.sessions:
        session.ready.set_result(None)
    await w.run(1)
    for session in w.sessions:
        session.greeted.set_result(None)
    await w.run(1)
    far.ack(body=b"" if far.invite and far.invite.body else description())
    await w.run(1)


async def greets_at_once(w: VirtualBridge, far: Far) -> None:
    for session in w.sessions:
        session.greeted.set_result(None)
        session.ready.set_result(None)
    await w.run(0.3)
    far.ack(body=b"" if far.invite and far.invite.body else description())
    await w.run(1)


async def never_ready(w: VirtualBridge, far: Far) -> None:
    await w.run(10)


async def never_greets(w: VirtualBridge, far: Far) -> None:
    for session in w.sessions:
        session.ready.set_result(None)
    await w.run(100)


async def requests_before_the_answer(w: VirtualBridge, far: Far) -> None:
    far.to_tag = w.replied().to.tag
    far.send("INFO", body=b"5", content="application/dtmf")
    far.send("UPDATE", body=description())
    far.send("INVITE", body=description())
    far.send("OPTIONS")
    await w.run(0.1)
    w.call.on_digit("6")
    w.note("transfer", w.call.transfer("sip:bob@127.0.0.9").value)


async def media_lost_early(w: VirtualBridge, far: Far) -> None:
    w.call.on_leg_closed("media timeout")
    await w.run(0.1)


async def bridge_closes(w: VirtualBridge, far: Far) -> None:
    await w.bridge.aclose()


BEFORE: list[Script] = [
    cancel, bye_before_the_answer, repeated_invite, session_ends, session_fails, becomes_ready, greets_at_once,
    never_ready, never_greets, requests_before_the_answer, media_lost_early, bridge_closes,
]  # fmt: skip

ENTRIES: dict[str, dict[str, Any]] = {
    "": {},
    "early media": {"trunk": {"early_media": True}},
    "at once": {"trunk": {"answer_at_once": True}},
}

# --- answered, and the ACK is missing --------------------------------------------------------------------------------


async def ack_never_comes(w: VirtualBridge, far: Far) -> None:
    await w.run(40)


async def ack_comes_late(w: VirtualBridge, far: Far) -> None:
    await w.run(6)
    far.ack(body=b"" if far.invite and far.invite.body else description(port=40040))
    await w.run(1)


async def hang_up_without_ack(w: VirtualBridge, far: Far) -> None:
    w.call.hang_up("end", "case=7")
    await w.run(40)


async def hang_up_before_the_ack(w: VirtualBridge, far: Far) -> None:
    w.call.hang_up("end", "case=7")
    await w.run(0.7)
    far.ack()
    await w.run(1)


async def bye_instead_of_ack(w: VirtualBridge, far: Far) -> None:
    far.send("BYE", to_tag=w.replied().to.tag)
    await w.run(1)


async def offer_before_the_ack(w: VirtualBridge, far: Far) -> None:
    far.to_tag = w.replied().to.tag
    far.send("UPDATE", body=description())
    far.send("UPDATE")
    far.send("INVITE", body=description())
    await w.run(0.1)


async def ack_of_another(w: VirtualBridge, far: Far) -> None:
    far.to_tag = w.replied().to.tag
    far.send("ACK", cseq=77)
    await w.run(1)


async def ack_without_answer(w: VirtualBridge, far: Far) -> None:
    far.ack()
    await w.run(1)


async def ack_with_a_bad_answer(w: VirtualBridge, far: Far) -> None:
    far.ack(body=description(codecs="18"))
    await w.run(1)


async def ack_but_no_room(w: VirtualBridge, far: Far) -> None:
    w.room = False
    far.ack(body=description())
    await w.run(1)


UNACKED: list[Script] = [
    ack_never_comes, ack_comes_late, hang_up_without_ack, hang_up_before_the_ack, bye_instead_of_ack,
    offer_before_the_ack, ack_of_another, ack_without_answer,
    ack_with_a_bad_answer, ack_but_no_room, cancel, repeated_invite,
]  # fmt: skip

# --- calls to us that are refused ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[Header], bytes, dict[str, Any]]] = {
    "no common codec": ([], description(codecs="18"), {}),
    "unreadable": ([], b"v=1", {}),
    "another body": ([("Content-Type", "text/plain")], b"x", {}),
    "compressed": ([("Content-Encoding", "gzip")], b"x", {}),
    "interval too small": ([("Session-Expires", "60"), TIMER], description(), {}),
    "interval unreadable": ([("Session-Expires", "x")], description(), {}),
    "extension": ([("Require", "100rel")], description(), {}),
    "srtp refused": (*INVITES["encrypted"], {"trunk": {"srtp": "off"}}),
    "full": ([], description(), {"room": False}),
    "full, without offer": ([], b"", {"room": False}),
    "bad routes": ([("Record-Route", "<sip:p")], description(), {}),
    "one call only": ([], description(), {"trunk": {"max_calls": 1}}),
}

# --- our calls -------------------------------------------------------------------------------------------------------

CALLEES: dict[str, list[Any]] = {
    "answers": [(200, [], description())],
    "rings": [(100, []), (180, []), (200, [], description())],
    "early media": [(183, [], description()), (180, []), (200, [])],
    "other early media": [(183, [], description(codecs="8")), (200, [NEW_TARGET], description())],
    "timer": [(200, [("Session-Expires", "300;refresher=uac"), ("Require", "timer"), UPDATES], description())],
    "their timer": [(200, [("Session-Expires", "300;refresher=uas"), ("Require", "timer")], description())],
    "routed": [(200, [("Record-Route", "<sip:127.0.0.8;lr>, <sip:127.0.0.7;lr>")], description(codecs="9 101"))],
    "challenge": [(401, [CHALLENGE]), (407, [PROXY_CHALLENGE]), (200, [], description())],
    "stale": [(401, [CHALLENGE]), (401, [STALE]), (200, [], description())],
}  # fmt: skip

UNANSWERED: dict[str, list[Any]] = {
    "busy": [(486, [])],
    "ringing, declined": [(180, []), (603, [])],
    "early media, declined": [(183, [], description()), (480, [])],
    "wrong password": [(401, [CHALLENGE]), (401, [CHALLENGE])],
    "no password for this": [(401, [("WWW-Authenticate", "Basic realm=x")])],
    "interval": [(422, [("Min-SE", "2400")]), (422, [("Min-SE", "x")])],
    "interval, answered": [(422, [("Min-SE", "2400")]), (200, [("Session-Expires", "2400")], description())],
    "redirected": [(302, [ELSEWHERE]), (404, []), (200, [], description())],
    "redirected outside": [(302, [("Contact", "<sip:bob@10.0.0.1>")])],
    "redirected nowhere": [(300, [])],
    "no sdp": [(200, [])],
    "no common codec": [(200, [], description(codecs="18"))],
    "no contact": [(200, [("Contact", "*")], description())],
    "bad timer": [(200, [("Session-Expires", "x")], description())],
    "bad early media": [(183, [], b"v=1"), (183, [], description(codecs="18")), (200, [], description())],
    "nobody": [],
    "rings for ever": [(180, [])],
    "early media for ever": [(183, [], description())],
}  # fmt: skip


async def answered(w: VirtualBridge, answers: list[Any]) -> None:
    """Send each answer to the newest INVITE."""
    for answer in answers:
        status, headers, body = (*answer, b"")[:3]
        w.reply("INVITE", status, *headers, body=body)
        await w.run(0.5)


async def only_called(w: VirtualBridge, far: Far) -> None:
    await w.run(100)


async def given_up(w: VirtualBridge, far: Far) -> None:
    w.note("cancel", w.bridge.outgoing.cancel("VX" + "f" * 32))
    await w.run(0.1)
    if not w.asked("INVITE").to.tag and any(isinstance(m, Request) and m.method == "CANCEL" for m in w.sent):
        w.reply("CANCEL", 200)
        w.reply("INVITE", 487)


async def given_up_and_answered(w: VirtualBridge, far: Far) -> None:
    w.note("cancel", w.bridge.outgoing.cancel("VX" + "f" * 32))
    await w.run(0.1)
    w.reply("INVITE", 180)
    await w.run(0.1)
    for _ in range(2):
        w.reply("INVITE", 200, body=description())
        await w.run(0.1)


async def given_up_and_unanswered(w: VirtualBridge, far: Far) -> None:
    w.note("cancel", w.bridge.outgoing.cancel("VX" + "f" * 32))
    await w.run(50)


async def forks(w: VirtualBridge, far: Far) -> None:
    for tag in ("b", "a", "b", "c", "a"):
        w.reply("INVITE", 200, tag=tag, body=description())
        await w.run(0.3)


async def early_forks(w: VirtualBridge, far: Far) -> None:
    w.reply("INVITE", 183, tag="b", body=description(codecs="8"))
    w.reply("INVITE", 183, tag="c", body=description(codecs="0"))
    await w.run(0.5)
    w.reply("INVITE", 200, tag="c")
    await w.run(0.5)


async def no_room_when_answered(w: VirtualBridge, far: Far) -> None:
    w.room = False
    w.reply("INVITE", 183, body=description())
    await w.run(0.2)
    w.reply("INVITE", 200, body=description())
    await w.run(0.2)


CALLING: list[Script] = [
    only_called, given_up, given_up_and_answered, given_up_and_unanswered, forks, early_forks, no_room_when_answered,
    bridge_closes,
]  # fmt: skip

ORDERS: dict[str, dict[str, Any]] = {
    "": {},
    "early session": {"trunk": {"early_media": True}},
    "no timer": {"timeouts": {"session_s": 0}},
}

SCENES: dict[str, dict[str, Callable[[], Coroutine[Any, Any, list[str]]]]] = {}
"""Each scene under its variants: other offers, answers or settings. A script makes its own ``VirtualBridge``."""


def _add(scene: str, variant: str, setting: str, run: Callable[[], Coroutine[Any, Any, list[str]]]) -> None:
    SCENES.setdefault(scene, {})[", ".join(filter(None, (variant, setting)))] = run


def _into(scene: str, invite: str, setting: tuple[str, dict[str, Any]], script: Script) -> None:
    """Add a call to us. The scene says whether the session is ready and whether the ACK comes."""
    name, config = setting
    ready, acked = not scene.startswith("ringing"), not scene.startswith(("ringing", "not acked"))

    async def run() -> list[str]:
        w = VirtualBridge(ready=ready, **config)
        far = Far(w)
        headers, body = INVITES[invite]
        far.calls(*headers, body=body)
        await w.run(0.1)
        for session in w.sessions if ready else []:
            session.greeted.set_result(None)
        await w.run(0.1)
        if acked:
            far.ack(body=b"" if body else description())
            await w.run(0.1)
        w.begin_scene()
        await script(w, far)
        return await w.finish()

    _add(scene, invite, name, run)


def _refused(name: str) -> None:
    async def run() -> list[str]:
        headers, body, config = REFUSED[name]
        room = config.get("room", True)
        w = VirtualBridge(**{key: value for key, value in config.items() if key != "room"})
        w.room = room
        far = Far(w)
        if name == "one call only":
            other = Far(w)
            other.call_id = "call-2"
            other.calls()
            await w.run(0.1)
            other.ack()
        far.calls(*headers, body=body)
        await w.run(3)
        far.ack(body=description() if name == "full, without offer" else b"")
        return await w.finish()

    _add("refused", name, "", run)


def _placed(scene: str, callee: str, setting: tuple[str, dict[str, Any]], answers: list[Any], script: Script) -> None:
    """Add one of our calls."""
    name, config = setting

    async def run() -> list[str]:
        merged = {"proxy": f"sip:{FAR[0]}:{FAR[1]}", "username": "bot", "password": "secret"} | config.get("trunk", {})
        w = VirtualBridge(**{**config, "trunk": merged})
        try:
            attempt = await placed(w, custom_parameters={"X-Case": "7"}, trunk="office")
        except Rejected:
            return await w.finish()
        await answered(w, answers)
        up = [call for call in w.bridge if call.state.value == "up"]
        far = Far(w, w.asked("INVITE"), tag="a")
        if up or script in CALLING:
            if callee not in UNANSWERED:
                w.begin_scene()
            await script(w, far)
        else:
            await w.run(100)
        w.note("attempt", attempt.state, attempt.status, attempt.reason)
        return await w.finish()

    _add(scene, callee, name, run)


def _few(name: str, common: tuple[str, ...]) -> list[Script]:
    """Return all scripts for a common variant, and for another one those that depend on the variant."""
    return UP if name in common else [bye, hang_up, hold_and_resume, new_target, refresh_accepted, transferred]


for _trunk in TRUNKS.items():
    for _invite in INVITES if not _trunk[0] else ("plain",):
        for _script in _few(_invite, ("plain", "without offer", "we refresh", "they refresh", "updates")):
            _into(f"up, {_script.__name__}", _invite, _trunk, _script)
for _entry in ENTRIES.items():
    for _invite in ("plain", "without offer", "routed"):
        for _script in BEFORE:
            _into(f"ringing, {_script.__name__}", _invite, _entry, _script)
        for _script in UNACKED:
            _into(f"not acked, {_script.__name__}", _invite, _entry, _script)
for _refusal in REFUSED:
    _refused(_refusal)
for _order in ORDERS.items():
    for _callee, _answers in CALLEES.items():
        for _script in _few(_callee, () if _order[0] else ("answers", "timer", "their timer")):
            _placed(f"ours, {_script.__name__}", _callee, _order, _answers, _script)
    for _callee, _answers in UNANSWERED.items():
        _placed("ours, other answers", _callee, _order, _answers, bye)
    for _script in CALLING:
        for _before, _answers in {"at once": [], "ringing": [(180, [])], "early": [(183, [], description())]}.items():  # type: ignore[assignment]
            _placed(f"ours, {_script.__name__}", _before, _order, _answers, _script)


async def _set_up(run: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str]:
    return set_up(await run())


for _scene, _variants in list(SCENES.items()):
    _kind = _scene.partition(", ")[0]
    if _scene not in ("refused", "ours, other answers"):
        for _variant, _play in _variants.items():
            SCENES.setdefault(f"set-up, {_kind}", {}).setdefault(_variant, partial(_set_up, _play))


async def interleaved(seed: int) -> list[str]:
    """Return the lines of a random call."""
    rng = random.Random(seed)
    ours = rng.random() < 0.4
    config = rng.choice([*TRUNKS.values(), *ENTRIES.values(), *ORDERS.values()])
    if ours:
        trunk = {"proxy": f"sip:{FAR[0]}:{FAR[1]}", "username": "bot", "password": "secret"} | config.get("trunk", {})
        w = VirtualBridge(**{**config, "trunk": trunk}, ready=rng.random() < 0.5)
        await placed(w, trunk="office")
        far = Far(w, w.asked("INVITE"), tag="a")
        steps = [*CALLING, *UP]
        answers = list(rng.choice([*CALLEES.values(), *UNANSWERED.values()]))
    else:
        w = VirtualBridge(**config, ready=rng.random() < 0.5)
        far = Far(w)
        headers, body = rng.choice(list(INVITES.values()))
        far.calls(*headers, body=body)
        steps = [*BEFORE, *UNACKED, *UP]
        answers = []
    for _ in range(rng.randrange(2, 9)):
        # Odd times, so that nothing happens in one instant with something else.
        await w.run(rng.choice([0.0137, 0.317, 1.913, 33.71, 331.3]) * (1 + rng.random()))
        w.room = rng.random() < 0.95
        step = rng.choice(steps)
        try:
            if answers and rng.random() < 0.8:
                await answered(w, [answers.pop(0)])
            elif not ours and rng.random() < 0.2:
                far.ack(body=rng.choice([b"", description()]))
            elif "closes" not in step.__name__:
                w.note("step", step.__name__)
                await step(w, far)
        except Exception as exc:  # a step that does not fit here
            w.note("no", type(exc).__name__)
    return await w.finish()


def _run(script: Coroutine[Any, Any, list[str]]) -> list[str]:
    """Run one call on a clock of its own, so that no sum of seconds is rounded differently."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(script)


def calls(scene: str) -> dict[str, list[str]]:
    """Return every line of a scene's calls by variant."""
    with played():
        return {variant: _run(script()) for variant, script in SCENES[scene].items()}


def random_digest(block: int) -> str:
    """Return the digest of ``BLOCK`` random calls."""
    with played():
        return digest([_run(interleaved(seed)) for seed in range(block * BLOCK, (block + 1) * BLOCK)])


def recorded() -> tuple[dict[str, str], list[str]]:
    """Return the recorded table by scene, and the digests of the random calls."""
    parts = (VECTORS / "calls.txt").read_text().split("## ")[1:]
    return {part.partition("\n")[0]: f"## {part}" for part in parts}, (VECTORS / "random.txt").read_text().split()


def _main(verb: str, which: str = "") -> int:
    if verb == "show":
        scene, _, variant = which.partition(": ")
        with played():
            print(*_run(interleaved(int(which)) if which.isdigit() else SCENES[scene][variant]()), sep="\n")
        return 0
    tables = {scene: table(scene, calls(scene)) for scene in SCENES}
    digests = [random_digest(block) for block in range(RANDOM // BLOCK)]
    if verb == "record":
        (VECTORS / "calls.txt").write_text("".join(tables.values()))
        (VECTORS / "random.txt").write_text("\n".join(digests) + "\n")
        return 0
    before, digests_before = recorded()
    other = [scene for scene in SCENES if tables[scene] != before.get(scene)]
    blocks = [at for at, (new, old) in enumerate(zip(digests, digests_before, strict=True)) if new != old]
    print(f"{len(other)} scenes and {len(blocks)} blocks of random calls differ", *other, *blocks, sep="\n")
    return bool(other or blocks)


if __name__ == "__main__":
    logging.disable()
    sys.exit(_main(*sys.argv[1:]))
