import asyncio
import time
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from talkspurt.cli import parser
from talkspurt.simulator.call_script import (
    CallScriptError,
    CancelStep,
    Expect,
    HangUpStep,
    Press,
    SayStep,
    Step,
    TextStep,
    Wait,
)
from talkspurt.simulator.caller import (
    CallFailed,
    CallOptions,
    SimulatedCaller,
    dialect_of,
    media_and_dialogue_urls,
    read_wav_frames,
    readable,
    steps_of,
)
from talkspurt.simulator.carriers import MediaFrame, Noted
from talkspurt.simulator.carriers.sip import SipCarrier
from talkspurt.simulator.figures import Talkspurt
from tests.talkspurt.simulator.toy_gateway import TONE, ToyGateway, serving
from tests.waiting import PATIENCE_S, until
from voicecodecs import g711
from voicecodecs.registry import AudioFormat

PATIENCE_MS = 1000 * PATIENCE_S
TALK = (TextStep("Hello there."), Expect("quiet", PATIENCE_MS))


async def call(gateway: ToyGateway, steps: Sequence[Step], **options: str) -> SimulatedCaller:
    caller = SimulatedCaller(CallOptions(url=gateway.url, steps=tuple(steps), **options))  # type: ignore[arg-type]
    await caller.run()
    return caller


def write_wav(path: Path, pcm: np.ndarray, rate: int = 8000) -> Path:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm.astype("<i2").tobytes())
    return path


def tone(seconds: float, rate: int = 8000, hz: float = 500) -> np.ndarray:
    return 6000 * np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate)


async def test_a_turn_is_heard_whole_and_measured(tmp_path: Path) -> None:
    async with serving(ToyGateway(frames=25, leading_silence=2)) as gateway:
        caller = await call(gateway, TALK)
        report = caller.report()
        caller.write_wav(tmp_path / "heard.wav")
    assert report["audio_ms"] == 500
    assert report["marks"] == 1
    assert report["turns"] == [{"outcome": "finished", "gaps": 0}]
    assert report["violations"] == {}
    with wave.open(str(tmp_path / "heard.wav")) as heard:
        pcm = np.frombuffer(heard.readframes(heard.getnframes()), "<i2")
    assert (np.abs(pcm) > 1000).sum() == pytest.approx(23 * (np.abs(g711.decode_ulaw(TONE)) > 1000).sum(), rel=0.02)
    spectrum = np.abs(np.fft.rfft(pcm))
    assert np.argmax(spectrum) * 8000 / len(pcm) == pytest.approx(400, abs=5)
    assert "first packet" in readable(report)


async def test_silence_at_the_start_of_a_turn_is_not_its_first_packet() -> None:
    async with serving(ToyGateway(frames=10, leading_silence=8, hold_at=8)) as gateway:
        caller = SimulatedCaller(CallOptions(url=gateway.url, steps=TALK))
        calling = asyncio.create_task(caller.run())
        await until(lambda: caller.leg.messages == 8)
        assert caller.first_packets_ms == []
        gateway.go_on.set()
        await calling
    assert len(caller.first_packets_ms) == 1


async def test_what_arrived_before_the_caller_asked_is_no_first_packet() -> None:
    """The kernel's time of a frame may be earlier than the question that its reading comes after."""
    caller = SimulatedCaller(CallOptions(steps=()))
    caller._await_answer()
    hears = caller.leg.on_audible
    assert hears is not None
    hears(time.monotonic() - 0.5)
    assert caller.first_packets_ms == [] and caller.leg.on_audible is hears
    hears(time.monotonic())
    assert len(caller.first_packets_ms) == 1 and caller.first_packets_ms[0] >= 0


async def test_a_caller_who_has_said_something_waits_for_the_answer() -> None:
    """Silence since before the caller's words does not end the call: a recogniser takes its time."""
    caller = SimulatedCaller(CallOptions(steps=()))
    leg = caller.leg
    leg.spurts.append(Talkspurt(0))
    leg.playout.started_at = time.monotonic() - 5  # silent for five seconds
    caller._await_answer()
    assert not caller._quiet()
    assert leg.on_audible is not None
    leg.on_audible(time.monotonic())
    assert caller._quiet()
    caller._await_answer()
    caller._asked_at -= 60  # there is no answer
    assert caller._quiet()
    caller._await_answer()
    leg.closed_at = time.monotonic()
    assert caller._quiet()


async def test_two_callers_on_one_route_ask_for_their_own_calls() -> None:
    async with serving(ToyGateway(frames=3)) as gateway:
        caller = await call(gateway, TALK)
        assert gateway.dialogue_query == {"route": "call", "callSid": caller.leg.carrier.call_sid}


async def test_a_refusal_names_the_reason_and_the_setting() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=403, text="twilio: no token")

    async with serving(ToyGateway(), media=refuse) as gateway:
        with pytest.raises(CallFailed, match=r"HTTP 403, twilio: no token.*TALKSPURT_CARRIER_SECRET.*carriers\.twilio"):
            await call(gateway, TALK)


async def test_a_hole_inside_a_turn_is_a_gap_of_its_length() -> None:
    async with serving(ToyGateway(frames=20, hold_at=10)) as gateway:
        caller = SimulatedCaller(CallOptions(url=gateway.url, steps=TALK))
        calling = asyncio.create_task(caller.run())
        playout = caller.leg.playout
        await until(lambda: caller.leg.messages == 10 and time.monotonic() > playout.runs_dry_at() + 0.1)
        gateway.go_on.set()
        await calling
        report = caller.report()
    assert report["gaps"] == 1
    assert report["gap_ms"][0] > 60


async def test_frames_that_come_just_in_time_make_no_gaps() -> None:
    caller = SimulatedCaller(CallOptions(steps=()))
    leg = caller.leg
    leg.playout.started_at, leg.turn_under_way = 10.0, True
    for number, late_ms in enumerate((0.0, 0.5, 0.75, 1.5, 5.0)):
        leg._obey(MediaFrame(TONE), 10.0 + number * 0.02 + late_ms / 1000)
    assert [gap / 8 for gap in leg.gaps] == [3.5]  # where a frame was later than those before it, by more than 1 ms
    assert caller.report()["gap_ms"] == [3.5]


@pytest.mark.parametrize("dialect", ["sip", "audiosocket"])
async def test_frames_in_real_time_that_a_phone_evens_out_make_no_gaps(dialect: str) -> None:
    leg = SimulatedCaller(CallOptions(steps=(), dialect=dialect)).leg
    leg.playout.started_at = 10.0
    for number, late_ms in enumerate([0, *(1, 3, 0, 7, 38, 25, 2) * 3]):
        leg._obey(MediaFrame(bytes(len(leg.carrier.format.silence_frame()))), 10.0 + number * 0.02 + late_ms / 1000)
        leg.turn_under_way = True  # the turn begins with its first frame
    assert leg.gaps == []


@pytest.mark.parametrize(
    ("missing", "late_ms", "gaps_ms"),
    [
        (range(5, 6), {}, [20]),
        (range(5, 15), {}, [200]),
        ((), {9: 55}, [15 + 40]),  # dry for 15 ms, then the buffer fills again
        (range(5, 6), {12: 41}, [20, 1 + 40]),
    ],
)
async def test_packets_that_are_missing_or_too_late_are_gaps(
    missing: Sequence[int], late_ms: dict[int, int], gaps_ms: list[int]
) -> None:
    leg, sender = SimulatedCaller(CallOptions(steps=(), dialect="sip")).leg, SipCarrier(8, {})
    leg.playout.started_at = 10.0
    for number, packet in enumerate([sender.media(TONE) for _ in range(30)]):
        if number not in missing:
            leg._obey(leg.carrier.read(packet), 10.0 + number * 0.02 + late_ms.get(number, 0) / 1000)
            leg.turn_under_way = True
    assert [gap / 8 for gap in leg.gaps] == gaps_ms


def test_timestamps_tell_what_is_missing_and_a_new_stream_begins_anew() -> None:
    phone, sender, other = SipCarrier(1, {}), SipCarrier(8, {}), SipCarrier(9, {})
    first, lost, late, last = (sender.media(TONE) for _ in range(4))
    [other.media(TONE) for _ in range(7)]
    heard = [phone.read(packet) for packet in (first, last, late, other.media(TONE))]
    assert lost and heard == [MediaFrame(TONE), MediaFrame(TONE, 320), Noted(), MediaFrame(TONE)]


async def test_two_turns_apart_are_no_gap() -> None:
    async with serving(ToyGateway(frames=10)) as gateway:
        report = (await call(gateway, [*TALK, Wait(60), *TALK])).report()
    assert report["gaps"] == 0
    assert len(report["first_packets_ms"]) == 2
    assert [turn["outcome"] for turn in report["turns"]] == ["finished", "finished"]


@pytest.mark.parametrize("act", [CancelStep(), Press("5")])
async def test_an_interruption_is_timed_from_the_act_to_the_clear(act: Step) -> None:
    """A minute waits to be heard, since an act is not timed when nothing is playing."""
    async with serving(ToyGateway(frames=3000)) as gateway:
        interrupted = [Expect("clear", PATIENCE_MS), Expect("quiet", PATIENCE_MS)]
        steps: list[Step] = [TextStep("Hello"), Expect("speech", PATIENCE_MS), act, *interrupted]
        caller = await call(gateway, steps)
        report = caller.report()
    assert len(report["cut_ms"]) == 1
    assert report["turns"][0]["outcome"] == "interrupted"
    assert report["turns"][0]["heard"] == "Hel"
    assert caller.leg.playout.end < 3000 * 160  # what was heard, in samples


async def test_the_caller_speaks_in_frames_of_20_ms_with_running_numbers(tmp_path: Path) -> None:
    wav = write_wav(tmp_path / "hi.wav", tone(0.25))
    async with serving(ToyGateway()) as gateway:
        await call(gateway, [SayStep(wav)])
        media = [m for m in gateway.received if m["event"] == "media"]
        events = [int(m["sequenceNumber"]) for m in gateway.received if "sequenceNumber" in m]
    assert events == list(range(1, len(events) + 1))
    assert [int(m["media"]["chunk"]) for m in media] == list(range(1, len(media) + 1))
    assert gateway.received[-1]["event"] == "stop"


async def test_a_violation_of_the_wire_format_is_reported() -> None:
    gateway = ToyGateway(frames=5)
    gateway.extra = [{"event": "hangup"}, {"event": "mark", "mark": {"name": "x", "y": 1}}]
    async with serving(gateway):
        report = (await call(gateway, TALK)).report()
    assert sum(report["violations"].values()) == 2


async def test_a_refused_socket_is_one_clear_error() -> None:
    async with serving(ToyGateway()) as gateway:
        with pytest.raises(CallFailed, match="HTTP 404"):
            await SimulatedCaller(CallOptions(url=gateway.url + "/elsewhere", steps=(Wait(1),))).run()
    with pytest.raises(CallFailed, match="cannot connect"):
        await SimulatedCaller(CallOptions(url=gateway.url, steps=TALK)).run()


async def test_an_expectation_that_is_not_met_names_its_step() -> None:
    async with serving(ToyGateway()) as gateway:
        with pytest.raises(CallFailed, match="step 2 failed: expected hang_up within 50 ms"):
            await call(gateway, [Wait(1), Expect("hang_up", 50)])


async def test_the_connection_is_signed_as_the_carrier_signs() -> None:
    async with serving(ToyGateway()) as gateway:
        caller = await call(gateway, [HangUpStep()], carrier_secret="s3cret")
    assert (
        gateway.headers["X-Twilio-Signature"]
        == caller.leg.carrier.signature(gateway.url, "s3cret")["X-Twilio-Signature"]
    )


def test_the_demo_route_is_taken_only_when_we_lead_the_dialogue() -> None:
    bare = "ws://127.0.0.1:8080/media/twilio"
    assert media_and_dialogue_urls(bare, managed=True) == (
        "ws://127.0.0.1:8080/media/twilio/call",
        "ws://127.0.0.1:8080/v1/dialogue?route=call",
    )
    assert media_and_dialogue_urls(bare, managed=False)[0] == bare
    assert media_and_dialogue_urls(bare + "/r2", managed=True)[1].endswith("route=r2")


@pytest.mark.parametrize(
    ("url", "dialogue"),
    [
        ("sip:100@127.0.0.1:5060", "ws://127.0.0.1:8080/v1/dialogue?route=call"),
        ("sip:100@127.0.0.2:5060?route=talk", "ws://127.0.0.1:8080/v1/dialogue?route=talk"),
        ("sip:100@pbx.example:5060?http=9000", "ws://pbx.example:9000/v1/dialogue?route=call"),
        ("sip:100@10.0.0.5?http=127.0.0.1:9000", "ws://127.0.0.1:9000/v1/dialogue?route=call"),
        ("audiosocket://127.0.0.2:9092/talk", "ws://127.0.0.1:8080/v1/dialogue?route=talk"),
        ("audiosocket://pbx.example/talk?http=127.0.0.3:80", "ws://127.0.0.3:80/v1/dialogue?route=talk"),
    ],
)
def test_a_call_that_is_not_over_http_finds_the_http_server(url: str, dialogue: str) -> None:
    """SIP at 127.0.0.2, beside a switch at 127.0.0.1, sought the dialogue manager's socket at 127.0.0.2, too."""
    assert media_and_dialogue_urls(url, managed=True)[1] == dialogue


@pytest.mark.parametrize(
    ("dialect", "steps", "url"),
    [("sip", TALK, "sip:100@127.0.0.1:9"), ("audiosocket", (Wait(1),), "audiosocket://127.0.0.1:9/talk")],
)
async def test_an_http_server_that_is_not_there_is_named_with_what_names_it(
    dialect: str, steps: tuple[Step, ...], url: str
) -> None:
    async with serving(ToyGateway()) as gateway:
        port = gateway.url.split(":")[2].partition("/")[0]  # free again below
    for given, said in (
        (port, rf"//127\.0\.0\.1:{port}/v1/\S+: no server listens.*http=HOST:PORT"),
        ("x", "http=x in"),
    ):
        with pytest.raises(CallFailed, match=said):
            await SimulatedCaller(CallOptions(url=f"{url}?http={given}", dialect=dialect, steps=steps)).run()


@pytest.mark.parametrize("url", ["http://h/media/twilio", "ws:///media/twilio", "ws://h/twilio", "ws://h/media"])
def test_an_address_that_is_no_media_address_is_refused(url: str) -> None:
    with pytest.raises(CallFailed, match="expected ws://HOST:PORT/media"):
        media_and_dialogue_urls(url, managed=True)


def test_options_are_steps() -> None:
    def steps(*words: str) -> tuple[Step, ...]:
        return steps_of(parser().parse_args(["call", *words]))

    assert steps("--text", "Hi", "--seconds", "9") == (TextStep("Hi"), Expect("quiet", 9000))
    assert steps("--text", "Hi", "--barge-in-after", "300")[2:4] == (Wait(300), CancelStep())
    assert steps("--text", "Hi", "--barge-in-after", "300", "--dtmf", "1#")[2:4] == (Wait(300), Press("1#"))
    assert steps("--dtmf", "12")[0] == Press("12")
    with pytest.raises(CallScriptError, match="--text is empty"):
        steps("--text", " ")
    with pytest.raises(CallScriptError, match="no such file"):
        steps("--say-wav", "nowhere.wav")
    with pytest.raises(CallScriptError, match="keys|digits"):
        steps("--dtmf", "1a")
    with pytest.raises(CallScriptError, match="needs"):
        steps("--barge-in-after", "300")


def test_wav_frames_are_resampled_and_padded(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tone(0.05, rate=16000), 16000)
    frames = read_wav_frames(path, AudioFormat())
    assert [len(frame) for frame in frames] == [160] * 3
    pcm = g711.decode_ulaw(b"".join(frames))[:400]
    assert np.argmax(np.abs(np.fft.rfft(pcm))) * 8000 / 400 == pytest.approx(500, abs=20)


def test_a_file_that_is_no_wav_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_text("nothing")
    with pytest.raises(CallFailed, match=r"x\.wav as WAV"):
        read_wav_frames(tmp_path / "x.wav", AudioFormat())


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("sip:100@127.0.0.1:5060?route=call", "sip"),
        ("audiosocket://127.0.0.1:9092", "audiosocket"),
        ("ws://127.0.0.1:8080/media/telnyx/call", "telnyx"),
        ("wss://bot.example/media/other", "twilio"),
        ("", "twilio"),
    ],
)
def test_an_address_names_its_dialect(url: str, dialect: str) -> None:
    assert dialect_of(url) == dialect
