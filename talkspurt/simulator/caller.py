"""``talkspurt call``: a simulated caller with a simulated carrier. It runs in real time and measures with its own
clock.

With ``text`` steps it is also the call's dialogue manager, over ``/v1/dialogue``. The route must then have neither
``url`` nor ``script``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import sys
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import uvloop
from numpy.typing import NDArray

from talkspurt.cli import JobError, UsageError
from talkspurt.simulator.audiosocket_leg import SimulatedAudioSocketLeg
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
    check_digits,
    read_script,
)
from talkspurt.simulator.carrier_leg import CarrierLeg, Leg, SimulatedUplink
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.carriers.audiosocket import AudioSocketCarrier
from talkspurt.simulator.carriers.carrier import FROM, TO
from talkspurt.simulator.carriers.sip import SipCarrier
from talkspurt.simulator.conversation import Conversation
from talkspurt.simulator.figures import GAP_S, interarrival_errors_ms, pacing_errors_ms, summary
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.simulator.peer_socket import HTTP_HINT, PeerSocketError, http_server
from talkspurt.simulator.sip_leg import SipLeg
from voicecodecs import registry
from voicecodecs.pcm import to_float32, to_int16
from voicecodecs.registry import AudioFormat
from voicecodecs.resample import Resampler

DEFAULT_URL = "ws://127.0.0.1:8080/media/twilio"
DEMO_ROUTE = "call"
"""The demo configuration's route for dialogue managers that dial in."""

_SETUP_S = 5.0
"""Longest time from the opening of the media socket to ``setup`` at the dialogue manager, seconds."""
_KEY_S = 0.25
"""Time between two digits, seconds."""
_PAUSE_S = 0.5
"""Without a dialogue manager to separate turns, a shorter silence between two talkspurts counts as a gap, seconds."""
_QUIET_S = 1.0
"""Without a dialogue manager to report the end of a turn, this much silence ends it, seconds."""
_ANSWER_S = 10.0
"""Without a dialogue manager to report the begin of a turn, longest wait for an answer, seconds. A recogniser and a
language model need time."""


class CallFailed(Exception):
    """The call could not be made, or a step did not find what it expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """One simulated call."""

    url: str = DEFAULT_URL
    dialect: str = "twilio"
    steps: tuple[Step, ...]
    parameters: dict[str, str] = field(default_factory=dict)
    api_key: str = ""
    """API key for ``/v1/dialogue``."""
    carrier_secret: str = ""
    """Secret that signs the media connection in the carrier's way."""

    @property
    def managed(self) -> bool:
        """True if this process is also the dialogue manager."""
        return any(isinstance(step, TextStep | CancelStep) for step in self.steps)


def dialect_of(url: str) -> str:
    """Return the dialect that an address names. ``twilio``: it names none that is known."""
    address = urlsplit(url)
    if address.scheme in (AudioSocketCarrier.dialect, SipCarrier.dialect):
        return address.scheme
    named = address.path.removeprefix("/media/").partition("/")[0]
    return named if named in CARRIERS else "twilio"


def default_url(dialect: str) -> str:
    """Return the address of calls of a dialect at a gateway on this machine."""
    if dialect == AudioSocketCarrier.dialect:
        return "audiosocket://127.0.0.1:9092"
    if dialect == SipCarrier.dialect:
        return "sip:100@127.0.0.1:5060"
    return f"ws://127.0.0.1:8080/media/{dialect}"


def media_and_dialogue_urls(url: str, *, managed: bool) -> tuple[str, str]:
    """Return the addresses to which the carrier and the dialogue manager connect.

    If this process is the dialogue manager, a URL without a route gets the demo's route. A SIP or AudioSocket URL names
    the HTTP server in its parameter ``http`` (``http_server``).

    Raises:
        CallFailed: the URL is not a media URL of a gateway.
    """
    parts = urlsplit(url)
    if parts.scheme == "sip":
        route = parse_qs(parts.query).get("route", [DEMO_ROUTE])[0]
        return url, f"ws://{http_server(url)}/v1/dialogue?route={route}"
    if parts.scheme == "audiosocket" and parts.hostname:
        route = parts.path.strip("/") or (DEMO_ROUTE if managed else "")
        return parts._replace(path=f"/{route}").geturl(), f"ws://{http_server(url)}/v1/dialogue?route={route}"
    path = parts.path.strip("/").split("/")
    if parts.scheme not in ("ws", "wss") or not parts.hostname or path[0] != "media" or not 2 <= len(path) <= 4:
        raise CallFailed(f"{url!r} is not a media address, expected ws://HOST:PORT/media/DIALECT[/ROUTE[/TOKEN]]")
    if len(path) == 2 and managed:
        path.append(DEMO_ROUTE)
    media = parts._replace(path="/" + "/".join(path)).geturl()
    route = path[2] if len(path) > 2 else ""
    return media, parts._replace(path="/v1/dialogue", query=f"route={route}").geturl()


class SimulatedCaller:
    """One call in progress."""

    def __init__(self, options: CallOptions) -> None:
        number = secrets.randbits(128)
        self.options = options
        self.leg: Leg
        if options.dialect == AudioSocketCarrier.dialect:
            self.leg = SimulatedAudioSocketLeg(AudioSocketCarrier(number, options.parameters), record=True)
        elif options.dialect == SipCarrier.dialect:
            self.leg = SipLeg(SipCarrier(number, options.parameters), record=True)
        else:
            self.leg = CarrierLeg(CARRIERS[options.dialect](number, options.parameters), record=True)
        self.first_packets_ms: list[float] = []
        """Times from the stream's start, or from an action of the caller, to the next audible frame."""
        self._manager = SimulatedManager(self._on_setup)
        self._call: ManagedCall | None = None
        self._uplink = SimulatedUplink(self.leg.carrier.format.ptime_ms)
        self._changed = asyncio.Event()
        self._clears_before = 0
        self._answered = False
        self._asked_at = 0.0
        self.leg.on_change = self._changed.set

    async def run(self) -> None:
        """Make the call, take all steps, hang up.

        Raises:
            CallFailed: the message names the step.
        """
        options = self.options
        try:
            media, dialogue = media_and_dialogue_urls(options.url, managed=options.managed)
            if options.managed:
                await self._lead(dialogue)
            proof = self.leg.carrier.signature(media, options.carrier_secret) if options.carrier_secret else None
            try:
                await self.leg.connect(media, headers=proof)
            except PeerSocketError as exc:
                raise CallFailed(f"{exc}{_remedy(exc.status, options.dialect)}") from exc
            self._uplink.join(self.leg)
            self._await_answer()
            if options.managed and not await self._until(lambda: self._call is not None, _SETUP_S):
                raise CallFailed(
                    f"no setup for this call on {dialogue} within {_SETUP_S:g} s; a route that this command speaks on "
                    "must have neither dialogue.url nor dialogue.script"
                )
            for number, step in enumerate(options.steps, 1):
                if not await self._take(step):
                    heard = "" if self.leg.spurts else "; nothing was heard at all"
                    raise CallFailed(f"step {number} failed: {_describe(step)}{heard}")
            if self._call is not None and self._call.errors:
                raise CallFailed(f"the gateway reported: {self._call.errors[0]}")
        except PeerSocketError as exc:
            raise CallFailed(str(exc)) from exc
        finally:
            self._uplink.stop()
            await self.leg.aclose()
            await self._manager.aclose()

    async def _lead(self, dialogue: str) -> None:
        """Become the call's dialogue manager."""
        api_key = self.options.api_key
        # So another `talkspurt call` on the same route also gets its own call.
        own = f"{dialogue}&callSid={quote(self.leg.carrier.call_sid, safe='')}"
        try:
            await self._manager.dial_in(own, headers={"Authorization": f"Bearer {api_key}"} if api_key else None)
        except PeerSocketError as exc:
            elsewhere = urlsplit(self.options.url).scheme in ("sip", "audiosocket")
            raise CallFailed(f"{exc}{HTTP_HINT if elsewhere else ''}") from exc

    def report(self) -> dict[str, Any]:
        """Return the measurements, in milliseconds."""
        leg, rate = self.leg, self.leg.playout.sample_rate
        spurts = leg.spurts
        breaks = [spurt.dry_samples for spurt in spurts[1:] if GAP_S * rate < spurt.dry_samples < _PAUSE_S * rate]
        gaps = [gap / rate * 1000 for gap in (leg.gaps if self._call is not None else breaks)]
        jitter = [error for spurt in spurts for error in interarrival_errors_ms(spurt, rate)]
        pacing = [error for spurt in spurts for error in pacing_errors_ms(spurt, rate)]
        audio_ms = sum(sum(spurt.samples) for spurt in spurts) / rate * 1000
        report: dict[str, Any] = {
            "call_sid": leg.carrier.call_sid,
            "first_packet_ms": round(self.first_packets_ms[0], 1) if self.first_packets_ms else None,
            "first_packets_ms": [round(ms, 1) for ms in self.first_packets_ms],
            "jitter_ms": summary(jitter),
            "pacing_error_ms": summary(pacing),
            "gaps": len(gaps),
            "gap_ms": [round(ms, 1) for ms in gaps],
            "audio_ms": round(audio_ms),
            "marks": leg.marks,
            "clears": leg.clears,
            "cut_ms": [round(ms, 1) for ms in leg.cuts_ms],
            "violations": dict(leg.violations),
        }
        if self._call is not None:
            report["session_id"] = self._call.session_id
            report["turns"] = [
                {"outcome": turn.outcome, **turn.reported, **({"heard": turn.heard_text} if turn.heard_text else {})}
                for turn in self._call.turns.values()
            ]
        return report

    def heard(self) -> tuple[NDArray[np.int16], int]:
        """Return the sound that the caller has heard since the start of the stream, shape ``(samples,)``, and its rate
        in Hz."""
        playout = self.leg.playout
        heard = bytes(playout.heard[: playout.position(time.monotonic()) * self.leg.sample_bytes])
        return registry.decoder(self.leg.carrier.format).decode(heard), playout.sample_rate

    def write_wav(self, path: Path) -> None:
        """Write the sound that the caller has heard since the start of the stream: mono, 16 bit."""
        pcm, rate = self.heard()
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(rate)
            out.writeframes(pcm.astype("<i2").tobytes())

    # --- steps ---

    async def _take(self, step: Step) -> bool:
        """Take one step. Return False if an expected event did not come in time."""
        leg = self.leg
        if not isinstance(step, Wait | Expect):
            self._clears_before = leg.clears
        match step:
            case Wait(ms):
                await asyncio.sleep(ms / 1000)
            case SayStep(path):
                frames = read_wav_frames(path, leg.carrier.format)
                leg.say(frames)
                await self._until(lambda: not leg.saying, 1.0 + len(frames) * leg.carrier.format.ptime_ms / 1000)
                self._await_answer()
            case Press(digits):
                for digit in digits:
                    leg.press(digit)
                    await asyncio.sleep(_KEY_S)
                self._await_answer()
            case TextStep(text):
                assert self._call is not None
                if not self._call.open_turns:  # the first packet of a turn that follows another is no latency
                    self._await_answer()
                self._call.speak(text)
            case CancelStep():
                assert self._call is not None
                leg.interrupt()
                self._call.send("cancel")
            case Expect(what, within_ms):
                return await self._until(self._conditions()[what], within_ms / 1000)
            case HangUpStep():
                leg.hang_up()
        return True

    def _await_answer(self) -> None:
        """Measure from now to the next audible frame."""
        asked_at = self._asked_at = time.monotonic()
        self._answered = False
        self.leg.turn_under_way = False

        def heard(now: float) -> None:
            if now < asked_at:  # it was in the socket when the caller asked: the end of earlier speech
                self.leg.on_audible = heard
                return
            self.first_packets_ms.append((now - asked_at) * 1000)
            self._answered = True
            self.leg.turn_under_way = self._call is not None and self._call.open_turns > 0

        self.leg.on_audible = heard

    def _conditions(self) -> dict[str, Callable[[], bool]]:
        return {
            "speech": lambda: self._answered,
            "quiet": self._quiet,
            "clear": lambda: self.leg.clears > self._clears_before,
            "hang_up": lambda: self.leg.closed_at is not None,
        }

    def _quiet(self) -> bool:
        now = time.monotonic()
        silent_s = now - self.leg.playout.runs_dry_at()
        if self._call is not None:
            return not self._call.open_turns and silent_s >= 0
        if self.leg.closed_at is not None:
            return bool(self.leg.spurts)
        answered = self._answered or now - self._asked_at >= _ANSWER_S
        return bool(self.leg.spurts) and answered and silent_s >= _QUIET_S

    async def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait for a condition. Return False if it did not become true in time, or if the call ended first."""
        deadline = time.monotonic() + within_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or self.leg.closed_at is not None:
                return condition()
            self._changed.clear()
            try:
                # Check again even if nothing happens, because silence is a condition too.
                await asyncio.wait_for(self._changed.wait(), min(left, 0.02))
            except TimeoutError:
                continue
        return True

    # --- dialogue manager ---

    def _on_setup(self, call: ManagedCall) -> None:
        if call.call_sid == self.leg.carrier.call_sid:
            self._call = call
            call.on_turn_end = self._on_turn_end
            self._changed.set()
        else:
            print(f"another call came in on this route and gets no answer: {call.session_id}", file=sys.stderr)

    def _on_turn_end(self, turn: Any) -> None:
        self.leg.turn_under_way = False
        self._changed.set()


def _remedy(status: int, dialect: str) -> str:
    """Return advice for a media socket that was refused with this HTTP status."""
    key = dialect.replace("-", "_")
    if status == 403:
        return (
            f". The route wants the carrier's proof: set TALKSPURT_CARRIER_SECRET to the secret in carriers.{key} "
            f"(USERNAME:PASSWORD where it has both), and call the address of server.public_url, or set that to this "
            f"server's own (http://HOST:PORT) while you try it here. On a loopback listener without "
            f"server.public_url, carriers.{key}.verify: false asks for no proof"
        )
    return f". If carriers.{key} is missing in the server's configuration, add it" if status == 404 else ""


def read_wav_frames(path: Path, fmt: AudioFormat) -> list[bytes]:
    """Return a WAV file as frames of a format. The last frame is padded with silence.

    Raises:
        CallFailed: the file is not a 16-bit PCM WAV file.
    """
    try:
        with wave.open(str(path), "rb") as source:
            width, channels, rate = source.getsampwidth(), source.getnchannels(), source.getframerate()
            if width != 2:
                raise CallFailed(f"{path} has {8 * width}-bit samples, expected 16-bit PCM")
            data = source.readframes(source.getnframes())
    except (OSError, EOFError, wave.Error) as exc:
        raise CallFailed(f"cannot read {path} as WAV: {exc}") from exc
    pcm = np.frombuffer(data, "<i2").reshape(-1, channels).mean(axis=1).astype(np.int16)
    if rate != fmt.sample_rate:
        resampler = Resampler(rate, fmt.sample_rate)
        pcm = to_int16(np.concatenate([resampler.process(to_float32(pcm)), resampler.flush()]))
    pcm = np.pad(pcm, (0, -len(pcm) % fmt.frame_samples))
    size = fmt.frame_bytes
    if not len(pcm) or size is None:
        return []
    payload = registry.encoder(fmt).encode(pcm)
    return [payload[i : i + size] for i in range(0, len(payload), size)]


def _describe(step: Step) -> str:
    match step:
        case Expect(what, within_ms):
            return f"expected {what} within {within_ms:g} ms"
        case _:
            return type(step).__name__.lower()  # the text and the digits are not for logs


# --- the command ---


def steps_of(args: argparse.Namespace) -> tuple[Step, ...]:
    """Return the steps that the options describe.

    Raises:
        CallScriptError: an option or a script is wrong.
    """
    if args.script is not None:
        return tuple(read_script(args.script))
    if args.text is not None and not args.text.strip():
        raise CallScriptError("--text is empty, expected something to say")
    if args.say_wav is not None and not args.say_wav.is_file():
        raise CallScriptError(f"--say-wav {args.say_wav}: there is no such file")
    longest_ms = args.seconds * 1000
    acts: list[Step] = [SayStep(args.say_wav)] if args.say_wav else []
    acts += [Press(check_digits(args.dtmf))] if args.dtmf else []
    steps: list[Step] = [TextStep(args.text)] if args.text is not None else []
    if args.barge_in_after is not None:
        if not acts and args.text is None:
            raise CallScriptError("--barge-in-after needs --say-wav, --dtmf or --text (to cancel)")
        steps += [Expect("speech", 10_000), Wait(args.barge_in_after), *(acts or [CancelStep()])]
    else:
        steps += acts
    return (*steps, Expect("quiet", longest_ms))


def _numbers(args: argparse.Namespace) -> dict[str, str]:
    """Return who calls whom as parameters of the stream, as a carrier's webhook leaves them there.

    Raises:
        CallScriptError: an option is no number or name, or the transport does not carry it.
    """
    given = {FROM: args.from_, TO: args.to}
    numbers = {name: value for name, value in given.items() if value is not None}
    for value in numbers.values():
        if not re.fullmatch(r"[\w+*#.-]{1,64}", value, re.ASCII):
            raise CallScriptError(f"--from and --to take a number or a name, got {value[:40]!r}")
    if numbers and args.dialect == AudioSocketCarrier.dialect:
        raise CallScriptError("--from and --to: AudioSocket carries no numbers")
    if TO in numbers and args.dialect == SipCarrier.dialect:
        raise CallScriptError("--to: a SIP address names who is called, sip:NUMBER@HOST")
    return numbers


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt call``.

    Raises:
        UsageError: the options contradict each other. JobError: the call failed. The measurements so far are printed
        first.
    """
    known = sorted((*CARRIERS, AudioSocketCarrier.dialect, SipCarrier.dialect))
    args.dialect = args.dialect or dialect_of(args.url or "")
    if args.dialect not in known:
        raise UsageError(f"--dialect {args.dialect!r} is unknown, known are {', '.join(known)}")
    if args.output is not None and not args.output.parent.is_dir():
        raise UsageError(f"-o {args.output}: there is no folder {args.output.parent}")
    if args.output is not None and args.output.is_dir():
        raise UsageError(f"-o {args.output} is a folder, expected a file")
    try:
        options = CallOptions(
            url=args.url or default_url(args.dialect),
            dialect=args.dialect,
            steps=steps_of(args),
            parameters=_numbers(args) | dict(pair.split("=", 1) for pair in args.parameter),
            api_key=os.environ.get("TALKSPURT_API_KEY", ""),
            carrier_secret=os.environ.get("TALKSPURT_CARRIER_SECRET", ""),
        )
    except CallScriptError as exc:
        raise UsageError(str(exc)) from exc
    except ValueError as exc:
        raise UsageError("--parameter has to be NAME=VALUE") from exc
    uvloop.run(_place(options, wav=args.output, as_json=args.json))
    return 0


async def _place(options: CallOptions, *, wav: Path | None, as_json: bool) -> None:
    caller = SimulatedCaller(options)
    failure: CallFailed | None = None
    try:
        if as_json:
            await caller.run()
        else:
            await _show(caller)
    except CallFailed as exc:
        failure = exc
    report = caller.report() | ({"error": str(failure)} if failure else {})
    if wav is not None and caller.leg.playout.heard:
        caller.write_wav(wav)
    if as_json:
        print(json.dumps(report))
    elif failure is None:
        print(readable(report))
    if failure is not None:
        raise JobError(str(failure)) from failure


async def _show(caller: SimulatedCaller) -> None:
    """Make the call, and print the conversation as it happens."""
    options = caller.options
    _, dialogue = media_and_dialogue_urls(options.url, managed=options.managed)
    server = urlsplit(dialogue)
    conversation, ready = Conversation(caller.leg.carrier.call_sid, sys.stdout), asyncio.Event()
    http = f"{server.scheme.replace('ws', 'http')}://{server.netloc}"
    following = asyncio.create_task(conversation.follow(http, options.api_key, ready), name="conversation")
    try:
        await ready.wait()
        await caller.run()
        await conversation.end()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def readable(report: dict[str, Any]) -> str:
    """Return the report as a few readable lines."""
    lines = [
        f"first packet   {report['first_packet_ms']} ms" if report["first_packet_ms"] is not None else "",
        f"audio          {report['audio_ms'] / 1000:.2f} s",
        _line("jitter", report["jitter_ms"]),
        _line("pacing error", report["pacing_error_ms"]),
        f"gaps           {report['gaps']}" + (f" ({report['gap_ms']} ms)" if report["gaps"] else ""),
        f"marks          {report['marks']}",
        f"cut            {report['cut_ms']} ms" if report["cut_ms"] else "",
        f"violations     {report['violations']}" if report["violations"] else "",
    ]
    return "\n".join(line for line in lines if line)


def _line(name: str, figures: dict[str, float] | None) -> str:
    if figures is None:
        return ""
    return f"{name:<14} p50 {figures['p50']} / p95 {figures['p95']} / p99 {figures['p99']} / max {figures['max']} ms"
