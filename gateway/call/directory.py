"""Every look-up that crosses calls goes through here, so that more processes need no redesign.

Call ids carry the worker's index, so that any process knows who owns a call; the in-process directory knows its own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from gateway.errors import Rejected
from gateway.tokens import StreamToken


class Listed(Protocol):
    """What the directory needs of a call."""

    @property
    def call_id(self) -> str: ...


SPENT = 50_000
"""How many stream tokens of begun calls are remembered, some 100 bytes each. Of more, the oldest are forgotten, but
none that is still good."""

C = TypeVar("C", bound=Listed)


def number_of(address: str) -> str:
    """Return the four digits that name a gateway of several in the ids of its calls; empty for no address."""
    return hashlib.sha256(address.encode()).hexdigest()[:4] if address else ""


def owner_of(call_id: str) -> int:
    """Return the index of the worker that has a call of this id.

    Raises:
        ValueError: ``call_id`` is not ``VX`` and 32 hexadecimal digits.
    """
    if len(call_id) != 34 or not call_id.startswith("VX"):
        raise ValueError(f"call id is {call_id[:40]!r}, expected VX and 32 hexadecimal digits")
    return int(call_id[2:4], 16)


class Directory(Protocol[C]):
    """Calls by id, and how many there may be."""

    def new_call_id(self, token_id: bytes = b"") -> str:
        """``VX`` + 32 hex; the first two hex digits are the worker's index, the last ones the stream token's id."""
        ...

    def owner(self, call_id: str) -> int:
        """Index of the worker that has a call of this id."""
        ...

    def add(self, call: C) -> None:
        """Register a live call.

        Raises:
            Rejected: 503, the limit is reached or the process drains.
        """
        ...

    def remove(self, call: C) -> None: ...

    def get(self, call_id: str) -> C | None: ...

    def spend(self, token: StreamToken, *, now: float) -> None:
        """Note that a call begins with this stream token.

        Raises:
            Rejected: 403, another call began with the same token.
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
        gateway: four hexadecimal digits that name this gateway among several; empty: it is alone.
    """

    def __init__(self, *, limit: int, worker: int = 0, gateway: str = "") -> None:
        if not 0 <= worker <= 255:
            raise ValueError(f"worker index is {worker}, expected 0 to 255")
        self.limit = limit
        self.worker = worker
        self.gateway = gateway
        self.leaving = False
        """Does the process end soon? Who looks at readiness sends no calls then; those that come are still taken."""
        self.draining = False
        self.overloaded = False
        """Is there so much to do that one more call would cost the others their quality?"""
        self._calls: dict[str, C] = {}
        self._spent: dict[bytes, int] = {}
        """Id of a stream token -> when it expires, in the order in which calls began. A webhook that is repeated after
        its call asks for the same id, so ids are remembered beyond their time, up to ``SPENT`` of them."""

    def new_call_id(self, token_id: bytes = b"") -> str:
        """A fresh id that names this worker, and this gateway among several.

        Args:
            token_id: of the stream token that a call began with, 8 bytes. The id ends with it, so that what the webhook
                logged before there was a call is found by the call's id too. Empty: random digits.
        """
        return f"VX{self.worker:02x}{self.gateway}{secrets.token_hex(15)}"[: 34 - 2 * len(token_id)] + token_id.hex()

    def owner(self, call_id: str) -> int:
        """The worker's index in the id. Raises ``ValueError`` as ``owner_of``."""
        return owner_of(call_id)

    def check_room(self) -> None:
        """Check that one more call may come.

        Raises:
            Rejected: 503, the limit is reached or the process drains.
        """
        if self.draining:
            raise Rejected(
                "the server is draining and takes no new calls", status=503, code="draining", retry_after_s=5
            )
        if self.overloaded:
            raise Rejected(
                "frames are late already (limits.tick_lateness_ms)", status=503, code="overloaded", retry_after_s=5
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
        """Forget a call. Forgetting the same call twice is no error."""
        self._calls.pop(call.call_id, None)

    def get(self, call_id: str) -> C | None:
        """The live call of that id, or None."""
        return self._calls.get(call_id)

    def spend(self, token: StreamToken, *, now: float) -> None:
        """Note that a call begins with this stream token; the token is remembered at least until it has expired."""
        self.check_unspent(token)
        while len(self._spent) >= SPENT and next(iter(self._spent.values())) < now:
            del self._spent[next(iter(self._spent))]
        self._spent[token.id] = token.expires

    def is_spent(self, token_id: bytes) -> bool:
        """Whether a call began with a stream token of this id."""
        return token_id in self._spent

    def check_unspent(self, token: StreamToken) -> None:
        """Raise ``Rejected`` (403) if a call began with this stream token."""
        if self.is_spent(token.id):
            raise Rejected("stream token has opened a call before", status=403, code="spent_token", param="token")

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._calls.values()))

    def __len__(self) -> int:
        return len(self._calls)
