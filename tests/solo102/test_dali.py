"""DALI, for real on the CPU: the same images, numbers and labels as the default loader, in every pass."""

import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import SMALL, make_images, only, run_here
from torch.utils.data import Dataset
from torchvision.models import resnet18

import solo_hcsc.__main__
from solo_hcsc.data import sets
from solo_hcsc.data.folders import files_and_labels
from solo_hcsc.data.images import UnreadableImage
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.errors import UserError
from solo_hcsc.solo102.datasets import Augmentation, pretraining_set
from solo_hcsc.solo102.method import HCSC

pytest.importorskip("nvidia.dali")

from solo_hcsc.solo102 import dali

HCSC_FLAGS = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 0".split()
ON_CPU = ["--dali", "--dali_device", "cpu"]


PLAIN = dict.fromkeys(("brightness", "contrast", "saturation", "hue", "gaussian_prob", "gray_scale_prob"), 0.0)
AUGMENTATION = Augmentation("custom", (PLAIN | {"crop_size": 8},), (2,))
DECODING = dali.Decoding("cpu", batch_size=4, threads=1, seed=0)


def custom_source(folder: Path, **changes) -> ImageSource:
    colours = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    return replace(ImageSource("custom", folder, Path("train"), Path("val"), (32,), *colours), **changes)


def indexed(source: ImageSource, share: float = 1.0) -> Dataset:
    return pretraining_set(source, AUGMENTATION.transform(), share, seed=0)


def pretraining(train_set: Dataset, **changes) -> type:
    return dali.pretraining_class(object, train_set, AUGMENTATION, replace(DECODING, **changes))


def process(kind: type, rank: int = 0, processes: int = 1, epoch: int = 0):
    """A model of that class as it is in one of several processes."""
    model = kind()
    model.global_rank, model.current_epoch = rank, epoch
    model.trainer = SimpleNamespace(world_size=processes)
    return model


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    """19 pictures of one grey each, its value ten times the index, in nested folders and several formats."""
    root = tmp_path_factory.mktemp("colours")
    for index in range(19):
        folder = root / "train" / "abc"[index // 7] / ("deeper" if index % 7 > 3 else "") / "x y"
        folder.mkdir(parents=True, exist_ok=True)
        kind = ("png", "bmp", "PPM")[index % 3]
        Image.new("RGB", (20, 30), (index * 10,) * 3).save(folder / f"{index:02}.{kind}")
    return root


# ---- an epoch ----


@pytest.mark.parametrize(("processes", "batch"), [(1, 4), (1, 19), (2, 4), (3, 2), (2, 9)])
@pytest.mark.parametrize("labelled", [True, False])
def test_every_epoch_has_each_image_at_most_once_with_its_own_index_and_label(colours, processes, batch, labelled):
    train_set = indexed(custom_source(colours, no_labels=not labelled))
    files, labels = files_and_labels(train_set)
    kind = pretraining(train_set, batch_size=batch)
    orders = []
    for epoch in range(3):
        passes = [process(kind, rank, processes, epoch).train_dataloader() for rank in range(processes)]
        batches = [list(one) for one in passes]  # all are kept: DALI must not write into what it handed out
        assert {len(one) for one in batches} == {len(one) for one in passes} == {19 // processes // batch}
        flat = [batch for one in batches for batch in one]
        indexes = torch.cat([index for index, _, _ in flat]).tolist()
        assert len(set(indexes)) == len(indexes) == 19 // processes // batch * batch * processes
        assert torch.cat([label for *_, label in flat]).tolist() == [labels[i] for i in indexes]
        for view in (0, 1):
            grey = torch.cat([views[view] for _, views, _ in flat]).mean((2, 3))[:, 0] * 0.228 + 0.485
            read = (grey * 255).round().int().tolist()
            assert read == [int(Path(files[i]).stem) * 10 for i in indexes]
        orders.append(indexes)
    assert orders[0] != orders[1] != orders[2]


def test_order_and_crops_follow_seed_epoch_and_process_and_nothing_else(images):
    def first(seed: int = 0, epoch: int = 0, rank: int = 0) -> tuple[list[int], float]:
        kind = pretraining(indexed(custom_source(images)), seed=seed)
        index, (view, _), _ = next(iter(process(kind, rank, 2, epoch).train_dataloader()))
        return index.tolist(), view.sum().item()

    assert first() == first()
    others = [first(), first(seed=1), first(epoch=1), first(rank=1)]
    assert len({str(order) for order, _ in others}) == len({total for _, total in others}) == 4


def test_large_indexes_are_not_rounded(images):
    source = custom_source(images)
    files, _ = files_and_labels(indexed(source))
    numbers = [2**24 + 1, 2**31 - 1]
    (_, index), *_ = dali._batches(
        dali.CentreCrop(files[:2], numbers, evaluation_transforms(source)[1], DECODING), ["image", "index"]
    )
    assert (index.dtype, index.tolist()) == (torch.int64, numbers)


def test_labels_of_a_fraction_and_of_a_missing_validation_class_are_right(tmp_path):
    make_images(tmp_path / "train", classes=3, per_class=6)
    make_images(tmp_path / "val", classes=3, per_class=3)
    shutil.rmtree(tmp_path / "val" / "class 1")
    source = custom_source(tmp_path)
    kind = pretraining(indexed(source, share=0.5))
    for index, views, label in process(kind).train_dataloader():
        assert index.max() < 9
        assert torch.equal(views[0].mean((2, 3)).argmax(1), label)  # the colour that stands for the class

    train_set, val_set = evaluation_sets(source, *evaluation_transforms(source))
    kind = dali.linear_class(object, train_set, val_set, source, DECODING)
    for processes in (1, 4, 7):  # more processes than images for some
        loaders = [process(kind, rank, processes).val_dataloader() for rank in range(processes)]
        found = [list(loader) for loader in loaders]
        assert [len(one) for one in found] == [len(loader) for loader in loaders]
        flat = [batch for one in found for batch in one]
        labels = torch.cat([label for _, label in flat])
        assert sorted(labels.tolist()) == [0, 0, 0, 2, 2, 2]
        colour = torch.cat([(image * 0.25).mean((2, 3)).argmax(1) for image, _ in flat])
        assert torch.equal(colour, labels)
    pictures, labels = zip(*process(kind).train_dataloader(), strict=True)
    assert torch.cat(pictures).shape == (16, 3, 32, 32)
    assert torch.equal(torch.cat(pictures).mean((2, 3)).argmax(1), torch.cat(labels))


# ---- centre crops: clustering and validation ----


def test_clustering_has_the_images_asked_for_in_that_order_and_leaves_nothing_behind(colours, monkeypatch):
    pipelines = []
    read = dali.CentreCrop.read
    monkeypatch.setattr(dali.CentreCrop, "read", lambda self, *a: (pipelines.append(weakref.ref(self)), read(self, *a)))
    source = custom_source(colours, no_labels=True, mean=(0, 0, 0), std=(0.1, 0.1, 0.1))
    train_set = indexed(source)
    images = dali.centre_crops(train_set, source, DECODING)
    for indexes in (range(19), [7, 3, 18, 3, 0], [5], range(1, 19, 6), []):
        batches = list(images(indexes))
        assert [len(batch) for batch in batches] == [len(indexes[i : i + 4]) for i in range(0, len(indexes), 4)]
        greys = [round(float(image.mean() * 25.5)) for batch in batches for image in batch]
        assert greys == [10 * int(Path(train_set.images[i]).stem) for i in indexes]
    assert len(pipelines) == 4
    assert not any(pipeline() for pipeline in pipelines)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """36 pictures with detail at all scales, as photographs have, of many sizes, half of them JPEG."""
    root = tmp_path_factory.mktemp("photographs")
    folder = root / "train" / "one"
    random = np.random.default_rng(0)
    sizes = [(40, 36), (36, 41), (300, 200), (201, 300), (500, 375), (224, 224), (257, 300), (333, 800), (73, 97)]
    folder.mkdir(parents=True)
    for number in range(36):
        width, height = sizes[number % len(sizes)]
        pixels = np.zeros((height, width, 3))
        for scale in (2, 4, 8, 16, 32, 64):
            shape = [max(2, scale * side // max(width, height)) for side in (height, width)]
            noise = Image.fromarray(random.integers(0, 256, (*shape, 3), dtype="uint8"))
            pixels += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC)) / scale**0.7
        pixels = 255 * (pixels - pixels.min()) / (pixels.max() - pixels.min())
        Image.fromarray(pixels.astype("uint8")).save(folder / f"{number}.{('png', 'jpg')[number // 9 % 2]}")
    return root


def both_loaders(train_set: Dataset, source: ImageSource, indexes: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """Batches of centre crops, by the default loader and by DALI."""
    yield list(sets.centre_crops(train_set, source, Loading(batch_size=4, num_workers=0))(indexes))
    yield list(dali.centre_crops(train_set, source, DECODING)(indexes))


@pytest.mark.parametrize(("dataset", "size"), [("custom", 32), ("custom", 97), ("imagenet", 224), ("imagenet100", 64)])
def test_both_loaders_centre_crops_have_the_same_embeddings(dataset, size, photographs):
    source = custom_source(photographs, dataset=dataset, crop_size=(size,))  # ImageNet keeps its own colours
    train_set = indexed(source)
    default, ours = (torch.cat(batches) for batches in both_loaders(train_set, source, range(36)))
    assert ours.shape == default.shape == (36, 3, size, size)

    std = torch.tensor(source.std if dataset == "custom" else (0.228, 0.224, 0.225)).view(3, 1, 1)
    difference = ((ours - default) * std * 255).abs()
    torch.manual_seed(0)
    encoder = resnet18().eval()
    encoder.fc = torch.nn.Identity()
    with torch.no_grad():
        cosine = F.cosine_similarity(encoder(ours), encoder(default))
    print(f"{size} pixels: mean difference {difference.mean():.3f} of 255, largest {difference.max():.2f}; "
          f"1 - cosine: mean {1 - cosine.mean():.1e}, largest {1 - cosine.min():.1e}")  # fmt: skip
    assert difference.max() < 1.01
    assert difference.mean() < 0.2
    assert cosine.min() > 0.9999


def pictures() -> dict[str, tuple[Image.Image, dict]]:
    """File names, what is in them, and how it is saved."""
    y, x = np.mgrid[0:60, 0:90]
    colour = np.stack([127 + 100 * np.sin(x / 15 + y / 30), 127 + 100 * np.cos(y / 11), 2 * x], -1).astype("uint8")
    image = Image.fromarray(colour)
    turned = Image.Exif()
    turned[0x0112] = 6  # EXIF: shown turned by 90 degrees
    alpha = Image.fromarray(np.dstack([colour, (2 * x).astype("uint8")]))
    return {
        "grey.png": (image.convert("L"), {}),
        "grey.jpg": (image.convert("L"), {}),
        "one bit.png": (image.convert("1"), {}),
        "CMYK.JPG": (image.convert("CMYK"), {}),
        "palette.png": (image.convert("P"), {}),
        "transparent palette.png": (image.convert("P"), {"transparency": 3}),
        "alpha.png": (alpha, {}),
        "alpha.webp": (alpha, {}),
        "grey and alpha.png": (alpha.convert("LA"), {}),
        "halved colours.jpg": (image, {"subsampling": 2}),
        "progressive.jpg": (image, {"progressive": True}),
        "turned.jpg": (image, {"exif": turned}),
        "lossy.webp": (image, {}),
        "compressed.tif": (image, {"compression": "tiff_lzw"}),
        "animation.gif": (image, {"save_all": True, "append_images": [alpha.convert("RGB")]}),
        "transparent.gif": (alpha, {}),
        "transparent colour.png": (image, {"transparency": image.getpixel((0, 0))}),
        "bitmap.bmp": (image, {}),
        "portable.pgm": (image.convert("L"), {}),
        "a PNG.jpeg": (image, {"format": "PNG"}),
        "it's a \"name\", isn't it.png": (image, {}),
        "Straße 写真.png": (image, {}),
        "two\nlines.png": (image, {}),
    }


def test_odd_images_are_read_as_pillow_reads_them(tmp_path):
    odd = pictures()
    for name, (image, how) in odd.items():
        (tmp_path / "train" / "Ö 'x'").mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "train" / "Ö 'x'" / name, **how)
    source = custom_source(tmp_path, no_labels=True, mean=(0, 0, 0), std=(1, 1, 1))
    train_set = indexed(source)
    assert len(train_set) == len(odd)
    centre, read = (torch.cat(batches) for batches in both_loaders(train_set, source, range(len(odd))))
    for index, path in enumerate(train_set.images):
        assert (read[index] - centre[index]).abs().max() * 255 < 1.01, path


def test_sixteen_bit_grey_keeps_its_shades_in_both_loaders(tmp_path):
    shades = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype("uint16")
    (tmp_path / "train").mkdir()
    Image.fromarray(shades).save(tmp_path / "train" / "deep.png")
    source = custom_source(tmp_path, no_labels=True, mean=(0, 0, 0), std=(1, 1, 1))
    (default,), (ours,) = both_loaders(indexed(source), source, [0])
    assert ours.mean() == pytest.approx(0.5, abs=0.05)
    assert (ours - default).abs().max() * 255 < 2.01


# ---- broken files ----


@pytest.fixture(params=["cut.png", "cut.jpg", "text.jpg", "empty.png", "missing.bmp"])
def broken(request, tmp_path) -> Path:
    """A file that DALI cannot read, the tenth of 24."""
    make_images(tmp_path / "train", classes=2, per_class=12)
    make_images(tmp_path / "val", classes=2, per_class=4)
    path = tmp_path / "train" / "class 0" / f"7 {request.param}"
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype="uint8"))
    noise.save(path)
    if "cut" in path.stem:
        path.write_bytes(path.read_bytes()[:3000])
    if "text" in path.stem:
        path.write_text("not an image")
    if "empty" in path.stem:
        path.write_bytes(b"")
    return path


def test_file_that_cannot_be_read_is_named(broken):
    source = custom_source(broken.parents[2])
    train_set, _ = evaluation_sets(source, *evaluation_transforms(source))
    epoch = process(pretraining(train_set)).train_dataloader()
    linear = process(dali.linear_class(object, train_set, train_set, source, DECODING))
    clustering = dali.centre_crops(train_set, source, DECODING)(range(25))
    if "missing" in broken.name:
        broken.unlink()
    for loader in (epoch, linear.train_dataloader(), linear.val_dataloader(), clustering):
        with pytest.raises(UserError) as stopped:
            list(loader)
        assert str(stopped.value) == f"{broken}: DALI cannot read this image; remove or replace it"


def test_run_with_a_broken_file_ends_with_one_line(tmp_path, capsys):
    make_images(tmp_path / "train", classes=2, per_class=8)
    path = tmp_path / "train" / "class 1" / "3.png"
    path.write_bytes(path.read_bytes()[:200])
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train", "--checkpoint_dir", tmp_path / "r"]
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *where, *SMALL, *ON_CPU, "--method", "simclr", "--max_epochs", "1")
    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err.splitlines()[-1] == f"error: {path}: DALI cannot read this image; remove or replace it"
    )


@pytest.mark.parametrize(("error", "lines"), [(UnreadableImage, ["error: a.png: broken"]), (UserError, [])])
def test_second_process_prints_only_what_it_alone_has_found(error, lines, monkeypatch, capsys):
    def run(argv):
        raise error("a.png: broken")

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(solo_hcsc.__main__, "run", run)
    with pytest.raises(SystemExit):
        solo_hcsc.__main__.main()
    assert capsys.readouterr().err.splitlines() == lines


# ---- whole runs ----


@pytest.fixture
def seen(monkeypatch) -> list[tuple[int, list[int], list[int]]]:
    """Epoch, indexes and labels of the batches that a run trains with."""
    batches: list = []
    step = HCSC.training_step

    def spy(self, batch, number):
        index, views, labels = batch
        batches.append((self.current_epoch, index.tolist(), labels.tolist()))
        assert len(views) == self.num_crops
        return step(self, batch, number)

    monkeypatch.setattr(HCSC, "training_step", spy)
    return batches


def test_assigned_queries_train_and_a_resumed_run_goes_on_with_its_own_epoch(custom, tmp_path, seen):
    flags = [*custom, *SMALL, *ON_CPU, *HCSC_FLAGS, "--seed", "3"]
    run_here("pretrain", *flags, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "first")
    whole = list(seen)
    assert [epoch for epoch, *_ in whole] == [0] * 4 + [1] * 4
    for _, index, labels in whole:
        assert [i // 12 for i in index] == labels  # twelve images per class, in order
    assert whole[0][1] != whole[4][1]

    seen.clear()
    run_here("pretrain", *flags, "--max_epochs", "1", "--checkpoint_dir", tmp_path / "half")
    resume = ["--resume_from_checkpoint", only(tmp_path / "half", "*.ckpt")]
    run_here("pretrain", *flags, "--max_epochs", "2", "--checkpoint_dir", tmp_path / "rest", *resume)
    assert seen == whole

    linear = ["--pretrained_feature_extractor", tmp_path / "first", "--checkpoint_dir", tmp_path / "linear"]
    run_here("linear", *custom, *SMALL, *ON_CPU, "--max_epochs", "1", *linear)
    assert only(tmp_path / "linear", "linear.json")


def test_small_crops_train(custom, tmp_path, seen):
    crops = "--crop_size 32 16 --num_crops_per_aug 2 2 --encode_indexes_into_labels".split()
    run_here(
        "pretrain", *custom, *SMALL, *ON_CPU, *HCSC_FLAGS, *crops, "--max_epochs", "1", "--checkpoint_dir", tmp_path
    )
    assert len(seen) == 4


def test_a_vision_transformer_on_imagenet_is_validated_at_its_crop_size(custom, tmp_path):
    images = [*custom, "--dataset", "imagenet100"]
    small = [*SMALL, *ON_CPU, "--max_epochs", "1"]
    vit = "--method simclr --encoder vit_tiny --patch_size 8 --limit_train_batches 1 --proj_hidden_dim 8".split()
    run_here("pretrain", *images, *small, *vit, "--checkpoint_dir", tmp_path / "first")
    linear = ["--pretrained_feature_extractor", tmp_path / "first", "--checkpoint_dir", tmp_path / "linear"]
    run_here("linear", *images, *small, *linear)
    assert json.loads(only(tmp_path / "linear", "linear.json").read_text())["data"]["crop_size"] == 32


def test_unlabelled_images_of_nested_folders_train_with_their_indexes(colours, tmp_path, seen):
    where = ["--dataset", "custom", "--data_dir", colours, "--train_dir", "train", "--no_labels"]
    flags = [*where, *SMALL, *ON_CPU, *HCSC_FLAGS, "--num_prototypes", "3", "2"]
    run_here("pretrain", *flags, "--max_epochs", "1", "--checkpoint_dir", tmp_path)
    assert len({i for _, index, _ in seen for i in index}) == 16
    assert {label for *_, labels in seen for label in labels} == {-1}


def test_a_fraction_of_the_images_trains(custom, tmp_path, seen):
    flags = [*custom, *SMALL, *ON_CPU, *HCSC_FLAGS, "--preset", "official", "--data_fraction", "0.5"]
    run_here("pretrain", *flags, "--max_epochs", "1", "--checkpoint_dir", tmp_path)
    assert max(i for _, index, _ in seen for i in index) < 18
    for _, index, labels in seen:
        assert [i // 6 for i in index] == labels


# ---- other machines ----


@pytest.mark.parametrize("kind", ["Augmented", "RandomCrop", "CentreCrop"])
def test_pipelines_work_on_the_gpu_where_there_is_one(kind, images, monkeypatch):
    """Their operators and the GPU they ask for; nothing is run here."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    on_gpu = replace(DECODING, device="gpu")
    train, val = evaluation_transforms(custom_source(images))
    extra = {
        "Augmented": (AUGMENTATION, on_gpu, 1),
        "RandomCrop": (train, on_gpu, 1),
        "CentreCrop": (val, on_gpu),
    }[kind]
    pipeline = getattr(dali, kind)(["a.png"], [0], *extra)
    with pipeline:
        outputs = pipeline.define_graph()
    assert {output.device for output in outputs} == {"gpu"}
    assert pipeline.device_id == 3


def test_no_gpu_is_asked_for_where_dali_works_on_the_cpu(images, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("a GPU was asked for"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    source = custom_source(images)
    assert next(iter(dali.centre_crops(indexed(source), source, DECODING)([0, 1]))).device.type == "cpu"


def test_nothing_but_a_run_with_dali_needs_the_package():
    """In a process where importing it fails: everything is there, and `--dali` is refused with the command."""
    code = """
import sys
sys.modules["nvidia"] = sys.modules["nvidia.dali"] = None
import solo_hcsc.solo102
from argparse import Namespace
from solo_hcsc.errors import UserError
from solo_hcsc.solo102.settings import resolve_dali
try:
    resolve_dali(Namespace(dali=True, dali_device="gpu"), "custom", "cpu")
except UserError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert "run: pip install 'solo_hcsc[dali]'" in out.stdout
