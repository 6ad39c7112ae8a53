import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STAND_IN = HERE / "stand_in"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout that SOLO_LEARN names, which runs may write into."""
    source = os.environ.get("SOLO_LEARN")
    if not source:
        pytest.skip("SOLO_LEARN does not name a checkout of solo-learn 1.0.6")
    copy = tmp_path_factory.mktemp("solo-learn") / "checkout"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "lightning_logs", "trained_models"))
    return copy


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in a folder that has a `solo`, as a person does who stands there."""

    def call(folder: Path, *words: Any, expect: int = 0, text: str = "") -> subprocess.CompletedProcess[str]:
        places = [str(folder), str(HERE.parent.parent)]
        result = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "HOME": str(tmp_path), "PYTHONWARNINGS": "ignore"},
            input=text,
            capture_output=True,
            text=True,
        )
        assert result.returncode == expect, result.stdout[-3000:] + result.stderr[-6000:]
        return result

    return call
