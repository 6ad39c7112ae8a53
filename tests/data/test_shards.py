"""Shards: packed from folders, written by others, broken, read by any number, and trained on."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from tiny import SMALL, make_images, only, run_here
from torch.utils.data import DataLoader
from torchvision import transforms

import solo_hcsc
from benchmarks.kills import differences
from solo_hcsc.data.fast_views import FastViews
from solo_hcsc.data.folders import LabelledImages, fingerprint
from solo_hcsc.data.images import OrSkipped, Skipped, UnreadableImage, read_image
from solo_hcsc.data.loaders import seed_host
from solo_hcsc.data.shard_index import ROW, ShardedImages, read_index, write_index
from solo_hcsc.data.shards import MANIFEST, expanded, find_shards
from solo_hcsc.data.source import DEFAULTS, ImageSource
from solo_hcsc.data.stored import StoredImages
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.settings import Settings


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


@pytest.fixture(scope="module")
def packed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of `images`' train and val, ten images in each."""
    out = tmp_path_factory.mktemp("packed")
    for part in ("train", "val"):
        solo_hcsc.pack(images / part, out / part, images_per_shard=10, num_workers=0)
    return out


@pytest.fixture
def copied(packed: Path, tmp_path: Path) -> Path:
    """The shards of train, to break."""
    return shutil.copytree(packed / "train", tmp_path / "copied")


def opened(folder: Path, transform=pixels) -> StoredImages:
    return StoredImages(ShardedImages.found(folder), transform, labelled=True)


# ---- packing ----


def test_fast_views_of_shards_are_those_of_the_folder(images, packed):
    crop = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
    views, index = FastViews([crop]), 20
    seed_host(0)
    (ours,), _ = opened(packed / "train", views)[index]
    seed_host(0)
    (theirs,), _ = LabelledImages(images / "train", views)[index]
    assert torch.equal(ours, theirs)


def test_shards_are_the_folder_image_by_image(images, packed):
    folder, shards = LabelledImages(images / "train", pixels), opened(packed / "train")
    assert len(shards) == len(folder) == 36
    assert list(shards.classes) == folder.classes
    assert shards.targets.tolist() == folder.targets
    assert shards.names() == [os.path.relpath(path, images / "train") for path, _ in folder.samples]
    for index in np.random.default_rng(0).permutation(36).tolist():
        (ours, label), (theirs, known) = shards[index], folder[index]
        np.testing.assert_array_equal(ours, theirs)
        assert label == known


def test_webdataset_reads_what_we_packed(images, packed):
    tars = sorted(map(str, (packed / "train").glob("*.tar")))
    theirs = list(webdataset.WebDataset(tars, shardshuffle=False).decode("rgb8").to_tuple("png", "cls"))
    ours = opened(packed / "train")
    assert len(theirs) == 36
    for (image, label), (mine, known) in zip(theirs, ours, strict=False):
        np.testing.assert_array_equal(image, mine)
        assert label == known


def test_larger_images_become_smaller_and_others_stay_as_they_are(tmp_path):
    folder = make_images(tmp_path / "photos", classes=1, per_class=2)
    big = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 200, 3), dtype=np.uint8))
    exif = big.getexif()
    exif[0x0112] = 6  # stands upright as 200 x 300
    big.save(folder / "class 0" / "big.one.jpg", exif=exif)
    done = solo_hcsc.pack(folder, tmp_path / "out", shorter_side=50, num_workers=0)
    store = ShardedImages.found(tmp_path / "out")
    sizes = {name: read_image(store.image(number)).size for number, name in enumerate(store.names())}
    assert sizes == {"class 0/0.png": (36, 40), "class 0/1.png": (36, 40), "class 0/big_one.jpg": (75, 50)}
    assert (done.images, done.resized) == (3, 1)
    assert store.image(0).content == (folder / "class 0" / "0.png").read_bytes()


def test_images_whose_keys_would_be_equal_have_different_ones(tmp_path):
    picture = Image.new("RGB", (4, 4))
    for name in ("a.jpg", "a.png", "a_2.png", "b.c.png", "b_c.png"):
        picture.save(tmp_path / name)
    solo_hcsc.pack(tmp_path, tmp_path.parent / f"{tmp_path.name}-out", num_workers=0)
    names = ShardedImages.found(tmp_path.parent / f"{tmp_path.name}-out").names()
    assert len({Path(name).stem for name in names}) == 5


def test_packing_in_processes_writes_the_same_bytes(images, packed, tmp_path):
    solo_hcsc.pack(images / "train", tmp_path / "again", images_per_shard=10, num_workers=2)
    for file in (packed / "train").iterdir():
        ours, theirs = ((folder / file.name).read_bytes() for folder in (packed / "train", tmp_path / "again"))
        assert ours == theirs or file.name == MANIFEST


def alive(group: int) -> bool:
    """Whether a process group has any process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_killed_packing_goes_on_and_ends_as_if_it_had_not_been_killed(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(60):
        noise = rng.integers(0, 255, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "photos" / f"{number:02d}.jpg")
    flags = ["--images_per_shard", "5", "--shorter_side", "250", "--num_workers", "1", "--no_labels"]
    command = [sys.executable, "-m", "solo_hcsc", "pack", tmp_path / "photos", *flags, "--out"]
    killed = subprocess.Popen([*command, tmp_path / "killed"], stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "killed").glob("*.npy")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with pytest.raises(UserError, match="packing has not been finished there; give the same command `pack` again"):
        find_shards(tmp_path / "killed")
    while alive(killed.pid) and time.monotonic() < deadline:  # until the worker notices that its parent is gone
        time.sleep(0.05)
    finished = len(list((tmp_path / "killed").glob("*.npy")))
    assert 0 < finished < 12
    asked = {"images_per_shard": 5, "shorter_side": 250, "num_workers": 0, "no_labels": True}
    done = solo_hcsc.pack(tmp_path / "photos", tmp_path / "killed", **asked)
    assert (done.images, done.shards, done.kept) == (60, 12, finished)
    solo_hcsc.pack(tmp_path / "photos", tmp_path / "whole", **asked)
    whole = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "killed").iterdir()} == whole


def test_packing_again_does_nothing_and_other_images_are_refused(images, copied, tmp_path):
    again = solo_hcsc.pack(images / "train", copied, images_per_shard=10, num_workers=0)
    assert again.kept == again.shards == 4
    with pytest.raises(UserError, match="has shards of other images, or made otherwise"):
        solo_hcsc.pack(images / "train", copied, images_per_shard=12, num_workers=0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(UserError, match="has other files in it"):
        solo_hcsc.pack(images / "train", tmp_path / "mine", num_workers=0)
    with pytest.raises(ArgumentError, match="is among the images"):
        solo_hcsc.pack(images / "train", images / "train" / "out", num_workers=0)


def test_unreadable_image_ends_packing_or_is_left_out_and_named(tmp_path):
    folder = make_images(tmp_path / "photos", classes=2, per_class=3)
    (folder / "class 1" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(UnreadableImage, match=r"broken\.jpg: cannot be read as an image"):
        solo_hcsc.pack(folder, tmp_path / "out", shorter_side=20, num_workers=1)
    done = solo_hcsc.pack(folder, tmp_path / "left", shorter_side=20, num_workers=0, skip_unreadable=True)
    assert (done.images, [Path(one).name for one in done.unreadable]) == (6, ["broken.jpg"])
    assert [Path(one).name for one in json.loads((tmp_path / "left" / MANIFEST).read_text())["unreadable"]] == [
        "broken.jpg"
    ]


# ---- shards of others ----


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.full((8, 9, 3), number, np.uint8))


def test_shards_of_webdataset_itself_are_indexed_with_their_numbers(tmp_path):
    with webdataset.ShardWriter(f"{tmp_path}/part-%03d.tar", maxcount=4, verbose=0) as writer:
        for number in range(10):
            writer.write({"__key__": f"{number:06d}", "png": picture(number), "cls": number % 3, "txt": "caption"})
    done = solo_hcsc.index_shards(tmp_path, num_workers=2)
    shards = opened(tmp_path)
    assert (done.images, done.shards, done.classes, done.kept) == (10, 3, 3, 0)
    assert [int(shards[index][0][0, 0, 0]) for index in range(10)] == list(range(10))
    assert shards.targets.tolist() == [number % 3 for number in range(10)]
    assert shards.names()[5] == "000005.png"
    assert solo_hcsc.index_shards(tmp_path, num_workers=0).kept == 3


def test_labels_of_json_may_be_names(tmp_path):
    for number, kind in enumerate(("dog", "cat", "dog", "ant")):
        with webdataset.TarWriter(f"{tmp_path}/{number}.tar") as tar:
            tar.write({"__key__": "one", "png": picture(number), "json": {"kind": kind, "label": None}})
    solo_hcsc.index_shards(tmp_path, num_workers=0)
    values = DEFAULTS | {"dataset": "shards", "data_dir": tmp_path}
    with pytest.raises(UserError, match="its images have no labels; add `no_labels`"):
        ImageSource.of_flags(Settings(**values)).located(needs_val=False).labelled()
    solo_hcsc.index_shards(tmp_path, label_key="kind", num_workers=0)
    shards = opened(tmp_path)
    assert list(shards.classes) == ["ant", "cat", "dog"]
    assert shards.targets.tolist() == [2, 1, 2, 0]
    assert shards[3][1] == 0
    assert shards.names() == ["0/one.png", "1/one.png", "2/one.png", "3/one.png"]  # keys alone are not unique


def test_members_in_any_order_and_long_names_are_found(tmp_path):
    long = "folder/" + "n" * 300
    members = {
        f"{long}.cls": b"1",
        "b.png": None,
        f"{long}.png": None,
        "b.mask.png": None,
        "b.cls": b"0",
        "x.bin": b"?",
    }
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, (name, content) in enumerate(members.items()):
            out = io.BytesIO()
            picture(number).save(out, "PNG")
            content = out.getvalue() if content is None else content
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    done = solo_hcsc.index_shards(tmp_path, num_workers=0)
    shards = opened(tmp_path)
    assert shards.names() == ["b.png", f"{long}.png"]
    assert [int(shards[index][0][0, 0, 0]) for index in range(2)] == [1, 2]
    assert shards.targets.tolist() == [0, 1]
    assert done.others == 2


# ---- broken ones: a line each ----


def cut(file: Path, size: int) -> None:
    os.truncate(file, size)


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])


TARS = [f"shard-00000{number}.tar" for number in range(4)]
BROKEN = {
    "cut": (lambda f: cut(f / TARS[1], 20000), r"shard-000001\.tar: has 20000 bytes instead of \d+, so it was cut off"),
    "missing": (lambda f: (f / TARS[2]).unlink(), r"shard-000002\.tar: a shard that cannot be read"),
    "another": (
        lambda f: shutil.copy(f / TARS[0], f / "x.tar"),
        r"x\.tar is not in shards\.json; remove what is a copy",
    ),
    "exchanged": (lambda f: swap(f / TARS[0], f / TARS[1]), r"shard-000000\.tar: is not the shard that was indexed"),
    "no index": (
        lambda f: (f / "shard-000000.index.npy").unlink(),
        r"shard-000000\.index\.npy: an index that is missing",
    ),
    "cut index": (
        lambda f: cut(f / "shard-000000.index.npy", 300),
        r"shard-000000\.index\.npy: an index that cannot be read",
    ),
    "other index": (
        lambda f: swap(f / "shard-000000.index.npy", f / "shard-000001.index.npy"),
        r"shard-000000\.index\.npy: is the index of another shard",
    ),
    "no list": (lambda f: (f / MANIFEST).unlink(), "its shards have no index; make it with: solo-hcsc index"),
    "no shards": (lambda f: [file.unlink() for file in f.iterdir()], r"no shards there \(no \.tar files in it\)"),
    "broken list": (lambda f: (f / MANIFEST).write_text("{}"), r"shards\.json: no list of shards"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_shards_are_one_line(how, copied):
    damage, told = BROKEN[how]
    damage(copied)
    with pytest.raises(UserError, match=told) as stopped:
        ShardedImages.found(copied)
    assert "\n" not in str(stopped.value)


def test_command_refuses_a_cut_shard_in_one_line(copied, refused):
    cut(copied / TARS[3], 512)
    assert "so it was cut off; restore it" in refused("pretrain", "--data_dir", copied, *SMALL)


def test_index_refuses_cut_repeated_and_compressed_shards(copied):
    (copied / MANIFEST).unlink()
    shutil.copy(copied / TARS[0], copied / "x.tar")
    with pytest.raises(UserError, match=r"x\.tar: has the same content as shard-000000\.tar; remove one of them"):
        solo_hcsc.index_shards(copied, num_workers=0)
    (copied / "x.tar").unlink()
    last = read_index(copied / "shard-000001.index.npy").rows[-1]
    end = int(last["offset"]) + -(-int(last["length"]) // 512) * 512 + 1024  # of the last image and its label
    for left, told in ((end, r"was cut off \(it has no end\)"), (end - 5000, r"cannot be read as a \.tar")):
        cut(copied / TARS[1], left)
        with pytest.raises(UserError, match=rf"shard-000001\.tar: {told}"):
            solo_hcsc.index_shards(copied, num_workers=0)
    for file in copied.iterdir():
        file.unlink()
    (copied / "a.tar.gz").touch()
    with pytest.raises(UserError, match=r"a\.tar\.gz is compressed, unpack it to a \.tar"):
        solo_hcsc.index_shards(copied, num_workers=0)


def test_index_takes_in_new_shards_and_leaves_out_lost_ones(copied, packed):
    (copied / TARS[0]).unlink()
    for ending in (".tar", ".index.npy"):
        shutil.copy(packed / "val" / f"shard-000000{ending}", copied / f"new{ending}")
    done = solo_hcsc.index_shards(copied, num_workers=0)
    assert (done.images, done.shards, done.kept) == (26 + 9, 4, 4)
    assert opened(copied).targets[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(set(opened(copied).names())) == 35  # keys that two shards have are told apart
    for lost in ("new.index.npy", MANIFEST):  # which had the names of the classes
        (copied / lost).unlink()
    with pytest.raises(UserError, match=r"new\.tar: its labels are numbers, and those of shard-000001\.tar are names"):
        solo_hcsc.index_shards(copied, num_workers=0)


def test_lost_indexes_of_packed_shards_are_made_anew_with_their_classes(copied, packed):
    for number in (0, 2):
        (copied / f"shard-00000{number}.index.npy").unlink()
    assert solo_hcsc.index_shards(copied, num_workers=0).kept == 2
    made, before = opened(copied), opened(packed / "train")
    assert (made.targets.tolist(), list(made.classes)) == (before.targets.tolist(), list(before.classes))
    assert [np.array_equal(made[index][0], before[index][0]) for index in range(36)] == [True] * 36


def test_changed_bytes_are_found_by_a_check_and_when_they_are_read(copied):
    assert solo_hcsc.index_shards(copied, check=True, num_workers=0).images == 36
    row = read_index(copied / "shard-000001.index.npy").rows[3]
    with (copied / TARS[1]).open("r+b") as file:
        file.seek(int(row["offset"]) + 50)
        file.write(b"\0\0\0\0")
    with pytest.raises(UserError, match=r"shard-000001\.tar has another content than when it was indexed"):
        solo_hcsc.index_shards(copied, check=True, num_workers=0)
    shards = opened(copied)
    with pytest.raises(UnreadableImage, match=r"shard-000001\.tar: class 1/1\.png: is not what was indexed"):
        shards[13]
    assert [isinstance(item, Skipped) for item in map(OrSkipped(shards).__getitem__, range(12, 15))] == [
        False,
        True,
        False,
    ]


# ---- patterns, numbers, memory ----


def test_pattern_names_some_of_the_shards_in_their_order(packed):
    train = packed / "train"
    assert len(find_shards(train / "shard-{000001..000003}.tar")) == 26
    assert len(find_shards(train / "shard-*[02].tar")) == 20
    assert len(find_shards(train / TARS[3])) == 6
    assert len(find_shards(packed / "{train,val}/shard-000000.tar")) == 19
    with pytest.raises(UserError, match=r"there is no shard .*shard-000004\.tar"):
        find_shards(train / "shard-{000003..000004}.tar")
    with pytest.raises(UserError, match="is an address; shards are read in any order, so copy them to a disk first"):
        find_shards(Path("https://there/a.tar"))
    assert list(expanded("{a,b}-{9..10}")) == ["a-9", "a-10", "b-9", "b-10"]


def test_order_and_content_have_a_fingerprint(packed, copied, images):
    same = fingerprint(opened(copied), copied)
    assert same == fingerprint(opened(packed / "train"), packed)
    manifest = json.loads((copied / MANIFEST).read_text())
    manifest["shards"].reverse()
    (copied / MANIFEST).write_text(json.dumps(manifest))
    assert fingerprint(opened(copied), copied) != same


def test_workers_read_the_same_images(packed):
    loader = DataLoader(opened(packed / "train"), batch_size=9, num_workers=2, shuffle=False)
    read = np.concatenate([images.numpy() for images, _ in loader])
    np.testing.assert_array_equal(read, np.stack([image for image, _ in opened(packed / "train")]))


def many(folder: Path, images: int, shards: int) -> None:
    """Indexes of many images that are all the same bytes of a small tar file."""
    solo_hcsc.pack(make_images(folder / "photos", 1, 1), folder / "one", num_workers=0)
    index, tar = read_index(folder / "one" / "shard-000000.index.npy"), folder / "one" / "shard-000000.tar"
    each = images // shards
    entries = []
    (folder / "many").mkdir()
    for shard in range(shards):
        name = folder / "many" / f"{shard:03d}.tar"
        name.hardlink_to(tar)
        rows = np.repeat(index.rows, each)
        facts = index.facts | {"sha256": str(shard), "classes": None}
        write_index(name.with_name(f"{shard:03d}.index.npy"), rows, [(b"key of some length", b"png")] * each, facts)
        entries.append({"file": name.name, "images": each, "bytes": index.facts["bytes"], "sha256": str(shard)})
    facts = {"classes": ["x"], "numeric": True, "unique": False, "unlabelled": 0, "shards": entries}
    (folder / "many" / MANIFEST).write_text(json.dumps(facts))


MEMORY = """
import sys, numpy as np
from pathlib import Path
from solo_hcsc.data.loaders import EpochSampler
from solo_hcsc.data.shard_index import ShardedImages
def own():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
def look(folder, numbers):
    images = ShardedImages.found(folder)
    for number in numbers:
        images.label(number)
    images.image(len(images) - 1)
    return images
def ordered(images):
    order = iter(EpochSampler(images, 0, shards=False))
    next(order)
    return order
few = ordered(look(Path(sys.argv[1], "one"), [0]))
numbers = np.random.default_rng(0).permutation(400_000)[:100_000].tolist()
before = own()
images = look(Path(sys.argv[1], "many"), numbers)
looked_at = own()
order = ordered(images)
print((looked_at - before) / len(images), (own() - looked_at) / len(images))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by /proc")
def test_an_image_takes_less_than_forty_bytes_of_a_process(tmp_path):
    many(tmp_path, images=400_000, shards=40)
    out = subprocess.run([sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True)
    index, order = map(float, out.stdout.split())
    assert 15 < index < 40, out.stdout  # of less, not all rows would have been looked at
    assert order < 20, out.stdout
    assert ROW.itemsize == 20


# ---- training and evaluation ----

HCSC = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 16 --proto_warmup_epochs 1 --max_epochs 2"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(only(folder, "*-ep=1.ckpt"), weights_only=True)["state_dict"]


def test_run_on_shards_is_the_run_on_the_folder_and_resumes_exactly(custom, packed, tmp_path):
    flags = [*SMALL, *HCSC.split(), "--limit_val_batches", 1]
    run_here("pretrain", *flags, *custom, "--checkpoint_dir", tmp_path / "folder")
    flags += ["--data_dir", packed]
    run_here("pretrain", *flags, "--max_steps", 3, "--checkpoint_dir", tmp_path / "stopped")
    stopped = only(tmp_path / "stopped", "*.ckpt")
    assert stopped.name.endswith("-ep=0-step=3.ckpt")
    more = ["--max_steps", 100, "--resume_from_checkpoint", stopped]
    run_here("pretrain", *flags, *more, "--checkpoint_dir", tmp_path / "shards")
    assert differences(weights(tmp_path / "folder"), weights(tmp_path / "shards")) == []
    recorded = json.loads(only(tmp_path / "shards", "args.json").read_text())
    assert (recorded["dataset"], recorded["train_dir"], recorded["num_classes"]) == ("shards", "train", 3)


def test_embeddings_of_shards_are_those_of_the_folder(images, packed, hcsc_run):
    run = solo_hcsc.open_run(hcsc_run)
    folder, shards = run.embed(images / "val"), run.embed(packed / "val")
    np.testing.assert_array_equal(folder.vectors, shards.vectors)
    assert (folder.paths, folder.labels.tolist(), folder.classes) == (
        shards.paths,
        shards.labels.tolist(),
        shards.classes,
    )


def test_evaluations_take_shards_as_they_take_folders(images, packed, hcsc_run, tmp_path, capsys):
    from_folder = solo_hcsc.linear_on_images(
        hcsc_run, images / "train", images / "val", max_epochs=1, checkpoint_dir=tmp_path, num_workers=0, lr=0.1
    )
    from_shards = solo_hcsc.linear_on_images(
        hcsc_run, packed / "train", packed / "val", max_epochs=1, checkpoint_dir=tmp_path, num_workers=0, lr=0.1
    )
    assert from_shards.metrics == from_folder.metrics
    flags = ["--dataset", "shards", "--data_dir", packed, "--num_workers", 0, "--accelerator", "cpu"]
    run = shutil.copytree(hcsc_run, tmp_path / "run")
    run_here("knn", "--pretrained_feature_extractor", run, *flags, "--k", 3)
    assert json.loads(only(run, "knn-shards-*.json").read_text())["data"]["classes"] == 3
    run_here("explore", run, "--data_dir", packed, "--split", "val", "--num_workers", 0, "--out", tmp_path / "page")
    assert (tmp_path / "page" / "index.html").is_file()
    with pytest.raises(SystemExit):
        run_here("knn", "--pretrained_feature_extractor", run, *flags[:4], "--class_level", 2)
    assert "--class_level: --dataset shards is not in folders" in capsys.readouterr().err


def test_unlabelled_shards_train_without_being_told(images, tmp_path, capsys):
    solo_hcsc.pack(images / "flat", tmp_path / "out", no_labels=True, num_workers=0)
    flags = [*SMALL, "--method", "simclr", "--max_epochs", 1, "--limit_train_batches", 1]
    run_here("pretrain", *flags, "--data_dir", tmp_path / "out", "--checkpoint_dir", tmp_path / "runs")
    assert f"without labels: {tmp_path / 'out'} has none" in capsys.readouterr().out
