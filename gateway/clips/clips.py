"""Sound that is not synthesised, as utterances: audio files from https or the clip folder, and touch tones.

There are three steps, each with a limit: fetch or read the bytes (``clips.max_bytes``, ``FETCH_S``), decode
them to mono PCM in a thread (``CLIP_S``), and encode frames in a thread, piece by piece, when the session asks for
them. Decoded clips are cached (``CACHE_BYTES``, ``CACHE_S``). Concurrent calls that ask for the same clip share one
fetch.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
import av
import numpy as np
from numpy.typing import NDArray

from gateway.config import ClipsConfig
from gateway.dialogue.wire import LOOP_MAX
from gateway.errors import ClipError
from tts_engine.api import AudioChunk, Utterance
from voicecodecs.dtmf import tones
from voicecodecs.packetizer import Packetizer
from voicecodecs.pcm import to_float32, to_int16
from voicecodecs.registry import AudioFormat

FETCH_S = 10.0
"""Longest fetch, seconds."""

CLIP_S = 600
"""Longest clip, in seconds. Without a limit, a small compressed file could expand to days of silence."""

CACHE_BYTES = 64 * 1024 * 1024
"""Most bytes of decoded clips (int16) in the cache."""

CACHE_S = 300.0
"""Time for which a fetched clip is reused without asking its server."""

REDIRECTS = 5
FETCHES = 8
"""Most concurrent fetches. Further ones wait, within their own ``FETCH_S``."""

FIRST_PIECE_MS = 100
PIECE_MS = 1000
"""Audio that is encoded at a time. The first piece is shorter, so that the clip starts immediately."""

NATIVE_RATES_HZ = (8000, 16000, 22050, 24000, 44100, 48000)
"""Rates that are kept, because the resampler supports them. Clips of other rates are decoded to the last of these."""

MIN_RATE_HZ = 4000
"""Lowest rate of a clip. At 1 Hz, a kilobyte would be ten minutes of audio to resample."""

MAX_RATE_HZ = 192_000
"""Highest rate of a clip. The resampler's filter grows with the rate, and at 1 GHz it takes 15 seconds."""

_NOT_PUBLIC = "not a public address"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


_PROTOCOL_ASSIGNMENTS = ipaddress.ip_network("192.0.0.0/24")
"""Protocol assignments (RFC 6890). Older Pythons treat most of them as global; a cloud has its metadata at
192.0.0.192."""


def is_public(address: Address) -> bool:
    """Return True if a clip may be fetched from this address: global unicast, and no IPv4 address in IPv6 form."""
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address not in _PROTOCOL_ASSIGNMENTS
    # Mapped and translated IPv4 addresses (NAT64) are outside 2000::/3; 6to4 and Teredo are inside (RFC 6890).
    in_global_unicast = int(address) >> 125 == 1
    return in_global_unicast and address.sixtofour is None and address.teredo is None


@dataclass(frozen=True, slots=True)
class _Clip:
    """Decoded audio: mono int16 at ``rate`` Hz."""

    pcm: NDArray[np.int16]
    rate: int
    fetched_at: float = 0.0
    keep: bool = True


class Clips:
    """Opens clips and tones. Make it before the loop runs; call ``aclose`` last.

    Args:
        allowed: returns True if an address may be connected to. Tests allow loopback.
        tls: context for https. None: the system's authorities.
    """

    def __init__(
        self, config: ClipsConfig, *, allowed: Callable[[Address], bool] = is_public, tls: ssl.SSLContext | None = None
    ) -> None:
        self._config = config
        self._allowed = allowed
        self._tls = tls
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="clips")
        self._http: aiohttp.ClientSession | None = None
        self._fetching = asyncio.Semaphore(FETCHES)
        self._loading: dict[str, asyncio.Task[_Clip]] = {}
        self._cache: OrderedDict[str, _Clip] = OrderedDict()

    async def open(self, source: str, fmt: AudioFormat, loop: int) -> Utterance:
        """Load a clip. Its frames are made when they are needed.

        Args:
            source: an https URL, or the path of a file below the clip folder.
            loop: number of times that the clip is played. 0: up to 1000 times.

        Raises:
            ClipError: the clip is not allowed, missing, too large, too slow, or no supported audio.
        """
        started = time.monotonic()
        clip = await self._load(source)
        stages_ms = {"fetch": (time.monotonic() - started) * 1000}
        return _Sound(clip.pcm, clip.rate, fmt, loop or LOOP_MAX, self._threads, stages_ms)

    async def samples(self, source: str) -> tuple[NDArray[np.int16], int]:
        """Load a clip, as ``open`` does, and return its samples and their rate, hertz.

        Raises:
            ClipError: see ``open``.
        """
        clip = await self._load(source)
        return clip.pcm, clip.rate

    async def digits(self, digits: str, fmt: AudioFormat, *, silent: bool = False) -> Utterance:
        """Return touch tones as an utterance, for legs that carry no digits. ``w`` is half a second of silence.

        Args:
            silent: return silence of the same length, for legs that carry digits beside the audio.

        Raises:
            ClipError: a character stands for no tone.
        """
        try:
            pcm = await self._in_thread(lambda: to_int16(tones(digits, fmt.sample_rate)))
        except ValueError as exc:
            raise ClipError(f"sendDigits: {exc}") from exc
        if silent:
            pcm = np.zeros_like(pcm)
        return _Sound(pcm, fmt.sample_rate, fmt, 1, self._threads, {})

    async def aclose(self) -> None:
        for task in list(self._loading.values()):
            task.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    # --- loading, once for concurrent requests ------------------------------------------------------------------------

    async def _load(self, source: str) -> _Clip:
        if "://" in source:
            key, loader = source, partial(self._fetch, source)
        else:
            path, version = await self._in_thread(self._find, source)
            key, loader = f"{path}\0{version}", partial(self._read, path)
        known = self._known(key)
        if known is not None:
            return known
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._loaded(key, loader), name="clip-load")
            task.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # retrieved, even if no one awaits it
        # Shielded, because the first caller may end while others wait for the same clip.
        return await asyncio.shield(task)

    async def _loaded(self, key: str, loader: Callable[[], Awaitable[_Clip]]) -> _Clip:
        try:
            clip = await loader()
        finally:
            del self._loading[key]
        if clip.keep:
            self._cache[key] = clip
            while sum(kept.pcm.nbytes for kept in self._cache.values()) > CACHE_BYTES:
                self._cache.popitem(last=False)
        return clip

    def _known(self, key: str) -> _Clip | None:
        clip = self._cache.get(key)
        if clip is None:
            return None
        if clip.fetched_at and time.monotonic() - clip.fetched_at > CACHE_S:
            del self._cache[key]
            return None
        self._cache.move_to_end(key)
        return clip

    # --- the clip folder ---------------------------------------------------------------------------------------------

    def _find(self, source: str) -> tuple[Path, int]:
        """Return the file of a source, with links resolved, and its version. Runs in a thread."""
        if not self._config.folder:
            raise ClipError("play.source is a file name and no clip folder is configured; expected an https URL")
        folder = Path(self._config.folder).resolve()
        try:
            path = (folder / source).resolve(strict=True)
            if not path.is_relative_to(folder):
                raise ClipError("play.source leads out of the clip folder")
            if not path.is_file():
                raise ClipError("play.source is not a file of the clip folder")
            status = path.stat()
        except (OSError, ValueError, RuntimeError) as exc:  # a missing file, a zero byte, a loop of links
            raise ClipError("play.source is not a file of the clip folder") from exc
        if status.st_size > self._config.max_bytes:
            raise ClipError(f"play.source is {status.st_size} bytes, expected at most {self._config.max_bytes}")
        return path, status.st_mtime_ns

    async def _read(self, path: Path) -> _Clip:
        def work() -> _Clip:
            try:
                return decode(path.read_bytes())
            except OSError as exc:
                raise ClipError(f"play.source cannot be read: {exc.strerror}") from exc

        clip: _Clip = await self._in_thread(work)
        return clip

    # --- https -------------------------------------------------------------------------------------------------------

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=aiohttp.ThreadedResolver(),
                    socket_factory=self._socket,
                    force_close=True,
                    use_dns_cache=False,
                    ssl=self._tls or True,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "talkspurt", "Accept": "audio/*", "Accept-Encoding": "identity"},
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),  # the limit is around the whole fetch
            )
        return self._http

    def _socket(self, address_info: Any) -> socket.socket:
        """Make the socket of a connection. Every URL, name and redirect gets here with its final address.

        Checking the address that is connected to, not an earlier look-up, defeats names that change their address.
        """
        family, kind, protocol, _, address = address_info
        if not self._allowed(ipaddress.ip_address(address[0].partition("%")[0])):
            raise OSError(_NOT_PUBLIC)  # after an OSError, the next address of the name is tried
        return socket.socket(family=family, type=kind, proto=protocol)

    async def _fetch(self, url: str) -> _Clip:
        if not self._config.fetch:
            raise ClipError("play.source is a URL and clips.fetch is off; expected a file of the clip folder")
        try:
            async with asyncio.timeout(FETCH_S), self._fetching:
                data, keep = await self._get(url)
        except TimeoutError as exc:
            raise ClipError(f"play.source did not arrive within {FETCH_S:g} s") from exc
        except aiohttp.ClientConnectorError as exc:
            if _NOT_PUBLIC in str(exc.os_error):  # several addresses' errors arrive as one text
                raise ClipError("play.source leads to an address that is not public") from exc
            raise ClipError(f"play.source cannot be fetched: {type(exc).__name__}") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise ClipError(f"play.source cannot be fetched: {type(exc).__name__}") from exc
        clip: _Clip = await self._in_thread(decode, data)
        return _Clip(clip.pcm, clip.rate, fetched_at=time.monotonic(), keep=keep)

    async def _get(self, url: str) -> tuple[bytes, bool]:
        """Return the body, and True if it may be cached."""
        for _ in range(REDIRECTS + 1):
            scheme = urlsplit(url).scheme
            if scheme != "https":
                raise ClipError(f"play.source has the scheme {scheme[:20]!r}, expected https")
            async with self._session().get(url, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    url = urljoin(url, response.headers.get("Location", ""))
                    continue
                if response.status != 200:
                    raise ClipError(f"play.source answered with HTTP status {response.status}, expected 200")
                keep = "no-store" not in response.headers.get("Cache-Control", "")
                return await self._body(response), keep
        raise ClipError(f"play.source redirects more than {REDIRECTS} times")

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for piece in response.content.iter_chunked(65536):
            body += piece
            if len(body) > self._config.max_bytes:
                raise ClipError(f"play.source is more than {self._config.max_bytes} bytes")
        return bytes(body)


def _container(data: bytes) -> str:
    """Return FFmpeg's name of the format, from the first bytes.

    FFmpeg must not guess the format, because it also accepts playlists, which open further addresses.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"OggS":
        return "ogg"
    if data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return "mp3"
    raise ClipError("play.source is no supported audio; expected wav, mp3, ogg or opus")


def decode(data: bytes) -> _Clip:
    """Decode wav, mp3, ogg or opus to mono.

    Raises:
        ClipError: the data is something else, damaged, empty, longer than ``CLIP_S``, or its rate is not from
            ``MIN_RATE_HZ`` to ``MAX_RATE_HZ``.
    """
    blocks: list[NDArray[np.int16]] = []
    samples = 0
    try:
        with av.open(io.BytesIO(data), "r", format=_container(data), metadata_errors="replace") as container:
            if not container.streams.audio:
                raise ClipError("play.source has no audio stream")
            stream = container.streams.audio[0]
            if not MIN_RATE_HZ <= stream.rate <= MAX_RATE_HZ:
                raise ClipError(f"play.source is at {stream.rate} Hz, expected {MIN_RATE_HZ} to {MAX_RATE_HZ}")
            rate = stream.rate if stream.rate in NATIVE_RATES_HZ else NATIVE_RATES_HZ[-1]
            resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
            for frame in container.decode(stream):
                for block in resampler.resample(frame):
                    blocks.append(_mono(block))
                    samples += len(blocks[-1])
                if samples > CLIP_S * rate:
                    raise ClipError(f"play.source is longer than {CLIP_S} s")
            blocks += [_mono(block) for block in resampler.resample(None)]
    except (av.FFmpegError, AttributeError, ValueError, EOFError) as exc:  # a stream without a decoder has no rate
        raise ClipError(f"play.source cannot be decoded: {type(exc).__name__}") from exc
    if not samples:
        raise ClipError("play.source has no audio")
    return _Clip(np.concatenate(blocks), rate)


def _mono(block: av.AudioFrame) -> NDArray[np.int16]:
    """Return the samples of an s16 mono frame."""
    return block.to_ndarray().reshape(-1).astype(np.int16, copy=False)


class _Sound:
    """PCM as an ``Utterance``. Frames are encoded in a thread, piece by piece, when the session asks for them."""

    def __init__(
        self,
        pcm: NDArray[np.int16],
        rate: int,
        fmt: AudioFormat,
        loop: int,
        threads: ThreadPoolExecutor,
        stages_ms: dict[str, float],
    ) -> None:
        self._pcm = pcm
        self._rate = rate
        self._format = fmt
        self._loop = loop
        self._threads = threads
        self._stages_ms = stages_ms
        self._packetizer = Packetizer(fmt, rate)
        self._closed = False

    def feed(self, text: str) -> None:
        raise RuntimeError("a clip takes no text")

    def end_text(self) -> None: ...

    def played(self, samples: int, *, at: float) -> None: ...

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        loop = asyncio.get_running_loop()
        first_sample = 0
        for start, end in self._pieces():
            started = time.monotonic()
            frames = await loop.run_in_executor(self._threads, self._encode, start, end)
            if self._closed:
                return
            if not frames:
                continue
            samples = len(frames) * self._format.frame_samples
            stages_ms = {**self._stages_ms, "codec": (time.monotonic() - started) * 1000}
            yield AudioChunk(
                frames=frames, first_sample=first_sample, samples=samples, stages_ms=stages_ms, engine="clip"
            )
            first_sample += samples
            self._stages_ms = {}

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each piece, for all rounds. (0, 0) at the end flushes the codec."""
        length = FIRST_PIECE_MS
        for _ in range(self._loop):
            start = 0
            while start < len(self._pcm):
                end = start + self._rate * length // 1000
                yield start, end
                start, length = end, PIECE_MS
        yield 0, 0

    def _encode(self, start: int, end: int) -> list[bytes]:
        if end == 0:
            return self._packetizer.flush()
        return self._packetizer.push(to_float32(self._pcm[start:end]))

    async def aclose(self) -> None:
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
