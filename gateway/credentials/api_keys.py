"""API keys, and the file of keys that ``talkspurt keys`` makes.

A key has 256 random bits, so guessing it is hopeless even with a fast hash: a plain SHA-256 is enough. Slow hashes such
as Argon2 are for passwords that people choose and would cost each request about 50 ms. There is no salt, since no two
keys are alike; so a key is found by its digest. Digests are compared in constant time.

The file is JSON. It is replaced as a whole, so readers never see half a file, and writers wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.config import KeyRights, Scope
from gateway.errors import CredentialsError

PREFIX = "tsk_"
"""Prefix of every key, by which scanners for leaked secrets can recognise it."""


def digest(key: bytes) -> bytes:
    """Return the digest of a key, 32 bytes. Only digests are stored."""
    return hashlib.sha256(key).digest()


class StoredKey(KeyRights):
    """A key of the file. Times are seconds since the epoch."""

    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    """Identifies the key for people. It is also a part of the key, and no secret."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the key. The key itself is not kept."""
    name: str = ""
    """The purpose of the key, in its owner's words."""
    created_at: float
    expires_at: float | None = None
    """The time from which the key is refused. None: never."""
    revoked_at: float | None = None
    """The time since which the key is refused. None: it is not revoked."""

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        """Return the present state of the key."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    keys: tuple[StoredKey, ...] = ()


def read(path: Path) -> tuple[StoredKey, ...]:
    """Return the keys of a file, including revoked and expired ones. A missing file has none.

    Raises:
        CredentialsError: the file cannot be read, or is not a file of keys.
    """
    try:
        return _File.model_validate_json(path.read_bytes()).keys
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise CredentialsError(f"{path} cannot be read: {exc.strerror}") from None
    except ValidationError as exc:
        problem = exc.errors(include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise CredentialsError(f"{path} is not a file of keys: {place}: {problem['msg']}") from None


def create(
    path: Path,
    *,
    now: float,
    tenant: str,
    scopes: Sequence[Scope] | None = None,
    name: str = "",
    expires_at: float | None = None,
) -> tuple[StoredKey, str]:
    """Add a new key to a file. Return the stored entry, and the key, which is shown only here.

    Raises:
        CredentialsError: the file cannot be read or written.
    """
    key_id = secrets.token_hex(6)
    key = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    made = StoredKey(
        id=key_id, sha256=digest(key.encode()).hex(), name=name, created_at=now, expires_at=expires_at, tenant=tenant,
        scopes=None if scopes is None else tuple(scopes),
    )  # fmt: skip
    _change(path, lambda keys: (*keys, made))
    return made, key


def revoke(path: Path, key_id: str, *, now: float) -> StoredKey:
    """Revoke a key permanently. A key that is already revoked is unchanged.

    Raises:
        CredentialsError: there is no such key, or the file cannot be read or written.
    """
    found: list[StoredKey] = []

    def revoked(keys: tuple[StoredKey, ...]) -> tuple[StoredKey, ...]:
        found.extend(key for key in keys if key.id == key_id)
        if not found:
            raise CredentialsError(f"{path} has no key {key_id!r}")
        if found[0].revoked_at is None:
            found[0] = found[0].model_copy(update={"revoked_at": now})
        return tuple(found[0] if key.id == key_id else key for key in keys)

    _change(path, revoked)
    return found[0]


def _change(path: Path, change: Callable[[tuple[StoredKey, ...]], tuple[StoredKey, ...]]) -> None:
    try:
        with _locked(path):
            text = _File(keys=change(read(path))).model_dump_json(indent=1)
            # The rename comes last, so that readers see the old file or the new one. Only the owner can read it.
            with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                try:
                    file.write(text + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                    if path.exists():  # the server may run as another user than the maker of keys
                        before = path.stat()
                        os.fchmod(file.fileno(), before.st_mode & 0o777)
                        if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                            os.fchown(file.fileno(), before.st_uid, before.st_gid)
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
    except OSError as exc:
        raise CredentialsError(f"{path} cannot be written: {exc.strerror}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
