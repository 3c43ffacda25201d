"""Look-ups that cross calls. They all go through ``Directory``, so that more processes need no redesign.

A call id contains the index of its worker, so any process can tell which worker owns a call.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from gateway.errors import Rejected
from gateway.tokens import StreamToken


class Listed(Protocol):
    """The part of a call that the directory uses."""

    @property
    def call_id(self) -> str: ...


SPENT = 50_000
"""Number of stream tokens remembered after their call began, about 100 bytes each. Beyond it the oldest are forgotten,
but only once they have expired."""

C = TypeVar("C", bound=Listed)


def number_of(address: str) -> str:
    """Return four hexadecimal digits that identify a gateway in its call ids; empty for an empty address."""
    return hashlib.sha256(address.encode()).hexdigest()[:4] if address else ""


def owner_of(call_id: str) -> int:
    """Return the index of the worker that owns the call.

    Raises:
        ValueError: ``call_id`` is not ``VX`` and 32 hexadecimal digits.
    """
    if len(call_id) != 34 or not call_id.startswith("VX"):
        raise ValueError(f"call id is {call_id[:40]!r}, expected VX and 32 hexadecimal digits")
    return int(call_id[2:4], 16)


class Directory(Protocol[C]):
    """Live calls by id, and the limit on their number."""

    def new_call_id(self, token_id: bytes = b"") -> str:
        """Return ``VX`` + 32 hexadecimal digits: first two for the worker's index, at the end the stream token's id."""
        ...

    def owner(self, call_id: str) -> int:
        """Return the index of the worker that owns the call."""
        ...

    def add(self, call: C) -> None:
        """Register a live call.

        Raises:
            Rejected: 503 if the limit is reached or the process drains.
        """
        ...

    def remove(self, call: C) -> None: ...

    def get(self, call_id: str) -> C | None: ...

    def spend(self, token: StreamToken, *, now: float) -> None:
        """Record that a call begins with this stream token.

        Raises:
            Rejected: 403 if another call began with the same token.
        """
        ...

    def is_spent(self, token_id: bytes) -> bool: ...

    def check_unspent(self, token: StreamToken) -> None:
        """Raise ``Rejected`` (403) if a call began with this stream token."""
        ...

    def __iter__(self) -> Iterator[C]: ...

    def __len__(self) -> int: ...


class LocalDirectory(Generic[C]):
    """The directory of one process.

    Args:
        limit: most live calls at a time (``limits.calls``).
        worker: index of this process, 0-255.
        gateway: four hexadecimal digits that identify this gateway among several; empty if it is the only one.
    """

    def __init__(self, *, limit: int, worker: int = 0, gateway: str = "") -> None:
        if not 0 <= worker <= 255:
            raise ValueError(f"worker index is {worker}, expected 0 to 255")
        self.limit = limit
        self.worker = worker
        self.gateway = gateway
        self.leaving = False
        """True if the process ends soon. Readiness then fails, so load balancers send no more calls; calls that still
        come are accepted."""
        self.draining = False
        self.overloaded = False
        """True if one more call would degrade the calls that are live."""
        self._calls: dict[str, C] = {}
        self._spent: dict[bytes, int] = {}
        """Expiry time by id of the stream token, in the order in which calls began. A webhook that is repeated after
        its call asks for the same id, so up to ``SPENT`` ids are kept beyond their expiry."""

    def new_call_id(self, token_id: bytes = b"") -> str:
        """Return a new id that contains this worker's index and the gateway's digits.

        Args:
            token_id: id of the stream token that the call began with, 8 bytes. The call id ends with it, so a search
                for the call id also finds what the webhook logged before the call. Empty: random digits.
        """
        return f"VX{self.worker:02x}{self.gateway}{secrets.token_hex(15)}"[: 34 - 2 * len(token_id)] + token_id.hex()

    def owner(self, call_id: str) -> int:
        """Return the worker's index in the id. Raises ``ValueError`` like ``owner_of``."""
        return owner_of(call_id)

    def check_room(self) -> None:
        """Check that one more call is allowed.

        Raises:
            Rejected: 503 if the limit is reached, the process drains or it is overloaded.
        """
        if self.draining:
            raise Rejected(
                "the server is draining and takes no new calls", status=503, code="draining", retry_after_s=5
            )
        if self.overloaded:
            raise Rejected(
                "the process is too busy (limits.tick_lateness_ms)", status=503, code="overloaded", retry_after_s=5
            )
        if len(self._calls) >= self.limit:
            raise Rejected(
                f"{len(self._calls)} calls are live, limits.calls is {self.limit}",
                status=503, code="full", retry_after_s=5,
            )  # fmt: skip

    def add(self, call: C) -> None:
        """Register a live call."""
        self.check_room()
        self._calls[call.call_id] = call

    def remove(self, call: C) -> None:
        """Remove a call. Removing it twice is no error."""
        self._calls.pop(call.call_id, None)

    def get(self, call_id: str) -> C | None:
        """Return the live call of that id, or None."""
        return self._calls.get(call_id)

    def spend(self, token: StreamToken, *, now: float) -> None:
        """Record that a call begins with this stream token; the token is remembered at least until it expires."""
        self.check_unspent(token)
        while len(self._spent) >= SPENT and next(iter(self._spent.values())) < now:
            del self._spent[next(iter(self._spent))]
        self._spent |= dict.fromkeys(token.ids, token.expires)

    def is_spent(self, token_id: bytes) -> bool:
        """Return True if a call began with a stream token of this id."""
        return token_id in self._spent

    def check_unspent(self, token: StreamToken) -> None:
        """Raise ``Rejected`` (403) if a call began with this stream token."""
        if any(map(self.is_spent, token.ids)):
            raise Rejected(
                "the stream token or signature was already used", status=403, code="spent_token", param="token"
            )

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._calls.values()))

    def __len__(self) -> int:
        return len(self._calls)
