"""Files and folders come as a whole, also where processes are killed or write the same one."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from solo_hcsc.files import folder_written_whole, remove_abandoned, try_writing, write_whole, written_together

PAGE = """
import sys, time
from pathlib import Path
from solo_hcsc.files import folder_written_whole
with folder_written_whole(Path(sys.argv[1]), lambda folder: True) as part:
    (part / "index.html").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""
REPLACING = """
import sys, time
from pathlib import Path
from solo_hcsc.files import folder_written_whole
rename = Path.rename
def rename_only_the_earlier_one(path, to):
    if path.suffix == ".part":
        print("writing", flush=True)
        time.sleep(60)
    rename(path, to)
Path.rename = rename_only_the_earlier_one
with folder_written_whole(Path(sys.argv[1]), lambda folder: True):
    pass
"""
TOGETHER = """
import sys
from pathlib import Path
from solo_hcsc.files import written_together
with written_together(Path(sys.argv[1]), ["a", "b"]) as parts:
    for part in parts:
        part.write_text("theirs")
    print("writing", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def writing(script: str, target: Path) -> Iterator[subprocess.Popen]:
    """A process that has begun to write, and that is killed at the end."""
    command = [sys.executable, "-c", script, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def test_rerun_removes_what_a_killed_process_left_of_a_folder(tmp_path):
    page = tmp_path / "page"
    with writing(PAGE, page) as process:
        process.send_signal(signal.SIGKILL)
    assert [path.name.split("@")[0] for path in tmp_path.iterdir()] == [f".page.{process.pid}"]
    with folder_written_whole(page, lambda folder: True) as part:
        assert list(tmp_path.iterdir()) == [part]
        (part / "index.html").write_text("whole")
    assert list(tmp_path.rglob("*")) == [page, page / "index.html"]


def test_rerun_leaves_a_living_process_its_folder(tmp_path):
    with writing(PAGE, tmp_path / "page"):
        (theirs,) = tmp_path.iterdir()
        with folder_written_whole(tmp_path / "page", lambda folder: True) as ours:
            assert {*tmp_path.iterdir()} == {theirs, ours}
        assert (theirs / "index.html").read_text() == "half"


def test_page_comes_back_whose_replacement_was_killed_between_its_two_renames(tmp_path):
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("earlier")
    with writing(REPLACING, page):
        assert not page.exists()
    remove_abandoned(tmp_path, "page")
    assert list(tmp_path.iterdir()) == [page]
    assert (page / "index.html").read_text() == "earlier"


def test_several_processes_write_the_same_files_and_the_last_one_stays(tmp_path):
    with writing(TOGETHER, tmp_path) as process:
        try_writing(tmp_path / "a", "")
        with written_together(tmp_path, ["a", "b"]) as parts:
            for part in parts:
                part.write_text("ours")
        assert [(tmp_path / name).read_text() for name in "ab"] == ["ours", "ours"]
        process.communicate("\n")
        assert process.returncode == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "theirs", "b": "theirs"}


def test_file_that_fails_leaves_the_earlier_one_and_nothing_else(tmp_path):
    def fail():
        with written_together(tmp_path, ["a", "b"]) as parts:
            parts[0].write_text("half")
            raise ZeroDivisionError

    write_whole(tmp_path / "a", "earlier")
    with pytest.raises(ZeroDivisionError):
        fail()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "earlier"}
