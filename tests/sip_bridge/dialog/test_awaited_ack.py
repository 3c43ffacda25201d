"""The repetitions of our 2xx, in time as a number."""

from __future__ import annotations

from collections import deque

from sip_bridge.dialog.awaited_ack import AwaitedAck
from sip_bridge.dialog.dialog import Dialog
from sip_bridge.dialog.effects import Effect, Respond
from sip_bridge.dialog.transaction import server_key
from tests.sip_bridge.sip_messages import answer, request

INVITE = request()


def awaiting(*, offers: bool = False) -> tuple[AwaitedAck, Dialog, deque[Effect]]:
    effects: deque[Effect] = deque()
    awaited = AwaitedAck(effects, t1_s=0.5, t2_s=4.0)
    dialog = Dialog.as_server(INVITE, "ours")
    awaited.begin(dialog, server_key(INVITE), answer(INVITE, 200), offers=offers, now=100.0)
    return awaited, dialog, effects


def test_a_2xx_is_repeated_ever_less_often_for_64_t1() -> None:
    awaited, dialog, effects = awaiting()
    repeated = []
    while not awaited.tick(now=(now := awaited.deadline() or 0.0)):
        repeated.append(now - 100.0)
    assert repeated == [0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5, 23.5, 27.5, 31.5] and now == 132.0
    assert list(effects) == [Respond(server_key(INVITE), answer(INVITE, 200))] * 10
    assert awaited.deadline() is None and not dialog.invited and not awaited.tick(now=1e9)


def test_the_dialog_has_an_open_invite_until_the_ack() -> None:
    awaited, dialog, _ = awaiting(offers=True)
    assert dialog.invited and dialog.inviting
    assert awaited.take(request("ACK", cseq=2)) is None and dialog.invited  # another INVITE's
    waiting = awaited.take(request("ACK"))
    assert waiting and waiting.offers and not dialog.invited and not dialog.inviting
    assert awaited.take(request("ACK")) is None and awaited.deadline() is None
