"""The choice of the worker that gets a datagram: whole messages in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sip_bridge.dispatch import Dispatcher
from sip_bridge.local import LocalAddress, mark_of, worker_of
from sip_bridge.message_limit import MessageLimit

PEER = "192.0.2.4"


def message(
    start: str = "INVITE sip:bot@example.com SIP/2.0",
    *,
    call: str = "one",
    tag: str = "",
    branch: str = "z9hG4bK-theirs",
) -> bytes:
    method = "INVITE" if start.startswith("SIP/") else start.split()[0]
    lines = [
        start,
        f"Via: SIP/2.0/UDP {PEER}:5070;branch={branch}",
        "From: <sip:ann@example.org>;tag=theirs",
        f"To: <sip:bot@example.com>{f';tag={tag}' if tag else ''}",
        f"Call-ID: {call}@{PEER}",
        f"CSeq: 1 {method}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class Workers:
    """A dispatcher and the workers that live."""

    def __init__(self, *living: int, burst: int = 1_000_000) -> None:
        self.living: Sequence[int] = living
        self.now = 0.0
        limit = MessageLimit(requests_per_s=1.0, burst=burst, sources=10)
        self.dispatcher = Dispatcher(limit, remember_s=32.0)

    def got(self, data: bytes) -> int | None:
        chosen = self.dispatcher.choose(data, PEER, self.living, now=self.now)
        return None if chosen is None else chosen.worker


def bye(tag: str) -> bytes:
    return message("BYE sip:bot@192.0.2.9 SIP/2.0", tag=tag)


def test_a_call_that_replaces_another_begins_at_its_worker() -> None:
    workers = Workers(1, 2, 3)
    invite = message(call="two").replace(b"CSeq", b"Replaces: one;from-tag=theirs;to-tag=w03-1234\r\nCSeq")
    assert workers.got(invite) == 3
    assert workers.got(message("CANCEL sip:bot@example.com SIP/2.0", call="two")) == 3
    assert workers.got(invite.replace(b"w03", b"w07")) == 3, "its Call-ID is remembered"
    assert workers.got(invite.replace(b"w03", b"w07").replace(b"two", b"three")) == 1


def test_a_mark_says_who_made_a_tag_or_a_branch() -> None:
    for worker in (0, 7, 255):
        local = LocalAddress("192.0.2.9", 5060, mark=mark_of(worker))
        assert worker_of(local.tag()) == worker == worker_of(local.via("UDP").branch)
    alone = LocalAddress("192.0.2.9", 5060)
    assert worker_of(alone.tag()) is worker_of(alone.via("UDP").branch) is None
    assert [worker_of(text) for text in ("", "w1-", "w0g-x", "xw01-x", "z9hG4bK")] == [None] * 5


def test_what_belongs_to_a_call_goes_to_its_worker_whoever_is_next() -> None:
    workers = Workers(0, 1, 2)
    for worker in (2, 0, 1):
        assert workers.got(bye(f"{mark_of(worker)}1234")) == worker
        assert workers.got(message("ACK sip:bot@192.0.2.9 SIP/2.0", tag=f"{mark_of(worker)}1234")) == worker
        assert workers.got(message("SIP/2.0 200 OK", tag="theirs", branch=f"z9hG4bK{mark_of(worker)}12")) == worker


def test_a_new_call_goes_to_the_worker_that_is_next_and_stays_there() -> None:
    workers = Workers(1, 0)
    first = workers.dispatcher.choose(message(), PEER, workers.living, now=0.0)
    assert first is not None and (first.worker, first.begins_call) == (1, True)
    workers.living = (0, 1)  # another one has fewer calls now
    again = workers.dispatcher.choose(message(), PEER, workers.living, now=0.5)
    assert again is not None and (again.worker, again.begins_call) == (1, False), "a repetition is no new call"
    assert workers.got(message("CANCEL sip:bot@example.com SIP/2.0")) == 1
    assert workers.got(message("ACK sip:bot@example.com SIP/2.0", tag="refused")) == 1, "of a refusal"
    assert workers.got(message(branch="z9hG4bK-with-password")) == 1, "the same call with credentials"
    assert workers.got(message(call="two")) == 0


def test_a_cancel_belongs_to_the_worker_of_its_tag_or_of_its_call() -> None:
    workers = Workers(0, 1, 2)
    workers.dispatcher.begun(f"one@{PEER}", 1, now=0.0)
    cancels = [
        message("CANCEL sip:bot@example.com SIP/2.0", **more) for more in ({}, {"call": "two"}, {"tag": "w02-1"})
    ]
    assert [workers.dispatcher.worker_of_cancel(each, now=1.0) for each in cancels] == [1, None, 2]
    assert workers.dispatcher.worker_of_cancel(b"nonsense", now=1.0) is None
    assert workers.got(cancels[0]) == 1, "as a datagram, too"


def test_a_call_id_is_forgotten_when_nothing_of_it_can_come_any_more() -> None:
    workers = Workers(1, 0)
    assert workers.got(message()) == 1
    workers.living, workers.now = (0, 1), 31.0
    assert workers.got(message()) == 1
    workers.now += 33.0
    assert workers.got(message()) == 0


def test_of_too_many_call_ids_the_one_that_was_silent_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sip_bridge.dispatch.REMEMBERED", 2)
    workers = Workers(1, 0)
    for call in ("one", "two", "one", "three"):
        assert workers.got(message(call=call)) == 1
    workers.living = (0, 1)
    assert [workers.got(message(call=call)) for call in ("one", "three", "two")] == [1, 1, 0]


def test_calls_of_a_worker_that_is_gone_are_answered_by_another_one() -> None:
    workers = Workers(1, 0)
    assert workers.got(message()) == 1
    workers.living = (0,)
    assert workers.got(bye(f"{mark_of(1)}1234")) == 0, "which says 481"
    assert workers.got(message("CANCEL sip:bot@example.com SIP/2.0")) == 0
    assert workers.got(message()) == 0, "a repetition begins the call anew"
    workers.living = (1, 0)
    assert workers.got(message()) == 0
    workers.living = (0, 2)
    assert workers.got(message("SIP/2.0 200 OK", branch=f"z9hG4bK{mark_of(1)}12")) is None
    assert workers.got(message("SIP/2.0 200 OK")) is None, "the answer to somebody else's request"
    assert workers.dispatcher.counts == {"late": 2}


def test_what_begins_no_call_goes_to_the_worker_that_is_next_and_is_not_remembered() -> None:
    workers = Workers(1, 0)
    options = message("OPTIONS sip:bot@example.com SIP/2.0")
    assert workers.got(options) == 1, "one that is ready says so"
    workers.living = (0, 1)
    assert workers.got(options) == 0
    assert workers.got(message("INVITE sip:bot@example.com SIP/2.0", tag="not-ours")) == 0
    assert not workers.dispatcher._calls


def test_one_place_counts_what_a_source_sends_to_all_workers() -> None:
    workers = Workers(0, 1, burst=2)
    marks = [bye(f"{mark_of(number % 2)}1234") for number in range(20)]
    assert [workers.got(each) for each in marks] == [0, 1] * 4 + [None] * 12
    assert workers.dispatcher.counts == {"limited": 12}


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x00" * 40, b"GET / HTTP/1.1\r\n\r\n", b"x" * 70_000])
def test_what_is_no_sip_reaches_no_worker(data: bytes) -> None:
    workers = Workers(0, 1)
    assert workers.got(data) is None
    assert workers.dispatcher.counts == {"unreadable": 1}
