"""The voice registry: the list of voices, and the prompt features of registered ones.

It does not depend on the model: an engine passes in its built-in voices and, if it can clone, an extractor. Features
are extracted once, at registration. The index is an SQLite database in WAL mode; a safetensors file beside it has the
features of one voice for one engine. Several processes can share a registry: one writes at a time, readers never wait,
and the next look-up of every process sees a change.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from tts_engine.api import VoiceInfo
from tts_engine.errors import InvalidRequest, NotFound, SynthesisFailed

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE voices (
    voice_id   TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    languages  TEXT NOT NULL,    -- JSON list of BCP 47 tags
    engine     TEXT NOT NULL,    -- the engine that registered it
    transcript TEXT NOT NULL,
    created    REAL NOT NULL,    -- seconds since the epoch
    has_wav    INTEGER NOT NULL,
    revision   TEXT NOT NULL     -- new for every registration of the id
) STRICT
"""

_ID = re.compile(r"\w[\w-]*")  # no dots or slashes: ids are file names
_ID_BYTES = 128
_BUSY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceLimits:
    """Limits of a registry. The extractor limits the duration of a recording."""

    max_voices: int = 1000
    """Most registered voices. Each takes about 1 MB of disk with its recording."""
    max_wav_bytes: int = 20_000_000
    """Most bytes of one recording. 30 s of 48 kHz stereo float32 are 11.5 MB."""
    max_name_chars: int = 100
    max_transcript_chars: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceRecord:
    """A voice as the registry keeps it."""

    info: VoiceInfo
    transcript: str = ""
    created: float = 0.0
    """Seconds since the epoch; 0 for a built-in voice."""
    has_wav: bool = False
    revision: str = ""
    """Changes when the id is registered again, so it can be part of a cache key."""


class VoiceExtractor(Protocol):
    """The part of an engine that turns a recording into prompt features. Calls block for seconds."""

    engine: str

    def extract(self, wav: bytes, transcript: str) -> Mapping[str, NDArray[Any]]:
        """Return the features of a recording.

        Raises:
            InvalidRequest: the recording cannot be used.
        """
        ...


class VoiceRegistry:
    """The voices of one directory. Several threads and processes may use it. Every call may block on the disk."""

    def __init__(
        self,
        folder: Path,
        *,
        engine: str,
        builtin: Sequence[VoiceInfo] = (),
        extractor: VoiceExtractor | None = None,
        limits: VoiceLimits | None = None,
    ) -> None:
        """
        Args:
            folder: the directory that all processes share; created if missing.
            engine: name of the engine in use.
            builtin: built-in voices. They are listed first and cannot be removed.
            extractor: None: the engine cannot clone, and ``add`` raises InvalidRequest.
        """
        self._folder = folder
        self._engine = engine
        self._builtin = {voice.voice_id: voice for voice in builtin}
        self._extractor = extractor
        self._limits = limits or VoiceLimits()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._create()
        except (OSError, sqlite3.Error) as exc:
            raise SynthesisFailed(f"voice registry {folder} cannot be opened: {exc}") from exc

    # -- reading ---------------------------------------------------------------------------------------------------

    def voices(self) -> list[VoiceInfo]:
        """Return built-in voices, then registered ones by id."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM voices ORDER BY voice_id").fetchall()
        return [*self._builtin.values(), *(_record(row).info for row in rows)]

    def get(self, voice_id: str) -> VoiceRecord:
        """Return a voice.

        Raises:
            NotFound: there is no such voice.
        """
        if voice_id in self._builtin:
            return VoiceRecord(info=self._builtin[voice_id])
        with self._read() as db:
            row = db.execute("SELECT * FROM voices WHERE voice_id = ?", (_normal(voice_id),)).fetchone()
        if row is None:
            raise NotFound(f"no voice {voice_id!r}")
        return _record(row)

    def features(self, voice_id: str, engine: str = "") -> dict[str, NDArray[Any]]:
        """Return the features of a voice for ``engine`` (default: the one in use).

        Raises:
            NotFound: there is no such voice, or it was never registered for this engine.
        """
        from safetensors.numpy import load_file

        record = self.get(voice_id)
        path = self._features_path(record.info.voice_id, engine or self._engine)
        try:
            return load_file(path)
        except FileNotFoundError as exc:
            raise NotFound(
                f"voice {voice_id!r} was registered for {record.info.engine}, not for {engine or self._engine}"
            ) from exc
        except Exception as exc:  # safetensors' own error has no public base class
            raise SynthesisFailed(f"features of voice {voice_id!r} cannot be read: {exc}") from exc

    def wav(self, voice_id: str) -> bytes:
        """Return the recording as it was uploaded.

        Raises:
            NotFound: there is no such voice, or it has no recording because it is built in or imported.
        """
        record = self.get(voice_id)
        if not record.has_wav:
            raise NotFound(f"voice {voice_id!r} has no recording")
        return self._wav_path(record.info.voice_id).read_bytes()

    # -- writing ---------------------------------------------------------------------------------------------------

    def add(self, *, wav: bytes, transcript: str, name: str = "", voice_id: str = "", language: str = "") -> VoiceInfo:
        """Extract the features of a recording and register it as a voice.

        Args:
            wav: WAV file, 16 kHz or more.
            transcript: what is said in the recording. Empty: not known.
            name: the name that users see. Empty: the id.
            voice_id: letters, digits, ``_`` and ``-``. Empty: a new id.
            language: BCP 47 tag of the speaker.

        Raises:
            InvalidRequest: a field is wrong, the id is taken, the registry is full, or the engine cannot clone.
        """
        if self._extractor is None:
            raise InvalidRequest(
                f"engine {self._engine!r} has built-in voices only and cannot clone one from a recording",
                field="voice",
            )
        voice_id = self._checked_id(voice_id or f"voice-{uuid.uuid4().hex[:12]}")
        if len(wav) > self._limits.max_wav_bytes:
            raise InvalidRequest(
                f"reference audio has {len(wav)} bytes, at most {self._limits.max_wav_bytes} are taken", field="wav"
            )
        with self._read() as db:  # checked before the extraction, which takes seconds, and again when writing
            self._check_room(db, voice_id)
        info = self._checked_info(voice_id, name, [language] if language else [], self._extractor.engine, transcript)
        features = self._extractor.extract(wav, transcript)
        self._put(info, transcript, features, wav)
        return info

    def put(
        self,
        *,
        voice_id: str,
        features: Mapping[str, NDArray[Any]],
        transcript: str = "",
        name: str = "",
        languages: Sequence[str] = (),
    ) -> VoiceInfo:
        """Register a voice from existing features. Raises the errors of ``add``."""
        info = self._checked_info(self._checked_id(voice_id), name, languages, self._engine, transcript)
        self._put(info, transcript, features, None)
        return info

    def extend(self, voice_id: str, engine: str, features: Mapping[str, NDArray[Any]]) -> None:
        """Store the features of a further engine for a registered voice.

        Raises:
            NotFound: there is no such voice.
        """
        with self._write() as db:
            if not db.execute("SELECT 1 FROM voices WHERE voice_id = ?", (_normal(voice_id),)).fetchone():
                raise NotFound(f"no registered voice {voice_id!r}")
            _replace(self._features_path(_normal(voice_id), engine), _tensors(features))

    def remove(self, voice_id: str) -> None:
        """Remove a registered voice and delete its files. Utterances that have loaded its features continue.

        Raises:
            NotFound: there is no such voice.
            InvalidRequest: the voice is built in.
        """
        if voice_id in self._builtin:
            raise InvalidRequest(f"voice {voice_id!r} is built in and cannot be removed", field="voice_id")
        voice_id = _normal(voice_id)
        with self._write() as db:
            if not db.execute("DELETE FROM voices WHERE voice_id = ?", (voice_id,)).rowcount:
                raise NotFound(f"no voice {voice_id!r}")
            for path in [self._wav_path(voice_id), *self._folder.glob(f"{voice_id}.*.safetensors")]:
                path.unlink(missing_ok=True)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _put(self, info: VoiceInfo, transcript: str, features: Mapping[str, NDArray[Any]], wav: bytes | None) -> None:
        files = [(self._features_path(info.voice_id, info.engine), _tensors(features))]
        if wav is not None:
            files.append((self._wav_path(info.voice_id), wav))
        written: list[Path] = []
        try:
            with self._write() as db:
                self._check_room(db, info.voice_id)
                # The row is written last. A crash before that leaves only files, which the next registration of the id
                # replaces.
                for path, data in files:
                    written.append(path)
                    _replace(path, data)
                db.execute(
                    "INSERT INTO voices VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        info.voice_id,
                        info.name,
                        json.dumps(list(info.languages)),
                        info.engine,
                        transcript,
                        time.time(),
                        wav is not None,
                        uuid.uuid4().hex,
                    ),
                )
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise

    def _check_room(self, db: sqlite3.Connection, voice_id: str) -> None:
        if voice_id in self._builtin or db.execute("SELECT 1 FROM voices WHERE voice_id = ?", (voice_id,)).fetchone():
            raise InvalidRequest(f"voice {voice_id!r} exists already; remove it first", field="voice_id")
        (count,) = db.execute("SELECT count(*) FROM voices").fetchone()
        if count >= self._limits.max_voices:
            raise InvalidRequest(f"the registry is full: {count} voices; remove one first", field="voice_id")

    def _checked_id(self, voice_id: str) -> str:
        voice_id = _normal(voice_id)
        if not _ID.fullmatch(voice_id) or len(voice_id.encode()) > _ID_BYTES:
            raise InvalidRequest(
                f"voice id of {len(voice_id)} characters is not letters, digits, _ and - "
                f"(at most {_ID_BYTES} bytes, not beginning with -)",
                field="voice_id",
            )
        return voice_id

    def _checked_info(
        self, voice_id: str, name: str, languages: Sequence[str], engine: str, transcript: str
    ) -> VoiceInfo:
        bounds = (
            ("name", name, self._limits.max_name_chars),
            ("transcript", transcript, self._limits.max_transcript_chars),
        )
        for field, value, most in bounds:
            if len(value) > most:
                raise InvalidRequest(f"{field} has {len(value)} characters, at most {most} are taken", field=field)
        for language in languages:
            if not re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*", language):
                raise InvalidRequest("language is not a BCP 47 tag such as en-US", field="language")
        return VoiceInfo(
            voice_id=voice_id, name=name or voice_id, languages=tuple(languages), engine=engine, registered=True
        )

    def _features_path(self, voice_id: str, engine: str) -> Path:
        return self._folder / f"{voice_id}.{engine}.safetensors"

    def _wav_path(self, voice_id: str) -> Path:
        return self._folder / f"{voice_id}.wav"

    def _connect(self) -> sqlite3.Connection:
        # Each call opens its own connection (about 0.1 ms), so threads and forked processes do not share one.
        db = sqlite3.connect(self._folder / "voices.db", timeout=_BUSY_S, isolation_level=None)
        db.row_factory = sqlite3.Row
        return db

    def _create(self) -> None:
        until = time.monotonic() + _BUSY_S
        with closing(self._connect()) as db:
            while True:
                try:
                    db.execute("PRAGMA journal_mode = WAL")
                    break
                except sqlite3.OperationalError:  # only for this, SQLite does not wait while another process writes
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.01)
        with self._write() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.execute(_SCHEMA)
                db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            elif version != _SCHEMA_VERSION:
                raise SynthesisFailed(
                    f"voice registry {self._folder} has layout {version}, this release reads {_SCHEMA_VERSION}"
                )

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect()) as db:
                yield db
        except sqlite3.Error as exc:
            raise SynthesisFailed(f"voice registry {self._folder} cannot be read: {exc}") from exc

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Open a connection that holds the database's write lock: one writer across all processes."""
        try:
            with closing(self._connect()) as db:
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                except BaseException:
                    with suppress(sqlite3.Error):  # on a full disk SQLite has done it
                        db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except (OSError, sqlite3.Error) as exc:
            raise SynthesisFailed(f"voice registry {self._folder} cannot be written: {exc}") from exc


def _normal(voice_id: str) -> str:
    return unicodedata.normalize("NFC", voice_id)


def _record(row: sqlite3.Row) -> VoiceRecord:
    info = VoiceInfo(
        voice_id=row["voice_id"],
        name=row["name"],
        languages=tuple(json.loads(row["languages"])),
        engine=row["engine"],
        registered=True,
    )
    return VoiceRecord(
        info=info,
        transcript=row["transcript"],
        created=row["created"],
        has_wav=bool(row["has_wav"]),
        revision=row["revision"],
    )


def _tensors(features: Mapping[str, NDArray[Any]]) -> bytes:
    from safetensors.numpy import save

    data: bytes = save({name: array.copy() for name, array in features.items()})
    return data


def _replace(path: Path, data: bytes) -> None:
    """Write a file atomically: readers, also in other processes, see the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
