"""The set-up script: skipped when done, repaired when half done, clear when it cannot get a package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import ROOT


def set_up(environment: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "scripts" / "setup.sh", "dev"],
        env=os.environ | {"ENVIRONMENT": str(environment)} | variables,
        capture_output=True,
        text=True,
    )


def test_finished_setup_is_skipped():
    stamp = Path(sys.prefix, ".solo_hcsc-setup-dev")
    if not stamp.exists() or stamp.read_text().splitlines()[-1] != str(ROOT):
        pytest.skip("this environment was not made by scripts/setup.sh of this checkout")
    log = Path(sys.prefix, "setup.log")
    before = log.stat().st_mtime_ns
    out = set_up(Path(sys.prefix), PIP_NO_INDEX="1")
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
    assert log.stat().st_mtime_ns == before, "pip was called"


def test_broken_environment_is_made_anew_and_a_missing_package_is_named(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("half an interpreter")
    (tmp_path / ".solo_hcsc-made").touch()
    out = set_up(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert out.returncode == 2
    assert "making a virtual environment" in out.stdout
    assert out.stderr.startswith("setup: could not get: setuptools")
    assert len(out.stderr.splitlines()) == 1
    assert not list(tmp_path.glob(".solo_hcsc-setup*")), "an unfinished set-up must not look finished"


def test_somebody_elses_environment_is_never_cleared(tmp_path):
    (tmp_path / "precious.txt").touch()
    out = set_up(tmp_path)
    assert out.returncode == 2
    assert "has no working pip" in out.stderr
    assert (tmp_path / "precious.txt").exists()


def test_too_old_a_python_is_refused(tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "cksum", "dirname", "command"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(folder, tool))
    out = set_up(tmp_path / "new", PATH=f"{tmp_path}:{tools}")
    assert out.returncode == 2
    assert "Python 3.10 or newer is needed" in out.stderr
