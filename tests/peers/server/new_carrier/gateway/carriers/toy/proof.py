"""The toy's proof that a request is its own."""

from __future__ import annotations

from gateway.carriers.proof import Hook, Proof, Upgrade, bearer
from gateway.carriers.toy.settings import ToyConfig


def _webhook(settings: ToyConfig, hook: Hook) -> bool | None:
    return bearer(hook.headers.get("authorization", ""), settings.secret)


def _upgrade(settings: ToyConfig, upgrade: Upgrade) -> bool | None:
    return bearer(upgrade.headers.get("authorization"), settings.secret)


PROOF = Proof(webhook=_webhook, upgrade=_upgrade)
