"""The command lines of solo-learn's bash files, of releases 1.0.2 to 1.0.5, mean here what they mean there."""

import json
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from tiny import SMALL, only, run_here

from solo_hcsc.cli.commands import analyse, knn, linear, pretrain
from solo_hcsc.cli.parser import as_typed, in_flags
from solo_hcsc.data.source import ImageSource
from solo_hcsc.devices import resolve_devices
from solo_hcsc.errors import UserError
from solo_hcsc.solo102 import LinearModel
from solo_hcsc.solo102.datasets import Augmentation
from solo_hcsc.solo102.settings import pretraining_settings
from solo_hcsc.training import pretraining
from solo_hcsc.training.request import check_queue
from solo_hcsc.training.settings import check_training

# ---- what the flags mean ----


def settings(*flags: str) -> dict:
    """What solo-learn's classes are given, as on a machine with 8 GPUs."""
    typed = pretrain.parse(["--dataset", "cifar10", *flags])
    pretraining.check(typed)
    return pretraining_settings(typed, ImageSource.of_flags(typed), resolve_devices(typed, 8), None)


def test_optimizer_lars_is_sgd_with_lars():
    flags = "--method byol --backbone resnet50 --grad_clip_lars --eta_lars 0.02 --exclude_bias_n_norm".split()
    new, old = settings(*flags, "--optimizer", "lars"), settings(*flags, "--optimizer", "sgd", "--lars")
    assert new == old
    assert (new["encoder"], new["optimizer"], new["lars"], new["eta_lars"]) == ("resnet50", "sgd", True, 0.02)
    assert new["extra_optimizer_args"] == {"momentum": 0.9}


def test_files_before_num_crops_per_aug_make_a_crop_of_each_of_two_pipelines():
    found = settings("--method", "byol", "--gaussian_prob", "1.0", "0.1", "--solarization_prob", "0.0", "0.2")
    assert (found["num_crops_per_aug"], found["num_large_crops"]) == ([1, 1], 2)
    assert [pipeline["gaussian_prob"] for pipeline in found["transform_kwargs"]] == [1.0, 0.1]


def test_devices_are_indexes_and_count_for_the_learning_rate():
    flags = "--method simclr --devices 0,1 --accelerator gpu --strategy ddp --batch_size 256 --lr 0.3".split()
    assert settings(*flags)["lr"] == pytest.approx(0.6)
    assert settings(*flags, "--devices", "0")["lr"] == pytest.approx(0.3)


def test_older_and_newer_names_are_the_same_flag():
    typed = pretrain.parse("--method byol --dataset cifar10 --backbone=vit_tiny --output_dim 64".split())
    assert (typed.encoder, typed.proj_output_dim) == ("vit_tiny", 64)
    assert {"encoder", "proj_output_dim"} <= typed.typed


def test_equalisation_is_before_the_flip_in_the_pipelines_that_ask_for_it():
    found = settings("--method", "byol", "--equalization_prob", "1.0", "0.0")
    augmentation = Augmentation.of(
        found, ImageSource.of_flags(pretrain.parse("--method byol --dataset cifar10".split()))
    )
    first, second = (part.transform.transform.transforms for part in augmentation.transform().transforms)
    assert [type(step).__name__ for step in first[-4:]] == [
        "RandomApply",
        "RandomHorizontalFlip",
        "ToTensor",
        "Normalize",
    ]
    assert len(first) == len(second) + 1
    grey = Image.linear_gradient("L").convert("RGB").point(lambda value: value // 4)
    assert first[-4](grey).tobytes() == ImageOps.equalize(grey).tobytes() != grey.tobytes()


def test_warm_up_of_linear_evaluation_follows_its_flags():
    def rates(*flags: str) -> list[float]:
        typed = linear.parse(["--pretrained_feature_extractor", "x", "--scheduler", "warmup_cosine", *flags])
        given = vars(typed) | {"max_epochs": 4, "lr": 1.0, "extra_optimizer_args": {}}
        backbone = torch.nn.Identity()
        backbone.num_features = 3
        model = LinearModel(backbone, num_classes=2, **given)
        (optimizer,), (scheduler,) = model.configure_optimizers()
        found = []
        for _ in range(4):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return found

    assert rates("--warmup_epochs", "0") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-5)
    late = rates("--warmup_epochs", "2", "--warmup_start_lr", "0.5", "--min_lr", "0.2")
    assert late == pytest.approx([0.5, 1.0, 1.0, 0.6])
    assert rates() == pytest.approx([0, 1 / 9, 2 / 9, 3 / 9])  # 1.0.2's own: ten epochs from 0


# ---- what is refused, in the words that were typed ----


@pytest.mark.parametrize(("method", "release"), [("vibcreg", "1.0.3"), ("supcon", "1.0.4"), ("mocov3", "1.0.5")])
def test_methods_of_later_releases_are_refused_by_name(method, release, refused):
    line = refused("pretrain", "--dataset", "cifar10", "--backbone", "resnet18", "--method", method)
    assert line == f"error: --method {method}: solo-learn 1.0.2 does not have {method}; it came with {release}"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--backbone resnet19", "argument --backbone: resnet19: unknown"),
        ("--backbone wide_resnet28w8", "argument --backbone: solo-learn 1.0.2 does not have wide_resnet28w8; it came"),
        ("--backbone convnext_tiny", "it came with 1.0.4; timm/convnext_tiny is timm's"),
        ("--encoder resnet19", "argument --encoder: resnet19: unknown"),
        ("--backbone timm/nope", "--backbone timm/nope: timm"),
        (
            "--backbone swin_tiny --crop_size 32 16 --num_crops_per_aug 2 1",
            "--backbone swin_tiny takes crops of one size",
        ),
        ("--backbone resnet18 --encoder_args a=1", "--encoder_args a=1: is for --backbone timm/NAME"),
        ("--output_dim 0", "--output_dim 0: must be greater than 0"),
        ("--multicrop", "--multicrop: small crops are now given as in --crop_size 224 96 --num_crops_per_aug 2 6"),
        ("--scheduler_interval step", "--scheduler_interval: the learning rate changes after each epoch"),
        ("--optimizer adam --lars", "--lars works with --optimizer sgd, not adam"),
    ],
)
def test_errors_name_the_flag_as_it_was_typed(flags, reason, custom, refused):
    line = refused("pretrain", *custom, "--method", "byol", "--crop_size", "32", *flags.split())
    assert reason in line


def test_errors_of_knn_name_the_flags_as_they_were_typed(tmp_path, untrained, refused):
    flags = ["--dataset", "custom", "--pretrained_checkpoint_dir", untrained]
    assert "argument --feature_type: invalid choice: 'last'" in refused("knn", *flags, "--feature_type", "last")
    line = refused("knn", *flags, "--train_data_path", "nowhere", "--val_data_path", tmp_path)
    assert line.startswith(f"error: --train_data_path: {tmp_path / 'nowhere'} does not exist")
    assert "images are read from folders" in refused("knn", *flags, "--data_format", "h5")
    assert "--pretrained_checkpoint_dir is missing" in as_typed(
        "--pretrained_feature_extractor is missing", ["--pretrained_checkpoint_dir"]
    )


# ---- real runs ----


def test_lars_by_either_name_trains_the_same_weights(custom, tmp_path):
    flags = "--method simclr --proj_hidden_dim 16 --max_epochs 1 --grad_clip_lars --eta_lars 0.02 --exclude_bias_n_norm"
    for name, lars in (("new", ["--optimizer", "lars", "--backbone", "resnet18"]), ("old", ["--lars"]), ("sgd", [])):
        run_here("pretrain", *custom, *SMALL, *flags.split(), *lars, "--checkpoint_dir", tmp_path / name)
    new, old, sgd = (
        torch.load(only(tmp_path / name, "*.ckpt"), weights_only=True)["state_dict"]["encoder.conv1.weight"]
        for name in ("new", "old", "sgd")
    )
    assert torch.equal(new, old)
    assert not torch.equal(new, sgd)


def test_knn_tries_every_combination(images, hcsc_run, tmp_path, capsys):
    flags = f"--dataset custom --train_data_path {images / 'train'} --val_data_path {images / 'val'} --num_workers 0"
    flags += " --data_format image_folder --batch_size 16 --crop_size 32"
    ways = "--k 1 5 --temperature 0.01 1 --feature_type backbone projector --distance_function euclidean cosine"
    run_here("knn", *flags.split(), *ways.split(), "--pretrained_checkpoint_dir", hcsc_run)
    out = capsys.readouterr().out
    for kind in ("backbone", "projector"):
        name = "knn-custom-*.json" if kind == "backbone" else "knn-projector-custom-*.json"
        result = json.loads(only(hcsc_run, name).read_text())
        only(hcsc_run, name).unlink()
        rows = result["settings"]["all"]
        tried = {(row["distance"], row["temperature"], row["k"]) for row in rows}
        assert tried == {(d, t, k) for d, t in (("euclidean", None), ("cosine", 0.01), ("cosine", 1.0)) for k in (1, 5)}
        assert len(rows) == 6
        assert result["metrics"]["acc1"] == max(row["acc1"] for row in rows)
        assert result["settings"]["deviations"][:3] == ["k", "temperature", "distance_function"]

        # alone, each is what it was among the others
        alone = "--k 5 --temperature 1 --distance_function cosine --feature_type".split()
        run_here("knn", *flags.split(), *alone, kind, "--pretrained_checkpoint_dir", hcsc_run)
        single = json.loads(only(hcsc_run, name).read_text())
        only(hcsc_run, name).unlink()
        among = [row for row in rows if (row["distance"], row["temperature"], row["k"]) == ("cosine", 1.0, 5)]
        assert single["settings"]["all"] == among
    assert out.count("best: ") == 2
    assert "backbone features:" in out
    assert "projector features:" in out
    assert out.count("cosine") >= 8  # a row for each


def test_linear_goes_on_by_itself(custom, untrained, tmp_path, capfd):
    flags = (
        "--backbone resnet18 --optimizer lars --scheduler warmup_cosine --warmup_epochs 0 --max_epochs 2 --auto_resume"
    )
    flags = [*custom, *SMALL, *flags.split(), "--pretrained_feature_extractor", untrained]
    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "whole")
    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "parts", "--max_steps", "4")
    capfd.readouterr()
    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "parts")
    assert "resuming from" in capfd.readouterr().out
    whole, *_ = (tmp_path / "whole").rglob("*ep=1.ckpt")
    parts, *_ = (tmp_path / "parts").rglob("*ep=1.ckpt")
    weights = [torch.load(path, weights_only=True)["state_dict"]["classifier.weight"] for path in (whole, parts)]
    assert torch.equal(*weights)

    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "parts")
    assert "nothing to do: " in capfd.readouterr().out


# ---- solo-learn's own files ----

FILES = {  # of each release: commands, and how many are refused for what
    "1.0.2": (44, {"--multicrop: small crops are now given as in": 2}),
    "1.0.3": (50, {"--method vibcreg": 2}),
    "1.0.4": (57, {"--method vibcreg": 2, "--method supcon": 3, "wide_resnet28w8": 1, "wmse takes no small crops": 1}),
    "1.0.5": (
        60,
        {
            "--method vibcreg": 2,
            "--method supcon": 3,
            "--method mocov3": 2,
            "wide_resnet28w8": 1,
            "wmse takes no small crops": 1,
        },
    ),
}


def git(*words: str) -> str:
    command = ["git", "--git-dir", os.environ["SOLO_LEARN_GIT"], *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commands(release: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a release's bash files, such as `linear`, with their flags."""
    for path in git("ls-tree", "-r", "--name-only", release, "bash_files").split():
        for line in git("show", f"{release}:{path}").replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$1", "cifar10"), comments=True)
            script = next((word for word in words if Path(word).name.startswith("main_")), None)
            if script is not None:
                yield Path(script).stem.removeprefix("main_"), words[words.index(script) + 1 :]


def accept(command: str, argv: list[str]) -> None:
    """Does all that a command does with its flags before it looks for data."""
    if command == "pretrain":
        pretrain.method_in(argv)
        flags = pretrain.parse(argv)
        pretraining.check(flags)
        devices = resolve_devices(flags, 8)
        check_queue(flags, devices.processes)
    elif command == "linear":
        flags = linear.parse(argv)
        check_training(flags)
        resolve_devices(flags, 8)
    else:
        {"knn": knn, "umap": analyse}[command].parse(argv)


@pytest.mark.checkout
@pytest.mark.skipif("SOLO_LEARN_GIT" not in os.environ, reason="SOLO_LEARN_GIT names no git directory of solo-learn")
@pytest.mark.parametrize("release", FILES)
def test_bash_files_of_a_release_are_accepted_but_for_what_is_listed(release):
    count, exceptions = FILES[release]
    refusals, found = [], list(commands(release))
    for command, argv in found:
        try:
            accept(command, argv)
        except UserError as error:
            refusals.append(as_typed(in_flags(str(error)), argv))
    assert len(found) == count
    reasons = Counter(reason for line in refusals for reason in exceptions if reason in line)
    assert (dict(reasons), len(refusals)) == (exceptions, sum(exceptions.values()))
