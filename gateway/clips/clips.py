"""Sound that is not synthesised, as utterances: audio files from https or the clip folder, and touch tones.

There are three steps, each with a limit: fetch or read the bytes (``clips.max_bytes``, ``FETCH_S``), decode
them to mono PCM (``CLIP_S``), and encode frames when the session asks for them. A clip is heard while it is decoded.
Both decoding and encoding are done in threads, in short pieces that take turns for tenants and calls. One thread
decodes, and encodes what comes later; others find files and encode what is heard soon. Decoded clips are cached
(``CACHE_BYTES``, ``CACHE_S``), and the beginning of a cached clip needs no thread. Concurrent calls that ask for the
same clip share one fetch.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import socket
import ssl
import sys
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import av
import numpy as np
from numpy.typing import NDArray

from gateway.clips.framed import Framed, FramedOwnSound
from gateway.config import ClipsConfig
from gateway.dialogue.wire import LOOP_MAX
from gateway.errors import ClipError
from gateway.limits.fair_turns import FairPool, FairTurns, Whose
from gateway.media.own_sound import OwnSound
from tts_engine.api import Utterance
from voicecodecs.dtmf import tones
from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat

FETCH_S = 10.0
"""Longest fetch, seconds."""

CLIP_S = 600
"""Longest clip, in seconds. Without a limit, a small compressed file could expand to days of silence."""

CACHE_BYTES = 64 * 1024 * 1024
"""Most bytes of decoded clips (int16) in the cache."""

CACHE_S = 300.0
"""Time for which a fetched clip is reused without asking its server."""

FOUND_S, FOUND = 1.0, 1000
"""Time for which a file that was found is not looked for again, seconds, and most files that are remembered so."""

REDIRECTS = 5
FETCHES, FETCHES_OF_ONE = 8, 6
"""Most concurrent fetches of all tenants and of one. Further ones wait, within their own ``FETCH_S``."""

FIRST_PIECE_MS, AT_ONCE_MS = 100, 200
PIECE_MS = 1000
"""Audio that is encoded at a time. The first piece is short, so that the clip starts immediately, and each is twice as
long as the one before. The threads for what is heard first take none above ``AT_ONCE_MS``: a second of Opus takes them
long enough to delay the start of another clip."""

DECODE_S = 0.02
"""Longest piece of decoding, seconds."""

AHEAD_S = 30
"""Audio that is decoded beyond what was asked for, seconds. A shorter clip is always decoded whole, and then cached."""

NATIVE_RATES_HZ = (8000, 16000, 22050, 24000, 44100, 48000)
"""Rates that are kept, because the resampler supports them. Clips of other rates are decoded to the last of these."""

MIN_RATE_HZ = 4000
"""Lowest rate of a clip. At 1 Hz, a kilobyte would be ten minutes of audio to resample."""

MAX_RATE_HZ = 192_000
"""Highest rate of a clip. The resampler's filter grows with the rate, and at 1 GHz it takes 15 seconds."""

_OURS: Whose = ("", "")
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


class _Clip:
    """Decoded audio, mono int16, which grows until it is whole.

    Attributes:
        rate: hertz; valid when the first audio is there.
    """

    def __init__(self) -> None:
        self.rate = 0
        self.samples = 0
        self.fetched_at = 0.0
        self.keep = True
        self.is_whole = False
        self.nbytes = 0
        self.listeners = 0
        """Number of those who may still ask for more."""
        self._asked_to = 0
        self._asked = asyncio.Event()
        self._error: ClipError | None = None
        self._pieces: list[NDArray[np.int16]] = []
        self._starts: list[int] = []
        self._grown = asyncio.Event()

    def grow(self, piece: NDArray[np.int16], rate: int) -> None:
        """Add decoded audio."""
        self.rate = rate
        self._starts.append(self.samples)
        self._pieces.append(piece)
        self.samples += len(piece)
        self.nbytes += piece.nbytes
        self._tell()

    def end(self, error: ClipError | None = None) -> None:
        """Note that the clip is whole, or that no more of it can be decoded."""
        self.is_whole, self._error = True, error
        self._tell()

    def _tell(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def leave(self) -> None:
        """Note that one of the listeners asks for no more."""
        self.listeners -= 1
        self._asked.set()

    async def wants_more(self) -> bool:
        """Wait until more has to be decoded. Return False if no one listens any more."""
        while self.samples > self._asked_to + AHEAD_S * self.rate:
            if not self.listeners:
                return False
            self._asked.clear()
            await self._asked.wait()
        return self.samples > 0 or self.listeners > 0

    async def read(self, start: int, count: int) -> NDArray[np.int16]:
        """Return samples, as soon as they are decoded; fewer at the end of the clip, none after it.

        Raises:
            ClipError: the clip cannot be decoded so far.
        """
        self._asked_to = max(self._asked_to, start + count)
        self._asked.set()
        while self.samples < start + count and not self.is_whole:
            await self._grown.wait()
        if self._error is not None and self.samples < start + count:
            raise self._error
        found: list[NDArray[np.int16]] = []
        index = bisect_right(self._starts, start) - 1
        while count > 0 and 0 <= index < len(self._pieces):
            offset = start - self._starts[index]
            found.append(self._pieces[index][offset : offset + count])
            start, count, index = start + len(found[-1]), count - len(found[-1]), index + 1
        return np.concatenate(found) if found else np.zeros(0, np.int16)


class Clips:
    """Opens clips and tones. Make it before the loop runs; call ``aclose`` last.

    Args:
        allowed: returns True if an address may be connected to. Tests allow loopback.
        tls: context for https. None: the system's authorities.
        tenants: tenants by the name of their route, for fair turns.
    """

    def __init__(
        self,
        config: ClipsConfig,
        *,
        allowed: Callable[[Address], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        tenants: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._allowed = allowed
        self._tls = tls
        self._tenants = tenants
        self._later = FairPool(1, "clips, later")
        self._threads = FairPool(2, "clips")
        self._http: aiohttp.ClientSession | None = None
        self._fetching = FairTurns(FETCHES, of_one=FETCHES_OF_ONE)
        self._growing: dict[str, _Clip] = {}
        self._loading: set[asyncio.Task[None]] = set()
        self._cache: OrderedDict[str, _Clip] = OrderedDict()
        self._found: OrderedDict[str, tuple[float, Path, int]] = OrderedDict()
        """Sources whose file was found: when, its path and its version."""

    async def open(self, source: str, fmt: AudioFormat, loop: int, *, route: str = "", call_id: str = "") -> Utterance:
        """Load the beginning of a clip. Its frames are made when they are needed. If the rest of it turns out to be no
        supported audio, iterating raises ``ClipError``.

        Args:
            source: an https URL, or the path of a file below the clip folder.
            loop: number of times that the clip is played. 0: up to 1000 times.
            route: the call's route.
            call_id: the call.

        Raises:
            ClipError: the clip is not allowed, missing, too large, too slow, or no supported audio.
        """
        started, whose = time.monotonic(), self._whose(route, call_id)
        clip = await self._load(source, whose)
        try:
            await clip.read(0, 1)
        except BaseException:
            clip.leave()
            raise
        stages_ms = {"fetch": (time.monotonic() - started) * 1000}
        return _Sound(clip, fmt, loop or LOOP_MAX, self._threads, self._later, whose, stages_ms)

    def _whose(self, route: str, call_id: str) -> Whose:
        return self._tenants.get(route, ""), call_id

    async def samples(self, source: str, *, route: str = "", call_id: str = "") -> tuple[NDArray[np.int16], int]:
        """Load a clip, as ``open`` does, and return its samples and their rate, hertz.

        Raises:
            ClipError: see ``open``.
        """
        clip = await self._load(source, self._whose(route, call_id))
        try:
            return await clip.read(0, sys.maxsize), clip.rate
        finally:
            clip.leave()

    async def digits(self, digits: str, fmt: AudioFormat, *, silent: bool = False) -> Utterance:
        """Return touch tones as an utterance, for legs that carry no digits. ``w`` is half a second of silence.

        Args:
            silent: return silence of the same length, for legs that carry digits beside the audio.

        Raises:
            ClipError: a character stands for no tone.
        """
        try:
            pcm = await self._threads.run(_OURS, lambda: to_int16(tones(digits, fmt.sample_rate)))
        except ValueError as exc:
            raise ClipError(f"sendDigits: {exc}") from exc
        if silent:
            pcm = np.zeros_like(pcm)
        clip = _Clip()
        clip.grow(pcm, fmt.sample_rate)
        clip.end()
        return _Sound(clip, fmt, 1, self._threads, self._later, _OURS, {})

    def own_sound(
        self,
        sound: OwnSound,
        fmt: AudioFormat,
        *,
        buffered_s: Callable[[], float],
        complete: Callable[[], None],
        route: str = "",
        call_id: str = "",
    ) -> Utterance:
        """Return sound of a dialogue manager as an utterance; see ``FramedOwnSound``."""
        return FramedOwnSound(
            sound, fmt, self._threads, self._whose(route, call_id), buffered_s=buffered_s, complete=complete
        )

    async def aclose(self) -> None:
        loading = list(self._loading)
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        if self._http is not None:
            await self._http.close()
        self._threads.close()
        self._later.close()

    # --- loading, once for concurrent requests ------------------------------------------------------------------------

    async def _load(self, source: str, whose: Whose) -> _Clip:
        """Return a clip, which may not be whole yet, to a new listener. The listener leaves it at last."""
        if "://" in source:
            key, loader = source, partial(self._fetch, source, whose)
        else:
            path, version = await self._found_file(source, whose)
            key, loader = f"{path}\0{version}", partial(self._read, path, whose)
        clip = self._known(key) or self._growing.get(key)
        if clip is None:
            clip = self._growing[key] = _Clip()
            task = asyncio.create_task(self._made(key, clip, loader, whose), name="clip-load")
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)
        clip.listeners += 1
        return clip

    async def _made(
        self, key: str, clip: _Clip, loader: Callable[[], Awaitable[tuple[bytes, bool]]], whose: Whose
    ) -> None:
        """Load and decode a clip, no further ahead than ``AHEAD_S``. A long one that no one listens to is dropped."""
        error: ClipError | None = ClipError("play.source was not loaded")
        try:
            data, clip.keep = await loader()
            if "://" in key:
                clip.fetched_at = time.monotonic()
            if not clip.keep:
                del self._growing[key]
            blocks = _blocks(data)
            while await clip.wants_more():
                piece = await self._later.run(whose, partial(_next_piece, blocks))
                if piece is None:
                    error = None
                    break
                clip.grow(*piece)
        except ClipError as exc:
            error = exc
        finally:
            if self._growing.get(key) is clip:
                del self._growing[key]
            clip.end(error)
        if error is None and clip.keep:
            self._cache[key] = clip
            while sum(kept.nbytes for kept in self._cache.values()) > CACHE_BYTES:
                self._cache.popitem(last=False)

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

    async def _found_file(self, source: str, whose: Whose) -> tuple[Path, int]:
        """Return what ``_find`` returns now or returned up to ``FOUND_S`` ago."""
        at, path, version = self._found.get(source, (-FOUND_S, Path(), 0))
        if time.monotonic() - at >= FOUND_S:
            path, version = await self._threads.run(whose, partial(self._find, source))
            self._found[source] = (time.monotonic(), path, version)
            self._found.move_to_end(source)
            while len(self._found) > FOUND:
                self._found.popitem(last=False)
        return path, version

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

    async def _read(self, path: Path, whose: Whose) -> tuple[bytes, bool]:
        """Return the bytes of a file, which may be cached."""

        def work() -> bytes:
            try:
                return path.read_bytes()
            except OSError as exc:
                raise ClipError(f"play.source cannot be read: {exc.strerror}") from exc

        return await self._threads.run(whose, work), True

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

    async def _fetch(self, url: str, whose: Whose) -> tuple[bytes, bool]:
        """Return the body, and True if it may be cached."""
        if not self._config.fetch:
            raise ClipError("play.source is a URL and clips.fetch is off; expected a file of the clip folder")
        try:
            async with asyncio.timeout(FETCH_S), self._fetching.place(whose):
                return await self._get(url)
        except TimeoutError as exc:
            raise ClipError(f"play.source did not arrive within {FETCH_S:g} s") from exc
        except aiohttp.ClientConnectorError as exc:
            if _NOT_PUBLIC in str(exc.os_error):  # several addresses' errors arrive as one text
                raise ClipError("play.source leads to an address that is not public") from exc
            raise ClipError(f"play.source cannot be fetched: {type(exc).__name__}") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise ClipError(f"play.source cannot be fetched: {type(exc).__name__}") from exc

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


def decode(data: bytes) -> tuple[NDArray[np.int16], int]:
    """Decode wav, mp3, ogg or opus to mono. Return the samples and their rate, hertz.

    Raises:
        ClipError: the data is something else, damaged, empty, longer than ``CLIP_S``, or its rate is not from
            ``MIN_RATE_HZ`` to ``MAX_RATE_HZ``.
    """
    pieces = list(_blocks(data))
    return np.concatenate([piece for piece, _ in pieces]), pieces[0][1]


_Piece = tuple[NDArray[np.int16], int]
"""Samples, and their rate, hertz."""


def _next_piece(blocks: Iterator[_Piece]) -> _Piece | None:
    """Decode for ``DECODE_S``. None: the clip is over."""
    until, found = time.monotonic() + DECODE_S, []
    for block in blocks:
        found.append(block)
        if time.monotonic() > until:
            break
    return (np.concatenate([pcm for pcm, _ in found]), found[0][1]) if found else None


def _blocks(data: bytes) -> Iterator[_Piece]:
    """Decode block by block. Raises as ``decode``."""
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
            for frame in chain(container.decode(stream), (None,)):
                for block in map(_mono, resampler.resample(frame)):
                    samples += len(block)
                    if samples > CLIP_S * rate:
                        raise ClipError(f"play.source is longer than {CLIP_S} s")
                    if len(block):
                        yield block, rate
    except (av.FFmpegError, AttributeError, ValueError, EOFError) as exc:  # a stream without a decoder has no rate
        raise ClipError(f"play.source cannot be decoded: {type(exc).__name__}") from exc
    if not samples:
        raise ClipError("play.source has no audio")


def _mono(block: av.AudioFrame) -> NDArray[np.int16]:
    """Return the samples of an s16 mono frame."""
    return block.to_ndarray().reshape(-1).astype(np.int16, copy=False)


class _Sound(Framed):
    """A clip as an ``Utterance``.

    Args:
        threads: encodes the beginning.
        later: encodes the rest.
    """

    def __init__(
        self,
        clip: _Clip,
        fmt: AudioFormat,
        loop: int,
        threads: FairPool,
        later: FairPool,
        whose: Whose,
        stages_ms: dict[str, float],
    ) -> None:
        super().__init__(clip.rate, fmt, threads, whose, "clip", stages_ms)
        self._clip = clip
        self._loop = loop
        self._later = later
        self._at_once = clip.is_whole
        """True for the first piece of a clip in the cache: its encoding takes less than a wait for a thread."""

    async def encoded(self, pcm: NDArray[np.int16] | None) -> list[bytes]:
        if self._at_once:
            self._at_once = False
            return self._encode(pcm)
        return await super().encoded(pcm)

    async def aclose(self) -> None:
        if not self._closed:
            self._clip.leave()
        await super().aclose()

    async def pieces(self) -> AsyncIterator[NDArray[np.int16] | None]:
        """Yield the samples of each piece, for all rounds. None at the end flushes the codec."""
        length_ms = FIRST_PIECE_MS
        for _ in range(self._loop):
            start = 0
            while len(pcm := await self._clip.read(start, self._clip.rate * length_ms // 1000)):
                if length_ms > AT_ONCE_MS:
                    self._threads = self._later
                yield pcm
                start, length_ms = start + len(pcm), min(2 * length_ms, PIECE_MS)
        yield None
