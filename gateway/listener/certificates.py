"""Reloads certificates from their files while the server runs, since they are renewed every few weeks.

A changed file is first tried on a separate context: a certificate without its key would break the context in use, and
renewals write the two files one after the other. Files that cannot be used are logged once, and tried again at each
check. Existing connections keep their certificates.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from functools import partial

from tts_engine.changed_files import ChangedFiles
from tts_engine.supervision import SUPERVISOR, SupervisedTask

log = logging.getLogger(__name__)

_CHECK_EVERY_S = 10.0
"""Pause between two checks of the files."""


class Certificates:
    """Keeps contexts up to date with a certificate and its key.

    Args:
        contexts: the contexts, which already have the certificate.
        certificate, key: PEM files with the chain and its private key.
        authorities: PEM file of the trusted authorities. Empty: not watched. OpenSSL adds authorities and never removes
            one: an authority removed from the file is trusted until the next start.
    """

    def __init__(self, contexts: Sequence[ssl.SSLContext], certificate: str, key: str, authorities: str = "") -> None:
        self._contexts = contexts
        self._files = (certificate, key, *([authorities] if authorities else []))
        self._changes = ChangedFiles(*self._files)
        self._task: SupervisedTask | None = None

    def start(self, check_every_s: float = _CHECK_EVERY_S) -> None:
        """Start to watch the files."""
        self._task = SUPERVISOR.task("certificates", partial(self._watch, check_every_s))

    async def aclose(self) -> None:
        """Stop watching."""
        if self._task is not None:
            await self._task.aclose()

    def _changed(self) -> bool:
        """Check the files, in a thread. Return True if they have changed and can be used."""
        if not self._changes.changed():
            return False
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as exc:
            if self._changes.refuse():
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

    async def _watch(self, check_every_s: float) -> None:
        while True:
            await asyncio.sleep(check_every_s)
            if await asyncio.to_thread(self._changed):
                try:
                    for context in self._contexts:
                        self._load(context)
                except OSError:  # a file has changed again meanwhile; try again at the next check
                    continue
                self._changes.take()
                log.info("certificate reloaded", extra={"file": self._files[0]})
