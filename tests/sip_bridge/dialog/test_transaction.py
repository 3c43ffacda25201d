"""Transactions: every entry of the four tables, the timetable of each timer, and a link that loses messages."""

import random
from collections.abc import Hashable

import pytest

from sip_bridge.dialog.transaction import (
    INVITE_CLIENT,
    INVITE_SERVER,
    NON_INVITE_CLIENT,
    NON_INVITE_SERVER,
    Act,
    Deliver,
    Effect,
    Key,
    Machine,
    Send,
    Timing,
    TransactionEvent,
    TransactionFailed,
    Transactions,
    TransactionState,
    cancel_of,
    server_key,
)
from sip_bridge.message.sip import Request, Response, parse
from tests.sip_bridge.sip_messages import answer, request

MACHINES = {
    "INVITE client": INVITE_CLIENT,
    "non-INVITE client": NON_INVITE_CLIENT,
    "INVITE server": INVITE_SERVER,
    "non-INVITE server": NON_INVITE_SERVER,
}


def sent(effects: list[Effect]) -> list[str]:
    """Return the sent methods and statuses."""
    out = []
    for effect in effects:
        if isinstance(effect, Send):
            message = effect.message
            out.append(message.method if isinstance(message, Request) else str(message.status))
    return out


def run(transactions: Transactions, until: float) -> list[tuple[float, str]]:
    """Let the timers run; (time, what was sent or failed)."""
    log: list[tuple[float, str]] = []
    while (due := transactions.next_due) is not None and due <= until:
        for effect in transactions.tick(due):
            log.append((due, effect.reason.value if isinstance(effect, TransactionFailed) else sent([effect])[0]))
    return log


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_is_reached_and_can_end(name: str) -> None:
    machine = MACHINES[name]
    states = {machine.first} | {state for state, _ in machine.transitions}
    reached = {machine.first}
    while more := {to for (at, _), (to, _) in machine.transitions.items() if at in reached} - reached:
        reached |= more
    assert reached == states | {TransactionState.TERMINATED}
    for state in states:
        ends = {state}
        while more := {to for (at, _), (to, _) in machine.transitions.items() if at in ends} - ends:
            ends |= more
        assert TransactionState.TERMINATED in ends, state
    for state, timers in machine.timers.items():
        for timer in timers:
            assert (state, timer) in machine.transitions


def drive(machine: Machine, path: list[TransactionEvent]) -> tuple[Transactions, Key, list[Effect], float]:
    """A transaction of this kind after these events; the effects of the last."""
    transactions = Transactions()
    now = 0.0
    invite = machine in (INVITE_CLIENT, INVITE_SERVER)
    first = request("INVITE" if invite else "OPTIONS")
    client = machine in (INVITE_CLIENT, NON_INVITE_CLIENT)
    effects: list[Effect]
    if client:
        key, effects = transactions.request(first, "peer", reliable=False, now=now)
    else:
        effects = transactions.received(first, "peer", reliable=False, now=now)
        key = server_key(first)
    statuses = {TransactionEvent.PROVISIONAL: 180, TransactionEvent.SUCCESS: 200, TransactionEvent.FAILURE: 486}
    for event in path:
        if event in statuses:
            response = answer(first, statuses[event])
            if client:
                effects = transactions.received(response, "peer", reliable=False, now=now)
            else:
                effects = transactions.respond(key, response, now=now)
        elif event is TransactionEvent.REQUEST:
            effects = transactions.received(first, "peer", reliable=False, now=now)
        elif event is TransactionEvent.ACK:
            effects = transactions.received(request("ACK", to_tag="ours"), "peer", reliable=False, now=now)
        elif event is TransactionEvent.TRANSPORT_ERROR:
            effects = transactions.transport_failed(key, now=now)
        else:
            # Repeaters fire before the long timer of their state does.
            transaction = transactions._all[key]
            now = transaction.timers[event]
            for other in [other for other in transaction.timers if other is not event]:
                del transaction.timers[other]
            effects = transactions.tick(now)
    return transactions, key, effects, now


def path_to(machine: Machine, state: TransactionState) -> list[TransactionEvent]:
    """The shortest way to a state."""
    ways: dict[TransactionState, list[TransactionEvent]] = {machine.first: []}
    while state not in ways:
        ways |= {
            to: [*ways[at], event]
            for (at, event), (to, _) in machine.transitions.items()
            if at in ways and to not in ways and to is not TransactionState.TERMINATED
        }
    return ways[state]


WALK = [(name, state, event) for name, machine in MACHINES.items() for state, event in machine.transitions]


@pytest.mark.parametrize(("name", "state", "event"), WALK, ids=lambda v: v if isinstance(v, str) else v.name)
def test_every_entry_of_the_tables(name: str, state: TransactionState, event: TransactionEvent) -> None:
    machine = MACHINES[name]
    transactions, key, effects, _ = drive(machine, [*path_to(machine, state), event])
    to, acts = machine.transitions[(state, event)]
    assert transactions.state(key) is to
    assert (len(transactions) == 0) == (to is TransactionState.TERMINATED)
    kinds = {Act.DELIVER: Deliver, Act.TIMEOUT: TransactionFailed, Act.BROKEN: TransactionFailed}
    expected = [kinds.get(act, Send) for act in acts]
    if name == "INVITE server" and state is TransactionState.PROCEEDING and event is TransactionEvent.REQUEST:
        expected = []  # nothing was answered yet, so there is nothing to repeat
    assert [type(effect) for effect in effects] == expected


@pytest.mark.parametrize("name", MACHINES)
def test_whatever_is_not_in_a_table_does_nothing(name: str) -> None:
    machine = MACHINES[name]
    client = name.endswith("client")
    outside = {TransactionEvent.PROVISIONAL, TransactionEvent.SUCCESS, TransactionEvent.FAILURE}
    outside |= (
        set()
        if client
        else {TransactionEvent.REQUEST} | ({TransactionEvent.ACK} if machine is INVITE_SERVER else set())
    )
    for state in {state for state, _ in machine.transitions}:
        for event in outside:
            if (state, event) not in machine.transitions:
                transactions, key, effects, _ = drive(machine, [*path_to(machine, state), event])
                assert transactions.state(key) is state
                assert effects == []


def test_invite_is_repeated_at_doubling_pauses_until_timer_b() -> None:
    transactions = Transactions()
    transactions.request(request(), "peer", reliable=False, now=0.0)
    assert run(transactions, 100) == [(t, "INVITE") for t in (0.5, 1.5, 3.5, 7.5, 15.5, 31.5)] + [(32.0, "timeout")]
    assert len(transactions) == 0 and transactions.next_due in (None, 63.5)


def test_other_requests_are_repeated_with_a_longest_pause() -> None:
    transactions = Transactions()
    transactions.request(request("BYE"), "peer", reliable=False, now=0.0)
    times = (0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5, 23.5, 27.5, 31.5)
    assert run(transactions, 100) == [(t, "BYE") for t in times] + [(32.0, "timeout")]


def test_after_a_provisional_other_requests_go_every_t2() -> None:
    transactions = Transactions()
    bye = request("BYE")
    transactions.request(bye, "peer", reliable=False, now=0.0)
    transactions.received(answer(bye, 100), "peer", reliable=False, now=0.1)
    assert run(transactions, 12)[:3] == [(0.5, "BYE"), (4.5, "BYE"), (8.5, "BYE")]


def test_failure_is_repeated_until_its_ack() -> None:
    transactions = Transactions()
    invite = request()
    transactions.received(invite, "peer", reliable=False, now=0.0)
    transactions.respond(server_key(invite), answer(invite, 486), now=0.0)
    assert run(transactions, 8) == [(t, "486") for t in (0.5, 1.5, 3.5, 7.5)]
    transactions.received(request("ACK", to_tag="ours"), "peer", reliable=False, now=8.0)
    assert run(transactions, 100) == []
    assert len(transactions) == 0


def test_failure_without_ack_ends() -> None:
    transactions = Transactions()
    invite = request()
    transactions.received(invite, "peer", reliable=False, now=0.0)
    transactions.respond(server_key(invite), answer(invite, 486), now=0.0)
    assert run(transactions, 100)[-1] == (32.0, "timeout")
    assert len(transactions) == 0


@pytest.mark.parametrize("method", ["INVITE", "BYE"])
def test_streams_repeat_nothing_but_time_out(method: str) -> None:
    transactions = Transactions()
    transactions.request(request(method), "peer", reliable=True, now=0.0)
    assert run(transactions, 100) == [(32.0, "timeout")]


def test_streams_keep_nothing_that_waits_for_repetitions() -> None:
    transactions = Transactions()
    for method, status in (("INVITE", 486), ("BYE", 200)):
        first = request(method)
        transactions.request(first, "peer", reliable=True, now=0.0)
        transactions.received(answer(first, status), "peer", reliable=True, now=0.1)
        assert len(transactions) == 0
    bye = request("BYE")
    transactions.received(bye, "peer", reliable=True, now=0.0)
    transactions.respond(server_key(bye), answer(bye, 200), now=0.0)
    assert len(transactions) == 0
    invite = request()
    transactions.received(invite, "peer", reliable=True, now=0.0)
    transactions.respond(server_key(invite), answer(invite, 486), now=0.0)
    transactions.received(request("ACK"), "peer", reliable=True, now=0.1)
    assert len(transactions) == 0


def test_ack_of_a_failure_takes_the_same_hop() -> None:
    transactions = Transactions()
    invite = request(headers=(("Route", "<sip:p1;lr>"), ("Route", "<sip:p2;lr>"), ("Contact", "<sip:ann@192.0.2.4>")))
    transactions.request(invite, "peer", reliable=False, now=0.0)
    first, second = transactions.received(answer(invite, 404, to_tag="t"), "peer", reliable=False, now=0.1)
    assert isinstance(first, Send) and isinstance(second, Deliver)
    ack = parse(first.message.serialise())
    assert isinstance(ack, Request)
    assert (ack.method, ack.uri, str(ack.via), str(ack.cseq)) == ("ACK", invite.uri, str(invite.via), "1 ACK")
    assert (ack.to.tag, ack.headers.all("Route")) == ("t", ("<sip:p1;lr>", "<sip:p2;lr>"))
    again = transactions.received(answer(invite, 404, to_tag="t"), "peer", reliable=False, now=0.2)
    assert sent(again) == ["ACK"] and len(again) == 1


def test_every_2xx_reaches_the_user_until_timer_m() -> None:
    transactions = Transactions()
    invite = request()
    transactions.request(invite, "peer", reliable=False, now=0.0)
    for tag in ("a", "a", "b"):
        (effect,) = transactions.received(answer(invite, 200, to_tag=tag), "peer", reliable=False, now=1.0)
        assert isinstance(effect, Deliver) and effect.key
    run(transactions, 33.0)
    (effect,) = transactions.received(answer(invite, 200, to_tag="a"), "peer", reliable=False, now=33.1)
    assert isinstance(effect, Deliver) and effect.key is None


def test_a_retransmitted_invite_is_no_second_call_before_or_after_the_200() -> None:
    transactions = Transactions()
    invite = request()
    assert len(transactions.received(invite, "peer", reliable=False, now=0.0)) == 1
    assert transactions.received(invite, "peer", reliable=False, now=0.5) == []
    transactions.respond(server_key(invite), answer(invite, 180), now=0.6)
    assert sent(transactions.received(invite, "peer", reliable=False, now=1.5)) == ["180"]
    transactions.respond(server_key(invite), answer(invite, 200), now=2.0)
    assert transactions.received(invite, "peer", reliable=False, now=3.5) == []


def test_the_ack_of_a_2xx_reaches_the_user_with_a_new_branch_too() -> None:
    transactions = Transactions()
    invite = request()
    transactions.received(invite, "peer", reliable=False, now=0.0)
    transactions.respond(server_key(invite), answer(invite, 200), now=0.1)
    for branch in ("z9hG4bK-1", "z9hG4bK-2"):
        (effect,) = transactions.received(request("ACK", branch=branch), "peer", reliable=False, now=0.2)
        assert isinstance(effect, Deliver)


def test_cancel_finds_its_invite() -> None:
    transactions = Transactions()
    invite = request()
    transactions.received(invite, "peer", reliable=False, now=0.0)
    cancel = cancel_of(invite)
    (effect,) = transactions.received(cancel, "peer", reliable=False, now=0.1)
    assert isinstance(effect, Deliver) and effect.key != server_key(invite)
    assert transactions.cancelled(cancel) == server_key(invite)
    assert transactions.cancelled(cancel_of(request(branch="z9hG4bK-other"))) is None
    assert parse(cancel.serialise()).cseq.method == "CANCEL"


def test_peers_of_rfc_2543_are_told_apart_without_branches() -> None:
    transactions = Transactions()
    first, other = request(branch="1"), request(branch="1", call_id="call-2")
    for invite in (first, other):
        assert len(transactions.received(invite, "peer", reliable=False, now=0.0)) == 1
        transactions.respond(server_key(invite), answer(invite, 486), now=0.0)
    assert len(transactions) == 2
    transactions.received(request("ACK", branch="1", to_tag="ours"), "peer", reliable=False, now=0.1)
    assert transactions.state(server_key(first)) is TransactionState.CONFIRMED
    assert transactions.state(server_key(other)) is TransactionState.COMPLETED


def test_equal_branches_of_two_senders_are_two() -> None:
    transactions = Transactions()
    one = request("OPTIONS")
    two = parse(one.serialise().replace(b"192.0.2.4:5070;branch", b"192.0.2.5:5070;branch"))
    assert len(transactions.received(one, "a", reliable=False, now=0.0)) == 1
    assert len(transactions.received(two, "b", reliable=False, now=0.0)) == 1


def test_room() -> None:
    """At the limit a tenth is left for dialogs, and beyond that a place for each CANCEL."""
    transactions = Transactions(limit=10)

    def take(method: str, to_tag: str = "") -> int:
        """Return the number of requests that there is room for, up to 30."""
        for number in range(30):
            message = request(method, branch=f"z9hG4bK-{number}{to_tag}", to_tag=to_tag)
            if not transactions.has_room(message):
                return number
            transactions.received(message, "peer", reliable=False, now=0.0)
        return 30

    assert [take("INVITE"), take("BYE", "ours"), take("INVITE", "ours"), len(transactions)] == [10, 1, 0, 11]
    assert transactions.has_room(request("CANCEL", branch="z9hG4bK-0"))


def test_our_own_misuse() -> None:
    transactions = Transactions()
    for wrong in (request("ACK"), request(branch="old")):
        with pytest.raises(ValueError):
            transactions.request(wrong, "peer", reliable=False, now=0.0)
    transactions.request(request(), "peer", reliable=False, now=0.0)
    with pytest.raises(ValueError):
        transactions.request(request(), "peer", reliable=False, now=0.0)


@pytest.mark.parametrize("seed", range(40))
def test_a_link_that_loses_half_of_everything(seed: int) -> None:
    """Two endpoints, 50 % loss each way: the request is delivered once, its final answer too, and nothing is left."""
    rng = random.Random(seed)
    timing = Timing(t1=0.02, t2=0.16, t4=0.2)
    ends = {"client": Transactions(timing), "server": Transactions(timing)}
    wire: list[tuple[float, str, Request | Response]] = []
    delivered: dict[str, list[Request | Response]] = {"client": [], "server": []}
    failed: list[TransactionFailed] = []
    # Not a 2xx to an INVITE: to repeat that one is the user's.
    method, status = rng.choice([("INVITE", 486), ("BYE", 200), ("BYE", 481)])
    now = 0.0

    def carry_out(side: str, effects: list[Effect]) -> None:
        other = "server" if side == "client" else "client"
        for effect in effects:
            match effect:
                case Send(message, peer, _):
                    assert peer == other
                    if rng.random() < 0.5:
                        wire.append((now + 0.01, other, parse(message.serialise())))
                case Deliver(key, message, _):
                    delivered[side].append(message)
                    if isinstance(message, Request) and key:
                        carry_out(side, ends[side].respond(key, answer(message, 100, to_tag=""), now=now))
                        carry_out(side, ends[side].respond(key, answer(message, status), now=now))
                case TransactionFailed():
                    failed.append(effect)

    peers: dict[str, Hashable] = {"client": "server", "server": "client"}
    carry_out("client", ends["client"].request(request(method), "server", reliable=False, now=now)[1])
    while wire or any(end.next_due is not None for end in ends.values()):
        due = [at for at, _, _ in wire] + [end.next_due for end in ends.values() if end.next_due is not None]
        now = min(due)
        arrived = [item for item in wire if item[0] <= now]
        wire[:] = [item for item in wire if item[0] > now]
        for _, side, message in arrived:
            carry_out(side, ends[side].received(message, peers[side], reliable=False, now=now))
        for side, end in ends.items():
            carry_out(side, end.tick(now))
    assert len(ends["client"]) == len(ends["server"]) == 0
    assert len(delivered["server"]) <= 1
    finals = [m for m in delivered["client"] if isinstance(m, Response) and m.status >= 200]
    assert len(finals) <= 1
    assert finals or failed
