"""The jitter buffer on a virtual clock. Packets are numbered from 0 and due every 20 ms from second 100 on."""

from collections.abc import Iterable

import pytest

from gateway.media.jitter_buffer import LOST, JitterBuffer

START = 100.0
PTIME = 0.02


def due(n: int) -> float:
    return START + n * PTIME


class Line:
    """Feeds a buffer and keeps what comes out."""

    def __init__(self, **more: float) -> None:
        self.buffer = JitterBuffer(8000, **more)
        self.out: list[str] = []

    def packet(self, n: int, *, delay: float = 0.0, media: int | None = None) -> list[str]:
        """Packet ``n``, so late; ``media``: the frame that its timestamp says, if another."""
        now = due(n if media is None else media) + delay
        stamp = (4_294_960_000 + (n if media is None else media) * 160) & 0xFFFFFFFF
        return self.take(self.buffer.add(n & 0xFFFF, stamp, str(n).encode(), now=now))

    def take(self, ready: Iterable[bytes]) -> list[str]:
        new = ["lost" if payload == LOST else payload.decode() for payload in ready]
        self.out += new
        return new

    def packets(self, order: Iterable[int], *, delay: float = 0.0) -> list[str]:
        return [name for n in order for name in self.packet(n, delay=delay)]


def names(numbers: Iterable[int]) -> list[str]:
    return [str(n) for n in numbers]


def test_packets_in_order_pass_at_once_also_across_both_wraps() -> None:
    line = Line()
    for n in range(65530, 65545):
        assert line.packet(n) == [str(n)]
    assert line.buffer.deadline is None


def test_reordered_packets_are_put_in_order() -> None:
    swapped = [number for n in range(0, 300, 3) for number in (n, n + 2, n + 1)]
    line = Line()
    now = START
    for n in swapped:
        now += PTIME
        line.take(line.buffer.add(n, n * 160, str(n).encode(), now=now))
    assert line.out == names(range(300))


def test_a_hole_is_waited_for_until_its_time_is_over() -> None:
    line = Line()
    line.packets(range(10))
    assert line.packet(11) == []
    assert line.buffer.deadline == pytest.approx(due(10) + 0.04)
    assert line.take(line.buffer.expire(now=due(10) + 0.039)) == []
    assert line.take(line.buffer.expire(now=due(10) + 0.041)) == ["lost", "11"]
    assert line.buffer.deadline is None
    assert line.packet(10, delay=0.05) == [] and line.buffer.late == 1
    assert line.packet(12) == ["12"]


def test_a_hole_is_given_up_by_the_next_packet_too() -> None:
    line = Line()
    line.packets(range(10))
    assert line.packets([11, 12, 13]) == ["lost", "11", "12", "13"]


def test_the_wait_follows_the_jitter_up_to_its_bound_and_forgets_it() -> None:
    line = Line(max_wait_s=0.16)
    line.packets(range(50))
    calm = line.buffer.wait_s
    for n in range(50, 150):
        line.packet(n, delay=0.08 * (n % 2))
    jittery = line.buffer.wait_s
    assert calm == pytest.approx(0.04) and jittery == pytest.approx(0.1, abs=0.01)
    for n in range(150, 250):
        line.packet(n, delay=0.4 * (n % 2))
    assert line.buffer.wait_s == pytest.approx(0.16)
    line.packets(range(250, 250 + 50 * 20))  # 20 s of calm
    assert line.buffer.wait_s == pytest.approx(0.04)


def test_what_came_too_late_once_is_waited_for_the_next_time() -> None:
    line = Line()
    line.packets(range(10))
    for hole in (10, 20):
        line.packets(range(hole + 1, hole + 4))  # the hole's packet comes with the fourth after it
        line.take(line.buffer.add(hole, (4_294_960_000 + hole * 160) & 0xFFFFFFFF, b"%d" % hole, now=due(hole) + 0.07))
        line.packets(range(hole + 4, hole + 10))
    assert line.out[10] == "lost" and line.out[20] == "20"


def test_clocks_that_drift_are_no_jitter() -> None:
    line = Line()
    for n in range(50 * 60):
        line.packet(n, delay=n * PTIME * 3e-4)  # the sender's clock is 300 ppm slow: 18 ms a minute
    assert line.buffer.wait_s == pytest.approx(0.04)


def test_duplicates_are_dropped() -> None:
    assert Line().packets([0, 1, 1, 0, 2]) == names([0, 1, 2])


def test_a_sender_that_starts_anew_is_followed() -> None:
    line = Line()
    line.packets([10, 11])
    for n in (20000, 20001):
        now = due(12 + n - 20000)
        line.take(line.buffer.add(n, 77 + (n - 20000) * 160, str(n).encode(), now=now))
    assert line.out == names([10, 11, 20000, 20001])
    assert line.buffer.wait_s == pytest.approx(0.04)


def test_a_touch_tone_holds_its_place_and_is_no_audio() -> None:
    line = Line()
    line.packets([0, 1])
    assert line.buffer.add(2, 0, None, now=due(2)) == []
    assert line.packet(3) == ["3"]


def test_silence_is_measured_once_the_sender_has_stopped() -> None:
    line = Line()
    line.packets(range(50))
    assert [line.buffer.pause(now=due(50) + late) for late in (0.0, 0.02, 0.05)] == [0, 0, 0]
    filled = [line.buffer.pause(now=due(50) + 0.1 * tick) for tick in range(1, 11)]
    assert sum(filled) == pytest.approx((1.0 - line.buffer.wait_s) / PTIME, abs=4)
    assert max(filled) <= 8  # two ticks together, where one alone was too short
    # It speaks again: the sequence has no hole, the timestamp says how long it was silent.
    assert line.packet(50, media=101) == ["50"]
    assert line.buffer.pause(now=due(102)) == 0


def test_an_outage_is_either_silence_or_loss_not_both() -> None:
    line = Line()
    line.packets(range(50))
    silent = sum(line.buffer.pause(now=due(50 + 5 * tick)) for tick in range(1, 11))
    lost = line.packets(range(100, 110)).count("lost")
    assert silent > 40 and silent + lost == pytest.approx(50, abs=1)


def test_a_sender_whose_clock_stands_still_in_silence_makes_no_silence_without_end() -> None:
    line = Line()
    line.packets(range(50))
    now = due(50) + 0.4
    for n in range(50, 100):  # timestamps go on where they stopped
        line.take(line.buffer.add(n, (4_294_960_000 + n * 160) & 0xFFFFFFFF, str(n).encode(), now=now))
        assert line.buffer.pause(now=now + 0.01) == 0
        now += PTIME
    assert line.out == names(range(100))


def test_a_long_hole_is_concealed_only_so_far() -> None:
    line = Line()
    line.packets(range(10))
    out = line.packets(range(1000, 1010))
    assert out.count("lost") == 50 and out[-1] == "1009"


def test_the_frame_is_what_the_timestamps_say() -> None:
    buffer = JitterBuffer(48000)
    for n in range(5):
        buffer.add(n, n * 2880, b"x", now=START + n * 0.06)
    assert buffer.frame_s == pytest.approx(0.06)


@pytest.mark.parametrize("behind", [1, 2, 5, 30, 99, 100, 101, 1000, 2999, 3000, 20000, 32768])
@pytest.mark.parametrize("clock", ["continues", "restarts"])
def test_a_sender_that_numbers_anew_is_heard_from_its_first_packets_on(behind: int, clock: str) -> None:
    """RFC 3550 appendix A.1: two packets in sequence. A restarted clock alone is told from late packets by a jump."""
    line = Line()
    first = 40_000
    line.packets(range(first, first + 200))
    before = list(line.out)
    for n in range(200, 400):
        stamp = n * 160 if clock == "continues" else (n - 200) * 160
        at = due(first + n)
        stamp = (4_294_960_000 + first * 160 + stamp) & 0xFFFFFFFF if clock == "continues" else stamp
        line.take(line.buffer.add((first + n - behind) & 0xFFFF, stamp, str(n).encode(), now=at))
    heard = [name for name in line.out[len(before) :] if name != "lost"]
    missing = 200 - len(heard)
    assert missing <= (1 if clock == "continues" or behind >= 100 else behind)
    assert heard == names(range(200 + missing, 400))


@pytest.mark.parametrize("behind", [60, 500, 2999])
@pytest.mark.parametrize("order", ["swapped", "every second is lost", "one of three is lost"])
def test_a_new_numbering_is_heard_although_packets_are_lost_or_swapped(behind: int, order: str) -> None:
    line = Line()
    first = 40_000
    line.packets(range(first, first + 200))
    before = len(line.out)
    sent = [n for n in range(200, 400) if order == "swapped" or (n % 2 if "second" in order else n % 3)]
    for at, n in enumerate([n ^ 1 for n in sent] if order == "swapped" else sent, start=200):
        stamp = (4_294_960_000 + (first + n) * 160) & 0xFFFFFFFF
        when = due(first + (at if order == "swapped" else n))
        line.take(line.buffer.add((first + n - behind) & 0xFFFF, stamp, str(n).encode(), now=when))
    heard = [name for name in line.out[before:] if name != "lost"]
    assert len(heard) >= len(sent) - 2 and heard == sorted(heard, key=int)


def test_late_packets_in_sequence_are_not_a_new_numbering() -> None:
    """A burst that another path delayed: its timestamps are old."""
    line = Line()
    line.packets([*range(50), *range(53, 60)])
    assert line.buffer.expire(now=due(60)) is not None
    assert line.packets([50, 51, 52], delay=0.2) == []
    assert line.packets(range(60, 70)) == names(range(60, 70))


def test_one_stray_packet_does_not_move_the_numbering() -> None:
    line = Line()
    line.packets(range(1000, 1050))
    for n in range(1050, 1100):
        line.take(line.buffer.add(500, 0, b"stray", now=due(n)))
        assert line.packet(n) == [str(n)]
