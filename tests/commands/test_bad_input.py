"""What cannot be done is said in one line, with exit code 2, and leaves nothing behind."""

import sys

import pytest
import torch
from tiny import SMALL, make_images, only, run, run_here, where
from torchvision.models import resnet18

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.training.pretraining import prepare, resolve

MOCO = ["--method", "mocov2plus", "--queue_size", "16", "--max_epochs", "1"]


PRETRAIN = {
    "unknown method": (["--method", "nope"], "choose from barlow_twins, byol"),
    "unknown flag": (["--qeue_size", "4"], "did you mean --queue_size?"),
    "flag of the past": (["--amp_level", "O2"], "no longer exists in Lightning 2"),
    "missing folder": (["--train_dir", "nowhere"], "does not exist"),
    "file for a folder": (["--train_dir", "train/class 0/0.png"], "is a file"),
    "too few images": (["--batch_size", "64", "--queue_size", "64"], "36 images do not fill one batch"),
    "too few for two": (["--devices", "2", "--batch_size", "32", "--queue_size", "64"], "18 for each of 2 processes"),
    "crop of 0": (["--crop_size", "0"], "--crop_size 0: must be at least 1"),
    "temperature of 0": (["--temperature", "0"], "--temperature 0: must be greater than 0"),
    "no wandb login": (["--wandb"], "wandb login"),
    "missing resume file": (["--resume_from_checkpoint", "nowhere.ckpt"], "no such checkpoint"),
    "queue and batch": (["--queue_size", "12"], "multiple of the batch"),
    "small crops": (["--crop_size", "32", "16", "--num_crops_per_aug", "2", "2"], "takes no small crops"),
    "crops per pipeline": (["--gaussian_prob", "1.0", "0.1", "0.1"], "--num_crops_per_aug has 1 values for 3"),
    "equalising with dali": (["--equalization_prob", "0.2", "--dali"], "--equalization_prob: --dali cannot equalise"),
    "uneven augmentations": (["--hue", "0.1", "0.1", "--min_scale", "0.1", "0.1", "0.1"], "--hue: give one value"),
    "knn without labels": (["--no_labels", "--knn_eval"], "--knn_eval needs labels"),
    "lars with adam": (["--lars", "--optimizer", "adam"], "--lars works with --optimizer sgd"),
    "step without steps": (["--scheduler", "step"], "--lr_decay_steps"),
    "plateau": (["--scheduler", "reduce"], "pretraining has warmup_cosine"),
    "not a number": (["--lr", "fast"], "argument --lr: invalid float value"),
    "unknown data set": (["--dataset", "mnist"], "invalid choice: 'mnist'"),
    "data fraction": (["--data_fraction", "1.5"], "--data_fraction 1.5"),
    "removed strategy": (["--accelerator", "dp"], "use --strategy ddp"),
    "devices": (["--devices", "none"], "--devices none"),
    "precision": (["--precision", "8"], "--precision 8: choose from"),
    "momenta": (["--base_tau_momentum", "1.0", "--final_tau_momentum", "0.9"], "larger than --final_tau_momentum"),
    "strategy": (["--strategy", "nonsense"], "Lightning does not accept these flags"),
    "time": (["--max_time", "abc"], "Lightning does not accept these flags"),
    "two means": (["--mean", "0.5", "0.5"], "--mean: give three values"),
    "hue": (["--hue", "0.9"], "--hue 0.9: must be at most 0.5"),
    "seed": (["--seed", "99999999999"], "--seed 99999999999: must be below"),
    "patches": (["--encoder", "vit_tiny", "--patch_size", "64"], "--patch_size 64: larger than --crop_size 32"),
    "long name": (
        ["--name", "x" * 300],
        "--name xxxxxxxxxxxxxxxxxxxx...: is part of a file name and must not exceed 200",
    ),
    "endless temperature": (["--temperature", "inf"], "--temperature inf: must be greater than 0 and finite"),
    "slash in the name": (["--name", "a/b"], "must not contain /"),
    "early preset": (["--method", "hcsc", "--dataset", "digits", "--preset", "nope"], "--preset nope"),
    "uneven prototypes": (["--method", "deepclusterv2", "--num_prototypes", "4", "6"], "wants equal numbers"),
    "more prototypes than images": (
        ["--method", "deepclusterv2", "--num_prototypes", "40", "40", "40"],
        "--num_prototypes 40: more than the training images: there are 36, 32 of them in the full batches of a process",
    ),
    "more prototypes than images in batches": (
        ["--method", "deepclusterv2", "--num_prototypes", "33", "33", "33"],
        "give at most 32",
    ),
    "more prototypes than images of a process": (
        ["--method", "deepclusterv2", "--num_prototypes", "17", "17", "17", "--devices", "2"],
        "give at most 16",
    ),
    "too few to whiten": (
        ["--method", "wmse", "--whitening_size", "8", "--proj_output_dim", "8"],
        "--whitening_size 8: wmse cannot whiten 8 dimensions",
    ),
    "best of nothing": (["--keep_best", "val_knn_acc1"], "--keep_best val_knn_acc1 needs --knn_eval"),
    "checkpoint that is not kept": (["--keep_checkpoints", "0"], "--keep_checkpoints 0: must be at least 1"),
    "no step": (["--max_steps", "0"], "--max_steps 0: must be at least 1"),
    "nothing to train on": (["--limit_train_batches", "0"], "--limit_train_batches 0: nothing would be trained on"),
    "best of no batch": (["--keep_best", "val_acc1", "--limit_val_batches", "0"], "leaves nothing to compare"),
    "late validation": (["--val_check_interval", "100"], "--val_check_interval 100: an epoch has only 4 batches"),
    "deepcluster within epochs": (
        ["--method", "deepclusterv2", "--checkpoint_every_n_steps", "2"],
        "deepclusterv2 cannot go on within an epoch",
    ),
    "resume from a folder": (["--resume_from_checkpoint", "."], "a folder; give a file"),
    "steps back": (["--checkpoint_every_n_steps", "-1"], "--checkpoint_every_n_steps -1: must not be negative"),
    "small fraction": (["--data_fraction", "0.2"], "--data_fraction 0.2: 7 images do not fill one batch"),
    "fraction of a class": (["--data_fraction", "0.01"], "--data_fraction 0.01: too small for 36 images"),
    "skipping with dali": (["--skip_unreadable", "--dali"], "--skip_unreadable: --dali cannot skip images"),
    "skipping in cifar": (
        ["--skip_unreadable", "--dataset", "cifar10"],
        "is for folders of images",
    ),
    "dali with cifar": (["--dali", "--dataset", "cifar10"], "--dali reads folders and lists"),
}


@pytest.mark.parametrize("case", PRETRAIN)
def test_pretrain_refuses(case, custom, refused):
    flags, reason = PRETRAIN[case]
    method = [] if "--method" in flags and flags[1] != "nope" else MOCO
    assert reason in refused("pretrain", *custom, *SMALL, "--max_epochs", "1", *method, *flags)


def test_validation_class_that_training_lacks(tmp_path, refused):
    make_images(tmp_path / "train", classes=2, per_class=8)
    make_images(tmp_path / "val", classes=3, per_class=2)
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train", "--val_dir", "val"]
    assert "class 'class 2' is not in --train_dir" in refused("pretrain", *where, *SMALL, *MOCO)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "flags", [["--gpus", "0"], ["--gpus", "0,1", "--accelerator", "ddp"], ["--accelerator", "gpu"]]
)
def test_gpu_that_is_not_there(flags, custom, refused):
    cpu = SMALL.index("--accelerator")
    small = SMALL[:cpu] + SMALL[cpu + 2 :]
    assert "there is no GPU here" in refused("pretrain", *custom, *small, *MOCO, *flags)


def test_dali_that_is_not_there(custom, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert "solo_hcsc[dali]" in refused("pretrain", *custom, *SMALL, *MOCO, "--dali")


def test_empty_folder(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "empty"]
    assert "is empty" in refused("pretrain", *where, *SMALL, *MOCO)


def test_folder_without_classes(images, refused):
    where = ["--dataset", "custom", "--data_dir", images, "--train_dir", "flat/class 0"]
    assert "one folder per class is expected there" in refused("pretrain", *where, *SMALL, *MOCO)


def test_folder_without_images(tmp_path, refused):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "readme.txt").touch()
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "text"]
    assert "no images there" in refused("pretrain", *where, *SMALL, *MOCO, "--no_labels")


def test_class_folder_without_images(tmp_path, refused):
    make_images(tmp_path / "train", classes=2, per_class=8)
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train"]
    for name in ("empty", "not images"):
        (tmp_path / "train" / name / "deeper").mkdir(parents=True)
    (tmp_path / "train" / "not images" / "notes.txt").touch()
    line = refused("pretrain", *where, *SMALL, *MOCO)
    assert "class folder 'empty' and 1 others have no images (.jpg, " in line
    assert line.endswith("; add some, or remove the folder")
    (tmp_path / "train" / "empty" / ".hidden.png").touch()
    assert "class folder 'empty'" in refused("pretrain", *where, *SMALL, *MOCO)


@pytest.mark.parametrize("flags", [[], ["--no_labels"]])
def test_hidden_images_are_none(flags, tmp_path, refused):
    (tmp_path / "train" / ".cache").mkdir(parents=True)
    (tmp_path / "train" / ".cache" / "x.png").touch()
    (tmp_path / "train" / "._x.png").touch()
    where = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train"]
    said = "no images there" if flags else "one folder per class is expected"
    assert said in refused("pretrain", *where, *SMALL, *MOCO, *flags)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip file"])
def test_corrupt_resume_file(content, custom, tmp_path, refused):
    (tmp_path / "corrupt.ckpt").write_bytes(content)
    assert "not a readable checkpoint" in refused(
        "pretrain", *custom, *SMALL, *MOCO, "--resume_from_checkpoint", "corrupt.ckpt"
    )


class Executable:
    def __reduce__(self):
        return (print, ("executed",))


CARRIES_CODE = {
    "function": (lambda file: torch.save({"state_dict": {}, "trap": Executable()}, file), "print"),
    "function in the old format": (
        lambda file: torch.save({"trap": Executable()}, file, _use_new_zipfile_serialization=False),
        "print",
    ),
    "module": (lambda file: torch.save(torch.nn.Linear(2, 2), file), "torch.nn.modules.linear.Linear"),
    "bare pickle": (lambda file: file.write_bytes(b"cos\nsystem\n(S'echo executed'\ntR."), "os.system"),
    "script": (lambda file: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file), "a TorchScript program"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CARRIES_CODE)
def test_checkpoint_with_code_is_refused_unexecuted(kind, custom, tmp_path, refused, capfd):
    write, name = CARRIES_CODE[kind]
    write(tmp_path / "trap.ckpt")
    for module, flags in {
        "pretrain": [*SMALL, *MOCO, "--resume_from_checkpoint"],
        "linear": [*SMALL, "--pretrained_feature_extractor"],
        "knn": ["--pretrained_feature_extractor"],
    }.items():
        line = refused(module, *custom, *flags, "trap.ckpt")
        assert f"trap.ckpt: refused, because it carries code or Python objects ({name}) that loading would run" in line
        assert "executed" not in capfd.readouterr().out


def test_checkpoint_of_another_method_is_refused(custom, tmp_path, refused):
    torch.save({"state_dict": {"encoder.conv1.weight": torch.zeros(1)}}, tmp_path / "other.ckpt")
    line = refused("pretrain", *custom, *SMALL, *MOCO, "--resume_from_checkpoint", "other.ckpt")
    assert "not a checkpoint of this run's method and encoder" in line


def test_checkpoint_without_the_state_of_training_is_refused(custom, tmp_path, refused):
    model = prepare(resolve(parse([*custom, *SMALL, *MOCO]))).model
    state = {"state_dict": model.state_dict(), "pytorch-lightning_version": "2.6", "global_step": 4, "loops": {"x": 1}}
    state |= {"lr_schedulers": [], "epoch": 0}
    flags = [*custom, *SMALL, *MOCO, "--max_epochs", "3", "--resume_from_checkpoint", "x.ckpt"]
    for changes, lacking in (({}, "optimizer_states"), ({"optimizer_states": [{}]}, "loops")):
        torch.save(state | changes, tmp_path / "x.ckpt")
        assert f"has weights but not where training was ({lacking})" in refused("pretrain", *flags)
    for name in ("queue", "momentum_classifier.weight"):  # the second as if a flag was left out
        torch.save(state | {"state_dict": model.state_dict() | {name: "text"}}, tmp_path / "x.ckpt")
        assert f"first difference: {name}" in refused("pretrain", *flags)


@pytest.mark.parametrize("place", ["a-file/runs", "/proc/runs"])
def test_unwritable_output(place, custom, tmp_path, refused):
    (tmp_path / "a-file").touch()
    line = refused("pretrain", *custom, *SMALL, *MOCO, "--checkpoint_dir", place)
    assert f"--checkpoint_dir {place}: cannot write there" in line


def test_download_that_fails(refused, monkeypatch):
    import torchvision.datasets.cifar as cifar

    def unreachable(*args, **kwargs):
        raise OSError("<urlopen error the network is down>")

    monkeypatch.setattr(cifar, "download_and_extract_archive", unreachable)
    line = refused("pretrain", "--dataset", "cifar10", *SMALL, *MOCO)
    assert "cannot be downloaded" in line
    assert "the network is down" in line


@pytest.mark.parametrize("module", ["linear", "knn", "semisup"])
def test_evaluation_refuses(module, custom, tmp_path, refused):
    custom = [*custom, "--label_fraction", "0.5"] if module == "semisup" else custom
    assert "--pretrained_feature_extractor is missing" in refused(module, *custom)
    assert "--no_labels: an evaluation needs labels" in refused(
        module, *custom, "--no_labels", "--pretrained_feature_extractor", "nowhere.ckpt"
    )
    assert "no such checkpoint" in refused(module, *custom, "--pretrained_feature_extractor", "nowhere.ckpt")
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in refused(module, *custom, "--pretrained_feature_extractor", "empty")
    torch.save({"state_dict": {"fc.weight": torch.zeros(1)}}, tmp_path / "empty" / "x.ckpt")
    assert "empty/x.ckpt: no encoder in it" in refused(module, *custom, "--pretrained_feature_extractor", "empty")
    torch.save({"state_dict": {"encoder.conv1.weight": torch.zeros(64, 3, 7, 7)}}, tmp_path / "empty" / "x.ckpt")
    where = ["--pretrained_feature_extractor", "empty"]
    assert "there is no args.json beside it; give --encoder" in refused(module, *custom, *where)
    line = refused(module, *custom, *where, "--encoder", "resnet18")
    assert "does not fit resnet18; missing: 99 weights (bn1.weight, bn1.bias, bn1.running_mean, ...)" in line


@pytest.mark.parametrize("module", ["linear", "knn"])
def test_encoder_that_cannot_be_used(module, custom, tmp_path, refused):
    from torchvision.models import resnet18

    whole = resnet18()
    whole.fc = torch.nn.Identity()
    whole = {f"encoder.{key}": value for key, value in whole.state_dict().items()}
    nan = whole["encoder.layer1.0.conv1.weight"].clone()
    nan[0, 0, 0, 0] = torch.nan
    said = {
        "unexpected: 2 weights (extra, more); of another shape: 1 weight (bn1.bias)": {
            "encoder.extra": torch.zeros(1),
            "encoder.more": torch.zeros(1),
            "encoder.bn1.bias": torch.zeros(3),
        },
        "NaN or infinite values in 1 weight (layer1.0.conv1.weight)": {"encoder.layer1.0.conv1.weight": nan},
        "NaN or infinite values in 1 weight (bn1.running_var)": {
            "encoder.bn1.running_var": torch.full((64,), torch.inf)
        },
        "no plain tensor for 1 weight (extra) of the encoder": {"encoder.extra": "text"},
    }
    for reason, changes in said.items():
        torch.save({"state_dict": whole | changes}, tmp_path / "x.ckpt")
        flags = ["--pretrained_feature_extractor", "x.ckpt", "--encoder", "resnet18"]
        assert reason in refused(module, *custom, *flags)
    for content, reason in {
        "{": "not readable as JSON",
        "[" * 200_000: "not readable as JSON",
        '{"encoder": "nope"}': "unknown encoder 'nope'",
        '{"encoder": 5}': "unknown encoder 5",
    }.items():
        torch.save({"state_dict": whole}, tmp_path / "x.ckpt")
        (tmp_path / "args.json").write_text(content)
        assert reason in refused(module, *custom, "--pretrained_feature_extractor", "x.ckpt")


@pytest.mark.parametrize("flags", [["--batch_size", "64"], ["--devices", "2", "--batch_size", "32"]])
def test_linear_refuses_fewer_images_than_a_batch(flags, custom, tmp_path, refused):
    torch.save(resnet18().state_dict(), tmp_path / "x.ckpt")
    line = refused("linear", *custom, *SMALL, *flags, "--pretrained_feature_extractor", "x.ckpt")
    assert "do not fill one batch; lower --batch_size" in line


EVALUATION = {
    "unknown configuration": ("linear", ["--config", "nope"], "invalid choice: 'nope'"),
    "sweep of nothing": ("linear", ["--lr_sweep", "0"], "--lr_sweep 0: must be greater than 0"),
    "sweep of one twice": ("linear", ["--lr_sweep", "1", "1.0"], "--lr_sweep: a learning rate is given twice"),
    "sweep that watches": ("linear", ["--lr_sweep", "--scheduler", "reduce"], "--lr_sweep: --scheduler reduce"),
    "validation of another epoch": ("linear", ["--max_epochs", "3", "--check_val_every_n_epoch", "2"], "must divide"),
    "clipped sweep": ("linear", ["--lr_sweep", "--gradient_clip_val", "1"], "would clip all classifiers together"),
    "temperature that is none": ("knn", ["--k", "1", "--temperature", "nan"], "--temperature nan: must be greater"),
    "one labelled image": (
        "semisup",
        ["--label_fraction", "0.5", "--batch_size", "1"],
        "batch norm needs at least two",
    ),
    "cache on two": ("linear", ["--cache_features", "--devices", "2"], "--cache_features works on one device"),
    "one class": ("linear", ["--train_dir", "flat"], "only one class ('class 0')"),
    "one class for KNN": ("knn", ["--train_dir", "flat", "--k", "1"], "only one class ('class 0')"),
    "K larger than the bank": ("knn", ["--k", "10", "37"], "--k 37: there are only 36 training images"),
    "projector of a plain encoder": (
        "knn",
        ["--k", "1", "--features", "projector"],
        "no args.json of a pretraining run",
    ),
    "no share": ("semisup", [], "--label_fraction is missing"),
    "share of 2": ("semisup", ["--label_fraction", "2"], "--label_fraction 2: must be above 0"),
    "share and list": ("semisup", ["--label_fraction", "0.1", "--label_list", "x"], "exclude each other"),
    "missing list": ("semisup", ["--label_list", "nope.txt"], "--label_list nope.txt: cannot be read (No such file"),
    "list with DALI": ("semisup", ["--label_fraction", "0.1", "--dali"], "--dali: semisup reads"),
    "head": ("semisup", ["--label_fraction", "0.1", "--head_lr", "0"], "--head_lr 0: must be greater than 0"),
}


def test_fewer_validation_images_than_processes_are_refused(tmp_path, refused):
    make_images(tmp_path / "train", classes=2, per_class=20)
    make_images(tmp_path / "val", classes=1, per_class=1)
    flags = [*where(tmp_path), "--val_dir", "val", *SMALL, *MOCO, "--devices", "2"]
    assert "1 images cannot be shared by 2 processes" in refused("pretrain", *flags)


@pytest.mark.parametrize("name", EVALUATION)
def test_evaluation_flags_are_refused(name, custom, tmp_path, refused):
    module, flags, reason = EVALUATION[name]
    torch.save(resnet18().state_dict(), tmp_path / "x.ckpt")
    small = [*SMALL[:6], *([] if module == "knn" else SMALL[6:])]
    assert reason in refused(module, *custom, *small, "--pretrained_feature_extractor", "x.ckpt", *flags)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nope.png\n", "line 1: 'nope.png' is not among the training images"),
        (b"\n \n", "it names no image"),
        (b"\xff\xfe\x00", "cannot be read (not a text file)"),
    ],
)
def test_list_of_labels_is_refused(content, reason, custom, tmp_path, refused):
    torch.save(resnet18().state_dict(), tmp_path / "x.ckpt")
    (tmp_path / "list.txt").write_bytes(content)
    line = refused("semisup", *custom, *SMALL, "--pretrained_feature_extractor", "x.ckpt", "--label_list", "list.txt")
    assert "--label_list list.txt" in line
    assert reason in line


def test_summary_of_nothing(tmp_path, refused):
    assert "no evaluation results" in refused("summary", tmp_path)
    assert "there is no such folder" in refused("summary", "nowhere")


def test_refusal_is_one_line_in_a_process_of_its_own_too(custom, tmp_path):
    out = run("pretrain", *custom, *SMALL, *MOCO, "--crop_size", "0", cwd=tmp_path, expect=2)
    assert out.stderr == "error: --crop_size 0: must be at least 1\n"
    assert out.stdout == ""
    assert not list(tmp_path.iterdir())


def test_run_with_a_nan_stops_and_names_the_last_checkpoint(tmp_path, capsys):
    make_images(tmp_path / "train", classes=2, per_class=8)
    flags = "--max_epochs 30 --lr 1e30 --warmup_start_lr 0 --warmup_epochs 2".split()
    with pytest.raises(SystemExit) as stopped:
        run_here("pretrain", *where(tmp_path), *SMALL[:-2], *MOCO[:-2], *flags)
    assert stopped.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: the loss became nan at step")
    checkpoint = only(tmp_path / "runs", "*.ckpt")
    assert str(checkpoint) in error
    torch.load(checkpoint, weights_only=True)
