"""Joined legs: what each far end hears, found by the spectrum of the frames that it gets."""

import itertools
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.mixing.receive_buffer import MOST_WAITING_S, ReceiveBuffer
from gateway.mixing.seat import voice_of
from gateway.mixing.sources import LegSource, PlayedSource
from tests.gateway.mixing.legs import G722, L16, OPUS, PCMA, PCMU, HandTimer, Phone, joined, room_on, tone
from voicecodecs.opus import Encoder
from voicecodecs.registry import AudioFormat, decoder, encoder

A_HZ, B_HZ, C_HZ, BOT_HZ = 600, 1000, 1600, 2100
SAID = 0.25
"""Amplitude of every tone."""


@pytest.mark.parametrize(
    ("one", "other"),
    [pair for pair in itertools.product([PCMU, PCMA, G722, OPUS, L16], repeat=2) if pair[0] != pair[1]],
    ids=lambda fmt: fmt.encoding,
)
def test_two_legs_hear_each_other_and_not_themselves(one: AudioFormat, other: AudioFormat) -> None:
    a, b = Phone(one, A_HZ), Phone(other, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 2.0)
    for phone, hears, says in ((a, B_HZ, A_HZ), (b, A_HZ, B_HZ)):
        assert phone.leg.hears(hears) == pytest.approx(SAID, rel=0.15)
        assert phone.leg.hears(says) < 0.003


def test_of_three_legs_each_hears_the_two_others() -> None:
    phones = [Phone(PCMU, A_HZ), Phone(G722, B_HZ), Phone(OPUS, C_HZ)]
    timer, room = joined(*phones)
    timer.run(room, phones, 2.0)
    for phone, says in zip(phones, (A_HZ, B_HZ, C_HZ), strict=True):
        levels = {hz: phone.leg.hears(hz) for hz in (A_HZ, B_HZ, C_HZ)}
        assert levels.pop(says) < 0.004
        assert list(levels.values()) == pytest.approx([SAID, SAID], rel=0.15)


def test_a_sum_out_of_range_is_clipped_and_not_wrapped() -> None:
    phones = [Phone(L16, A_HZ), Phone(L16, 500, level=0.9), Phone(L16, 500, level=0.9)]
    timer, room = joined(*phones)
    timer.run(room, phones, 1.0)
    heard = phones[0].leg.heard()
    assert heard.max() == 32767 and heard.min() == -32768
    assert np.abs(np.diff(heard.astype(int))).max() < 12_000  # a wrapped sum jumps by the whole range


@pytest.mark.parametrize("fmt", [PCMU, PCMA, G722, OPUS], ids=lambda fmt: fmt.encoding)
def test_payloads_of_one_codec_pass_untouched_and_need_no_tick(fmt: AudioFormat) -> None:
    a, b = Phone(fmt, A_HZ), Phone(fmt, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 1.0)
    assert [payload for payload, _ in a.leg.sent] == b.said
    assert [payload for payload, _ in b.leg.sent] == a.said
    assert timer.ticks == 0 and room.deadline(timer.time) is None


def test_a_loss_is_passed_on_to_rtp_only() -> None:
    a, b, stream = Phone(OPUS, A_HZ, lost=0.1), Phone(OPUS, 0), Phone(OPUS, 0, in_real_time=False)
    for listener in (b, stream):
        timer, room = joined(a, listener)
        timer.run(room, [a, listener], 1.0)
        room.close()
    assert 0 < [payload for payload, _ in b.leg.sent].count(b"") < 15
    assert stream.leg.sent and all(payload for payload, _ in stream.leg.sent)


@pytest.mark.parametrize(("one", "other"), [(PCMU, PCMA), (PCMA, PCMU)], ids=lambda fmt: fmt.encoding)
def test_payloads_of_the_other_law_are_translated_and_need_no_tick(one: AudioFormat, other: AudioFormat) -> None:
    a, b = Phone(one, A_HZ), Phone(other, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 1.0)
    decode, encode = decoder(one).decode, encoder(other).encode
    assert [payload for payload, _ in b.leg.sent] == [encode(decode(payload)) for payload in a.said]
    assert timer.ticks == 0 and a.leg.hears(B_HZ) == pytest.approx(SAID, rel=0.1)


def test_a_relayed_payload_keeps_its_place_in_spite_of_jitter() -> None:
    a, b = Phone(PCMU, A_HZ, jitter_s=0.015), Phone(PCMU, 0)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 1.0)
    times = [at for _, at in b.leg.sent]
    assert np.diff(times) == pytest.approx(np.full(len(times) - 1, 0.02))


def test_payloads_of_a_stream_are_paced_before_they_reach_a_phone() -> None:
    """A TCP connection may deliver much at once, and a phone's jitter buffer is small."""
    a, b = Phone(PCMU, A_HZ, in_real_time=False), Phone(PCMU, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 1.0)
    times = [at for _, at in b.leg.sent]
    assert np.diff(times) == pytest.approx(np.full(len(times) - 1, 0.02))
    assert timer.ticks > 40
    assert [payload for payload, _ in b.leg.sent] == a.said[: len(b.leg.sent)]  # untouched all the same
    assert [payload for payload, _ in a.leg.sent] == b.said  # a peer that buffers gets them as they come


def test_a_third_listener_ends_what_passes_untouched_and_its_leaving_begins_it_again() -> None:
    a, b, c = Phone(PCMU, A_HZ), Phone(PCMU, B_HZ), Phone(PCMU, 0)
    timer, room = joined(a, b)
    room.enter("c", c.seat)
    room.mixer.hear("c", "a")
    timer.run(room, [a, b], 1.0)
    assert c.leg.hears(A_HZ) == pytest.approx(SAID, rel=0.1) and c.leg.hears(B_HZ) < 0.002
    assert b.leg.hears(A_HZ) == pytest.approx(SAID, rel=0.1)
    ticked = timer.ticks
    assert ticked > 40
    room.leave("c")
    before = len(b.leg.sent)
    timer.run(room, [a, b], 0.5)
    assert timer.ticks == ticked
    assert [payload for payload, _ in b.leg.sent[before:]][-20:] == a.said[-20:]


def test_a_gain_is_heard() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(PCMU, B_HZ)
    timer, room = joined(a, b)
    room.mixer.hear("b", "a", -12.0)
    timer.run(room, [a, b], 1.0)
    assert b.leg.hears(A_HZ) == pytest.approx(SAID * 10 ** (-12 / 20), rel=0.1)
    assert a.leg.hears(B_HZ) == pytest.approx(SAID, rel=0.1)


def test_a_muted_leg_is_heard_by_no_one_and_hears() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(PCMA, B_HZ)
    timer, room = joined(a, b)
    room.mixer.unhear("b", "a")
    timer.run(room, [a, b], 1.0)
    assert not b.leg.sent
    assert a.leg.hears(B_HZ) == pytest.approx(SAID, rel=0.1)


def test_a_whisper_is_heard_by_one_leg_alone() -> None:
    a, b, c = Phone(PCMU, A_HZ), Phone(PCMU, B_HZ), Phone(PCMU, C_HZ)
    timer, room = joined(a, b)
    room.enter("c", c.seat)
    room.mixer.hear("b", "c")
    timer.run(room, [a, b, c], 1.0)
    assert b.leg.hears(C_HZ) == pytest.approx(SAID, rel=0.1)
    assert a.leg.hears(C_HZ) < 0.002 and a.leg.hears(B_HZ) == pytest.approx(SAID, rel=0.1)


@pytest.mark.parametrize("payload_ms", [10, 30, 60])
def test_payloads_of_other_lengths_are_mixed(payload_ms: int) -> None:
    a, b = Phone(PCMU, A_HZ, payload_ms=payload_ms), Phone(G722, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 1.5)
    assert b.leg.hears(A_HZ) == pytest.approx(SAID, rel=0.1)


@pytest.mark.parametrize("ptime_ms", [10, 30, 60, 100])
def test_a_listener_gets_frames_of_its_own_length(ptime_ms: int) -> None:
    fmt = AudioFormat("PCMU", 8000, ptime_ms)
    a, b = Phone(PCMA, A_HZ), Phone(fmt, 0)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 2.0)
    assert {len(payload) for payload, _ in b.leg.sent} == {fmt.frame_bytes}
    assert b.leg.hears(A_HZ) == pytest.approx(SAID, rel=0.1)
    times = [at for _, at in b.leg.sent]
    assert times[-1] - times[0] == pytest.approx((len(times) - 1) * ptime_ms / 1000, abs=0.021)


def test_jitter_of_one_leg_is_smoothed_and_delays_no_other() -> None:
    a, b = Phone(PCMU, A_HZ, jitter_s=0.06), Phone(G722, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 4.0)
    assert b.leg.hears(A_HZ) == pytest.approx(SAID, rel=0.2)
    first_heard = a.leg.sent[0][1]
    assert first_heard < 100.0 + 0.02 + 0.025  # the first payload comes after 20 ms


def test_the_mixer_delays_by_at_most_a_tick() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(G722, B_HZ)
    timer, room = joined(a, b)
    arrived: list[float] = []
    push = a.seat.on_audio
    a.seat.on_audio = lambda payload, now: (arrived.append(now), push(payload, now))[1]  # type: ignore[method-assign]
    timer.run(room, [a, b], 2.0)
    delays = [at - came for (_, at), came in zip(b.leg.sent, arrived, strict=False)]
    assert max(delays) <= 0.0251  # the wait for the jitter of a good network, and the tick


def test_lost_payloads_are_concealed() -> None:
    a, b = Phone(PCMU, A_HZ, lost=0.05), Phone(G722, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 3.0)
    heard = b.leg.heard().astype(float)
    frames = heard[: len(heard) // 160 * 160].reshape(-1, 160)
    rms = np.sqrt((frames**2).mean(axis=1))
    assert rms.min() > 0.5 * np.median(rms)  # no frame is silent


def test_losses_add_no_delay_for_each_of_them() -> None:
    """A loss is reported with the packet after it, when its place has been filled."""
    buffer = ReceiveBuffer()
    for number in range(1000):
        now = 10.0 + number * 0.02
        if number % 20 != 19:
            for payload in [b""] * (number % 20 == 0 < number) + [b"x"]:
                buffer.push(payload, 0.02, now=now)
        buffer.take(0.02, now=now + 0.012)
    assert buffer.wait_s < 0.021


def test_a_lost_opus_packet_is_taken_from_the_next_one_if_that_waits() -> None:
    t = np.arange(48000) / 48000
    glide = sum(np.sin(2 * np.pi * k * (120 * t + 80 * t**2)) / k for k in range(1, 12))
    opus_encoder = Encoder(48000, fec_loss_percent=30)
    packets = [opus_encoder.encode(frame) for frame in (np.asarray(glide) * 4000).astype(np.int16).reshape(-1, 960)]

    def heard(*, lost: bool, waiting: int) -> NDArray[np.float64]:
        source, pcm = LegSource(OPUS, in_real_time=True), []
        source.deliver(heard=True, relay=None)
        for number, packet in enumerate(packets):
            source.push(b"" if lost and number % 5 == 3 else packet, now=10.0 + number * 0.02)
            if number >= waiting and source.advance(10.012 + number * 0.02):
                pcm.append(source.pcm())
        return np.concatenate(pcm)[: 45 * 960].astype(np.float64)

    intact = heard(lost=False, waiting=0)
    with_copy, without = (np.sum((heard(lost=True, waiting=waiting) - intact) ** 2) for waiting in (1, 0))
    assert with_copy < 0.5 * without


def test_who_does_not_speak_holds_up_no_one() -> None:
    a, b, c = Phone(PCMU, A_HZ), Phone(PCMA, B_HZ), Phone(OPUS, 0)
    timer, room = joined(a, b, c)
    timer.run(room, [a, b, c], 1.0)
    assert a.leg.hears(B_HZ) == pytest.approx(SAID, rel=0.1)
    assert c.leg.hears(A_HZ) == pytest.approx(SAID, rel=0.15)


@pytest.mark.parametrize("clock", [0.999, 1.001])
def test_a_clock_that_is_fast_or_slow_lets_no_delay_grow(clock: float) -> None:
    a, b = Phone(PCMU, A_HZ, clock=clock), Phone(G722, 0)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 120.0)
    assert a.seat._source is not None
    assert a.seat._source.buffer.waiting_s <= 0.1
    assert b.leg.hears(A_HZ) > 0.1


def test_a_flood_drops_the_oldest() -> None:
    a, b = Phone(PCMU, 0), Phone(G722, 0)
    _, room = joined(a, b)
    for _ in range(200):
        a.seat.on_audio(b"\xff" * 160, 100.0)
    assert a.seat._source is not None
    assert a.seat._source.buffer.waiting_s <= MOST_WAITING_S + 0.02
    assert a.seat._source.buffer.dropped >= 160


def test_bytes_that_are_no_audio_are_concealed() -> None:
    a, b = Phone(OPUS, 0), Phone(PCMU, 0)
    timer, room = joined(a, b)
    more = [(100.0 + 0.02 * number, lambda now: a.seat.on_audio(b"\xff\xff\xff", now)) for number in range(20)]
    timer.run(room, [a, b], 1.0, *more)


# --- the bot -------------------------------------------------------------------------------------------------------


def bot_says(phone: Phone, hz: float, seconds: float) -> list[bytes]:
    fmt = phone.leg.outbound
    pcm, encode = tone(hz, fmt.sample_rate, seconds), encoder(fmt).encode
    return [encode(frame) for frame in pcm.reshape(-1, fmt.frame_samples)]


def test_the_bot_is_heard_by_both_while_they_speak_and_then_payloads_pass_untouched_again() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(PCMU, B_HZ)
    timer, room = joined(a, b)
    frames = bot_says(a, BOT_HZ, 1.0)
    more = [(100.0 + 0.02 * number, partial(a.seat.send_frame, frame)) for number, frame in enumerate(frames)]
    timer.run(room, [a, b], 1.0, *more)
    for phone, hears in ((a, B_HZ), (b, A_HZ)):
        assert phone.leg.hears(BOT_HZ) == pytest.approx(SAID, rel=0.15)
        assert phone.leg.hears(hears) == pytest.approx(SAID, rel=0.15)
    timer.run(room, [a, b], 0.2)
    ticked, before = timer.ticks, len(b.leg.sent)
    timer.run(room, [a, b], 1.0)
    assert timer.ticks == ticked
    assert [payload for payload, _ in b.leg.sent[before:]] == a.said[-(len(b.leg.sent) - before) :]


def test_a_briefing_is_heard_by_its_leg_alone() -> None:
    a, b = Phone(PCMU, 0), Phone(PCMU, 0)
    timer, room = joined(a, b)
    room.mixer.unhear("a", voice_of("b"))
    for frame in bot_says(b, BOT_HZ, 0.5):
        b.seat.send_frame(frame, 100.0)
    timer.run(room, [a, b], 1.0)
    assert b.leg.hears(BOT_HZ) == pytest.approx(SAID, rel=0.1)
    assert not a.leg.sent


def test_a_mark_follows_the_frames_before_it_and_a_clear_drops_both() -> None:
    a, b = Phone(PCMU, 0), Phone(PCMU, 0)
    timer, room = joined(a, b)
    frames = bot_says(a, BOT_HZ, 0.2)
    for frame in frames:
        a.seat.send_frame(frame, 100.0)
    a.seat.send_mark("said")
    timer.run(room, [a, b], 0.5)
    assert a.leg.marks == [("said", len(frames))]
    a.seat.send_mark("nothing waits")
    assert a.leg.marks[-1] == ("nothing waits", len(frames))
    a.seat.send_frame(frames[0], 101.0)
    a.seat.send_mark("cut")
    a.seat.send_clear()
    timer.run(room, [a, b], 0.5)
    assert len(a.leg.marks) == 2 and len(a.leg.sent) == len(frames)


def test_a_leg_that_leaves_hears_its_bot_directly() -> None:
    a, b = Phone(PCMU, 0), Phone(PCMU, 0)
    timer, room = joined(a, b)
    frames = bot_says(a, BOT_HZ, 0.1)
    for frame in frames:
        a.seat.send_frame(frame, 100.0)
    room.leave("a")
    assert [payload for payload, _ in a.leg.sent] == frames  # what waited for the mix
    a.seat.send_frame(b"direct", 101.0)
    assert a.leg.sent[-1] == (b"direct", 101.0)
    assert room.names == ["b"] and not a.seat.joined


def test_a_mix_is_reported_as_sent() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(PCMU, B_HZ)
    timer, room = joined(a, b)
    heard: list[bytes] = []
    a.seat.sent = lambda frame, now, heard_at: heard.append(frame)
    timer.run(room, [a, b], 0.5)
    assert heard == [payload for payload, _ in a.leg.sent] and heard


# --- clips -----------------------------------------------------------------------------------------------------------


def test_hold_music_is_heard_by_one_leg_and_loops() -> None:
    a, b = Phone(PCMU, 0), Phone(PCMU, 0)
    timer, room = joined(a, b)
    room.play("music", PlayedSource(tone(C_HZ, 48000, 0.25), 48000), "a")
    timer.run(room, [a, b], 2.0)
    assert a.leg.hears(C_HZ) == pytest.approx(SAID, rel=0.1)
    assert len(a.leg.sent) == pytest.approx(100, abs=2) and not b.leg.sent
    room.stop("music")
    before = len(a.leg.sent)
    timer.run(room, [a, b], 0.5)
    assert len(a.leg.sent) == before and room.deadline(timer.time) is None


def test_a_tone_that_ends_leaves_nothing() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(PCMU, B_HZ)
    timer, room = joined(a, b)
    room.play("tone", PlayedSource(tone(C_HZ, 8000, 0.2), 8000, loop=False), "a")
    timer.run(room, [a, b], 1.0)
    ticked = timer.ticks
    assert 10 <= ticked <= 12
    timer.run(room, [a, b], 1.0)
    assert timer.ticks == ticked


def test_a_sound_under_the_voice_is_quieter_while_the_bot_speaks() -> None:
    a = Phone(PCMU, 0)
    timer = HandTimer()
    room = room_on(timer)
    room.enter("a", a.seat)
    clip = PlayedSource(tone(C_HZ, 8000, 0.4), 8000, gain_db=-6.0, under=a.seat.voice, duck_db=12.0)
    room.play("background", clip, "a")
    timer.run(room, [a], 2.0)
    alone = a.leg.hears(C_HZ)
    a.leg.sent.clear()
    frames = bot_says(a, BOT_HZ, 2.0)
    more = [(timer.time + 0.02 * number, partial(a.seat.send_frame, frame)) for number, frame in enumerate(frames)]
    timer.run(room, [a], 2.0, *more)
    assert a.leg.hears(BOT_HZ) == pytest.approx(SAID, rel=0.1)
    assert alone == pytest.approx(SAID / 2, rel=0.1)
    assert a.leg.hears(C_HZ) == pytest.approx(alone * 10 ** (-12 / 20), rel=0.15)


# --- life ------------------------------------------------------------------------------------------------------------


def test_a_closed_room_lets_all_out_and_leaves_the_timer() -> None:
    a, b = Phone(PCMU, 0), Phone(PCMA, 0)
    timer, room = joined(a, b)
    room.close()
    assert room.names == [] and timer.paced is None
    assert not (a.seat.joined or b.seat.joined)
    a.seat.on_audio(b"\xff" * 160, 101.0)


def test_a_leg_is_in_one_room_under_one_name() -> None:
    a, b = Phone(PCMU, 0), Phone(PCMU, 0)
    _, room = joined(a, b)
    with pytest.raises(ValueError, match="already"):
        room.enter("c", a.seat)
    with pytest.raises(ValueError, match="already"):
        room.enter("a", b.seat)


def test_after_a_standstill_stale_ticks_are_left_out() -> None:
    a, b = Phone(PCMU, A_HZ), Phone(PCMA, B_HZ)
    timer, room = joined(a, b)
    timer.run(room, [a, b], 0.2)
    timer.time += 3.0
    ticked = timer.ticks
    timer.run(room, [a, b], 0.2)
    assert timer.ticks - ticked < 20
