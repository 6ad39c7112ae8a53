"""The Grocery Store data set as folders: from a clone, an archive or the network, its lists believed and counted."""

import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from PIL import Image
from tiny import ROOT

from solo_hcsc.data.label_hierarchy import levels, read
from solo_hcsc.errors import UserError
from solo_hcsc.files import unpack

SCRIPT = ROOT / "scripts" / "data" / "grocery.py"
SPEC = spec_from_file_location("grocery", SCRIPT)
grocery = module_from_spec(SPEC)
SPEC.loader.exec_module(grocery)

CLASSES = """Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),Iconic Image Path (str)
Gala,0,Apple,0,/a.jpg
Pink,1,Apple,0,/b.jpg
Mango,2,Mango,1,/c.jpg
Brown-Cap,3,Mushroom,2,/d.jpg
"""
# As in the original, a class may lie deeper in one split than in another, and be missing in val.
LISTS = {
    "train": {"Fruit/Apple/Gala": 0, "Fruit/Apple/Pink": 1, "Fruit/Mango": 2, "Vegetables/Brown-Cap": 3},
    "val": {"Fruit/Apple/Pink": 1, "Fruit/Mango": 2},
    "test": {"Fruit/Apple/Gala": 0, "Fruit/Mango": 2, "Vegetables/Mushroom/Brown-Cap": 3},
}


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository of the data set's layout: two photos of each class in each split, and one that no list names."""
    data = tmp_path / "clone" / "GroceryStoreDataset-master" / "dataset"
    random = np.random.default_rng(0)
    for split, folders in LISTS.items():
        lines = []
        for folder, number in folders.items():
            (data / split / folder).mkdir(parents=True)
            for name in ("1.jpg", "2.jpg", "unlisted.jpg"):
                pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(data / split / folder / name)
            lines += [f"{split}/{folder}/{name}, {number}, 9\n" for name in ("1.jpg", "2.jpg")]
        (data / f"{split}.txt").write_text("".join(lines))
    (data / "classes.csv").write_text(CLASSES)
    monkeypatch.setattr(grocery, "IMAGES", {split: 2 * len(folders) for split, folders in LISTS.items()})
    monkeypatch.chdir(tmp_path)
    return tmp_path / "clone"


def archived(clone, kind):
    return shutil.make_archive(str(clone.parent / "archive"), kind, clone)


def refusal(monkeypatch, capfd, *flags):
    """Calls the script, which must refuse and leave nothing; returns the line it printed."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    with pytest.raises(SystemExit) as stopped:
        grocery.main()
    assert stopped.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert not os.path.exists("datasets") or os.listdir("datasets") == []
    return line


@pytest.mark.parametrize("kind", ["folder", "tar", "gztar", "zip"])
def test_photos_lie_in_the_folders_of_their_fine_classes(kind, clone, tmp_path, capfd):
    source = clone if kind == "folder" else archived(clone, kind)
    grocery.run([str(source)])
    made = tmp_path / "datasets" / "grocery"
    found = {str(file.relative_to(made)) for file in made.rglob("*.jpg")}
    names = {0: "Gala", 1: "Pink", 2: "Mango", 3: "Brown-Cap"}
    assert found == {
        f"{split}/{names[number]}/{name}.jpg" for split in LISTS for number in LISTS[split].values() for name in "12"
    }
    original = clone / "GroceryStoreDataset-master" / "dataset" / "test/Vegetables/Mushroom/Brown-Cap/2.jpg"
    assert (made / "test" / "Brown-Cap" / "2.jpg").read_bytes() == original.read_bytes()
    assert "8 images in train, 4 images in val, 6 images in test" in capfd.readouterr().out
    assert os.listdir("datasets") == ["grocery"]


def test_archive_that_writes_elsewhere_is_refused(clone, tmp_path, monkeypatch, capfd):
    file = clone / "GroceryStoreDataset-master" / "dataset" / "classes.csv"
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.add(file, "../../classes.csv")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.write(file, "../../classes.csv")
    for bad in ("bad.tar", "bad.zip"):
        line = refusal(monkeypatch, capfd, tmp_path / bad)
        assert line == f"error: {tmp_path / bad}: '../../classes.csv' leads out of its folder; correct or remove it"


def test_archive_is_unpacked_whole_or_not_at_all(tmp_path):
    (tmp_path / "x").touch()
    for bad in ("../y", "/y", "a/../../y"):
        with tarfile.open(tmp_path / "bad.tar", "w") as tar:
            tar.add(tmp_path / "x", "good")
            tar.addfile(tarfile.TarInfo(bad))
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
            zipped.write(tmp_path / "x", "good")
            zipped.writestr(zipfile.ZipInfo(bad), "")
        for archive in ("bad.tar", "bad.zip"):
            with pytest.raises(UserError, match="leads out of its folder"):
                unpack(tmp_path / archive, tmp_path / "out" / "deep")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("classes.csv", "Gala", "../../../../X"),
        ("classes.csv", "Gala", "{outside}"),
        ("train.txt", "train/Fruit/Mango/2.jpg", "../../../secret.jpg"),
        ("val.txt", "val/Fruit/Mango/2.jpg", "{outside}/secret.jpg"),
    ],
)
def test_list_that_leads_elsewhere_is_refused_before_anything_is_written(
    file, old, new, clone, tmp_path, monkeypatch, capfd
):
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.jpg")
    lists = clone / "GroceryStoreDataset-master" / "dataset" / file
    new = new.format(outside=tmp_path)
    lists.write_text(lists.read_text().replace(old, new))
    before = sorted(tmp_path.rglob("*"))
    line = refusal(monkeypatch, capfd, clone)
    assert line == f"error: {file}: {new!r} leads out of its folder; correct or remove it"
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "datasets"] == before


def test_hierarchy_has_the_coarse_classes_and_the_tops(clone, tmp_path):
    grocery.run([str(clone), "--data_dir", "elsewhere"])
    made = tmp_path / "elsewhere" / "grocery"
    classes = sorted(folder.name for folder in (made / "train").iterdir())
    found = levels(read(made / grocery.HIERARCHY), classes)
    assert [[level.names[group] for group in level.groups] for level in found] == [
        ["Brown-Cap", "Gala", "Mango", "Pink"],
        ["Mushroom", "Apple", "Mango", "Apple"],
        ["Vegetables", "Fruit", "Fruit", "Fruit"],
    ]


def test_without_a_source_it_is_downloaded(clone, tmp_path, monkeypatch, capfd):
    archived(clone, "zip")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(grocery, "ADDRESS", f"{address}/nothing.zip")
        assert "nothing.zip: cannot be downloaded (HTTP Error 404" in refusal(monkeypatch, capfd)
        monkeypatch.setattr(grocery, "ADDRESS", f"{address}/archive.zip")
        grocery.run([])
        server.shutdown()
    assert os.listdir("datasets") == ["grocery"]
    grocery.run([])  # it is there: nothing is downloaded again, as nobody serves


def lose_photo(data):
    (data / "val/Fruit/Mango/2.jpg").unlink()


def shorten_list(data):
    (data / "val.txt").write_text("val/Fruit/Mango/2.jpg, 2, 1\n")


def spoil_list(data):
    (data / "test.txt").write_text("test/Fruit/Mango/2.jpg\n")


def lose_lists(data):
    (data / "classes.csv").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lose_photo, "error: val/Fruit/Mango/2.jpg: is missing in the data set; get it again"),
        (shorten_list, "has 8 images in train, 1 images in val, 6 images in test, not 8 images in train, 4 images"),
        (spoil_list, "lists cannot be read (ValueError("),
        (lose_lists, "clone: has no classes.csv; give a clone or an archive"),
    ],
)
def test_incomplete_copy_is_refused(spoil, said, clone, monkeypatch, capfd):
    spoil(clone / "GroceryStoreDataset-master" / "dataset")
    assert said in refusal(monkeypatch, capfd, clone)


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
def test_half_an_archive_is_refused(kind, clone, tmp_path, monkeypatch, capfd):
    file = archived(clone, kind)
    os.truncate(file, os.path.getsize(file) // 2)
    assert "archive" in refusal(monkeypatch, capfd, file)


def test_what_is_not_there_is_refused(clone, monkeypatch, capfd):
    assert "nowhere: does not exist; give a clone" in refusal(monkeypatch, capfd, "nowhere")
    assert not os.path.exists("datasets")


def test_folder_that_lost_images_is_named(clone, tmp_path, monkeypatch, capfd):
    grocery.run([str(clone)])
    (tmp_path / "datasets/grocery/val/Mango/1.jpg").unlink()
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit):
        grocery.main()
    assert "datasets/grocery: has 8 images in train, 3 images in val" in capfd.readouterr().err


def test_it_is_a_script_of_its_own():
    out = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert "usage: scripts/data/grocery.py " in out.stdout
