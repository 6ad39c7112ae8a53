"""Encoders of timm: any that makes a feature vector, in every method and evaluation; others are refused at once."""

import json

import pytest
import torch
from tiny import SMALL, only, run_here

from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.encoders.make import make_encoder, timm_settings
from solo_hcsc.errors import UserError
from solo_hcsc.runs.methods import load_method

VIT = "--encoder timm/vit_tiny_patch16_224 --encoder_args embed_dim=24 depth=2 num_heads=3 patch_size=8".split()
CONVOLUTIONS = ["--encoder", "timm/test_efficientnet"]
TREE = "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 24 --proto_warmup_epochs 1".split()
SHORT = [*SMALL, "--max_epochs", "2", "--limit_train_batches", "2", "--num_sanity_val_steps", "0"]
OTHERS = {"hcsc": TREE, "mocov2plus": ["--queue_size", "16"], "swav": ["--queue_size", "0", "--num_prototypes", "8"]}


@pytest.mark.parametrize(
    ("name", "sizes", "settings"),
    [
        ("timm/efficientnet_lite0", (64, 32), {}),
        ("timm/mobilenetv3_small_050", (64,), {}),  # whose vector is wider than its num_features
        ("timm/convnext_atto", (64, 32), {}),
        ("timm/resnet34", (64, 32), {}),
        ("timm/vit_small_patch14_dinov2", (56,), {"img_size": 56}),
        ("timm/vit_small_patch14_dinov2", (56, 28), {"img_size": 56, "dynamic_img_size": True}),
        ("timm/swin_tiny_patch4_window7_224", (64,), {"img_size": 64}),
    ],
)
def test_any_model_of_timm_makes_a_vector_of_every_crop(name, sizes, settings):
    assert timm_settings(name, {}, sizes) == settings
    encoder = make_encoder(name, settings).eval()
    with torch.no_grad():
        assert [encoder(torch.zeros(2, 3, side, side)).shape for side in sizes] == [(2, encoder.num_features)] * len(
            sizes
        )


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("encoder", [VIT, CONVOLUTIONS], ids=["vit", "convolutions"])
def test_methods_train_with_small_crops_and_every_evaluation_takes_the_run(method, encoder, custom, tmp_path):
    crops = [] if method == "mocov2plus" else ["--crop_size", "32", "16", "--num_crops_per_aug", "2", "1"]
    flags = [*SHORT, *custom, *encoder, "--method", method, *OTHERS[method], *crops, "--knn_eval"]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path)
    model = load_method(only(tmp_path, "*.ckpt"))
    assert model.classifier.in_features == model.encoder.num_features
    if method != "hcsc" or encoder is CONVOLUTIONS:
        return
    frozen = ["--pretrained_feature_extractor", only(tmp_path, "*.ckpt").parent]
    light = ["--num_workers", "0", "--accelerator", "cpu"]
    run_here("knn", *frozen, *light, "--k", "5")
    run_here("clustering", *frozen, *light)
    brief = ["--max_epochs", "1", "--batch_size", "8", "--checkpoint_dir", tmp_path / "probes"]
    run_here("linear", *frozen, *light, *brief)
    run_here("semisup", *frozen, *light, *brief, "--label_fraction", "0.5")
    tuned = next(file for file in (tmp_path / "probes").rglob("*.ckpt") if "semisup" in str(file))
    run_here("knn", "--pretrained_feature_extractor", tuned, *custom, "--crop_size", "32", *light, "--k", "5")


def test_resumed_run_ends_with_the_same_bits(custom, tmp_path):
    flags = [*SHORT, *custom, *VIT, "--method", "hcsc", *TREE, "--encoder_args", "depth=1", "drop_path_rate=0.5"]
    flags = [*flags, "--warmup_epochs", "1"]
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "whole", "--max_epochs", "3")
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "first", "--max_epochs", "3", "--max_steps", "2")
    half = only(tmp_path / "first", "*.ckpt")
    resumed = ["--resume_from_checkpoint", half, "--checkpoint_dir", tmp_path / "rest"]
    run_here("pretrain", *flags, "--max_epochs", "3", *resumed)
    whole, rest = (
        torch.load(only(tmp_path / name, "*.ckpt"), weights_only=True)["state_dict"] for name in ("whole", "rest")
    )
    assert all(torch.equal(whole[name], rest[name]) for name in whole if isinstance(whole[name], torch.Tensor))


def test_settings_are_recorded_and_the_encoder_is_rebuilt_from_them(custom, tmp_path):
    flags = [*SHORT, *custom, *VIT, "--method", "simclr", "--checkpoint_dir", tmp_path]
    run_here("pretrain", *flags)
    args = json.loads(only(tmp_path, "args.json").read_text())
    assert args["encoder"] == "timm/vit_tiny_patch16_224"
    assert args["backbone_args"] == {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8}
    found = load_encoder(tmp_path)
    assert (found.name, found.settings) == (args["encoder"], args["backbone_args"])
    assert found.module(torch.zeros(1, 3, 32, 32)).shape == (1, 24)
    assert load_encoder(tmp_path, crop_size=40).module(torch.zeros(1, 3, 40, 40)).shape == (1, 24)
    with pytest.raises(UserError, match="fails on images of 20 px"):
        load_encoder(tmp_path, crop_size=20)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--encoder resnet19", "did you mean resnet18?"),
        ("--encoder resnet34", "as timm/NAME: timm/resnet34 if it has that"),
        ("--encoder timm/resnet_34", "did you mean timm/resnet34?"),
        ("--encoder timm/vit_tiny", "has no such model"),
        ("--encoder timm/resnet18 --encoder_args drop_rate={[]:1}", "--encoder_args drop_rate={[]:1}"),
        ("--encoder timm/resnet18 --encoder_args cache_dir=x", "cache_dir: not taken"),
        ("--encoder timm/resnet18 --encoder_args global_pool=", "makes features of shape (512, 7, 7) of an image"),
        ("--encoder timm/resnet18 --encoder_args features_only=True", "timm cannot make it|makes a list of an image"),
        ("--encoder timm/resnet18 --encoder_args depths=2", "timm cannot make it"),
        ("--encoder timm/resnet18 --encoder_args pretrained=True", "--init_weights gives an encoder its weights"),
        ("--encoder timm/resnet18 --encoder_args depth", "is not of the form key=value"),
        ("--encoder timm/resnet18 --patch_size 8", "is for solo-learn's own encoders"),
        ("--encoder resnet18 --encoder_args a=1", "is for --encoder timm/NAME, not resnet18"),
        ("--encoder timm/volo_d1_224 --crop_size 224 96 --num_crops_per_aug 2 1", "fails on images of|cannot make"),
    ],
)
def test_encoder_that_cannot_work_is_refused_before_data_is_read(flags, line, images, refused):
    where = ["--dataset", "custom", "--data_dir", images, "--train_dir", "train", "--method", "hcsc"]
    said = refused("pretrain", *where, *flags.split())
    assert any(part in said for part in line.split("|")), said
