"""`solo-hcsc detect` on tiny folders in exactly the layouts of VOC and COCO, flag by flag; killed, resumed, refused."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from scenes import annotate, make_coco, make_voc
from tiny import ROOT, only, run, run_here

from benchmarks.kills import differences
from solo_hcsc.cli.commands.detect import parse
from solo_hcsc.evaluation.detection_settings import PROTOCOLS
from solo_hcsc.training.detection import DetectorTraining

TINY = (
    "--min_size_train 40 48 --min_size_test 40 --max_size 64 --batch_size 2 --num_workers 0 --accelerator cpu"
    " --warmup_steps 1 --precise_bn 1 --seed 3"
).split()
SMALL_HEAD = "--rois_per_image 8 --pool_size 2 --anchor_sizes 12 16 24".split()


@pytest.fixture(scope="module")
def voc(tmp_path_factory) -> Path:
    return make_voc(tmp_path_factory.mktemp("voc"))


@pytest.fixture(scope="module")
def coco(tmp_path_factory) -> Path:
    return make_coco(tmp_path_factory.mktemp("coco"))


def on(data: Path, encoder: Path, out: Path) -> list:
    dataset = "coco" if data.name == "coco" else "voc0712"
    return [encoder, "--data_dir", data, "--dataset", dataset, "--checkpoint_dir", out, *TINY]


def final(folder: Path) -> dict:
    """The weights and the optimiser's state of the last checkpoint."""
    files = [file for file in folder.rglob("*.ckpt") if "step=6" in file.name or "ep=1.ckpt" in file.name]
    return torch.load(max(files, key=lambda file: file.stat().st_mtime), weights_only=True)


# ---- runs ----


def test_voc_ends_in_a_table_a_result_a_sheet_and_the_summary(voc, untrained, tmp_path, capsys):
    flags = [
        *on(voc, untrained, tmp_path),
        *SMALL_HEAD,
        "--max_steps",
        "4",
        "--pictures",
        "2",
        "--method",
        "mocov2plus",
    ]
    run_here("detect", *flags)
    out, progress = capsys.readouterr()
    assert "c4 on resnet18, voc0712: 6 training and 3 test images, 20 classes" in out  # two show no object
    assert "epoch 1/2: loss " in progress
    assert "left" in progress
    table = out[out.index("class ") :].splitlines()
    assert table[0].split("  ")[0] == "class"
    assert [line.split()[0] for line in table[2:5]] == ["aeroplane", "bicycle", "bird"]
    assert "left out of the mean, since no test image shows it: aeroplane" in out
    file = only(tmp_path, "detect.json")
    result = json.loads(file.read_text())
    assert result["evaluation"] == "detect"
    assert {"AP", "AP50", "AP75", "AP50_11", "AP50_all", "AP_11"} <= result["metrics"].keys()
    each = result["settings"]["per_class"]
    assert list(each)[:2] == ["aeroplane", "bicycle"]
    shown = [one["AP50_11"] for one in each.values() if one]
    assert result["metrics"]["AP50_11"] == pytest.approx(sum(shown) / len(shown))
    assert result["settings"]["lr_steps"] == [3, 4]  # in proportion to the iterations
    assert {"max_steps", "batch_size", "min_size_train", "pool_size"} <= set(result["settings"]["deviations"])
    assert "lr" not in result["settings"]["deviations"]
    assert result["data"]["val_images"] == 3
    recorded = json.loads((file.parent / "args.json").read_text())
    assert (recorded["role"], recorded["classes"][14]) == ("evaluation", "person")
    picture = Image.open(file.parent / "detections.png")
    assert picture.width > 1.5 * picture.height  # two side by side

    run_here("summary", tmp_path)
    text = (tmp_path / "summary.md").read_text()
    assert "| detect | Faster R-CNN C4, 4 iterations, not the paper's batch\\_size" in text.replace(
        "batch_", "batch\\_"
    )
    assert "AP / AP50 / AP75 / VOC AP50 11-point / VOC AP50 all-point" in text
    page = (tmp_path / "summary.html").read_text()
    assert "Boxes in test images, mocov2plus, AP50 " in page
    assert "data:image/jpeg;base64," in page


def test_figures_of_the_paper_stand_beside_its_protocol(untrained, voc, tmp_path):
    """A result whose settings are the paper's; nothing else of it is."""
    run_here("detect", *on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "1", "--pictures", "0")
    file = only(tmp_path, "detect.json")
    result = json.loads(file.read_text())
    assert not list(tmp_path.rglob("detections.*"))
    model = {"encoder": "resnet50", "dataset": "imagenet", "epochs": 200}
    for dataset, method, expected in (("voc0712", "hcsc", "- / - / - / 82.50"), ("coco", "mocov2plus", "40.60")):
        as_paper = result | {"dataset": dataset, "method": method, "pretraining": model}
        as_paper["settings"] = result["settings"] | {"deviations": []}
        file.write_text(json.dumps(as_paper))
        run_here("summary", tmp_path)
        assert f"| {expected} |" in (tmp_path / "summary.md").read_text()
    file.write_text(json.dumps(as_paper | {"settings": result["settings"]}))
    run_here("summary", tmp_path)
    assert "40.60" not in (tmp_path / "summary.md").read_text()


def test_coco_trains_masks_in_mixed_precision(coco, untrained, tmp_path, capsys):
    flags = "--max_steps 2 --precision bf16 --pictures 1 --gradient_clip_val 5 --keep_empty --random_weights".split()
    run_here("detect", *on(coco, untrained, tmp_path), *SMALL_HEAD, *flags)
    out = capsys.readouterr().out
    assert "resnet18 with random weights" in out
    assert "4 training and 3 test images, 3 classes; 1 CPU process, bf16-mixed" in out
    assert "mask AP50" in out
    result = json.loads(only(tmp_path, "detect.json").read_text())
    assert {"AP", "mask_AP", "mask_AP75", "mask_AP_small"} <= result["metrics"].keys()
    assert result["settings"]["masks"] is True
    assert {"random_weights", "keep_empty", "gradient_clip_val", "classes"} <= set(result["settings"]["deviations"])
    with torch.no_grad():
        assert all(math.isfinite(value) for value in result["metrics"].values())


def test_pyramid_on_own_data_with_every_other_flag(coco, tmp_path, capsys):
    """Another head, encoder, order of colours, names of splits, and no masks."""
    own = tmp_path / "own"
    for split, name in (("train2017", "a"), ("val2017", "b")):
        (own / "annotations").mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(coco / split)
        content = json.loads((coco / "annotations" / f"instances_{split}.json").read_text())
        for annotation in content["annotations"]:
            del annotation["segmentation"], annotation["area"]  # boxes are enough
        (own / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))
    weights = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_efficientnet").state_dict(), weights)
    flags = (
        "--dataset coco --train_split a --test_split b --masks false --head fpn --encoder timm/test_efficientnet"
        " --channel_order bgr --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --lr 0.001 --lr_steps 1 2 --warmup_factor 0.1"
        " --weight_decay 0.001 --weight_decay_norm 0.001 --horizontal_flip_prob 0 --anchor_sizes 8 16 24 32 48"
        " --rois_per_image 8 --pool_size 3 --max_steps 3 --accumulate_grad_batches 2 --precise_bn 0 --pictures 5"
        " --name own --checkpoint_every_n_steps 1 --keep_checkpoints 2 --log_every_n_steps 1"
    ).split()
    run_here("detect", weights, *TINY, *flags, "--data_dir", own, "--checkpoint_dir", tmp_path / "runs")
    assert "fpn on timm/test_efficientnet, coco: 3 training" in capsys.readouterr().out
    file = only(tmp_path / "runs", "detect.json")
    result = json.loads(file.read_text())
    assert (result["settings"]["lr_steps"], result["settings"]["channel_order"]) == ([1, 2], "bgr")
    assert result["settings"]["mean"] == [0.5, 0.5, 0.5]
    assert {"train_split", "test_split", "head"} <= set(result["settings"]["deviations"])
    assert "mask_AP" not in result["metrics"]
    assert len(list(file.parent.glob("own-*.ckpt"))) == 2
    rows = (file.parent / "metrics.csv").read_text().splitlines()
    assert {"train_loss", "loss_classifier", "loss_rpn_box_reg"} <= set(rows[0].split(","))


def test_own_folder_like_voc_has_its_own_classes(untrained, tmp_path, capsys):
    folder = make_voc(tmp_path, years=("VOC2007",)) / "VOC2007"
    for number in range(7):
        size = (60, 48) if number % 2 else (48, 60)
        annotate(folder, f"2007_{number:06}", size, [("left shoe", 5, 5, 25, 25)])
    flags = ["--dataset", "voc", *SMALL_HEAD, "--max_steps", "1"]
    run_here("detect", *on(folder, untrained, tmp_path / "runs"), *flags)
    assert "left shoe" in capsys.readouterr().out


# ---- resume ----


@pytest.fixture(scope="module")
def whole(voc, untrained, tmp_path_factory) -> Path:
    """Six iterations in two epochs, never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run_here("detect", *on(voc, untrained, folder), *SMALL_HEAD, "--max_steps", "6", "--pictures", "0")
    return folder


def test_killed_run_goes_on_to_the_same_weights_and_figures(whole, voc, untrained, tmp_path):
    flags = [*on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "6", "--pictures", "0"]
    every = [*flags, "--checkpoint_every_n_steps", "1"]
    command = [sys.executable, "-m", "solo_hcsc", "detect", *map(str, every)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (saved := list(tmp_path.rglob("*step=[245].ckpt"))):  # within an epoch, not at its end
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not list(tmp_path.rglob("detect.json"))
    kept = [file for file in tmp_path.rglob("*.ckpt") if file.exists()] or saved
    run_here(
        "detect", *every, "--num_workers", "1", "--resume_from_checkpoint", max(kept, key=lambda f: f.stat().st_mtime)
    )
    ours, theirs = final(tmp_path), final(whole)
    assert differences(theirs["state_dict"], ours["state_dict"]) == []
    assert differences(theirs["optimizer_states"], ours["optimizer_states"]) == []
    counts = [value for key, value in ours["state_dict"].items() if key.endswith("num_batches_tracked")]
    assert {int(count) for count in counts} == {6}  # every batch norm has seen every iteration
    results = [json.loads(only(folder, "detect.json").read_text())["metrics"] for folder in (tmp_path, whole)]
    assert results[0] == results[1]


def test_trained_detector_that_was_not_tested_is_tested_on_resume(whole, voc, untrained, tmp_path, capsys):
    file = only(whole, "detect.json")
    before = json.loads(file.read_text())["metrics"]
    file.unlink()
    (checkpoint,) = file.parent.glob("*ep=1.ckpt")
    flags = [*on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "6", "--pictures", "1"]
    run_here("detect", *flags, "--resume_from_checkpoint", checkpoint)
    assert "trained already" in capsys.readouterr().out
    assert json.loads(file.read_text())["metrics"] == before
    assert (file.parent / "detections.png").is_file()  # of which there was none before
    assert list(tmp_path.iterdir()) == []


def test_time_that_runs_out_leaves_a_checkpoint_and_no_result(voc, untrained, tmp_path, capsys, monkeypatch):
    def stop(self, *_):
        self.trainer.should_stop = self.trainer.global_step == 2

    monkeypatch.setattr(DetectorTraining, "on_train_batch_end", stop)
    run_here("detect", *on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "4")
    assert "stopped after 2 of 4 iterations: no result is written" in capsys.readouterr().out
    assert only(tmp_path, "*step=2.ckpt")
    assert not list(tmp_path.rglob("detect.json"))


def test_two_processes_share_a_batch_and_the_test_images(voc, untrained, tmp_path):
    """Their gradients are averaged; batch norm sees each process's own images, and its averages are of all."""
    flags = [*on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "2", "--devices", "2", "--pictures", "1"]
    out = run("detect", *flags, cwd=ROOT).stdout
    assert "2 CPU processes" in out
    assert out.count("class ") == 1
    result = json.loads(only(tmp_path, "detect.json").read_text())
    assert result["data"]["val_images"] == 3
    assert "sync_batchnorm" in result["settings"]["deviations"]


# ---- flags ----


def test_defaults_are_the_papers():
    flags = parse("x --data_dir y".split())
    assert (flags.max_steps, flags.lr_steps, flags.warmup_steps, flags.lr) == (24000, (18000, 22000), 100, 0.02)
    assert flags.min_size_train == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    assert (flags.batch_size, flags.weight_decay, flags.min_size_test, flags.max_size) == (16, 0.0001, 800, 1333)
    assert (flags.head, flags.masks, flags.rois_per_image, flags.pool_size) == ("c4", False, 512, 14)
    assert (flags.train_split, flags.test_split) == ("trainval", "test")
    coco = parse("x --data_dir y --dataset coco".split())
    assert (coco.max_steps, coco.lr_steps, coco.masks) == (180000, (120000, 160000), True)
    assert coco.min_size_train == (640, 672, 704, 736, 768, 800)
    for dataset, parsed in (("voc0712", flags), ("coco", coco)):
        assert [name for name, value in PROTOCOLS[dataset].items() if getattr(parsed, name) != value] == []
    assert parse("x --data_dir y --head fpn".split()).pool_size == 7
    assert parse("x --data_dir y --max_steps 240".split()).lr_steps == (180, 220)
    assert parse("x --data_dir y --lr_steps".split()).lr_steps == ()


def test_detect_refuses(voc, coco, untrained, tmp_path, refused):
    flags = on(voc, untrained, tmp_path / "runs")
    for more, reason in (
        (["--max_epochs", "3"], "--max_epochs: detect counts iterations, --max_steps, and tests at the end"),
        (["--masks"], "--masks true: --dataset voc0712 has no masks"),
        (["--max_steps", "-1"], "--max_steps -1: detect needs an end"),
        (["--lr_steps", "9", "3"], "--lr_steps 9 3: give them in rising order"),
        (["--max_size", "44"], "--max_size 44: is below a shorter side"),
        (["--batch_size", "3", "--devices", "2"], "--batch_size 3: is shared by 2 processes"),
        (["--precision", "64"], "--precision 64: detect computes in 32, 16 or bf16"),
        (["--batch_size", "8"], "--data_dir: 6 images do not fill one batch"),
        (["--dataset", "coco"], "no annotations/instances_train2017.json"),
        (["--data_dir", voc / "VOC2007"], "no folder VOC2007 with ImageSets/Main"),
        (["--encoder", "resnet50"], "does not fit resnet50"),
        (["--head", "fpn", "--anchor_sizes", "8"], "--anchor_sizes: resnet18 has levels at strides"),
        (["--mean", "0.5"], "--mean: give three values"),
        (["--name", "a/b"], "must not contain /"),
        (["--resume_from_checkpoint", "nowhere.ckpt"], "no such checkpoint"),
        (["--anchor_size", "8"], "did you mean --anchor_sizes?"),
    ):
        assert reason in refused("detect", *flags, *more)
    assert "the following arguments are required: --data_dir" in refused("detect", untrained)
    assert "--max_steps 6 is" not in refused("detect", tmp_path / "nothing", "--data_dir", voc)


def test_resume_with_other_flags_is_refused(whole, voc, untrained, tmp_path, refused):
    checkpoint = next(whole.rglob("*ep=1.ckpt"))
    flags = [*on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "12", "--resume_from_checkpoint", checkpoint]
    assert "was trained with --lr_steps [4, 6], not [9, 11]" in refused("detect", *flags)
    flags += ["--lr_steps", "4", "6", "--lr", "0.5"]
    assert "was trained with --lr 0.02, not 0.5" in refused("detect", *flags)


def test_masks_without_their_package_or_outlines_are_refused(coco, untrained, tmp_path, refused, monkeypatch):
    flags = [*on(coco, untrained, tmp_path / "runs"), *SMALL_HEAD]
    with monkeypatch.context() as patch:
        patch.setattr("solo_hcsc.evaluation.detection.find_spec", lambda name: None)
        assert "masks need pycocotools; run: pip install 'solo_hcsc[coco]'" in refused("detect", *flags)
    own = tmp_path / "own"
    own.mkdir()
    for part in ("train2017", "val2017"):
        (own / part).symlink_to(coco / part)
    (own / "annotations").mkdir()
    for file in (coco / "annotations").iterdir():
        content = json.loads(file.read_text())
        del content["annotations"][0]["segmentation"]
        (own / "annotations" / file.name).write_text(json.dumps(content))
    flags[2] = own
    assert "have no segmentation; use --masks false" in refused("detect", *flags)


def test_loss_that_is_not_finite_ends_the_run_in_one_line(voc, untrained, tmp_path, capfd, monkeypatch):
    step = DetectorTraining.training_step
    monkeypatch.setattr(DetectorTraining, "training_step", lambda self, *batch: step(self, *batch) * math.nan)
    with pytest.raises(SystemExit):
        run_here("detect", *on(voc, untrained, tmp_path), *SMALL_HEAD, "--max_steps", "2")
    last = capfd.readouterr().err.splitlines()[-1]
    assert "became nan at step 0" in last
    assert "more --warmup_steps" in last
