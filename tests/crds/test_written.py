from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paceline_crds import crd


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline_crds", "--write", str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_the_command_writes_the_crds_and_the_charts_copy(tmp_path: Path) -> None:
    for folder in ("crds", "charts/paceline/files/crds"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "charts/paceline/Chart.yaml").touch()
    said = run(tmp_path).stdout.splitlines()
    for folder in ("crds", "charts/paceline/files/crds"):
        written = {file.name for file in (tmp_path / folder).iterdir()}
        assert written == crd.files().keys()
        assert {str(tmp_path / folder / name) for name in written} <= set(said)


def test_nothing_is_written_outside_a_checkout(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nonexistent"):
        done = run(folder)
        assert done.returncode == 2
        assert "checkout" in done.stderr
    assert list(tmp_path.iterdir()) == []
