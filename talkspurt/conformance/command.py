"""``talkspurt conformance URL``: arguments in, a line for each check out. Exit code 1 if a check failed."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from talkspurt.cli import JobError, UsageError
from talkspurt.conformance.checks import Outcome, Result, run_checks
from talkspurt.conformance.session import CannotConnect, Plan

_MARKS: Mapping[Outcome, str] = {"pass": "ok  ", "fail": "FAIL", "warn": "warn", "skip": "skip"}


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        UsageError: an argument is wrong.
        JobError: there is no WebSocket at the address.
    """
    address = _address(args.url)
    plan = Plan(
        args.url,
        wait_s=_seconds("--wait", args.wait),
        quiet_s=_seconds("--quiet", args.quiet),
        prompt=args.prompt,
        long_prompt=args.long_prompt,
        headers=dict(_header(each) for each in args.header),
        auth_token=_key(args.sign_with) if args.sign_with else "",
    )

    def tell(result: Result) -> None:
        if not args.json:
            print(f"{_MARKS[result.outcome]}  {result.check}: {result.detail}", flush=True)

    try:
        results = asyncio.run(run_checks(plan, tell))
    except CannotConnect as exc:
        raise JobError(str(exc)) from None
    failed = sum(result.outcome == "fail" for result in results)
    if args.json:
        rows = [{"check": r.check, "outcome": r.outcome, "detail": r.detail} for r in results]
        # Neither a password nor the query, which may hold a key, gets into a report.
        shown = address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="").geturl()
        print(json.dumps({"url": shown, "failed": failed, "checks": rows}, ensure_ascii=False))
    else:
        print(f"{failed or 'none'} of {len(results)} checks failed")
    return 1 if failed else 0


def _address(url: str) -> SplitResult:
    try:
        address = urlsplit(url)
        _ = address.port  # read here, since a wrong one is an error only when it is read
    except ValueError as exc:
        raise UsageError(f"URL is no address: {exc}") from None
    if address.scheme not in ("ws", "wss"):
        raise UsageError(f"URL has the scheme {address.scheme!r}, expected ws:// or wss://")
    if not address.hostname:
        raise UsageError("URL names no host, expected ws://HOST[:PORT]/PATH")
    return address


def _seconds(option: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} is {value:g}, expected seconds above 0")
    return value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # The text is not repeated: it may be a key.
        raise UsageError(f"--header is {len(text)} characters without a name and a colon, expected 'NAME: VALUE'")
    return name.strip(), value.strip()


def _key(variable: str) -> str:
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--sign-with names the environment variable {variable}, which is empty or not set")
    return key
