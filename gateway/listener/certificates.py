"""Takes new certificates from their files while the server runs, since they are renewed every few weeks.

A file that has changed is tried on a context of its own first: a certificate without its key would break the context in
use, and renewals write the two files one after the other. What cannot be used is logged, and tried again when a file
changes again. Connections that exist keep what they have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Sequence

log = logging.getLogger(__name__)

_LOOK_S = 10.0
"""Pause between two looks at the files."""


class Certificates:
    """Keeps contexts up with a certificate and its key.

    Args:
        contexts: they show the certificate, and have it already.
        certificate, key: PEM files with the chain and its private key.
        authorities: PEM file of those that the contexts believe. Empty: it is not watched. OpenSSL adds authorities,
            and forgets none: one that is no longer in the file is believed until the next start.
    """

    def __init__(self, contexts: Sequence[ssl.SSLContext], certificate: str, key: str, authorities: str = "") -> None:
        self._contexts = contexts
        self._files = (certificate, key, *([authorities] if authorities else []))
        self._seen = self._state()
        self._task: asyncio.Task[None] | None = None

    def start(self, look_s: float = _LOOK_S) -> None:
        """Look at the files from now on."""
        self._task = asyncio.create_task(self._watch(look_s))

    async def aclose(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _state(self) -> tuple[object, ...]:
        """Return what differs when a file has changed, also where a link leads elsewhere now."""
        found: list[object] = []
        for file in self._files:
            try:
                status = os.stat(file)
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _changed(self) -> bool:
        """Look at the files, in a thread. Return whether they have changed and can be used."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as exc:
            files = " ".join(self._files)
            log.error("new certificate cannot be used", extra={"files": files, "why": exc.strerror or repr(exc)})
            return False
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key, *authorities = self._files
        # The password keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
        for file in authorities:
            context.load_verify_locations(file)

    async def _watch(self, look_s: float) -> None:
        while True:
            await asyncio.sleep(look_s)
            if await asyncio.to_thread(self._changed):
                try:
                    for context in self._contexts:
                        self._load(context)
                except OSError:  # a file has changed once more since; it is looked at again
                    self._seen = ()
                    continue
                log.info("new certificate", extra={"file": self._files[0]})
