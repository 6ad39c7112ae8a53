"""One process works on a run, and a second one is told which."""

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny import SMALL, make_images, run_here, where

from solo_hcsc.errors import UserError
from solo_hcsc.training.locking import hold, holder, let_go

MOCO = ["--method", "mocov2plus", "--queue_size", "16"]
HOLD = """
import os, sys, time
from pathlib import Path
from solo_hcsc.training.locking import hold
hold(Path(sys.argv[1]))
if os.fork() == 0:  # as a loader forks its workers, which outlive a killed process by seconds
    print(os.getpid(), flush=True)
    sys.stdout.close()
    os.close(1)
    time.sleep(3)
    os._exit(0)
time.sleep(60)
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen]:
    """A process that holds a folder, and has forked another one."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()


def test_second_process_is_told_which_one_has_the_run_until_that_is_killed(tmp_path):
    with held(tmp_path) as process:
        owner = f"process {process.pid} on {platform.node()}"
        assert holder(tmp_path) == owner
        with pytest.raises(UserError, match=f"{tmp_path}: {owner} is training this run; wait until it ends"):
            hold(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert holder(tmp_path) is None
        hold(tmp_path)
        let_go()
    assert not tmp_path.exists(), "nothing else was in it"


def test_own_lock_survives_looking_at_it(tmp_path):
    """POSIX drops a process's lock as soon as it closes any handle of the file."""
    try:
        hold(tmp_path)
        assert holder(tmp_path) is None
        hold(tmp_path)
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        refused = subprocess.run(command, capture_output=True, text=True)
        assert "is training this run" in refused.stderr.splitlines()[-1]
    finally:
        let_go()


def test_auto_resume_beside_a_living_run_says_which_process_has_it(tmp_path, capsys):
    make_images(tmp_path / "train", classes=2, per_class=8)
    flags = [*where(tmp_path), *SMALL, *MOCO, "--max_epochs", 10**6, "--auto_resume"]
    command = [*map(str, [sys.executable, "-m", "solo_hcsc", "pretrain", *flags])]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as living:
        assert living.stderr is not None
        while not living.stderr.readline().startswith("epoch 2/"):
            assert living.poll() is None
        (folder,) = (tmp_path / "runs" / "mocov2plus").iterdir()
        with pytest.raises(SystemExit) as stopped:
            run_here("pretrain", *flags)
        living.kill()
    assert stopped.value.code == 2
    owner = f"process {living.pid} on {platform.node()}"
    assert capsys.readouterr().err.splitlines() == [
        f"error: {folder}: {owner} is training this run; wait until it ends, or end it first"
    ]
    assert list(folder.parent.iterdir()) == [folder]
    run_here("pretrain", *flags, "--max_time", "00:00:00:00")
    assert "resuming from" in capsys.readouterr().out
    assert not list(tmp_path.rglob(".lock")), "a run that ends leaves none, neither its own nor that of its source"
