"""Outside data gets a bounded time of each turn of the loop, and arrives whole and in order."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from gateway.listener.turns import InTurns, LoopTurns
from tests.waiting import until


class Clock:
    """Moves on when a step says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_steps_run_in_order_and_as_many_in_a_turn_as_it_has_time_for() -> None:
    clock, ran, turn = Clock(), list[tuple[int, int]](), 0
    turns = LoopTurns(clock)

    def step(number: int, cost_s: float) -> Callable[[], None]:
        def run() -> None:
            clock.now_s += cost_s
            ran.append((number, turn))
            if number == 3:
                raise ValueError("a bug")

        return run

    for number, cost_s in enumerate((0.0002, 0.0002, 0.0002, 0.0002, 0.3, 0.0002)):
        turns.join(step(number, cost_s))
        turns.deal()
    while len(ran) < 6:
        turn += 1
        await asyncio.sleep(0)
    assert ran == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]


@pytest.mark.parametrize(("share", "together"), [(0.0, 1), (0.25, 10)])
async def test_steps_get_their_share_of_a_long_turn_of_the_loop(share: float, together: int) -> None:
    """The first turn's length is unknown. The share includes the time of the steps themselves."""
    clock, loop, turn = Clock(), asyncio.get_running_loop(), 0
    turns, ran = LoopTurns(clock, share=share), list[int]()

    def step() -> None:
        clock.now_s += 0.001
        ran.append(turn)

    def other_work() -> None:
        nonlocal turn
        turn += 1
        clock.now_s += 0.030
        if len(ran) < 60:
            loop.call_soon(other_work)

    for _ in range(60):
        turns.join(step)
    loop.call_soon(other_work)
    while len(ran) < 60:
        await asyncio.sleep(0)
    steps_of = [ran.count(number) for number in range(max(ran))]
    assert steps_of[0] == 1 and max(steps_of) == steps_of[-1] == together


async def test_frames_that_are_due_go_out_between_two_steps() -> None:
    did: list[str] = []
    turns = LoopTurns(Clock(), frames_first=lambda: did.append("frames"))
    for step in ("first step", "second step"):
        turns.join(lambda step=step: did.append(step))  # type: ignore[misc]
    turns.deal()
    assert did == ["frames", "first step", "frames", "second step"]


class Behind(asyncio.Protocol):
    """Notes what it gets, of all connections together, with the connection."""

    def __init__(self, clock: Clock, got: list[tuple["Behind", bytes]]) -> None:
        self.clock = clock
        self.got = got
        self.transport: asyncio.Transport | None = None
        self.wants = 1 << 30
        """It is full after so many bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.clock.now_s += 0.001  # a turn of the loop has no time for two
        self.got.append((self, data))
        self.wants -= len(data)
        if self.wants <= 0:
            assert self.transport is not None
            self.transport.pause_reading()


SENT = bytes(range(256)) * 64


@pytest.mark.parametrize("behind_full", [1 << 30, 3000])
async def test_connections_take_turns_and_get_everything(behind_full: int) -> None:
    clock, got, connections = Clock(), list[tuple[Behind, bytes]](), list[InTurns]()
    turns = LoopTurns(clock)

    def connection() -> InTurns:
        behind = Behind(clock, got)
        behind.wants = behind_full if not connections else 1 << 30
        connections.append(InTurns(behind, turns))
        return connections[-1]

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    writers = [(await asyncio.open_connection(*address))[1] for _ in range(2)]
    await until(lambda: len(connections) == 2)
    for writer in writers:
        writer.write(SENT)
    first, second = (each.inner for each in connections)

    def of(behind: Behind) -> bytes:
        return b"".join(data for who, data in got if who is behind)

    await until(lambda: of(second) == SENT)
    if behind_full < len(SENT):
        assert 3000 <= len(of(first)) < 3000 + 1024  # it was full, and got no more
        first.wants = 1 << 30
        connections[0].resume_reading()
    await until(lambda: of(first) == SENT)
    assert max(len(data) for _, data in got) <= 1024
    if behind_full > len(SENT):
        both = [who for who, _ in got[4:-4]]
        assert max(len(list(row)) for _, row in itertools.groupby(both)) <= 3  # neither was served before the other
    for writer in writers:
        writer.close()
    server.close()


async def test_what_was_read_and_not_passed_on_goes_to_the_next_protocol() -> None:
    clock, got = Clock(), list[tuple[Behind, bytes]]()
    ends = asyncio.Queue[InTurns]()

    def connection() -> InTurns:
        end = InTurns(Behind(clock, got), LoopTurns(clock))
        ends.put_nowait(end)
        return end

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    end = await ends.get()
    end.received(SENT)
    rest = end.release()
    assert b"".join(data for _, data in got) + rest == SENT and rest
    writer.close()
    server.close()


async def test_connections_that_end_at_once_are_left_in_turns() -> None:
    clock, left = Clock(), list[int]()
    turns = LoopTurns(clock)

    class Leaving(asyncio.Protocol):
        def __init__(self, number: int) -> None:
            self.number = number

        def connection_lost(self, exc: Exception | None) -> None:
            clock.now_s += 0.001  # a turn of the loop has no time for two
            left.append(self.number)

    for connection in [InTurns(Leaving(number), turns) for number in range(3)]:
        connection.connection_lost(None)
    assert left == [0]
    await until(lambda: left == [0, 1, 2], "the end of all")
