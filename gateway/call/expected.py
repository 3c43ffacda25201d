"""Calls announced before they arrive with nothing but a UUID. Their route and parameters are kept in a bounded table
until the call comes or the announcement expires."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from gateway.errors import Rejected

EXPECTED_CALLS = 10_000
"""Most announced calls of a process, a few hundred bytes each; one more is answered with 503."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """The route and the custom parameters of an expected call."""

    route: str
    custom_parameters: Mapping[str, str] = field(default_factory=dict)


class ExpectedCalls:
    """The expected calls by UUID, oldest first.

    Args:
        limit: most calls expected at a time; one more is refused.
        expiry_s: time until an expected call is forgotten.
        now: a monotonic clock, seconds.
    """

    def __init__(self, *, limit: int, expiry_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.expiry_s = expiry_s
        self._limit = limit
        self._now = now
        self._calls: OrderedDict[UUID, tuple[float, ExpectedCall]] = OrderedDict()

    def put(self, uuid: UUID, call: ExpectedCall) -> bool:
        """Expect a call. Returns True for a new UUID, False if ``call`` replaces an earlier entry.

        Raises:
            Rejected: 503 if ``limit`` calls are expected already.
        """
        self._expire()
        new = self._calls.pop(uuid, None) is None
        if len(self._calls) >= self._limit:
            oldest, _ = next(iter(self._calls.values()))
            raise Rejected(
                f"{len(self._calls)} calls are expected already, which is the limit",
                status=503, code="full", retry_after_s=max(1.0, oldest - self._now()),
            )  # fmt: skip
        self._calls[uuid] = (self._now() + self.expiry_s, call)
        return new

    def take(self, uuid: UUID) -> ExpectedCall | None:
        """Return and remove an expected call. None: the call was not expected, or the entry has expired."""
        self._expire()
        entry = self._calls.pop(uuid, None)
        return None if entry is None else entry[1]

    def get(self, uuid: UUID) -> ExpectedCall | None:
        """Return an expected call. None: the call was not expected, or the entry has expired."""
        self._expire()
        entry = self._calls.get(uuid)
        return None if entry is None else entry[1]

    def __len__(self) -> int:
        self._expire()
        return len(self._calls)

    def _expire(self) -> None:
        now = self._now()
        while self._calls and next(iter(self._calls.values()))[0] <= now:
            self._calls.popitem(last=False)
