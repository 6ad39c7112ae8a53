import shutil
from argparse import Namespace
from collections import Counter

import torch
from PIL import Image
from tiny import SMALL, make_images, run_here

from solo_hcsc.data import folders as data
from solo_hcsc.data.digits import lay_out_digits


def settings(images, **changes):
    flags = {"dataset": "custom", "data_dir": images, "train_dir": "train", "val_dir": "val", "no_labels": False}
    flags |= {"crop_size": [48], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    return Namespace(**(flags | changes))


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
    args = settings(images)
    train, val = data.evaluation_sets(args, *data.evaluation_transforms(args))
    assert train[0][0].shape == val[0][0].shape == (3, 48, 48)
    assert val[0][0].min() >= -1


def test_validation_keeps_trainings_class_numbers_where_a_class_is_missing(tmp_path):
    make_images(tmp_path / "train", classes=3, per_class=2)
    make_images(tmp_path / "val", classes=3, per_class=2)
    shutil.rmtree(tmp_path / "val" / "class 1")
    args = settings(tmp_path)
    _, val = data.evaluation_sets(args, *data.evaluation_transforms(args))
    assert [val[i][1] for i in range(4)] == [0, 0, 2, 2]


def test_fraction_is_stratified_reproducible_and_reindexed(images):
    whole = data.pretraining_set(settings(images, **AUGMENTATION, data_fraction=1.0, seed=0))
    part = data.pretraining_set(settings(images, **AUGMENTATION, data_fraction=0.5, seed=0))
    again = data.fraction(whole, 0.5, seed=0)
    other = data.fraction(whole, 0.5, seed=1)
    assert len(part) == 18
    assert part.indices == again.indices != other.indices
    assert Counter(whole.targets[i] for i in part.indices) == {0: 6, 1: 6, 2: 6}
    assert [part[i][0] for i in range(18)] == list(range(18))
    assert [item[0] for item in part.__getitems__([3, 1])] == [3, 1]


AUGMENTATION = {
    "unique_augs": 1,
    "num_crops_per_aug": [2],
    "debug_augmentations": False,
    "transform_kwargs": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "crop_size": 32},
}


def test_unlabelled_images_come_from_all_sub_folders_in_order(images):
    dataset = data.ImagesWithoutLabels(images / "train", lambda image: torch.tensor(image.size))
    assert len(dataset) == 36
    assert dataset.images == sorted(dataset.images)
    index, size, label = dataset[3]
    assert (index, size.tolist(), label) == (3, [36, 40], -1)


def test_data_fraction_trains_on_fewer_images(custom, tmp_path, capsys):
    run_here("pretrain", *custom, *SMALL, "--method", "deepclusterv2", "--num_prototypes", "3", "--proj_hidden_dim",
             "16", "--data_fraction", "0.5", "--max_epochs", "2", "--checkpoint_dir", tmp_path)  # fmt: skip
    assert "18 images" in capsys.readouterr().out
