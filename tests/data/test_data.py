import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from solo.utils import classification_dataloader
from tiny import SMALL, make_images, run_here

from solo_hcsc.cli.commands import knn, pretrain
from solo_hcsc.data.digits import lay_out_digits
from solo_hcsc.data.folders import ImagesWithoutLabels, fraction
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.solo102.datasets import Augmentation, pretraining_set


def custom_source(images: Path) -> ImageSource:
    return ImageSource("custom", images, Path("train"), Path("val"), (48,), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_digits_are_laid_out_once_and_completely(tmp_path):
    folder = lay_out_digits(tmp_path)
    train, val = (sorted((folder / split).rglob("*.png")) for split in ("train", "val"))
    assert (len(train), len(val)) == (1437, 360)
    assert not {file.name for file in train} & {file.name for file in val}
    assert Counter(file.parent.name for file in val).keys() == set("0123456789")
    assert Image.open(train[0]).size == (32, 32)
    stamp = train[0].stat().st_mtime_ns
    lay_out_digits(tmp_path)
    assert train[0].stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def photo(side: int) -> Image.Image:
    """A picture of random pixels, a little wider than high unless it is as small as CIFAR's."""
    shape = (side, side if side < 100 else side + 31, 3)
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, shape).astype("uint8"))


SIDES = {"cifar10": 32, "cifar100": 32, "stl10": 96, "imagenet": 300, "imagenet100": 300, "custom": 300, "digits": 32}


def test_custom_evaluation_follows_the_crop_size(images):
    source = custom_source(images)
    train, val = evaluation_sets(source, *evaluation_transforms(source))
    assert train[0][0].shape == val[0][0].shape == (3, 48, 48)
    assert val[0][0].min() >= -1


@pytest.mark.parametrize("size", [24, 32, 96, 224])
@pytest.mark.parametrize("dataset", SIDES)
def test_every_data_set_is_validated_at_the_crop_size(dataset, size):
    flags = knn.parse(["--dataset", dataset, "--crop_size", str(size), "--pretrained_feature_extractor", "x"])
    for transform in evaluation_transforms(ImageSource.of_flags(flags)):
        assert transform(photo(SIDES[dataset])).shape == (3, size, size)


@pytest.mark.parametrize("dataset", sorted(SIDES.keys() - {"digits"}))
def test_without_a_crop_size_images_are_seen_exactly_as_solo_learn_sees_them(dataset):
    flags = knn.parse(["--dataset", dataset, "--pretrained_feature_extractor", "x"])
    ours = evaluation_transforms(ImageSource.of_flags(flags))
    theirs = classification_dataloader.prepare_transforms(dataset)
    for mine, its in zip(ours, theirs, strict=True):
        seen = []
        for transform in (mine, its):
            torch.manual_seed(3)
            seen.append(transform(photo(SIDES[dataset])))
        assert torch.equal(*seen)


def test_pretraining_has_the_images_own_size_where_none_is_typed():
    def size(*flags: str) -> tuple[int, ...]:
        return ImageSource.of_flags(pretrain.parse(["--method", "simclr", *flags])).crop_size

    assert size("--dataset", "cifar100") == (32,)
    assert size("--dataset", "stl10") == (96,)
    assert size("--dataset", "imagenet100") == (224,)
    assert size("--dataset", "cifar10", "--crop_size", "224") == (224,)


def test_cifar10_as_torchvision_downloads_it_is_no_folder_of_pictures(tmp_path):
    pictures, download = tmp_path / "pictures", tmp_path / "download"
    make_images(pictures / "cifar10" / "train", classes=2, per_class=1)
    make_images(pictures / "cifar10" / "test", classes=2, per_class=1)
    (download / "cifar10" / "train" / "cifar-10-batches-py").mkdir(parents=True)

    def source(*flags: object) -> ImageSource:
        words = ["--dataset", "cifar10", "--pretrained_feature_extractor", "x", *map(str, flags)]
        return ImageSource.of_flags(knn.parse(words)).located(needs_val=True)

    assert source("--data_dir", pictures).in_folders
    assert not source("--data_dir", download).in_folders
    elsewhere = source("--data_dir", pictures, "--train_data_path", download / "cifar10" / "train")
    assert (elsewhere.in_folders, elsewhere.folder("train")) == (False, download / "cifar10" / "train")


@pytest.mark.parametrize("dataset", ["imagenet", "imagenet100", "cifar10", "digits"])
def test_a_vision_transformer_trains_and_validates_at_a_small_crop_size(dataset, tmp_path):
    for split, cifars in (("train", "train"), ("val", "test")):
        make_images(tmp_path / dataset / (cifars if dataset == "cifar10" else split), classes=2, per_class=8)
    here = ["--data_dir", tmp_path, "--checkpoint_dir", tmp_path / "runs", "--dataset", dataset]
    flags = (
        "--method simclr --encoder vit_tiny --patch_size 8 --max_epochs 1 --limit_train_batches 1 --proj_hidden_dim 8"
    )
    run_here("pretrain", *flags.split(), *SMALL, *here, "--limit_val_batches", "2")
    run_here("knn", "--pretrained_feature_extractor", tmp_path / "runs", "--num_workers", "0", "--k", "1")


def test_validation_keeps_trainings_class_numbers_where_a_class_is_missing(tmp_path):
    make_images(tmp_path / "train", classes=3, per_class=2)
    make_images(tmp_path / "val", classes=3, per_class=2)
    shutil.rmtree(tmp_path / "val" / "class 1")
    source = custom_source(tmp_path)
    _, val = evaluation_sets(source, *evaluation_transforms(source))
    assert [val[i][1] for i in range(4)] == [0, 0, 2, 2]


def test_fraction_is_stratified_reproducible_and_reindexed(images):
    jitter = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "crop_size": 32}
    transform = Augmentation("custom", (jitter,), (2,)).transform()
    whole = pretraining_set(custom_source(images), transform, share=1.0, seed=0)
    part = pretraining_set(custom_source(images), transform, share=0.5, seed=0)
    again = fraction(whole, 0.5, seed=0)
    other = fraction(whole, 0.5, seed=1)
    assert len(part) == 18
    assert part.indices == again.indices != other.indices
    assert Counter(whole.targets[i] for i in part.indices) == {0: 6, 1: 6, 2: 6}
    assert [part[i][0] for i in range(18)] == list(range(18))
    assert [item[0] for item in part.__getitems__([3, 1])] == [3, 1]


def test_unlabelled_images_come_from_all_sub_folders_in_order(images):
    dataset = ImagesWithoutLabels(images / "train", lambda image: torch.tensor(image.size))
    assert len(dataset) == 36
    assert dataset.images == sorted(dataset.images)
    index, size, label = dataset[3]
    assert (index, size.tolist(), label) == (3, [36, 40], -1)


def test_data_fraction_trains_on_fewer_images(custom, tmp_path, capsys):
    run_here("pretrain", *custom, *SMALL, "--method", "deepclusterv2", "--num_prototypes", "16", "--proj_hidden_dim",
             "16", "--data_fraction", "0.5", "--max_epochs", "2", "--checkpoint_dir", tmp_path)  # fmt: skip
    assert "18 images" in capsys.readouterr().out
