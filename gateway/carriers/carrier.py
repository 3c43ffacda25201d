"""The declaration of a carrier: each folder's ``__init__.py`` defines ``CARRIER``. All tables of carriers derive from
these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic
from urllib.parse import parse_qsl

from gateway.carriers.call_control import CallControl
from gateway.carriers.dialect import Dialect
from gateway.carriers.placing import Placing
from gateway.carriers.proof import Proof, Upgrade
from gateway.carriers.settings import CarrierSection, S
from gateway.carriers.switch import Switch, SwitchTools
from gateway.errors import Rejected
from gateway.tokens import StreamToken, Tokens

Query = Mapping[str, str]
"""Parameters of the stream's address, without our token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier(Generic[S]):
    """A carrier or switch."""

    name: str
    """The dialect's name, as in ``/media/{dialect}``. Folder and configuration section are named the same, with ``_``
    for ``-``."""
    about: str
    """The section's description in the configuration reference."""
    settings: type[S]
    dialect: Callable[[S, Query], Dialect]
    """Makes the serializer of one stream."""
    proof: Proof[S]
    call_control: CallControl[S] | None = None
    """None: the carrier has no webhooks; its own configuration starts the streams."""
    placing: Placing[S] | None = None
    """The REST interface that places calls. None: the carrier has none here."""
    switch: Callable[[S, SwitchTools], Switch | None] = lambda settings, tools: None
    """Makes the API that joins and controls calls besides their streams, if the section configures it."""

    @property
    def key(self) -> str:
        """The name of the carrier's configuration section."""
        return self.name.replace("-", "_")


def token_in(target: str) -> str:
    """Return our token in the request target of a stream. Empty: there is none."""
    path, _, query = target.partition("?")
    parts = [part for part in path.split("/") if part]
    return parts[3] if len(parts) > 3 else dict(parse_qsl(query)).get("token", "")


def placed_in(target: str) -> str:
    """Return the id of the placed call in the request target of its stream, after our token. Empty: there is none."""
    parts = [part for part in target.partition("?")[0].split("/") if part]
    return parts[4] if len(parts) > 4 else ""


@dataclass(frozen=True, slots=True)
class ConfiguredCarrier:
    """A configured carrier with its settings."""

    vendor: Carrier[Any]
    settings: CarrierSection

    def dialect(self, query: Query) -> Dialect:
        """Make the serializer of one stream."""
        return self.vendor.dialect(self.settings, query)

    def mismatch(self, url: str, headers: Mapping[str, str]) -> Rejected:
        """Return the refusal of a request with a wrong proof. Its text appears in the carrier's log.

        Args:
            url: the address that a signature must cover.
            headers: names in lower case.
        """
        name, header = self.vendor.name, self.vendor.proof.address_header
        why = "the carrier's signature or credentials are missing or do not match"
        if header and header.lower() in headers:
            why = f"{header} does not match {url[:200]} and the secret of carriers.{self.vendor.key}"
        return Rejected(f"{name}: {why}", status=403, code="bad_signature")

    def check_upgrade(self, tokens: Tokens, route: str, upgrade: Upgrade) -> StreamToken | None:
        """Return our token in the stream's address. None: the carrier has proven its identity, or no proof is required.

        Raises:
            Rejected: 403, there is neither a token nor a valid proof.
        """
        if not self.settings.verify:
            return None
        token = token_in(upgrade.target)
        proven = self.vendor.proof.upgrade(self.settings, upgrade)
        if proven:
            return self._spendable(tokens, route, upgrade, token)
        if proven is False:
            raise self.mismatch(upgrade.url.replace(token, "TOKEN") if token else upgrade.url, upgrade.headers)
        return tokens.check(token, self.vendor.name, route, now=upgrade.now)

    def _spendable(self, tokens: Tokens, route: str, upgrade: Upgrade, token: str) -> StreamToken | None:
        """Return what a proven upgrade spends: our token in its address, and its signature. None: it has neither, so a
        copied request cannot be told from a new one.

        Raises:
            Rejected: 403, the token is not ours or has expired.
        """
        covered = self.vendor.proof.upgrade_covered(upgrade)
        signed = tokens.of_signature(self.vendor.name, covered, now=upgrade.now) if covered else None
        if not token:
            return signed
        ours = tokens.check(token, self.vendor.name, route, now=upgrade.now)
        # The signature need not cover the address: a copy without our token must not open a stream.
        return ours if signed is None else replace(ours, signature=signed.id, expires=signed.expires)
