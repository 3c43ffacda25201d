"""``talkspurt keys create`` warns of a tenant that is written as no other place writes it."""

from pathlib import Path

import pytest

from talkspurt.cli import main

CONFIG = """
auth: {{keys_file: {keys}, api_keys: [{{key: key-of-the-bank, tenant: bank}}]}}
limits: {{tenants: {{shop: {{calls_at_once: 2}}}}}}
"""


@pytest.mark.parametrize(
    ("tenant", "warning"),
    [
        ("bank", ""),
        ("shop", ""),
        ("bnak", "no route, limit or other key names the tenant 'bnak', did you mean 'bank'?"),
        ("zoo", "no route, limit or other key names the tenant 'zoo'"),
    ],
)
def test_a_key_of_an_unknown_tenant_is_made_with_a_warning(
    tenant: str, warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "talkspurt.yaml"
    config.write_text(CONFIG.format(keys=tmp_path / "keys.json"))
    assert main(["keys", "create", "--tenant", tenant, "-c", str(config)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("tsk_")
    assert said.err == (f"talkspurt keys create: warning: {warning}\n" if warning else "")


def test_a_key_that_reaches_all_tenants_is_made_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "talkspurt.yaml"
    config.write_text(CONFIG.format(keys=tmp_path / "keys.json"))
    assert main(["keys", "create", "--tenant", "ops", "--scope", "admin", "-c", str(config)]) == 0
    assert capsys.readouterr().err == ""
