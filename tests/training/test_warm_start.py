"""A gentle start from given weights: what stays as it was, and for how long."""

import pytest
import torch
from tiny import SMALL, only, run_here
from torchvision.models import resnet18

TREE = ["--method", "hcsc", "--num_prototypes", "4", "2", "--min_cluster_size", "2", "--queue_size", "8"]


@pytest.fixture
def start(tmp_path):
    """Weights to start from, with statistics that no batch has."""
    torch.manual_seed(0)
    model = resnet18()
    for name, value in model.state_dict().items():
        if name.endswith("running_mean"):
            value.fill_(0.25)
    torch.save(model.state_dict(), tmp_path / "start.pth")
    return tmp_path / "start.pth"


def trained(custom, start, tmp_path, *flags):
    run_here("pretrain", *custom, *SMALL, *TREE, "--init_weights", start, "--checkpoint_dir", tmp_path / "run", *flags)
    checkpoint = torch.load(only(tmp_path / "run", "*.ckpt"), weights_only=True)
    return checkpoint["state_dict"], torch.load(start, weights_only=True)


def unchanged(state, before, side, ending):
    names = [name for name in before if name.endswith(ending) and not name.startswith("fc.")]
    assert names
    return [torch.equal(state[f"{side}.{name}"], before[name]) for name in names]


def test_statistics_stay_and_weights_learn(custom, start, tmp_path):
    flags = ["--freeze_batchnorm", "--max_epochs", 2]
    state, before = trained(custom, start, tmp_path, *flags)
    for side in ("encoder", "momentum_encoder"):
        assert all(unchanged(state, before, side, "running_mean"))
        assert all(unchanged(state, before, side, "running_var"))
    assert not any(unchanged(state, before, "encoder", "conv1.weight"))
    assert not any(unchanged(state, before, "encoder", "bn1.weight")), "scales learn"


def test_frozen_encoder_does_not_move_and_the_projector_does(custom, start, tmp_path):
    one_epoch = ["--freeze_encoder_epochs", 1, "--max_epochs", 2, "--limit_train_batches", 2]
    checkpoints = ["--checkpoint_frequency", 1, "--keep_checkpoints", 2]
    run_here(
        *("pretrain", *custom, *SMALL, *TREE, "--init_weights", start, "--checkpoint_dir", tmp_path / "run"),
        *(*one_epoch, *checkpoints),
    )
    before = torch.load(start, weights_only=True)
    first, second = (
        torch.load(only(tmp_path / "run", f"*ep={epoch}.ckpt"), weights_only=True)["state_dict"] for epoch in (0, 1)
    )
    for ending in ("weight", "bias", "running_mean"):
        assert all(unchanged(first, before, "encoder", ending)), "in the first epoch nothing moves"
    assert not any(unchanged(second, before, "encoder", "conv1.weight"))
    assert not torch.equal(first["projector.0.weight"], first["momentum_projector.0.weight"]), "it has learnt"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--freeze_batchnorm"], "keeps the statistics of --init_weights, and there are none"),
        (["--freeze_encoder_epochs", "2"], "the encoder would never learn in --max_epochs 2"),
        (["--label_hierarchy", "x.txt"], "is for --oracle_labels alone"),
        (["--no_labels", "--oracle_labels"], "--no_labels says there are none"),
    ],
)
def test_what_makes_no_sense_is_refused(custom, refused, flags, told):
    assert told in refused("pretrain", *custom, *SMALL, *TREE, "--max_epochs", "2", *flags)


def test_run_with_true_labels_says_so_everywhere(custom, tmp_path, capsys):
    run_here(
        *("pretrain", *custom, *SMALL, *TREE, "--max_epochs", 2, "--proto_warmup_epochs", 0, "--oracle_labels"),
        *("--entry_cluster", "assignment", "--clustered_features", "images", "--checkpoint_dir", tmp_path / "run"),
    )
    assert "the tree is made of the true labels (3); this run is not self-supervised" in capsys.readouterr().err
    state = torch.load(only(tmp_path / "run", "*.ckpt"), weights_only=True)["state_dict"]
    assert state["coding.tree.prototypes_0"].shape == (3, 128)
    assert sorted(state["coding.tree.assignments"].unique().tolist()) == [0, 1, 2]
    run_here("knn", "--pretrained_feature_extractor", tmp_path / "run", "--k", 3, "--num_workers", 0)
    capsys.readouterr()
    run_here("summary", tmp_path / "run")
    assert "hcsc with true labels (oracle), 2 epochs" in capsys.readouterr().out
