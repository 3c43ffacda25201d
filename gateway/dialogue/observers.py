"""Observation of a call's dialogue, and injection of messages into it. REST and server-sent events are built on this.

``watch`` puts a link between a session and its manager. Every message of the gateway then also goes to the subscribers,
including extensions, and ``inject`` reaches the session like a message of the manager.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from gateway.config import LimitsConfig
from gateway.dialogue.wire import decode, encode
from gateway.errors import Rejected
from gateway.seams.dialogue import DialogueLink, DialogueSink
from gateway.seams.messages import Call, Caption, Outbound, Setup

SUBSCRIBER_MESSAGES = 1024
"""Most messages kept for a slow subscriber. Beyond that the oldest are dropped, and a ``dropped`` message counts
them."""

SUBSCRIBERS = 256
"""Most subscribers of the process. Then the oldest of the tenant with the most makes room for a tenant with fewer."""


class Subscription:
    """JSON messages of one call, or of all calls of some routes. Use it with ``async with``, then ``async for``. It
    ends with the call."""

    def __init__(self, observers: Observers, call_id: str, sees: Callable[[str, str], bool]) -> None:
        self._observers = observers
        self._call_id = call_id
        self._sees = sees
        self._queue: deque[str] = deque()
        self._dropped = 0
        self._over = False
        self._wake = asyncio.Event()

    def wants(self, route: str, call_id: str) -> bool:
        """Return True if this subscription includes the call."""
        return self._call_id in ("", call_id) and self._sees(route, call_id)

    def offer(self, text: str) -> None:
        if len(self._queue) >= SUBSCRIBER_MESSAGES:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(text)
        self._wake.set()

    def end(self) -> None:
        """End the iteration after the queued messages have been read."""
        self._over = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                yield f'{{"type":"dropped","count":{dropped}}}'
            elif self._queue:
                yield self._queue.popleft()
            elif self._over:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._observers.unsubscribe(self)


class _WatchedLink:
    """A call's link that also passes its messages to the subscribers."""

    def __init__(self, observers: Observers, route: str, session_id: str, link: DialogueLink) -> None:
        self._observers = observers
        self._route = route
        self._session_id = session_id
        self._link = link

    def send(self, message: Outbound) -> None:
        if not isinstance(message, Caption):
            self._link.send(message)
        if not (isinstance(message, Call) and message.past):
            self._observers.publish(self._route, self._session_id, message)

    def send_audio(self, pcm: bytes) -> None:
        self._link.send_audio(pcm)

    async def aclose(self) -> None:
        self._observers.forget(self._session_id)
        await self._link.aclose()


class Observers:
    """The calls that can be observed, and their subscribers."""

    def __init__(self, *, limits: LimitsConfig) -> None:
        self._limits = limits
        self._sinks: dict[str, DialogueSink] = {}
        self._subscriptions: dict[Subscription, str] = {}
        self._tenants: dict[Subscription, str] = {}

    def watch(self, route: str, setup: Setup, sink: DialogueSink, link: DialogueLink) -> DialogueLink:
        """Make a call observable. The session must send its messages through the returned link."""
        self._sinks[setup.session_id] = sink
        self.publish(route, setup.session_id, setup)
        return _WatchedLink(self, route, setup.session_id, link)

    def publish(self, route: str, session_id: str, message: Outbound) -> None:
        # Most calls have no subscriber, so nothing is encoded for them.
        watchers = [subscription for subscription in self._subscriptions if subscription.wants(route, session_id)]
        if not watchers:
            return
        text = encode(message, extensions=True, session_id=session_id)
        assert text is not None  # with extensions on, every message has a text
        for subscription in watchers:
            subscription.offer(text)

    def forget(self, session_id: str) -> None:
        """The call is over: end the subscriptions to this call alone."""
        self._sinks.pop(session_id, None)
        for subscription, wanted in self._subscriptions.items():
            if wanted == session_id:
                subscription.end()

    def inject(self, session_id: str, body: str | bytes) -> None:
        """Pass a JSON message to a call as if its dialogue manager had sent it (``POST /v1/calls/{id}/messages``).

        Raises:
            Rejected: 404 if there is no such call.
            ProtocolError: the message is bad, or not possible now (HTTP 422).
        """
        sink = self._sink(session_id)
        _, message = decode(body, limits=self._limits, multiplexed=False)
        sink.on_message(message)

    def subscribe(
        self,
        session_id: str = "",
        sees: Callable[[str, str], bool] = lambda route, call_id: True,
        *,
        placed: bool = False,
        tenant: str = "",
    ) -> Subscription:
        """Subscribe to the messages of one call, or of all calls (empty id), from now on. Each names its ``sessionId``.

        Args:
            sees: returns True, by route and id, for calls that "all calls" includes.
            placed: the call was placed, and may not be answered yet.
            tenant: the tenant that subscribes.

        Raises:
            Rejected: 404 if there is no such call; 503 if there are too many subscribers, and no tenant has more than
                this one.
        """
        if session_id and not placed:
            self._sink(session_id)
        if len(self._subscriptions) >= SUBSCRIBERS:
            self._make_room(tenant)
        subscription = Subscription(self, session_id, sees)
        self._subscriptions[subscription] = session_id
        self._tenants[subscription] = tenant
        return subscription

    def _make_room(self, tenant: str) -> None:
        count = Counter(self._tenants.values())
        largest, most = count.most_common(1)[0]
        if count[tenant] + 1 >= most:
            raise Rejected(
                f"there are already {SUBSCRIBERS} subscribers", status=503, code="overloaded", retry_after_s=5.0
            )
        oldest = next(subscription for subscription, owner in self._tenants.items() if owner == largest)
        oldest.end()
        self.unsubscribe(oldest)

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        self._tenants.pop(subscription, None)

    def close(self) -> None:
        """End every subscription, because the process shuts down."""
        for subscription in self._subscriptions:
            subscription.end()

    def _sink(self, session_id: str) -> DialogueSink:
        sink = self._sinks.get(session_id)
        if sink is None:
            raise Rejected(f"no live call {session_id!r}", status=404, code="not_found", param="id")
        return sink
