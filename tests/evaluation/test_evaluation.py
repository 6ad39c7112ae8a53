"""Evaluations: which checkpoints they take, and that each does what its name says."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import timm
import torch
from tiny import only, run_here
from torch import nn
from torchvision.models import resnet18, resnet50

from solo_hcsc.cli.commands import linear
from solo_hcsc.data.folders import LabelledImages
from solo_hcsc.encoders.checkpoints import find_checkpoint
from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.features import Features
from solo_hcsc.evaluation.knn import knn
from solo_hcsc.evaluation.protocols import SWEEP
from solo_hcsc.evaluation.rates import RATES, choose_rate
from solo_hcsc.evaluation.semisup import listed_images, stratified_sample
from solo_hcsc.runs.results import read_results
from solo_hcsc.runs.run import open_run

QUICK = "--crop_size 32 --num_workers 0 --accelerator cpu --batch_size 8 --max_epochs 2".split()


# ---- checkpoints ----


def moco(model: nn.Module, features: int, prefix: str = "module.", projector: str = "mlp") -> dict:
    """A file as MoCo's and the authors' training writes it: both encoders, the queue, the optimiser, the epoch."""
    model.fc = (
        nn.Linear(features, 128)
        if projector == "linear"
        else nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 128))
    )
    weights = model.state_dict()
    state = {f"{prefix}encoder_{side}.{key}": value for side in "qk" for key, value in weights.items()}
    state |= {f"{prefix}queue": torch.zeros(128, 16), f"{prefix}queue_ptr": torch.zeros(1, dtype=torch.long)}
    return {"epoch": 200, "arch": "resnet50", "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}


def test_authors_checkpoint_gives_every_encoder_weight_and_leaves_none(tmp_path):
    torch.manual_seed(1)
    model = resnet50()
    torch.save(moco(model, 2048), tmp_path / "hcsc_200eps.pth")
    found = load_encoder(tmp_path / "hcsc_200eps.pth", None, 224)
    expected = {key: value for key, value in model.state_dict().items() if not key.startswith("fc.")}
    taken = found.module.state_dict()
    assert found.name == "resnet50"
    assert taken.keys() == expected.keys()
    assert all(torch.equal(taken[key], expected[key]) for key in expected)
    assert f"encoder: {len(expected)} weights of resnet50 taken" in found.taken
    assert found.taken.endswith("hcsc_200eps.pth")
    projector = open_run(tmp_path / "hcsc_200eps.pth").projector
    features = torch.randn(2, 2048)
    assert torch.equal(projector(features), model.fc(features))


@pytest.mark.parametrize("kind", ["torchvision", "timm", "moco v1", "without DataParallel", "DataParallel", "backbone"])
def test_other_formats_give_every_encoder_weight(kind, tmp_path):
    torch.manual_seed(2)
    model = timm.create_model("resnet18") if kind == "timm" else resnet18()
    content = {
        "torchvision": lambda: model.state_dict(),
        "timm": lambda: model.state_dict(),
        "moco v1": lambda: moco(model, 512, projector="linear"),
        "without DataParallel": lambda: moco(model, 512, prefix=""),
        "DataParallel": lambda: {"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}},
        "backbone": lambda: {
            "state_dict": {f"backbone.{k}": v for k, v in model.state_dict().items() if not k.startswith("fc.")}
        },
    }[kind]()
    torch.save(content, tmp_path / "x.pth")
    found = load_encoder(tmp_path / "x.pth", None, 224)
    images = torch.randn(2, 3, 64, 64)
    model.fc = nn.Identity()
    with torch.no_grad():
        assert torch.allclose(found.module.eval()(images), model.eval()(images), atol=1e-5)
    if kind == "moco v1":
        assert open_run(tmp_path / "x.pth").projector(torch.zeros(1, 512)).shape == (1, 128)


@pytest.mark.parametrize(
    ("pretrained", "classifier"),
    [
        ({"method": "hcsc"}, {"pretrained_feature_extractor": "x"}),  # as solo-learn writes them
        ({"method": "hcsc", "role": "pretraining"}, {"method": "hcsc", "role": "evaluation"}),
    ],
)
def test_newest_checkpoint_of_a_folder_is_not_one_of_an_evaluation(pretrained, classifier, tmp_path):
    for name, args in (("pretrained", pretrained), ("linear", classifier)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.ckpt").touch()
        (tmp_path / name / "args.json").write_text(json.dumps(args))
    assert find_checkpoint(tmp_path) == tmp_path / "pretrained" / "x.ckpt"


# ---- linear ----


def test_configurations_are_those_of_the_papers_appendix():
    flags = "--dataset digits --pretrained_feature_extractor x --config".split()
    for config, lr, scheduler, steps in (
        ("pcl", 5.0, "step", [60, 80]),
        ("adco", 10.0, "cosine", None),
        ("moco", 30.0, "step", [60, 80]),
    ):
        args = linear.parse([*flags, config])
        assert (args.lr, args.scheduler, args.lr_decay_steps) == (lr, scheduler, steps)
        assert (args.weight_decay, args.batch_size, args.max_epochs, args.optimizer) == (0.0, 256, 100, "sgd")
    assert linear.parse([*flags, "pcl", "--lr", "2", "--max_epochs", "3"]).lr == 2


def test_swept_classifiers_are_those_that_each_learning_rate_alone_gives(custom, untrained, tmp_path, capsys):
    flags = [*custom, *QUICK, "--cache_features", "--scheduler", "cosine", "--pretrained_feature_extractor", untrained]
    run_here("linear", *flags, "--lr_sweep", 0.1, 3, "--checkpoint_dir", tmp_path / "sweep")
    out = capsys.readouterr().out
    assert re.search(r"^ *0\.1 +\d+\.\d\d$", out, re.M)
    assert "chosen on the validation images" in out
    assert "without augmentation: a quick answer" in out
    swept = torch.load(only(tmp_path / "sweep", "*.ckpt"), weights_only=True)["state_dict"]
    result = read_results(tmp_path / "sweep")[0]
    for number, lr in enumerate((0.1, 3)):
        run_here("linear", *flags, "--lr", lr, "--checkpoint_dir", tmp_path / str(lr))
        alone = torch.load(only(tmp_path / str(lr), "*.ckpt"), weights_only=True)["state_dict"]
        assert torch.allclose(swept[f"classifier.{number}.weight"], alone["classifier.weight"], atol=1e-6)
        metrics = read_results(tmp_path / str(lr))[0]["metrics"]
        assert result["settings"]["all"][number]["acc1"] == pytest.approx(metrics["acc1"], abs=1e-4)
    assert result["metrics"]["acc1"] == max(row["acc1"] for row in result["settings"]["all"])
    assert result["settings"]["features"] == "cached, without augmentation"


@pytest.mark.parametrize("scale", [0.05, 100])
def test_chosen_rate_suits_features_of_any_scale(scale):
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    features = Features(scale * (3 * torch.eye(16)[y] + torch.randn(300, 16, generator=draw).abs()), y)
    settings = {"num_classes": 3, "max_epochs": 20, "batch_size": 32, "optimizer": "sgd", "weight_decay": 0.0}
    settings |= {"lars": False, "exclude_bias_n_norm": False, "extra_optimizer_args": {"momentum": 0.9}}
    encoder = nn.Identity()
    encoder.num_features = 16
    rate = choose_rate(features, encoder, {**settings, "scheduler": "reduce"}, seed=0)
    best = next(one for one in rate.tried if one.lr == rate.lr)
    assert best.acc1 > 90
    assert (rate.images, rate.held_out) == (240, 60)
    losses = {one.lr: one.loss for one in rate.tried}
    assert losses[0.3] > 20 if scale == 100 else rate.lr > 0.1, "the rate that was the default diverged"


@pytest.mark.parametrize("cached", [["--cache_features"], []])
def test_rate_that_nobody_typed_is_chosen_on_training_images(cached, custom, untrained, tmp_path, capsys):
    flags = ["--crop_size", 32, "--num_workers", 0, "--accelerator", "cpu", "--max_epochs", 1]
    flags += [*custom, *cached, "--pretrained_feature_extractor", untrained]
    run_here("linear", *flags, "--checkpoint_dir", tmp_path / "chosen")
    settings = read_results(tmp_path / "chosen")[0]["settings"]
    assert settings["chosen"] == "best of 10 learning rates on 7 held-out training images"
    assert settings["lr"] in RATES
    assert settings["batch_size"] == 9, "36 images are too few for the default of 128"
    assert f"--lr {settings['lr']:g}: best of 10" in capsys.readouterr().out
    run_here("linear", *flags, "--lr", 0.3, "--batch_size", 12, "--checkpoint_dir", tmp_path / "typed")
    settings = read_results(tmp_path / "typed")[0]["settings"]
    assert (settings["lr"], settings["batch_size"]) == (0.3, 12)
    assert "chosen" not in settings


def test_sweep_works_on_augmented_images_too(custom, untrained, tmp_path):
    flags = [*custom, *QUICK, "--scheduler", "step", "--lr_decay_steps", 1, "--pretrained_feature_extractor", untrained]
    run_here("linear", *flags, "--lr_sweep", "--checkpoint_dir", tmp_path)
    result = read_results(tmp_path)[0]
    assert len(result["settings"]["all"]) == len(SWEEP)
    assert "features" not in result["settings"]


def test_result_has_what_it_takes_to_repeat_it(custom, untrained, tmp_path):
    import hashlib

    run_here(
        "knn",
        *custom,
        *"--crop_size 32 --num_workers 0 --k 1 5 --method mine --pretrained_feature_extractor".split(),
        untrained,
    )
    result = json.loads(only(untrained.parent, "knn-custom-*.json").read_text())
    assert result["checkpoint_sha256"] == hashlib.sha256(untrained.read_bytes()).hexdigest()
    assert result["command"].startswith("solo-hcsc knn --dataset custom --data_dir ")
    assert result["method"] == "mine"
    assert result["data"]["train_images"] == 36
    assert result["data"]["val_images"] == 9
    assert {row["k"] for row in result["settings"]["all"]} == {1, 5}
    assert result["seconds"] > 0
    assert result["versions"].keys() >= {"python", "torch", "solo-learn", "scikit-learn"}


# ---- semi-supervised ----


def test_draws_are_stratified_and_reproducible():
    labels = [0] * 300 + [1] * 100 + [2] * 30 + [7]
    chosen = stratified_sample(labels, 0.1, seed=3)
    assert Counter(labels[i] for i in chosen) == {0: 30, 1: 10, 2: 3, 7: 1}
    assert chosen == stratified_sample(labels, 0.1, seed=3)
    assert chosen != stratified_sample(labels, 0.1, seed=4)
    assert len(set(chosen)) == len(chosen)
    assert stratified_sample(labels, 1.0, seed=0) == list(range(len(labels)))


def test_fine_tuning_trains_the_encoder_and_reports_the_last_epoch_and_the_best(custom, untrained, tmp_path, capsys):
    flags = [*custom, *QUICK, "--label_fraction", 0.5, "--head_lr", 0.1, "--pretrained_feature_extractor", untrained]
    run_here("semisup", *flags, "--max_epochs", 3, "--lr_decay_steps", 2, "--checkpoint_dir", tmp_path)
    out = capsys.readouterr().out
    assert "18 labels for 36 images (50.00% of each class" in out
    assert re.search(r"last epoch +\d", out)
    assert "best epoch (chosen on the validation images)" in out
    checkpoint = torch.load(only(tmp_path, "*.ckpt"), weights_only=True)
    before = torch.load(untrained, weights_only=True)
    assert not torch.equal(checkpoint["state_dict"]["backbone.conv1.weight"], before["conv1.weight"])
    lrs = [group["initial_lr"] for group in checkpoint["optimizer_states"][0]["param_groups"]]
    assert lrs == [0.005, 0.1]
    result = read_results(tmp_path)[0]
    assert result["settings"]["label_fraction"] == 0.5
    assert result["data"]["labelled_images"] == 18
    assert result["settings"]["best"]["acc1"] >= result["metrics"]["acc1"]


def test_labels_come_from_a_list_as_imagenets(images, untrained, tmp_path):
    """Names alone, as in the usual 1 % lists; also with a folder, and with a label behind."""
    train = tmp_path / "train"
    for number, folder in enumerate(("n01440764", "n02389026")):
        (train / folder).mkdir(parents=True)
        for index, file in enumerate(sorted((images / "train" / f"class {number}").glob("*.png"))):
            (train / folder / f"{folder}_{index}.png").write_bytes(file.read_bytes())
    lines = ["n01440764_3.png", "n02389026/n02389026_4.png", "", "train/n02389026/n02389026_5.png 1", "n01440764_3.png"]
    (tmp_path / "1percent.txt").write_text("\n".join(lines) + "\n")
    flags = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train", "--val_dir", "train", *QUICK]
    flags += ["--pretrained_feature_extractor", untrained, "--checkpoint_dir", tmp_path / "runs", "--max_epochs", 1]
    run_here("semisup", *flags, "--label_list", tmp_path / "1percent.txt")
    result = read_results(tmp_path / "runs")[0]
    assert result["data"]["labelled_images"] == 3
    assert result["settings"]["label_fraction"] == pytest.approx(3 / 24)


def test_names_that_several_images_have_are_refused_unless_the_path_tells(tmp_path, images, untrained, capsys):
    for folder in ("a/s", "b/s"):
        (tmp_path / "train" / folder).mkdir(parents=True)
        for number in range(3):
            picture = images / "train" / "class 0" / f"{number}.png"
            (tmp_path / "train" / folder / picture.name).write_bytes(picture.read_bytes())
    flags = ["--dataset", "custom", "--data_dir", tmp_path, "--train_dir", "train", "--val_dir", "train", *QUICK]
    flags += ["--pretrained_feature_extractor", untrained, "--checkpoint_dir", tmp_path / "runs", "--max_epochs", 1]
    (tmp_path / "list.txt").write_text("a/s/0.png\ns/1.png\n")
    with pytest.raises(SystemExit):
        run_here("semisup", *flags, "--label_list", tmp_path / "list.txt")
    error = capsys.readouterr().err
    assert "line 2: 's/1.png' may be" in error
    assert "a/s/1.png and" in error
    dataset = LabelledImages(tmp_path / "train", None)
    (tmp_path / "list.txt").write_text("\ufeffa/s/0.png\na/s/1.png 0\ntrain/b/s/2.png\n")
    chosen = listed_images(tmp_path / "list.txt", dataset)
    assert [dataset.samples[i][0][-9:] for i in chosen] == ["a/s/0.png", "a/s/1.png", "b/s/2.png"]


# ---- what goes on must be what began ----


@pytest.mark.parametrize(
    ("module", "first", "then"),
    [
        ("linear", ["--lr_sweep", 0.1, 1, "--cache_features"], ["--lr_sweep", 3, 30, "--cache_features"]),
        ("linear", ["--scheduler", "cosine"], ["--scheduler", "cosine", "--pretrained_feature_extractor", "other.pth"]),
        ("semisup", ["--label_fraction", 0.5], ["--label_fraction", 0.5, "--seed", 3]),
    ],
)
def test_resuming_with_other_flags_is_refused(module, first, then, custom, untrained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    torch.save(resnet18().state_dict(), "other.pth")
    flags = [*custom, *QUICK, "--pretrained_feature_extractor", untrained, "--checkpoint_dir"]
    run_here(module, *flags, "first", *first)
    checkpoint = only(tmp_path / "first", "*.ckpt")
    resumed = [*flags, "second", "--max_epochs", 3, "--resume_from_checkpoint", checkpoint]
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        run_here(module, *resumed, *then)
    assert stopped.value.code == 2
    assert "was trained with " in capsys.readouterr().err
    assert not (tmp_path / "second").exists()
    run_here(module, *resumed, *first)
    assert only(tmp_path / "second", "*.ckpt").name.endswith("ep=2.ckpt")


def test_classifier_that_diverges_leaves_the_others_alone(custom, untrained, tmp_path, capsys):
    flags = [*custom, *QUICK, "--cache_features", "--pretrained_feature_extractor", untrained, "--checkpoint_dir"]
    run_here("linear", *flags, tmp_path / "both", "--lr_sweep", 0.1, 1e30)
    assert "diverged: 1e+30" in capsys.readouterr().out
    run_here("linear", *flags, tmp_path / "one", "--lr_sweep", 0.1)
    both, one = (read_results(tmp_path / name)[0]["settings"]["all"][0] for name in ("both", "one"))
    assert both == one


# ---- KNN ----


def test_votes_do_not_overflow_and_a_k_counts_once():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 6
    means = torch.randn(6, 8, generator=generator)
    bank = (means[labels] + 0.8 * torch.randn(60, 8, generator=generator), labels)
    queries = (means[labels] + 0.8 * torch.randn(60, 8, generator=generator), labels)
    rows = knn(bank, queries, [1, 20, 20], temperature=1e-4).rows
    assert [row["k"] for row in rows] == [1, 20]
    assert rows[0]["acc1"] == rows[1]["acc1"]  # the nearest alone decides
    assert 50 < rows[0]["acc1"] < 100


def test_features_that_are_not_finite_are_refused(custom, tmp_path, refused):
    content = moco(resnet18(), 512)
    content["state_dict"]["module.encoder_q.fc.0.weight"][0, 0] = float("nan")
    torch.save(content, tmp_path / "x.pth")
    flags = "--crop_size 32 --num_workers 0 --k 1 --features projector --pretrained_feature_extractor x.pth".split()
    assert "has NaN or infinite values" in refused("knn", *custom, *flags)


def test_result_that_cannot_be_written_is_found_before_the_work(custom, tmp_path, refused):
    torch.save(resnet18().state_dict(), tmp_path / "x.pth")
    (tmp_path / f"knn-custom-{Path(custom[3]).name}-x.json").mkdir()
    flags = "--crop_size 32 --num_workers 0 --k 1 --pretrained_feature_extractor x.pth".split()
    assert "is a folder, and the result goes there" in refused("knn", *custom, *flags)


def test_old_weights_without_counters_and_swavs_are_taken(tmp_path):
    weights = resnet18().state_dict()
    torch.save({k: v for k, v in weights.items() if "num_batches_tracked" not in k}, tmp_path / "old.pth")
    swav = {f"module.{k}": v for k, v in weights.items() if not k.startswith("fc.")}
    swav |= {"module.projection_head.0.weight": torch.zeros(2, 2), "module.prototypes.weight": torch.zeros(2, 2)}
    (tmp_path / "swav").mkdir()
    torch.save({"state_dict": swav}, tmp_path / "swav" / "swav.pth.tar")
    for path in (tmp_path / "old.pth", find_checkpoint(tmp_path / "swav")):
        found = load_encoder(path, None, 224).module.state_dict()
        assert all(torch.equal(found[k], weights[k]) for k in found if "num_batches_tracked" not in k)
    weights["layer1.0.conv1.weight"] = weights["layer1.0.conv1.weight"].to(torch.int8)
    torch.save(weights, tmp_path / "old.pth")
    with pytest.raises(UserError, match="no plain tensor for 1 weight"):
        load_encoder(tmp_path / "old.pth", None, 224)
