"""Real runs of the entry points, each in a process of its own, on tiny folders of images."""

import csv
import json
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tiny import SMALL, only, run, run_here
from torch._subclasses.fake_tensor import FakeTensorMode

from solo_hcsc.runs.results import read_results
from solo_hcsc.training import callbacks

METHODS = {
    "hcsc": "--num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1 --momentum_classifier"
    " --knn_eval --crop_size 32 16 --num_crops_per_aug 2 1",
    "mocov2plus": "--queue_size 32 --momentum_classifier --knn_eval --proj_hidden_dim 32",
    "swav": "--lars --grad_clip_lars --exclude_bias_n_norm --num_prototypes 10 --queue_size 16 --epoch_queue_starts 1"
    " --crop_size 32 16 --num_crops_per_aug 2 2 --proj_hidden_dim 32",
    "deepclusterv2": "--num_prototypes 4 4 --proj_hidden_dim 32",
    "simclr": "--proj_hidden_dim 32 --scheduler cosine",
    "byol": "--proj_hidden_dim 32 --pred_hidden_dim 32 --crop_size 32 16 --num_crops_per_aug 2 1 --lars",
}


@pytest.mark.parametrize("method", METHODS)
def test_method_pretrains_saves_resumes_and_is_evaluated(method, custom, tmp_path, monkeypatch, capfd):
    flags = [*custom, *SMALL, "--method", method, *METHODS[method].split(), "--checkpoint_dir", "first"]
    monkeypatch.chdir(tmp_path)
    if method == "hcsc":
        first = run("pretrain", *flags, "--max_epochs", "2", cwd=tmp_path)
        out, err = first.stdout, first.stderr
    else:  # in this process, which spares the imports
        run_here("pretrain", *flags, "--max_epochs", "2")
        out, err = capfd.readouterr()
    assert re.search(rf"^{method} \(resnet18\) on custom: 36 images, 3 classes; 1 CPU process", out, re.M)
    assert "4 batches of 8 per epoch" in out
    assert "warning" not in err.lower()
    assert re.search(r"epoch 2/2: loss \d", err)

    checkpoint = only(tmp_path / "first", "*.ckpt")
    assert re.fullmatch(rf"{method}-custom-\w{{8}}-ep=1\.ckpt", checkpoint.name)
    assert str(checkpoint.relative_to(tmp_path)) in out
    args = json.loads((checkpoint.parent / "args.json").read_text())
    assert args["method"] == method
    assert args["data_dir"] == custom[3]
    rows = list(csv.DictReader((checkpoint.parent / "metrics.csv").open()))
    assert len({row["epoch"] for row in rows if row["val_acc1"]}) == 2

    resumed = [*flags[:-1], "second", "--max_epochs", "3", "--resume_from_checkpoint", checkpoint]
    run_here("pretrain", *resumed)
    later = only(tmp_path / "second", "*.ckpt")
    assert later.name.endswith("ep=2.ckpt")
    steps = [torch.load(path, weights_only=True)["global_step"] for path in (checkpoint, later)]
    assert steps == [8, 12]

    knn = "--crop_size 32 --num_workers 0 --k 1 5 --pretrained_feature_extractor second".split()
    for features in ("backbone", "projector"):
        run_here("knn", *custom, *knn, "--features", features)
    assert json.loads(only(tmp_path, "knn-projector-custom-*.json").read_text())["settings"]["features"] == "projector"
    only(tmp_path, "knn-projector-custom-*.json").unlink()
    run_here(
        "linear", *custom, *SMALL, *"--max_epochs 2 --scheduler reduce".split(), "--pretrained_feature_extractor", later
    )
    results = {result["evaluation"]: result for result in read_results(tmp_path)}
    assert results.keys() == {"knn", "linear"}
    for result in results.values():
        assert result["method"] == method
        assert 0 <= result["metrics"]["acc1"] <= 100
        assert "acc5" not in result["metrics"], "of three classes the right one is always among the first five"
    if method == "hcsc":
        table = run("summary", ".", "--wide", cwd=tmp_path).stdout
        assert re.search(
            r"knn +k=\d, not the paper's k +hcsc multi-crop, 3 epochs +images0/val +3 +9 +32 +top-1 +\d+\.\d\d", table
        )


def test_vit_pretrains_and_is_evaluated(custom, tmp_path, capsys):
    flags = "--method mocov2plus --encoder vit_tiny --optimizer adamw --queue_size 16 --patch_size 8 --max_epochs 2"
    run_here("pretrain", *custom, *SMALL, *flags.split(), "--checkpoint_dir", tmp_path)
    knn = "--crop_size 32 --num_workers 0 --k 3 --pretrained_feature_extractor".split()
    run_here("knn", *custom, *knn, tmp_path)
    assert "(vit_tiny, backbone features)" in capsys.readouterr().out


def test_two_processes_train_together(custom, tmp_path):
    flags = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1".split()
    # images are clustered in the first epoch, where there are no keys yet, and keys in the second
    flags += "--clustering_start 0 --knn_eval --devices 2 --strategy ddp --max_epochs 2".split()
    out = run("pretrain", *custom, *SMALL, *flags, cwd=tmp_path)
    assert "2 CPU processes, 32-true; 2 batches of 8" in out.stdout
    assert out.stdout.count("done in") == 1
    checkpoint = only(tmp_path, "*.ckpt")
    state = torch.load(checkpoint, weights_only=True)
    assert state["global_step"] == 4
    # Nine validation images for two processes: each counts once, whoever has it.
    rows = csv.DictReader((checkpoint.parent / "metrics.csv").open())
    right = [float(row["val_acc1"]) * 9 / 100 for row in rows if row["val_acc1"]]
    assert len(right) == 2
    assert right == pytest.approx([round(count) for count in right], abs=1e-4)


@pytest.mark.parametrize("last", [True, False])
def test_loss_on_a_gpu_is_looked_at_one_step_late_and_before_saving(monkeypatch, last):
    """A pretended GPU, whose tensors have no values: looking at them would raise."""
    finite = iter([True, True, False] if last else [True, True, False, True])
    monkeypatch.setattr(callbacks, "_fetch", lambda flag: partial(next, iter([next(finite)])))
    callback = callbacks.StopOnNonFiniteLoss(checkpoints=None)
    stopped = []
    monkeypatch.setattr(callback, "_stop", lambda where, *_: stopped.append(where))
    with FakeTensorMode():
        loss = torch.empty((), device="cuda")
        for step in range(3 if last else 4):
            assert not stopped
            trainer = SimpleNamespace(world_size=1, global_step=step, current_epoch=5)
            callback.on_before_backward(trainer, None, loss)
        assert stopped == ([] if last else ["step 2 of epoch 6"])
        callback.on_save_checkpoint(trainer, None, {})
    assert stopped == ["step 2 of epoch 6"]


def test_bf16_trains(custom, tmp_path):
    flags = "--method swav --queue_size 0 --num_prototypes 8 --knn_eval --precision bf16 --max_epochs 1".split()
    flags += "--limit_train_batches 1 --limit_val_batches 1 --num_sanity_val_steps 0".split()
    run_here("pretrain", *custom, *SMALL, *flags, "--checkpoint_dir", tmp_path)
    assert json.loads(only(tmp_path, "args.json").read_text())["precision"] == "bf16-mixed"


def test_lightning_1_flag_file_runs_with_device_and_paths_overridden(custom, tmp_path, monkeypatch, capsys):
    """solo-learn 1.0.2's imagenet-100 flags for MoCo v2+, with DALI."""
    flags = (
        "--encoder resnet18 --gpus 0,1 --accelerator ddp --sync_batchnorm --precision 16 --optimizer sgd "
        "--scheduler cosine --classifier_lr 0.3 --weight_decay 1e-4 --dali --brightness 0.4 --contrast 0.4 "
        "--saturation 0.4 --hue 0.1 --name mocov2plus-400ep --project solo-learn --entity nobody --wandb "
        "--save_checkpoint --method mocov2plus --proj_hidden_dim 64 --queue_size 64 --temperature 0.2 "
        "--base_tau_momentum 0.99 --final_tau_momentum 0.999 --momentum_classifier"
    ).split()
    data = ["--dataset", "imagenet100", *custom[2:]]
    monkeypatch.chdir(tmp_path)
    run_here("pretrain", *flags, *data, *SMALL, "--max_epochs", "1", "--offline", "--limit_val_batches", "1",
             "--dali_device", "cpu")  # fmt: skip
    out, err = capsys.readouterr()
    assert "100 classes; 1 CPU process, 32-true" in out
    assert "note: --precision 16 needs a GPU" in err
    assert list(tmp_path.rglob("*.wandb")), "an offline wandb run"


def test_lightning_1_multicrop_flag_file_runs(custom, tmp_path, monkeypatch, capsys):
    """solo-learn's multi-crop flags, as for BYOL on imagenet-100, with DALI."""
    flags = (
        "--encoder resnet18 --gpus 0,1 --accelerator ddp --precision 16 --optimizer sgd --lars --grad_clip_lars "
        "--eta_lars 0.02 --exclude_bias_n_norm --scheduler warmup_cosine --classifier_lr 0.1 --weight_decay 1e-5 "
        "--dali --brightness 0.4 --contrast 0.4 --saturation 0.2 --hue 0.1 --gaussian_prob 1.0 0.1 0.0 "
        "--solarization_prob 0.0 0.2 0.0 --num_crops_per_aug 1 1 2 --name byol --method byol --proj_output_dim 16 "
        "--proj_hidden_dim 32 --pred_hidden_dim 32 --base_tau_momentum 0.99 --final_tau_momentum 1.0"
    ).split()
    crops = ["--crop_size", "32", "32", "16"]
    monkeypatch.chdir(tmp_path)
    run_here("pretrain", *flags, *custom, *SMALL[2:], *crops, "--max_epochs", "1")
    linear = "--dali --max_epochs 1 --scheduler step --lr_decay_steps 1 --pretrained_feature_extractor trained_models"
    run_here("linear", *custom, *SMALL, *linear.split())
    assert "note: --dali_device gpu needs a GPU" in capsys.readouterr().err
    assert only(tmp_path, "linear.json")


def test_images_without_labels_train_with_a_finite_loss(images, tmp_path, capsys):
    run_here("pretrain", "--dataset", "custom", "--data_dir", images, "--train_dir", "flat", "--no_labels", *SMALL,
             "--method", "swav", "--queue_size", "0", "--num_prototypes", "8", "--max_epochs", "1",
             "--checkpoint_dir", tmp_path)  # fmt: skip
    out, err = capsys.readouterr()
    assert "20 images, no labels" in out
    assert re.search(r"epoch 1/1: loss \d", err)


def test_auto_resume_and_umap(custom, tmp_path, monkeypatch, capsys):
    flags = [*custom, *SMALL, "--method", "simsiam", "--proj_hidden_dim", "16", "--pred_hidden_dim", "16"]
    flags += ["--max_epochs", "2", "--auto_resume"]
    monkeypatch.chdir(tmp_path)
    run_here("pretrain", *flags, "--max_steps", "4", "--checkpoint_frequency", "9", "--auto_umap")
    captured = capsys.readouterr()
    assert "starting anew" in captured.err
    assert len(list((tmp_path / "auto_umap").rglob("*.pdf"))) == 1
    checkpoint = only(tmp_path / "trained_models", "*.ckpt").relative_to(tmp_path)
    run_here("pretrain", *flags)
    captured = capsys.readouterr()
    assert f"resuming from {checkpoint}" in captured.out
    assert "epoch 2/2" in captured.err
    assert "epoch 1/2" not in captured.err
    folders = list((tmp_path / "trained_models").rglob("args.json"))
    run_here("pretrain", *flags)
    assert "nothing to do" in capsys.readouterr().out
    assert list((tmp_path / "trained_models").rglob("args.json")) == folders


@pytest.mark.parametrize("method", ["dino", "wmse", "vicreg", "barlow_twins", "nnclr", "nnbyol", "nnsiam", "ressl"])
def test_every_other_method_takes_a_step(method, custom, tmp_path):
    extra = {
        "wmse": "--whitening_size 8 --proj_output_dim 4",
        "dino": "--num_prototypes 16 --gradient_clip_val 1 --clip_grad 1",
    }.get(method, "--queue_size 16" if method in ("nnclr", "nnbyol", "nnsiam", "ressl") else "")
    flags = f"--method {method} --proj_hidden_dim 16 {extra} --max_epochs 1 --limit_train_batches 2".split()
    run_here("pretrain", *custom, *SMALL, *flags, "--checkpoint_dir", tmp_path)
    assert only(tmp_path, "*.ckpt")


def test_third_package_adds_its_method(custom, tmp_path, monkeypatch):
    package = tmp_path / "site"
    (package / "third-1.0.dist-info").mkdir(parents=True)
    (package / "third-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (package / "third-1.0.dist-info" / "entry_points.txt").write_text("[solo_learn.methods]\nthird = third:Third\n")
    (package / "third.py").write_text("from solo.methods.simclr import SimCLR\nclass Third(SimCLR): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(package))
    run("pretrain", *custom, *SMALL, "--method", "third", "--max_epochs", "1", "--limit_train_batches", "1",
        cwd=tmp_path)  # fmt: skip
    assert json.loads(only(tmp_path / "trained_models", "args.json").read_text())["method"] == "third"


def test_missing_solo_learn_names_the_command(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'solo' else find(name, *a)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = run("pretrain", "--method", "hcsc", "--dataset", "digits", cwd=tmp_path, expect=2)
    assert "pip install --no-deps solo-learn==1.0.2" in out.stderr
    assert len(out.stderr.splitlines()) == 1
