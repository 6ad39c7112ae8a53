"""The config of solo-learn 1.0.6 as flags, and back."""

import json
from functools import partial

import pytest
import torch
from tiny import only

from solo_hcsc.encoders.checkpoints import load_checkpoint, steps_and_time
from solo_hcsc.encoders.hydra_settings import flat_flags, is_nested, nested_flags
from solo_hcsc.encoders.recorded import EVALUATION, PRETRAINING, recorded_flags, role_of
from solo_hcsc.errors import UserError

PIPELINE = {
    "rrc": {"enabled": True, "crop_min_scale": 0.2, "crop_max_scale": 1.0},
    "color_jitter": {"prob": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1},
    "grayscale": {"prob": 0.2},
    "gaussian_blur": {"prob": 0.5},
    "solarization": {"prob": 0.0},
    "equalization": {"prob": 0.0},
    "horizontal_flip": {"prob": 0.5},
}


def config(**parts):
    """An args.json of solo-learn 1.0.6."""
    return {
        "name": "tiny",
        "method": "byol",
        "backbone": {"name": "resnet18", "kwargs": {}},
        "method_kwargs": {"proj_hidden_dim": 64, "proj_output_dim": 32, "pred_hidden_dim": 16},
        "momentum": {"base_tau": 0.99, "final_tau": 1.0, "classifier": False},
        "data": {
            **{"dataset": "custom", "train_path": "/data/photos/train", "val_path": "/data/photos/val"},
            **{"format": "image_folder", "num_workers": 0, "no_labels": False, "fraction": -1},
            **{"num_classes": 3, "num_large_crops": 2, "num_small_crops": 6},
        },
        "augmentations": [
            {**PIPELINE, "crop_size": 64, "num_crops": 2},
            {**PIPELINE, "crop_size": 32, "num_crops": 6},
        ],
        "optimizer": {
            **{"name": "lars", "batch_size": 16, "lr": 0.1, "classifier_lr": 0.2, "weight_decay": 1e-5},
            "kwargs": {"momentum": 0.9, "eta": 0.02, "clip_lr": True, "exclude_bias_n_norm": True},
        },
        "scheduler": {"name": "warmup_cosine", "warmup_epochs": 2, "lr_decay_steps": None, "min_lr": 0.0},
        "knn_eval": {"enabled": True, "k": 20, "distance_func": "euclidean"},
        "max_epochs": 5,
        "seed": 7,
        "wandb_run_id": "13",
    } | parts


def test_a_config_is_read_as_flags():
    flags = flat_flags(config())
    expected = {
        **{"encoder": "resnet18", "backbone_args": {"cifar": False}, "method": "byol", "name": "tiny"},
        **{"dataset": "custom", "data_dir": "/data/photos", "train_dir": "train", "val_dir": "val"},
        **{"crop_size": [64, 32], "num_crops_per_aug": [2, 6], "mean": [0.485, 0.456, 0.406]},
        **{"std": [0.229, 0.224, 0.225], "no_labels": False, "max_epochs": 5, "seed": 7, "num_classes": 3},
        **{"optimizer": "sgd", "lars": True, "eta_lars": 0.02, "exclude_bias_n_norm": True, "lr": 0.1},
        **{"batch_size": 16, "proj_hidden_dim": 64, "pred_hidden_dim": 16, "base_tau_momentum": 0.99},
        **{"momentum_classifier": False, "knn_eval": True, "knn_k": 20, "scheduler": "warmup_cosine"},
        **{"saturation": [0.2, 0.2], "num_small_crops": 6, "solo_learn": "1.0.6"},
    }
    assert {name: flags.get(name) for name in expected} == expected
    assert role_of(flags) == PRETRAINING
    assert role_of(flat_flags(config(pretrained_feature_extractor="x.ckpt"))) == EVALUATION


@pytest.mark.parametrize(
    ("method", "backbone", "dataset", "encoder", "settings"),
    [
        ("byol", {"name": "resnet50"}, "cifar100", "resnet50", {"cifar": True}),
        ("byol", {"name": "resnet50", "kwargs": {"pretrained": True}}, "imagenet", "resnet50", {"cifar": False}),
        ("dino", {"name": "vit_small", "kwargs": {"patch_size": 8}}, "imagenet", "vit_small", {"patch_size": 8}),
        ("mae", {"name": "vit_tiny", "kwargs": {"img_size": 32}}, "cifar10", "timm/vit_tiny_patch16_224", None),
        ("mocov3", {"name": "vit_base", "kwargs": {}}, "imagenet", "timm/vit_base_patch16_224", {}),
        ("byol", {"name": "convnext_tiny", "kwargs": {}}, "imagenet", "timm/convnext_tiny", {}),
        ("byol", {"name": "swin_tiny", "kwargs": {"window_size": 4}}, "cifar10", "swin_tiny", {"window_size": 4}),
    ],
)
def test_each_encoder_has_our_name(method, backbone, dataset, encoder, settings):
    flags = flat_flags(config(method=method, backbone=backbone, data={"dataset": dataset}))
    assert flags["encoder"] == encoder
    assert flags["backbone_args"] == ({"num_heads": 12, "img_size": 32} if settings is None else settings)


@pytest.mark.parametrize(
    ("train", "val", "dataset", "expected"),
    [
        ("a/train", "a/val", "imagenet", {"data_dir": "a", "train_dir": "train", "val_dir": "val"}),
        ("a/train", None, "custom", {"data_dir": "a", "train_dir": "train"}),
        ("a/train", "b/val", "custom", {"data_dir": "a", "train_dir": "train", "val_dir": "../b/val"}),
        ("./datasets", "./datasets", "cifar10", {"data_dir": "./datasets"}),
        (None, None, "custom", {}),
    ],
)
def test_paths_become_folders(train, val, dataset, expected):
    flags = flat_flags(config(data={"dataset": dataset, "train_path": train, "val_path": val}))
    assert {name: flags[name] for name in ("data_dir", "train_dir", "val_dir") if name in flags} == expected


def test_there_and_back(hcsc_run):
    flags = recorded_flags(only(hcsc_run, "*ep=1.ckpt"))
    record = nested_flags(flags, ["proj_output_dim", "proj_hidden_dim", "queue_size"])
    assert is_nested(record)
    back = flat_flags(json.loads(json.dumps(record)))
    pipelines = len(flags["num_crops_per_aug"])
    for name in back.keys() & flags.keys() - {"backbone_args"}:
        once = isinstance(flags[name], list) and len(flags[name]) == 1 and isinstance(back[name], list)
        assert back[name] == (flags[name] * pipelines if once else flags[name]), name
    names = {"encoder", "method", "data_dir", "train_dir", "val_dir", "mean", "lr", "batch_size", "num_classes"}
    assert names <= back.keys() & flags.keys()


@pytest.mark.parametrize("broken", [{}, {"data": 1}, {"augmentations": [1]}, {"optimizer": None, "augmentations": []}])
def test_a_config_that_lacks_parts_is_read_without_them(broken):
    assert flat_flags({"backbone": {"name": "resnet18"}} | broken)["encoder"] == "resnet18"


def test_a_schedulers_code_is_passed_over_and_other_code_refused(tmp_path):
    """SimSiam's and NNSiam's checkpoints have some."""
    state = {"lr_schedulers": [{"get_lr": partial(getattr, {}, "x")}], "state_dict": {"a": torch.ones(1)}}
    torch.save(state | {"global_step": 3}, tmp_path / "x.ckpt")
    assert torch.equal(load_checkpoint(tmp_path / "x.ckpt")["state_dict"]["a"], torch.ones(1))
    assert steps_and_time(tmp_path / "x.ckpt")[0] == 3
    torch.save(state | {"other": print}, tmp_path / "x.ckpt")
    with pytest.raises(UserError, match="carries code or Python objects"):
        load_checkpoint(tmp_path / "x.ckpt")
