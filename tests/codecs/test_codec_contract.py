"""One suite for every format: a tone goes in as samples and comes out as the same tone."""

import numpy as np
import pytest

from tests.codecs.codec_signals import peak_hz, snr_db, tone
from voicecodecs import g722, l16, opus
from voicecodecs.packetizer import Packetizer
from voicecodecs.pcm import dbov, to_float32, to_int16
from voicecodecs.registry import AudioFormat, by_rtp_name, decoder, encoder

FORMATS = [
    AudioFormat(encoding, rate, ptime_ms)
    for encoding, rate in [
        ("PCMU", 8000),
        ("PCMA", 8000),
        ("G722", 16000),
        ("OPUS", 48000),
        ("OPUS", 24000),
        ("OPUS", 8000),
        ("L16", 8000),
        ("L16", 16000),
        ("L16", 24000),
    ]
    for ptime_ms in (10, 20, 60)
]

DELAY_SAMPLES = {"PCMU": 0, "PCMA": 0, "L16": 0, "G722": 22}
MIN_SNR_DB = {"PCMU": 33, "PCMA": 33, "L16": 85, "G722": 25}


@pytest.fixture(params=FORMATS, ids=lambda f: f"{f.encoding}-{f.sample_rate}-{f.ptime_ms}")
def fmt(request: pytest.FixtureRequest) -> AudioFormat:
    return request.param


def round_trip(fmt: AudioFormat, pcm: np.ndarray) -> np.ndarray:
    enc, dec = encoder(fmt), decoder(fmt)
    frames = pcm.reshape(-1, fmt.frame_samples)
    return np.concatenate([dec.decode(enc.encode(frame)) for frame in frames])


def test_a_tone_comes_out_as_the_same_tone_and_the_same_number_of_samples(fmt: AudioFormat) -> None:
    sent = to_int16(tone(1000, 1.2, fmt.sample_rate))
    heard = round_trip(fmt, sent)
    assert heard.dtype == np.int16
    assert len(heard) == len(sent)
    steady = heard[fmt.sample_rate // 5 :]
    assert peak_hz(steady, fmt.sample_rate) == pytest.approx(1000, abs=2)
    assert dbov(steady) == pytest.approx(dbov(sent), abs=1)
    if fmt.encoding in DELAY_SAMPLES:
        delay = DELAY_SAMPLES[fmt.encoding]
        start = fmt.sample_rate // 5
        assert snr_db(sent[start : len(sent) - delay], heard[start + delay :]) > MIN_SNR_DB[fmt.encoding]


def test_frames_have_the_stated_size(fmt: AudioFormat) -> None:
    payload = encoder(fmt).encode(np.zeros(fmt.frame_samples, np.int16))
    assert fmt.frame_samples * 1000 == fmt.sample_rate * fmt.ptime_ms
    assert len(payload) == (fmt.frame_bytes or len(payload))


def test_constant_rate_encoders_take_many_frames_at_once(fmt: AudioFormat) -> None:
    pcm = to_int16(tone(700, 0.6, fmt.sample_rate))
    one_by_one = encoder(fmt)
    frames = [one_by_one.encode(frame) for frame in pcm.reshape(-1, fmt.frame_samples)]
    if fmt.frame_bytes is None:
        with pytest.raises(ValueError, match="expected frames of"):
            encoder(fmt).encode(pcm)
    else:
        assert encoder(fmt).encode(pcm) == b"".join(frames)


def test_silence_frame_is_one_silent_frame(fmt: AudioFormat) -> None:
    payload = fmt.silence_frame()
    heard = decoder(fmt).decode(payload)
    assert len(heard) == fmt.frame_samples
    assert np.abs(heard.astype(int)).max() <= 8  # A-law has no zero: its smallest value is 8
    assert payload is fmt.silence_frame()


@pytest.mark.parametrize("change", [-1, 1])
def test_a_frame_of_the_wrong_length_is_named(fmt: AudioFormat, change: int) -> None:
    with pytest.raises(ValueError, match=f"given {fmt.frame_samples + change} samples, expected frames of"):
        encoder(fmt).encode(np.zeros(fmt.frame_samples + change, np.int16))


def test_no_samples_and_no_bytes_are_errors(fmt: AudioFormat) -> None:
    with pytest.raises(ValueError, match="given 0 samples"):
        encoder(fmt).encode(np.zeros(0, np.int16))
    with pytest.raises(ValueError, match="0 bytes"):
        decoder(fmt).decode(b"")


def test_wrong_sample_types_are_named(fmt: AudioFormat) -> None:
    with pytest.raises(ValueError, match="float32.*expected one-dimensional int16"):
        encoder(fmt).encode(np.zeros(fmt.frame_samples, np.float32))  # type: ignore[arg-type]


def test_a_decoder_takes_another_ptime_than_agreed(fmt: AudioFormat) -> None:
    longer = AudioFormat(fmt.encoding, fmt.sample_rate, 40)
    assert len(decoder(fmt).decode(longer.silence_frame())) == longer.frame_samples


@pytest.mark.parametrize("source_rate", [8000, 16000, 22050, 24000, 48000])
def test_packetizer_makes_frames_of_one_ptime_that_carry_the_tone(fmt: AudioFormat, source_rate: int) -> None:
    pcm = tone(1000, 1.21, source_rate)
    packetizer = Packetizer(fmt, source_rate)
    frames = [f for at in range(0, len(pcm), 1777) for f in packetizer.push(pcm[at : at + 1777])] + packetizer.flush()
    dec = decoder(fmt)
    decoded = [dec.decode(frame) for frame in frames]
    assert {len(piece) for piece in decoded} == {fmt.frame_samples}
    audio = round(len(pcm) * fmt.sample_rate / source_rate)
    assert packetizer.samples_out == len(frames) * fmt.frame_samples
    assert 0 <= packetizer.samples_out - audio < fmt.frame_samples
    heard = np.concatenate(decoded)[fmt.sample_rate // 5 : audio]
    assert peak_hz(heard, fmt.sample_rate) == pytest.approx(1000, abs=2)


# What only one codec has


def test_silence_of_g711_is_the_code_of_zero() -> None:
    assert AudioFormat("PCMU").silence_frame() == b"\xff" * 160
    assert AudioFormat("PCMA").silence_frame() == b"\xd5" * 160


def test_l16_is_little_endian_and_swaps_to_network_order() -> None:
    payload = l16.encode_l16(np.array([1, -2, 0x1234], np.int16))
    assert payload == b"\x01\x00\xfe\xff\x34\x12"
    assert l16.swap_byte_order(payload) == b"\x00\x01\xff\xfe\x12\x34"
    assert l16.swap_byte_order(l16.swap_byte_order(payload)) == payload


def test_l16_cut_inside_a_sample_is_an_error() -> None:
    for reader in (l16.decode_l16, l16.swap_byte_order):
        with pytest.raises(ValueError, match="3 bytes, expected an even number"):
            reader(b"\0\0\0")


def test_g722_carries_what_g711_cannot() -> None:
    sent = to_int16(tone(6000, 1.0, 16000))
    heard = round_trip(AudioFormat("G722", 16000), sent)
    assert peak_hz(heard[3200:], 16000) == pytest.approx(6000, abs=2)
    assert dbov(heard[3200:]) == pytest.approx(dbov(sent), abs=1)


def test_g722_state_runs_on_and_an_odd_sample_is_an_error() -> None:
    pcm = to_int16(tone(500, 0.1, 16000))
    whole = g722.Encoder().encode(pcm)
    split = g722.Encoder()
    assert split.encode(pcm[:702]) + split.encode(pcm[702:]) == whole
    with pytest.raises(ValueError, match="3 samples, expected an even number"):
        g722.Encoder().encode(np.zeros(3, np.int16))


def test_opus_is_mono_voice_of_about_the_set_bitrate() -> None:
    noise = np.random.default_rng(5).normal(0, 3000, 48000 * 2).astype(np.int16)
    enc = opus.Encoder(bitrate=24000)
    packets = [enc.encode(frame) for frame in noise.reshape(-1, 960)]
    assert sum(map(len, packets)) * 8 / 2 == pytest.approx(24000, rel=0.2)
    assert not any(packet[0] & 0x04 for packet in packets)  # the stereo bit (RFC 6716 section 3.1)


@pytest.mark.parametrize("broken", [b"\xff", b"\xff" * 10, b"\x03", bytes(2000)], ids=len)
def test_broken_opus_is_an_error(broken: bytes) -> None:
    with pytest.raises(ValueError, match=f"cannot decode {len(broken)} bytes as Opus"):
        opus.Decoder().decode(broken)


def test_opus_that_was_cut_never_breaks_the_decoder() -> None:
    sent = to_int16(tone(600, 0.4, 48000))
    enc, dec = opus.Encoder(), opus.Decoder()
    for frame in sent.reshape(-1, 960):
        packet = enc.encode(frame)
        for size in (1, 2, len(packet) // 2):
            assert len(dec.decode(packet[:size])) == 960  # Opus has no length inside: bits that lack read as zero
    heard = np.concatenate([dec.decode(enc.encode(frame)) for frame in to_int16(tone(600, 1, 48000)).reshape(-1, 960)])
    assert peak_hz(heard[24000:], 48000) == pytest.approx(600, abs=3)


def test_opus_fec_restores_a_lost_frame_better_than_concealment() -> None:
    rng = np.random.default_rng(11)
    t = np.arange(48000) / 48000
    # A voice-like glide: concealment can only go on as before, FEC knows.
    glide = sum(np.sin(2 * np.pi * k * (120 * t + 80 * t**2)) / k for k in range(1, 12))
    pcm = to_int16((0.15 * glide + 0.001 * rng.standard_normal(48000)).astype(np.float32)).reshape(-1, 960)
    enc = opus.Encoder(fec_loss_percent=30)
    packets = [enc.encode(frame) for frame in pcm]

    def with_losses(*, fec: bool) -> np.ndarray:
        dec, heard = opus.Decoder(), []
        for at, packet in enumerate(packets):
            lost = at % 5 == 3
            heard.append(dec.conceal(960, packets[at + 1] if fec else b"") if lost else dec.decode(packet))
        return np.concatenate(heard)

    dec = opus.Decoder()
    intact = np.concatenate([dec.decode(packet) for packet in packets])
    assert len(with_losses(fec=True)) == len(intact)
    assert snr_db(intact, with_losses(fec=True)) > snr_db(intact, with_losses(fec=False)) + 3


def test_opus_dtx_sends_next_to_nothing_in_silence() -> None:
    silence = np.zeros(960, np.int16)
    enc = opus.Encoder(dtx=True)
    assert np.median([len(enc.encode(silence)) for _ in range(60)]) <= 2
    enc = opus.Encoder()
    assert min(len(enc.encode(silence)) for _ in range(60)) > 2


def test_opus_names_wrong_frames_and_rates() -> None:
    with pytest.raises(ValueError, match="44100 Hz"):
        opus.Encoder(44100)
    with pytest.raises(ValueError, match="44100 Hz"):
        opus.Decoder(44100)
    with pytest.raises(ValueError, match="given 961 samples"):
        opus.Encoder().encode(np.zeros(961, np.int16))
    with pytest.raises(ValueError, match="into 100 samples"):
        opus.Decoder().conceal(100)


# Formats as values


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        ("PCMU/8000", AudioFormat("PCMU", 8000)),
        ("pcma/8000/1", AudioFormat("PCMA", 8000)),
        ("G722/8000", AudioFormat("G722", 16000)),
        ("opus/48000/2", AudioFormat("OPUS", 48000)),
        ("L16/16000", AudioFormat("L16", 16000)),
    ],
)
def test_formats_are_found_by_rtp_name(name: str, fmt: AudioFormat) -> None:
    assert by_rtp_name(name) == fmt
    assert by_rtp_name(name, ptime_ms=40).ptime_ms == 40


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("PCMU", "NAME/CLOCK"),
        ("PCMU/", "NAME/CLOCK"),
        ("PCMU/8000/1/1", "NAME/CLOCK"),
        ("PCMU/eight", "NAME/CLOCK"),
        ("PCMU/-8000", "NAME/CLOCK"),
        ("PCMU/16000", "clock of 8000"),
        ("G722/16000", "clock of 8000"),
        ("opus/48000", "opus/48000/2"),
        ("opus/48000/1", "opus/48000/2"),
        ("L16/44100/2", "one channel"),
        ("L16/0", "expected 1 to"),
        ("GSM/8000", "expected one of PCMU"),
    ],
)
def test_wrong_rtp_names_are_named(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        by_rtp_name(name)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("pcmu", 8000, 20), "'pcmu', expected one of PCMU"),
        (("PCMU", 16000, 20), "PCMU sample_rate is 16000 Hz, expected 8000"),
        (("PCMA", 48000, 20), "expected 8000"),
        (("G722", 8000, 20), "expected 16000"),
        (("OPUS", 44100, 20), "or 48000"),
        (("L16", 0, 20), "expected 1 to"),
        (("L16", 10**9, 20), "expected 1 to"),
        (("PCMU", 8000, 0), "ptime_ms is 0"),
        (("PCMU", 8000, 25), "expected one of 10, 20, 30, 40, 50, 60"),
        (("PCMU", 8000, 70), "ptime_ms is 70"),
        (("OPUS", 48000, 30), "expected one of 10, 20, 40, 60"),
        (("L16", 22050, 10), "not a whole number of samples"),
    ],
)
def test_impossible_formats_are_named(wrong: tuple[str, int, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AudioFormat(*wrong)


def test_rtp_clocks() -> None:
    assert AudioFormat("G722", 16000).rtp_clock_hz == 8000
    assert AudioFormat("OPUS", 24000).rtp_clock_hz == 48000
    assert AudioFormat("L16", 16000).rtp_clock_hz == 16000


# Streams


def test_packetizer_frames_do_not_depend_on_the_chunks() -> None:
    pcm = (0.1 * np.random.default_rng(2).standard_normal(24000)).astype(np.float32)
    for fmt in (AudioFormat("PCMU"), AudioFormat("G722", 16000), AudioFormat("OPUS", 48000)):
        whole, pieces = Packetizer(fmt, 24000), Packetizer(fmt, 24000)
        expected = whole.push(pcm) + whole.flush()
        assert [f for at in range(0, 24000, 431) for f in pieces.push(pcm[at : at + 431])] + pieces.flush() == expected


def test_packetizer_pads_the_last_frame_with_silence_and_goes_on() -> None:
    packetizer = Packetizer(AudioFormat("PCMU"), 8000)
    assert packetizer.push(np.full(200, 0.5, np.float32)) != []
    (last,) = packetizer.flush()
    assert last[40:] == b"\xff" * 120
    assert last[:40] != b"\xff" * 40
    assert packetizer.flush() == []
    assert len(packetizer.push(np.zeros(160, np.float32))) == 1
    assert packetizer.samples_out == 480


def test_packetizer_counts_its_padding_as_part_of_a_pause() -> None:
    packetizer = Packetizer(AudioFormat("PCMU"), 8000)
    packetizer.push(np.full(200, 0.5, np.float32))
    packetizer.flush()  # adds 120
    assert packetizer.pause(50) == [] and packetizer.position == packetizer.samples_out == 320
    assert packetizer.pause(100) == [] and packetizer.position == 350
    (frame,) = packetizer.push(np.full(160, 0.5, np.float32))
    assert frame[:30] == b"\xff" * 30 and b"\xff" not in frame[30:]
    packetizer.flush()
    packetizer.push(np.full(160, 0.5, np.float32))
    assert len(packetizer.pause(160)) == 1, "what follows a push is no padding any more"


def test_packetizer_clips_and_refuses_what_is_not_finite() -> None:
    (frame,) = Packetizer(AudioFormat("L16"), 8000).push(np.full(160, 3.0, np.float32))
    assert set(l16.decode_l16(frame)) == {32767}
    with pytest.raises(ValueError, match="NaN or infinite"):
        Packetizer(AudioFormat("PCMU"), 8000).push(np.full(160, np.nan, np.float32))
    assert to_float32(l16.decode_l16(frame)).max() < 1
