"""Delivers records of ended calls and requests to ``records.webhook_url``, each at least once, over restarts.

A message is signed by Standard Webhooks 1.0.0: HMAC-SHA256 over id, time and body. Its id is the record's, so a
receiver recognises a repeated record. Of the processes that share a file of records, the one with the lock delivers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp
from sqlalchemy import Connection

from gateway.config import RecordsConfig
from gateway.metering import outbox
from gateway.metering.outbox import Delivery
from gateway.metering.store import Records
from gateway.process_lock import lock

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Longest wait for the receiver, seconds."""

PENDING = 100_000
"""Most records that wait for the receiver; beyond that the oldest are given up. One takes 600 bytes."""

AT_ONCE = 16
"""Most messages in delivery at a time."""

LONGEST_WAIT_S = 900.0
"""Longest wait for the next attempt."""

_POLL_S = 1.0  # pause between checks of the outbox while nothing in it is due


class DeliveryMeter(Protocol):
    """Counts the outcomes of deliveries."""

    def record_deliveries(self, outcome: str, count: int = 1) -> None: ...

    def records_pending(self, count: int) -> None: ...


class Webhook:
    """Delivers the records in the outbox. ``run`` delivers until it is cancelled; ``aclose`` tries once more.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(
        self, config: RecordsConfig, records: Records, meter: DeliveryMeter, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._keys = config.webhook_keys
        self._records = records
        self._meter = meter
        self._clock = clock
        self._lock: int | None = None
        self._http: aiohttp.ClientSession | None = None
        self._fails = False

    async def run(self) -> None:
        """Deliver records as they end. Never returns."""
        while True:
            if not await self.deliver():
                await asyncio.sleep(_POLL_S)

    async def deliver(self) -> int:
        """Send the records that are due, at most ``AT_ONCE``. Return the number of accepted ones."""
        try:
            if self._lock is None:
                self._lock = await self._records.in_thread(lambda: lock(Path(f"{self._config.path}.webhook.lock")))
            if self._lock is None:
                return 0  # another process delivers
            due = await self._records.in_transaction(self._take)
            if due:
                await self._records.synced()  # after a loss of power, a delivered record must not change
            taken = await asyncio.gather(*(self._post(delivery) for delivery in due))
            await self._records.in_transaction(lambda connection: self._settle(connection, due, taken))
        except OSError as exc:
            log.error("records cannot be delivered", extra={"why": str(exc)})
            return 0
        return sum(taken)

    async def aclose(self) -> None:
        """Deliver the last records within the time limit of one message, and close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while await self.deliver():
                    pass
        if self._http is not None:
            await self._http.close()
        if self._lock is not None:
            os.close(self._lock)

    def _take(self, connection: Connection) -> Sequence[Delivery]:
        now = self._clock()
        made_before = now - self._config.webhook_keep_hours * 3600
        if given_up := outbox.give_up(connection, made_before=made_before, most=PENDING):
            log.error("records given up: too old or too many to deliver", extra={"count": given_up})
            self._meter.record_deliveries("given_up", given_up)
        self._meter.records_pending(outbox.pending(connection))
        return outbox.due(connection, now, limit=AT_ONCE, longest_wait_s=LONGEST_WAIT_S)

    def _settle(self, connection: Connection, due: Sequence[Delivery], taken: Sequence[bool]) -> None:
        now = self._clock()
        outbox.delivered(connection, [each.record_id for each, has in zip(due, taken, strict=True) if has])
        for delivery, has in zip(due, taken, strict=True):
            if not has:
                outbox.postpone(connection, delivery, due_at=now + wait_s(delivery.attempts, random.random()))

    async def _post(self, delivery: Delivery) -> bool:
        why = ""
        try:
            sent = self._session().post(
                self._config.webhook_url,
                data=delivery.body,
                headers=signed_headers(self._keys, delivery, at=int(self._clock())),
                allow_redirects=False,  # a record goes only to the configured address
            )
            async with sent as answer:
                if not 200 <= answer.status < 300:
                    why = f"status {answer.status}"
        except Exception as exc:  # a message that cannot be sent must not hold up the others
            why = type(exc).__name__
        self._meter.record_deliveries("failed" if why else "delivered")
        if bool(why) != self._fails:
            self._fails = bool(why)
            if why:
                log.warning("the webhook refuses records", extra={"why": why, "record": delivery.record_id})
            else:
                log.info("the webhook accepts records again")
        return not why

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=AT_ONCE, resolver=aiohttp.ThreadedResolver()),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "talkspurt", "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            )
        return self._http


def wait_s(attempts: int, chance: float) -> float:
    """Return the pause before the next attempt after ``attempts`` earlier failures and this one: doubled each time, at
    most ``LONGEST_WAIT_S``, reduced by ``chance`` (0 to 1) by up to half."""
    return float(min(2 ** min(attempts, 30), LONGEST_WAIT_S)) * (1 - chance / 2)


def signed_headers(keys: Sequence[bytes], delivery: Delivery, *, at: int) -> dict[str, str]:
    """Return the headers that prove a message, with a signature by each key (Standard Webhooks 1.0.0).

    Args:
        at: time of the attempt, seconds since the epoch.
    """
    signed = b".".join((delivery.record_id.encode(), str(at).encode(), delivery.body))
    signatures = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": delivery.record_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
