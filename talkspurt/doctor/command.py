"""``talkspurt doctor``: arguments in, a line for each finding out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from talkspurt.config.settings import load
from talkspurt.doctor.checks import CHECKS
from talkspurt.doctor.finding import Finding


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt doctor``. Return 1 if something that `serve`, or the model, needs is missing."""
    config = load(args.config)
    subject = "serve"
    checks: Iterator[Finding] = (check(config) for check in CHECKS)
    if args.model is not None:
        from talkspurt.doctor import model

        subject, checks = "the model", model.findings(args.model, config.engine)
        if args.compare:
            from talkspurt.doctor import compare

            checks = compare.findings(args.model, config.engine, args.compare, args.wav)
    elif args.compare:
        print("--compare needs --model DIR")
        return 2
    findings = []
    for finding in checks:
        findings.append(finding)
        if not args.json:
            _print(finding)
    works = all(finding.state != "fail" for finding in findings)
    if args.json:
        print(json.dumps({"ok": works, "findings": [asdict(finding) for finding in findings]}))
    else:
        print(f"{subject} works here" if works else f"{subject} does not work here, see `fail`")
    return 0 if works else 1


def _print(finding: Finding) -> None:
    from rich.console import Console
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red", "none": "dim"}
    state = (f"{finding.state:<5}", styles[finding.state])
    Console(soft_wrap=True).print(Text.assemble(state, f"{finding.name:<14}{finding.detail}"))
