"""Of two processes one is killed: the run ends with one line that names the last checkpoint."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny import SMALL, make_images, where

HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


def started_by(pid: int) -> list[int]:
    """The processes of a run that its first one has started.

    Others, such as those that imports start, have the first one's command line for a moment: `-m solo_hcsc`, while
    Lightning starts `-m solo_hcsc.__main__`.
    """
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"solo_hcsc.__main__" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


@contextmanager
def two_processes(folder: Path) -> Iterator[subprocess.Popen]:
    """A run of two that would never end."""
    make_images(folder / "train", classes=2, per_class=20)
    flags = [*where(folder), *SMALL, *HCSC, "--devices", 2, "--max_epochs", 10**6]
    command = [*map(str, [sys.executable, "-m", "solo_hcsc", "pretrain", *flags])]
    main = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield main
    finally:
        main.kill()


def kill_other(main: subprocess.Popen) -> list[str]:
    """Kills the process that the main one has started, as soon as it is there; what the main one says of it."""
    workers: list[int] = []
    while not workers:
        assert main.poll() is None
        workers = started_by(main.pid)
    os.kill(workers[0], signal.SIGKILL)
    assert main.stderr is not None
    said = main.stderr.read().splitlines()
    assert main.wait() == 2, said
    return [line for line in said if line and not line.startswith(("epoch ", "note: epoch "))]


def test_killed_process_ends_the_run_with_one_line(tmp_path):
    with two_processes(tmp_path) as main:
        assert main.stderr is not None
        lines = []
        while not any(line.startswith("epoch 2/") for line in lines):  # a checkpoint of epoch 1 is there
            lines.append(main.stderr.readline())
            assert lines[-1], "".join(lines)
        (error,) = kill_other(main)
    assert error.startswith("error: one of the processes was killed; last good checkpoint: ")


def test_process_killed_before_the_training_ends_the_run_with_one_line_and_no_folder(tmp_path):
    """There Lightning's observer looked first, and killed the main process too."""
    with two_processes(tmp_path) as main:
        assert kill_other(main) == ["error: one of the processes was killed; no checkpoint was written yet"]
    assert not list((tmp_path / "runs").rglob("*.*"))
    assert list((tmp_path / "runs" / "hcsc").iterdir()) == []


@pytest.mark.parametrize("port", ["taken", "http", "70000"])
def test_port_that_cannot_be_had_is_found_before_anything_is_written(port, custom, tmp_path, monkeypatch, refused):
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]) if port == "taken" else port)
        flags = [*custom, *SMALL, *HCSC, "--devices", 2, "--checkpoint_dir", tmp_path / "runs"]
        assert refused("pretrain", *flags).startswith("error: MASTER_PORT")
