"""Of two processes one is killed: the run ends with one line that names the last checkpoint."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tiny import SMALL, make_images, where

HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_killed_process_ends_the_run_with_one_line(tmp_path):
    make_images(tmp_path / "train", classes=2, per_class=20)
    flags = [*where(tmp_path), *SMALL, *HCSC, "--devices", 2, "--max_epochs", 10**6]
    command = [*map(str, [sys.executable, "-m", "solo_hcsc", "pretrain", *flags])]
    main = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert main.stderr is not None
        lines = []
        while not any(line.startswith("epoch 2/") for line in lines):  # a checkpoint of epoch 1 is there
            lines.append(main.stderr.readline())
            assert lines[-1], "".join(lines)
        workers = [pid for pid in children_of(main.pid) if b"solo_hcsc" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(workers[0], signal.SIGKILL)
        said = main.stderr.read().splitlines()
        errors = [line for line in said if line and not line.startswith(("epoch ", "note: epoch "))]
        assert main.wait() == 2
    finally:
        main.kill()
    assert len(errors) == 1, errors
    assert errors[0].startswith("error: one of the processes was killed; last good checkpoint: ")
