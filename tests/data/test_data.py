import shutil
from collections import Counter
from pathlib import Path

import torch
from PIL import Image
from tiny import SMALL, make_images, run_here

from solo_hcsc.data.digits import lay_out_digits
from solo_hcsc.data.folders import ImagesWithoutLabels, fraction
from solo_hcsc.data.source import ImageSource
from solo_hcsc.framework.datasets import Augmentation, evaluation_sets, evaluation_transforms, pretraining_set


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


def test_custom_evaluation_follows_the_crop_size(images):
    source = custom_source(images)
    train, val = evaluation_sets(source, *evaluation_transforms(source))
    assert train[0][0].shape == val[0][0].shape == (3, 48, 48)
    assert val[0][0].min() >= -1


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
    run_here("pretrain", *custom, *SMALL, "--method", "deepclusterv2", "--num_prototypes", "3", "--proj_hidden_dim",
             "16", "--data_fraction", "0.5", "--max_epochs", "2", "--checkpoint_dir", tmp_path)  # fmt: skip
    assert "18 images" in capsys.readouterr().out
