"""``talkspurt keys`` makes, lists and revokes the API keys of ``auth.keys_file``."""

from __future__ import annotations

import argparse
import datetime
import difflib
import json
import sys
import time
from pathlib import Path
from typing import Any

from gateway.credentials import api_keys
from gateway.credentials.api_keys import StoredKey
from gateway.errors import CredentialsError
from talkspurt.cli import JobError, UsageError
from talkspurt.config.settings import Config, load

_DAY_S = 86_400


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt keys``."""
    path = _path(args)
    now = time.time()
    try:
        if args.action == "create":
            _create(path, args, now)
        elif args.action == "revoke":
            revoked = api_keys.revoke(path, args.id, now=now)
            _print(args, [revoked], now)
        else:
            _print(args, api_keys.read(path), now)
    except CredentialsError as exc:
        raise JobError(str(exc)) from None
    return 0


def _path(args: argparse.Namespace) -> Path:
    if args.keys_file is not None:
        return Path(args.keys_file)
    configured = load(args.config).auth.keys_file
    if not configured:
        raise UsageError("there is no auth.keys_file to keep keys in: set it, or give --keys-file")
    return Path(configured)


def _unknown_tenant(tenant: str, config: Config, keys: tuple[StoredKey, ...]) -> str:
    """Return a warning that nothing names a tenant yet. Empty: something does, or all keys are of one tenant."""
    known = {key.tenant for key in (*config.auth.api_keys, *keys)} | set(config.limits.tenants)
    known |= {route.tenant for route in config.routes.values() if route.tenant}
    if not known or tenant in known:
        return ""
    near = difflib.get_close_matches(tenant, known, 1)
    return f"no route, limit or other key names the tenant {tenant!r}" + (
        f", did you mean {near[0]!r}?" if near else ""
    )


def _create(path: Path, args: argparse.Namespace, now: float) -> None:
    bound = args.config is not None and "admin" not in (args.scope or ())  # `admin` reaches all tenants
    if bound and (warning := _unknown_tenant(args.tenant, load(args.config), api_keys.read(path))):
        print(f"talkspurt keys create: warning: {warning}", file=sys.stderr)
    expires_at = None if args.days is None else now + args.days * _DAY_S
    made, key = api_keys.create(
        path, now=now, tenant=args.tenant, scopes=args.scope, name=args.name, expires_at=expires_at
    )
    if args.json:
        print(json.dumps(_view(made, now) | {"key": key}))
    else:
        print(f"{key}\n\nThis is the only time that the key of {made.id} is shown: {path} has its digest only.")


def _print(args: argparse.Namespace, keys: tuple[StoredKey, ...] | list[StoredKey], now: float) -> None:
    views = [_view(key, now) for key in keys]
    if args.json:
        print(json.dumps(views))
        return
    for view in views:
        scopes = "by default" if view["scopes"] is None else " ".join(view["scopes"])
        until = view["expiresAt"] or "no end"
        print(f"{view['id']}  {view['state']:<8} {view['tenant']:<16} until {until:<20}  {scopes:<24} {view['name']}")


def _view(key: StoredKey, now: float) -> dict[str, Any]:
    return {
        "id": key.id,
        "state": key.state(now),
        "tenant": key.tenant,
        "scopes": key.scopes,
        "name": key.name,
        "createdAt": _time(key.created_at),
        "expiresAt": _time(key.expires_at),
        "revokedAt": _time(key.revoked_at),
    }


def _time(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
