"""The room in use, without any framework."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def test_plain_loop_is_short_and_ends_above_the_untrained_encoder(tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 60
    command = [sys.executable, str(EXAMPLE), "--seed", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = dict(line.split(": ") for line in done.stdout.splitlines())
    assert said.keys() == {"untrained", "trained"}
    untrained, trained = (float(said[name].rstrip("%")) for name in ("untrained", "trained"))
    assert trained > untrained + 2
