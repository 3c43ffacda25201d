"""Encrypted recordings: file format, writing and reading.

docs/recording.md describes the format for other programs. It follows age's payload (age-encryption.org/v1) with
AES-256-GCM: a header, then chunks. Each chunk authenticates its position, and the last one that it is the last.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.errors import RecordingError

_MAGIC = b"TSPKREC1"
_HEADER = struct.Struct(">8s4sI16s")  # magic, id of the key, channels and sample rate, salt
_CHANNELS_SHIFT = 24
"""The upper byte of the third field is the number of channels, 0 for two; the rest is the sample rate, Hz."""
HEADER_BYTES = _HEADER.size
_CHUNK = 65_536
_TAG = 16


def _key_id(key: bytes) -> bytes:
    """Return an id that distinguishes keys and reveals nothing about them."""
    return hashlib.sha256(b"talkspurt recording" + key).digest()[:4]


def _cipher(key: bytes, header: bytes) -> AESGCM:
    """Return the cipher of one file. Its key depends on the whole header, so a changed header decrypts nothing."""
    return AESGCM(HKDF(SHA256(), length=32, salt=_HEADER.unpack(header)[3], info=header).derive(key))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


class SealedFile:
    """Writer of an encrypted recording, with the interface of ``wave.Wave_write``.

    Args:
        file: an empty file, which this object closes.
        key: 32 bytes.
        rate: sample rate, Hz.
    """

    def __init__(self, file: BinaryIO, *, key: bytes, rate: int, channels: int = 2) -> None:
        self._file = file
        upper = channels << _CHANNELS_SHIFT if channels != 2 else 0
        header = _HEADER.pack(_MAGIC, _key_id(key), upper | rate, os.urandom(16))
        self._cipher = _cipher(key, header)
        self._number = 0
        self._waiting = bytearray()
        file.write(header)

    def writeframes(self, data: bytes) -> None:
        """Add samples: s16le, all channels in turn."""
        self._waiting += data
        while len(self._waiting) > _CHUNK:  # a full chunk waits too, because it may be the last
            self._write(_CHUNK, last=False)

    def _write(self, size: int, *, last: bool) -> None:
        nonce = _nonce(self._number, last=last)
        self._file.write(self._cipher.encrypt(nonce, bytes(self._waiting[:size]), None))
        del self._waiting[:size]
        self._number += 1

    def close(self) -> None:
        """Write the last chunk, sync, and close the file, also if that fails."""
        with self._file:
            self._write(len(self._waiting), last=True)
            self._file.flush()
            os.fsync(self._file.fileno())


class Sealed:
    """Reader of a recording written by ``SealedFile``.

    Args:
        file: the file, at its beginning.
        key: 32 bytes.

    Raises:
        RecordingError: the file is not an encrypted recording, or has another key.
    """

    def __init__(self, file: BinaryIO, *, key: bytes) -> None:
        self._file = file
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise RecordingError(
                f"not an encrypted recording: expected a header of {_HEADER.size} bytes with {_MAGIC!r}"
            )
        _, key_id, form, _ = _HEADER.unpack(header)
        self.rate = form & ((1 << _CHANNELS_SHIFT) - 1)
        """Sample rate, Hz."""
        self.channels = form >> _CHANNELS_SHIFT or 2
        if key_id != _key_id(key):
            raise RecordingError(
                f"encrypted with key {key_id.hex()}, but recording.encrypt is key {_key_id(key).hex()}",
                code="wrong_key",
            )
        self._cipher = _cipher(key, header)
        sealed = os.fstat(file.fileno()).st_size - _HEADER.size
        self._chunks = -(-sealed // (_CHUNK + _TAG))
        self.size = sealed - self._chunks * _TAG
        """Bytes of samples in the whole file."""

    def frames(self, begin: int = 0) -> Iterator[bytes]:
        """Yield the samples, s16le, one chunk at a time, starting at byte ``begin`` of the samples.

        Raises:
            RecordingError: the file was changed or cut off. The chunks before are genuine, but incomplete.
        """
        first, skipped = divmod(begin, _CHUNK)
        self._file.seek(_HEADER.size + first * (_CHUNK + _TAG))
        for number in range(first, max(self._chunks, 1)):
            sealed = self._file.read(_CHUNK + _TAG)
            try:
                samples = self._cipher.decrypt(_nonce(number, last=number + 1 >= self._chunks), sealed, None)
            except (InvalidTag, ValueError):  # ValueError: shorter than a tag
                raise RecordingError(
                    f"changed or cut off: chunk {number + 1} of {self._chunks} is not what was recorded"
                ) from None
            yield samples[skipped:]
            skipped = 0
