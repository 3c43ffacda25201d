from pathlib import Path

from talkspurt.config.settings import Config
from talkspurt.doctor.checks import CHECKS, check_configuration


def test_what_would_stop_serve_at_its_start_is_told(tmp_path: Path) -> None:
    assert check_configuration in CHECKS
    config = Config.model_validate({"clips": {"folder": str(tmp_path / "clips")}})
    finding = check_configuration(config)
    assert finding.state == "fail" and finding.detail == f"clips.folder: no such folder: {tmp_path}/clips"
    (tmp_path / "clips").mkdir()
    assert check_configuration(config).state == "ok"
