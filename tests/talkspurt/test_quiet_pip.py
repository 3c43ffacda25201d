"""The output of `make run` while it installs."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "requirements/quiet_pip.py"


def test_each_package_is_a_line(tmp_path: Path) -> None:
    """pip's own output as it was recorded, through a stand-in of the module pip."""
    (tmp_path / "pip.py").write_text(
        "print('Collecting numpy==2.3.5 (from -r requirements/base.txt (line 3))')\n"
        "print('  Downloading numpy-2.3.5-cp312-cp312-manylinux_2_27_x86_64.whl.metadata (62 kB)')\n"
        "print('Downloading https://files.example/ab/numpy-2.3.5-cp312-cp312-manylinux_2_27_x86_64.whl (16.6 MB)')\n"
        "print('  Using cached g722-1.2.8-cp312-cp312-manylinux_2_17_x86_64.whl (61 kB)')\n"
        "print('Installing collected packages: g722, numpy')\n"
        "print('Successfully installed g722-1.2.8 numpy-2.3.5')\n"
    )
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["  numpy 2.3.5 (16.6 MB)", "  g722 1.2.8 (61 kB)", "installing 2 packages"]


def test_a_failure_is_told_in_pips_words_and_passed_on(tmp_path: Path) -> None:
    (tmp_path / "pip.py").write_text("import sys\nprint('ERROR: no matching distribution')\nsys.exit(3)\n")
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "ERROR: no matching distribution\n")


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "install", "x"],
        cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(folder)},
    )  # fmt: skip
