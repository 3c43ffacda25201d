"""Calls that will arrive with nothing but an id. What they are is told beforehand, kept in a bounded table, and
forgotten if the call does not come in time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from gateway.errors import Rejected


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """The route of an expected call, and the custom parameters that it brings."""

    route: str
    custom_parameters: Mapping[str, str] = field(default_factory=dict)


class ExpectedCalls:
    """The expected calls by UUID, oldest first.

    Args:
        limit: calls that may be expected at a time; one more is refused.
        expiry_s: how long each call is expected.
        now: a monotonic clock, seconds.
    """

    def __init__(self, *, limit: int, expiry_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.expiry_s = expiry_s
        self._limit = limit
        self._now = now
        self._calls: OrderedDict[UUID, tuple[float, ExpectedCall]] = OrderedDict()

    def put(self, uuid: UUID, call: ExpectedCall) -> bool:
        """Expect a call. True: the call was not expected yet. False: ``call`` replaces what was said of it before.

        Raises:
            Rejected: 503, ``limit`` calls are expected already.
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
        """Return what was said of a call and forget it. None: the call was not expected, or its time is up."""
        self._expire()
        entry = self._calls.pop(uuid, None)
        return None if entry is None else entry[1]

    def get(self, uuid: UUID) -> ExpectedCall | None:
        """Return what was said of a call. None: the call was not expected, or its time is up."""
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
