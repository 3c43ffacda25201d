"""Certificates of SIP over TLS: our own, those that we believe, and the names in a peer's (RFC 3261 section 26, RFC
5922)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from sip_bridge.errors import ProtocolError
from sip_bridge.message.sip import Uri


def server_context(certificate: str, key: str, authorities: str = "") -> ssl.SSLContext:
    """Make the TLS context for connections to us.

    Args:
        certificate, key: PEM files with our chain and its private key.
        authorities: PEM file of the authorities whose client certificates we believe. Empty: we ask for no certificate.
            A peer that we ask may still show none; we then know it by its address or password. A certificate that does
            not verify ends the connection.

    Raises:
        OSError: a file cannot be read. The subclass ``ssl.SSLError`` means that a file's content is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if authorities:
        context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(certificate: str = "", key: str = "", authorities: str = "") -> ssl.SSLContext:
    """Make the TLS context for connections of ours. The peer's certificate must be for the name that we call.

    Args:
        certificate, key: PEM files that we show to a peer that asks. Empty: we show nothing.
        authorities: PEM file of the authorities that we believe. Empty: those of the system.

    Raises:
        OSError: as ``server_context``.
    """
    context = ssl.create_default_context(cafile=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names, in lower case, that a verified certificate, as ``ssl`` tells it, is for: its subjectAltName
    entries of DNS and IP, and the hosts of SIP URIs without a user (RFC 5922 section 7.1). The common name does not
    count."""
    names = set()
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "IP Address"):
            names.add(value.lower())
        elif kind == "URI":
            try:
                uri = Uri.parse(value)
            except ProtocolError:
                continue
            if uri.scheme in ("sip", "sips") and not uri.user:
                names.add(uri.host)
    return frozenset(names)
