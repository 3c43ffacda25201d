"""Clips: what may be played, what may not be fetched, and that it is heard as it was."""

import asyncio
import io
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import trustme
from aiohttp import web
from numpy.typing import NDArray

from gateway.clips.clips import Clips, is_public
from gateway.config import ClipsConfig
from gateway.errors import ClipError
from tts_engine.api import Utterance
from voicecodecs.dtmf import Detector
from voicecodecs.g711 import decode_ulaw
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat

ULAW = AudioFormat()


def sine(hz: float, rate: int, seconds: float) -> NDArray[np.int16]:
    return (8000 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)).astype(np.int16)


def encoded(pcm: NDArray[np.int16], rate: int, container: str, codec: str) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as sink:
        # FFmpeg's own Vorbis encoder calls itself experimental and makes stereo only.
        layout = "stereo" if codec == "vorbis" else "mono"
        stream = sink.add_stream(codec, rate=rate, layout=layout, options={"strict": "experimental"})
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, layout, rate, frame_size=stream.codec_context.frame_size)  # type: ignore[arg-type]
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            sink.mux(stream.encode(piece))  # type: ignore[arg-type]
        sink.mux(stream.encode(None))
    return out.getvalue()


WAV = encoded(sine(700, 16000, 1.0), 16000, "wav", "pcm_s16le")


async def heard(utterance: Utterance) -> NDArray[np.float32]:
    """All frames of a mu-law utterance, checked for holes."""
    frames: list[bytes] = []
    async with utterance:
        async for chunk in utterance:
            assert chunk.first_sample == len(frames) * ULAW.frame_samples
            assert chunk.samples == len(chunk.frames) * ULAW.frame_samples
            assert {len(frame) for frame in chunk.frames} == {160}
            frames += chunk.frames
    return to_float32(decode_ulaw(b"".join(frames)))


def strongest_hz(pcm: NDArray[np.float32]) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(pcm))) * 8000 / len(pcm))


@asynccontextmanager
async def clips_in(folder: Path, **config: Any) -> AsyncIterator[Clips]:
    made = Clips(ClipsConfig(folder=str(folder), **config))  # type: ignore[arg-type]
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    ("name", "rate", "container", "codec"),
    [
        ("a.wav", 16000, "wav", "pcm_s16le"),
        ("odd.wav", 11025, "wav", "pcm_s16le"),
        ("a.mp3", 44100, "mp3", "libmp3lame"),
        ("a.ogg", 44100, "ogg", "vorbis"),
        ("a.opus", 48000, "ogg", "libopus"),
    ],
)
async def test_every_format_is_heard_at_its_pitch_and_length(
    tmp_path: Path, name: str, rate: int, container: str, codec: str
) -> None:
    (tmp_path / name).write_bytes(encoded(sine(700, rate, 1.0), rate, container, codec))
    async with clips_in(tmp_path) as clips:
        pcm = await heard(await clips.open(name, ULAW, 1))
    assert strongest_hz(pcm[:8000]) == pytest.approx(700, abs=5)
    assert len(pcm) == pytest.approx(8000, abs=700)  # mp3 pads its frames


async def test_tags_in_another_encoding_than_utf_8_are_no_matter(tmp_path: Path) -> None:
    tag = b"INFOINAM" + (6).to_bytes(4, "little") + "Café\0\0".encode("latin-1")
    (tmp_path / "a.wav").write_bytes(WAV[:12] + b"LIST" + len(tag).to_bytes(4, "little") + tag + WAV[12:])
    async with clips_in(tmp_path) as clips:
        assert len(await heard(await clips.open("a.wav", ULAW, 1))) == 8000


async def test_loop_repeats_without_a_hole(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WAV)
    async with clips_in(tmp_path) as clips:
        pcm = await heard(await clips.open("a.wav", ULAW, 3))
        endless = await clips.open("a.wav", ULAW, 0)
        async with endless:
            taken = [chunk async for chunk, _ in _zip(endless, 20)]
    assert len(pcm) == 24000
    assert np.abs(pcm).reshape(-1, 160).max(axis=1).min() > 0.1
    assert len(taken) == 20


async def _zip(utterance: Utterance, count: int) -> AsyncIterator[tuple[object, int]]:
    number = 0
    async for chunk in utterance:
        yield chunk, number
        number += 1
        if number == count:
            return


async def test_closed_utterance_makes_no_more_frames(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WAV)
    async with clips_in(tmp_path) as clips:
        utterance = await clips.open("a.wav", ULAW, 0)
        seen = 0
        async for _ in utterance:
            seen += 1
            if seen == 2:
                await utterance.aclose()
        assert seen == 2


async def test_stereo_is_mixed_and_other_formats_are_served(tmp_path: Path) -> None:
    pcm = np.stack([sine(700, 48000, 0.5), sine(700, 48000, 0.5)], axis=1)
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as sink:
        stream = sink.add_stream("pcm_s16le", rate=48000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate = 48000
        sink.mux(stream.encode(frame))
        sink.mux(stream.encode(None))
    (tmp_path / "s.wav").write_bytes(out.getvalue())
    async with clips_in(tmp_path) as clips:
        assert strongest_hz((await heard(await clips.open("s.wav", ULAW, 1)))[:4000]) == pytest.approx(700, abs=5)
        fmt = AudioFormat("L16", 16000)
        async with await clips.open("s.wav", fmt, 1) as wide:
            frames = [frame async for chunk in wide for frame in chunk.frames]
    assert {len(frame) for frame in frames} == {640}


async def test_digits_are_tones_that_a_detector_reads() -> None:
    clips = Clips(ClipsConfig())
    pcm = await heard(await clips.digits("12w#", ULAW))
    assert Detector(8000).process(pcm) == "12#"
    with pytest.raises(ClipError, match="is not a key"):
        await clips.digits("1x", ULAW)
    await clips.aclose()


@pytest.mark.parametrize(
    "source", ["../secret.wav", "/etc/passwd", "link.wav", "", ".", "missing.wav", "a\0.wav", "deep/../../secret.wav"]
)
async def test_nothing_outside_the_folder_is_played(tmp_path: Path, source: str) -> None:
    (tmp_path / "secret.wav").write_bytes(WAV)
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "deep").mkdir()
    (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
    async with clips_in(folder) as clips:
        with pytest.raises(ClipError, match="clip folder"):
            await clips.open(source, ULAW, 1)


async def test_without_a_folder_files_are_refused() -> None:
    clips = Clips(ClipsConfig())
    with pytest.raises(ClipError, match="no clip folder is configured"):
        await clips.open("a.wav", ULAW, 1)
    await clips.aclose()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"RIFF\0\0\0\0WAVE",
        b"OggS" + bytes(100),
        b"\xff\xfb" + bytes(500),
        b"ID3",
        WAV[:44],
    ],
)
async def test_what_is_no_audio_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    async with clips_in(tmp_path) as clips:
        with pytest.raises(ClipError, match=r"play\.source"):
            await clips.open("a", ULAW, 1)


async def test_large_and_long_clips_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.wav").write_bytes(WAV)
    async with clips_in(tmp_path, max_bytes=1000) as clips:
        with pytest.raises(ClipError, match="expected at most 1000"):
            await clips.open("a.wav", ULAW, 1)
    monkeypatch.setattr("gateway.clips.clips.CLIP_S", 0.5)
    async with clips_in(tmp_path) as clips:
        # ``open`` returns as soon as the beginning is decoded. Only the whole clip is always too long.
        with pytest.raises(ClipError, match="longer than 0.5 s"):
            await clips.samples("a.wav")


async def test_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.clips.clips.FOUND_S", 0.0)
    path = tmp_path / "a.wav"
    path.write_bytes(WAV)
    async with clips_in(tmp_path) as clips:
        assert strongest_hz(await heard(await clips.open("a.wav", ULAW, 1))) == pytest.approx(700, abs=5)
        stamp = path.stat().st_mtime_ns
        path.write_bytes(encoded(sine(1400, 16000, 1.0), 16000, "wav", "pcm_s16le"))
        os.utime(path, ns=(stamp + 1, stamp + 1))
        assert strongest_hz(await heard(await clips.open("a.wav", ULAW, 1))) == pytest.approx(1400, abs=5)


# --- https -----------------------------------------------------------------------------------------------------------


class Site:
    """An https server on loopback, named ``localhost`` and ``127.0.0.1``."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.tls = ssl.create_default_context()
        self.authority.configure_trust(self.tls)
        self.port = 0
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        self.redirect = ""

    def url(self, path: str, host: str = "localhost") -> str:
        return f"https://{host}:{self.port}{path}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        match request.path:
            case "/a.wav":
                return web.Response(body=WAV, headers=self.headers)
            case "/go":
                return web.Response(status=302, headers={"Location": self.redirect or self.url("/a.wav")})
            case "/loop":
                return web.Response(status=302, headers={"Location": "/loop"})
            case "/slow":
                await asyncio.sleep(30)
            case "/endless":
                response = web.StreamResponse()
                await response.prepare(request)
                while True:
                    await response.write(bytes(65536))
        return web.Response(status=404)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    application = web.Application()
    application.router.add_get("/{name}", made.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@asynccontextmanager
async def fetching(site: Site, loopback: bool = True, **config: Any) -> AsyncIterator[Clips]:
    def allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return is_public(address) or (loopback and address == ipaddress.ip_address("127.0.0.1"))

    made = Clips(ClipsConfig(**config), allowed=allowed, tls=site.tls)  # type: ignore[arg-type]
    yield made
    await made.aclose()


async def test_clip_is_fetched_through_a_redirect_once_for_all_who_ask(site: Site) -> None:
    async with fetching(site) as clips:
        together = await asyncio.gather(*(clips.open(site.url("/go"), ULAW, 1) for _ in range(5)))
        assert strongest_hz(await heard(together[0])) == pytest.approx(700, abs=5)
        await clips.open(site.url("/go"), ULAW, 1)
    assert site.asked == ["/go", "/a.wav"]


async def test_no_store_is_not_kept(site: Site) -> None:
    site.headers = {"Cache-Control": "no-store"}
    async with fetching(site) as clips:
        for _ in range(2):
            await clips.open(site.url("/a.wav"), ULAW, 1)
    assert len(site.asked) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"])
async def test_loopback_in_any_spelling_is_not_connected_to(site: Site, host: str) -> None:
    async with fetching(site, loopback=False) as clips:
        with pytest.raises(ClipError, match="address that is not public|cannot be fetched"):
            await clips.open(site.url("/a.wav", host), ULAW, 1)
    assert site.asked == []


async def test_name_that_resolves_to_loopback_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def rebound(host: Any, *args: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host == "clips.example.com" else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    async with fetching(site, loopback=False) as clips:
        with pytest.raises(ClipError, match="address that is not public"):
            await clips.open(site.url("/a.wav", "clips.example.com"), ULAW, 1)
    assert site.asked == []


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("https://127.0.0.2/a.wav", "not public"),
        ("https://169.254.169.254/latest", "not public"),
        ("https://[::1]/", "not public"),
        ("https://10.0.0.1/", "not public"),
        ("http://localhost/a.wav", "'http', expected https"),
        ("file:///etc/passwd", "'file', expected https"),
    ],
)
async def test_redirect_to_where_nothing_may_be_fetched_is_refused(site: Site, target: str, says: str) -> None:
    site.redirect = target
    async with fetching(site) as clips:
        with pytest.raises(ClipError, match=says):
            await clips.open(site.url("/go"), ULAW, 1)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/none", "status 404"),
        ("/loop", "more than 5 times"),
        ("/slow", "within 0.3 s"),
        ("/endless", "more than 100000 bytes"),
    ],
)
async def test_bad_servers_are_one_clear_error(
    site: Site, path: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.clips.clips.FETCH_S", 0.3 if path == "/slow" else 10)
    async with fetching(site, max_bytes=100_000) as clips:
        with pytest.raises(ClipError, match=says):
            await clips.open(site.url(path), ULAW, 1)


@pytest.mark.parametrize("source", ["http://localhost/a.wav", "ftp://x/y", "https://", "https://[bad/", "x://"])
async def test_other_sources_are_refused(site: Site, source: str) -> None:
    async with fetching(site) as clips:
        with pytest.raises(ClipError):
            await clips.open(source, ULAW, 1)


async def test_untrusted_certificate_and_fetching_off_are_refused(site: Site) -> None:
    site.tls = ssl.create_default_context()
    async with fetching(site) as clips:
        with pytest.raises(ClipError, match="cannot be fetched"):
            await clips.open(site.url("/a.wav"), ULAW, 1)
    async with fetching(site, fetch=False) as clips:
        with pytest.raises(ClipError, match=r"clips\.fetch is off"):
            await clips.open(site.url("/a.wav"), ULAW, 1)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        *((address, False) for address in "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254".split()),
        *((address, False) for address in "0.0.0.0 100.64.0.1 224.0.0.1 255.255.255.255 192.0.2.1".split()),
        *((address, False) for address in "192.0.0.8 192.0.0.192 192.0.0.255".split()),  # global to some Pythons
        *((address, False) for address in ":: ::1 fe80::1 fc00::1 ff02::1 ::ffff:8.8.8.8".split()),
        *((address, False) for address in "64:ff9b::7f00:1 2002:7f00:1:: 2001:0:1::1 2001:db8::1".split()),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public
