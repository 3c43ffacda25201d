"""Certificates of SIP over TLS: our own, the trusted authorities, and the names in a peer's certificate (RFC 3261
section 26, RFC 5922)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Uri


def server_context(certificate: str, key: str, authorities: str = "") -> ssl.SSLContext:
    """Make the TLS context for incoming connections.

    Args:
        certificate, key: PEM files with our chain and its private key.
        authorities: PEM file of the authorities trusted for client certificates. Empty: no certificate is requested. A
            peer may still show none and is then identified by address or password. A certificate that does not verify
            ends the connection.

    Raises:
        OSError: a file cannot be read. The subclass ``ssl.SSLError`` means that a file is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if authorities:
        context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(certificate: str = "", key: str = "", authorities: str = "") -> ssl.SSLContext:
    """Make the TLS context for outgoing connections. The peer's certificate must match the name that we call.

    Args:
        certificate, key: PEM files that are shown to a peer that asks. Empty: none.
        authorities: PEM file of the trusted authorities. Empty: those of the system.

    Raises:
        OSError: see ``server_context``.
    """
    context = ssl.create_default_context(cafile=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names in a verified certificate (in the form of ``ssl``), in lower case: its subjectAltName entries of
    DNS and IP, and the hosts of SIP URIs without a user (RFC 5922 section 7.1). The common name does not count."""
    names = set()
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "IP Address"):
            names.add(value.lower())
        elif kind == "URI":
            try:
                uri = Uri.parse(value)
            except SipProtocolError:
                continue
            if uri.scheme in ("sip", "sips") and not uri.user:
                names.add(uri.host)
    return frozenset(names)
