"""Images sorted into folders: names that are safe, no collisions, and nothing that is not its own replaced."""

import csv
import os
import shutil

import pytest

from solo_hcsc.cells import from_cell
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.trees.sorting import LIST, safe_name, sort_into


@pytest.fixture
def files(tmp_path):
    """Images of the same name in several folders, and one whose name is a formula."""
    names = ["a/1.jpg", "b/1.JPG", "c/1.jpg", "c/=2.jpg", "a/1 2.jpg"]
    for name in names:
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_text(name)
    return [tmp_path / "images" / name for name in names]


def content(folder):
    return {
        str(file.relative_to(folder)): file.read_text()
        for file in folder.rglob("*")
        if file.name != LIST and file.is_file()
    }


@pytest.mark.parametrize("by", ["link", "copy"])
def test_every_image_is_once_in_the_folder_of_its_cluster(files, tmp_path, by):
    out = sort_into(tmp_path / "out", files, [0, 0, 0, 1, 0], {0: "Cats", 1: "cats"}, by)
    assert content(out) == {
        "Cats/1.jpg": "a/1.jpg",
        "Cats/1 2.JPG": "b/1.JPG",
        "Cats/1 3.jpg": "c/1.jpg",
        "Cats/1 2 2.jpg": "a/1 2.jpg",
        "cats 2/=2.jpg": "c/=2.jpg",
    }
    assert all(file.is_symlink() == (by == "link") for file in out.rglob("*.jpg"))
    with (out / LIST).open(newline="") as text:
        rows = [[from_cell(cell) for cell in row] for row in csv.reader(text)][1:]
    assert [row[0] for row in rows] == list(map(str, files))
    assert {row[1]: (out / row[1]).read_text() for row in rows} == content(out)


def test_its_own_folder_is_replaced_and_others_are_refused(files, tmp_path):
    out = sort_into(tmp_path / "out", files, [0, 0, 1, 1, 1])
    sort_into(out, files[:2], [0, 7], {0: "new"})
    assert content(out) == {"new/1.jpg": "a/1.jpg", "cluster 7/1.JPG": "b/1.JPG"}
    (out / "new" / "mine.txt").write_text("kept")
    with pytest.raises(UserError, match=r"`folder` .*has other files in it"):
        sort_into(out, files, [0] * 5)
    assert (out / "new" / "mine.txt").read_text() == "kept"
    with pytest.raises(ArgumentError, match="is in it; give a folder without these images"):
        sort_into(tmp_path / "images", files, [0] * 5)
    with pytest.raises(ArgumentError, match="is a file; give a folder"):
        sort_into(files[0], files, [0] * 5)


def test_failure_leaves_what_was_there(files, tmp_path, monkeypatch):
    out = sort_into(tmp_path / "out", files, [0] * 5)
    before = content(out)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(UserError, match=r"`folder` .*cannot be written \(No space left"):
        sort_into(out, files, [1] * 5, by="copy")
    assert content(out) == before
    assert sorted(os.listdir(tmp_path)) == ["images", "out"]


@pytest.mark.parametrize(
    "name", ["../..", ".", "a/b", "con", "x" * 300, "漢" * 100, "\n", "nul.txt", " .hidden. ", LIST]
)
def test_names_of_folders_are_safe(name, files, tmp_path):
    out = sort_into(tmp_path / "out", files[:1], [0], {0: name})
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    assert folder.name == folder.name.strip(" .")
    assert len(os.fsencode(folder.name)) < 100
    assert not {"/", "\n"} & {*folder.name}
    assert folder.name.lower() not in ("con", "nul.txt", LIST)
    assert safe_name(folder.name) == folder.name or name == LIST
