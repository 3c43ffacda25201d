"""What a carrier's folder declares: ``CARRIER`` in its ``__init__.py``. All tables of carriers are made from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from gateway.carriers.call_control import CallControl
from gateway.carriers.dialect import Dialect
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
    """The dialect's name, as in ``/media/{dialect}``. Folder and section have the same name, with ``_`` for ``-``."""
    about: str
    """The section's line in the reference of the configuration."""
    settings: type[S]
    dialect: Callable[[S, Query], Dialect]
    """A serializer for one stream."""
    proof: Proof[S]
    call_control: CallControl[S] | None = None
    """None: the carrier does not ask us what to do with a call; its own configuration starts the streams."""
    switch: Callable[[S, SwitchTools], Switch | None] = lambda settings, tools: None
    """Makes the object that joins and leads calls beside their streams, if the section configures it."""

    @property
    def key(self) -> str:
        """The name of the carrier's section."""
        return self.name.replace("-", "_")


def token_in(target: str) -> str:
    """Return our token in the target of a stream's address; empty without one."""
    path, _, query = target.partition("?")
    parts = [part for part in path.split("/") if part]
    return parts[3] if len(parts) > 3 else query.partition("token=")[2].partition("&")[0]


@dataclass(frozen=True, slots=True)
class ConfiguredCarrier:
    """A carrier that the configuration lists, and its settings."""

    vendor: Carrier[Any]
    settings: CarrierSection

    def dialect(self, query: Query) -> Dialect:
        """A serializer for one stream."""
        return self.vendor.dialect(self.settings, query)

    def mismatch(self, url: str, headers: Mapping[str, str]) -> Rejected:
        """Return how a request with a wrong proof is refused. Whoever sets up a carrier reads it in the carrier's log.

        Args:
            url: what a signature has to cover.
            headers: names in lower case.
        """
        name, header = self.vendor.name, self.vendor.proof.address_header
        why = "the carrier's signature or credentials are missing or do not match"
        if header and header.lower() in headers:
            why = f"{header} does not match {url[:200]} and the secret of carriers.{self.vendor.key}"
        return Rejected(f"{name}: {why}", status=403, code="bad_signature")

    def check_upgrade(self, tokens: Tokens, route: str, upgrade: Upgrade) -> StreamToken | None:
        """Return our token in the stream's address. None: the carrier proves itself, or need not.

        Raises:
            Rejected: 403, there is neither a token nor a proof.
        """
        if not self.settings.verify:
            return None
        token = token_in(upgrade.target)
        proven = self.vendor.proof.upgrade(self.settings, upgrade)
        if proven:
            return None
        if proven is False:
            raise self.mismatch(upgrade.url.replace(token, "TOKEN") if token else upgrade.url, upgrade.headers)
        return tokens.check(token, self.vendor.name, route, now=upgrade.now)
