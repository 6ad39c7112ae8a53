"""Every warning is made to happen; a healthy tree gives none."""

from itertools import count

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import SMALL, run_here, where

from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.health import Health, Sign, collapse_in_tree, collapse_of, of_epoch, of_tree
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import Options
from solo_hcsc.methods import learner

HCSC = "--method hcsc --min_cluster_size 2 --queue_size 16 --proto_warmup_epochs 1 --max_epochs 3".split()
UNCHANGED = "--color_jitter_prob 0 --gray_scale_prob 0 --gaussian_prob 0 --min_scale 1".split()


@pytest.fixture
def one_picture(tmp_path):
    """40 files with the same picture."""
    (tmp_path / "train" / "grey").mkdir(parents=True)
    picture = Image.fromarray(np.full((32, 32, 3), 128, dtype="uint8"))
    for number in range(40):
        picture.save(tmp_path / "train" / "grey" / f"{number}.png")
    return where(tmp_path)


def notes(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: epoch")]


def test_equal_images_fall_into_one_cluster_that_leaves_everything_out(one_picture, capsys):
    tree = "--num_prototypes 8 4 --clustered_features images".split()
    run_here("pretrain", *one_picture, *SMALL, *HCSC, *UNCHANGED, *tree)
    said = notes(capsys)
    (line,) = (line for line in said if "level 1 holds 100% of the images" in line)  # said once, though it goes on
    assert "collapsed" in line
    assert "(the features of 40 images have rank 1 and uniformity 0.00)" in line
    assert any("level 1 leaves out 100% of the negatives" in line for line in said)


def test_equal_images_have_mocos_loss_at_chance(one_picture, capsys):
    moco = "--num_prototypes 8 4 --instance_selection false --prototype_loss false --lr 0.0001".split()
    run_here("pretrain", *one_picture, *SMALL, *HCSC, *UNCHANGED, *moco)
    (line,) = notes(capsys)
    assert "epoch 2: the instance loss is 2.77, and guessing gives 2.77" in line


def test_collapse_needs_evidence_in_the_features(custom, tmp_path, capsys, monkeypatch):
    """Unbalanced images, and embeddings that have only begun to spread, make one large cluster too."""
    ill = {"largest 1": Sign("collapsed: one cluster", "the embeddings have collapsed")}
    monkeypatch.setattr(learner, "collapse_in_tree", lambda *_: ill)
    flags = [*SMALL, *HCSC, "--num_prototypes", "4", "2", "--checkpoint_dir", tmp_path]
    run_here("pretrain", *custom, *flags)
    assert "collapsed" not in "".join(capsys.readouterr())
    assert not any("collapsed" in one for one in load_encoder(tmp_path).warnings)


def test_collapse_is_withdrawn_when_it_no_longer_stands(one_picture, tmp_path, capsys, monkeypatch):
    epochs = count()
    ill = {"largest 1": Sign("collapsed: one cluster", "one cluster; collapsed")}
    monkeypatch.setattr(learner, "collapse_in_tree", lambda *_: ill if next(epochs) == 0 else {})
    run_here("pretrain", *one_picture, *SMALL, *HCSC, *UNCHANGED, "--num_prototypes", 4, 2)
    said = [line for line in notes(capsys) if "collapsed" in line]
    assert [line.partition(" (")[0] for line in said] == [
        "note: epoch 2: one cluster; collapsed",
        "note: epoch 3: no longer: collapsed: one cluster",
    ]
    assert not any("collapsed" in one for one in load_encoder(tmp_path / "runs").warnings)


def test_features_have_collapsed_if_they_fill_few_directions_and_lie_close_together():
    draw = torch.Generator().manual_seed(0)
    close = 10 + torch.randn(300, 1, generator=draw) * torch.randn(1, 64, generator=draw)
    assert "have rank 1 and uniformity" in collapse_of(close)
    spread = F.relu(torch.randn(300, 64, generator=draw))
    unbalanced = torch.cat([spread[:210], spread[:1] + 0.1 * torch.randn(90, 64, generator=draw)])  # 30 % one class
    assert collapse_of(spread) is collapse_of(unbalanced) is None
    assert collapse_of(torch.zeros(300, 64)), "an encoder whose units are all dead"


def test_almost_as_many_clusters_as_members(custom, tmp_path, capsys):
    flags = [*SMALL, *HCSC, "--num_prototypes", "10", "9", "--min_cluster_size", "1", "--checkpoint_dir", tmp_path]
    run_here("pretrain", *custom, *flags)
    assert any("level 2 has" in line and "ask for fewer --num_prototypes" in line for line in notes(capsys))


def test_duplicates_are_counted():
    options = Options(**{"num_prototypes": [8, 2], "min_cluster_size": 0, "kmeans": "plain"})
    apart = F.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    signs = collapse_in_tree(build_hierarchy(apart.repeat(20, 1), options), options)
    assert "equal another one" in signs["duplicates 1"].text


def test_healthy_tree_gives_no_sign():
    options = Options(**{"num_prototypes": [30, 10, 3]})
    images = F.normalize(torch.randn(1000, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    tree = build_hierarchy(images, options)
    assert of_tree(tree, options) == collapse_in_tree(tree, options) == {}


def test_queue_far_from_the_queries_leaves_nothing_out():
    """Queries in one corner, a queue in the other: no entry drew a query's cluster."""
    flags = {"num_prototypes": [4, 2], "min_cluster_size": 2, "queue_size": 64, "temperature_scaling": "none"}
    flags |= {"query_cluster": "cosine"}
    options = Options(**flags, epsilon=1e4)
    draw = torch.Generator().manual_seed(0)
    corners = torch.eye(16)[:4].repeat_interleave(20, 0) + 0.05 * torch.randn(80, 16, generator=draw)
    coding = SelectiveCoding(options, 16, 80, seed=0)
    coding.install(build_hierarchy(F.normalize(corners, dim=1), options), epoch=0)
    coding.enqueue(F.normalize(corners[:20], dim=1).repeat(4, 1)[:64], torch.zeros(64, dtype=torch.long), 0)
    z = F.normalize(corners[40:60], dim=1)
    coded = coding(z, z, torch.arange(20), [], 1.0)
    signs = of_epoch(coded.parts, options, epoch=0)
    assert "level 1 leaves out 0.00% of the negatives, where 25.00% would be chance" in signs["none left out 1"].text


def test_sign_is_said_again_after_it_was_gone():
    health = Health()
    ill = {"a": Sign("ill", "it is ill")}
    news = [health.news(epoch, "tree", signs) for epoch, signs in enumerate([ill, ill, {}, ill])]
    assert news == [["epoch 1: it is ill"], [], ["epoch 3: no longer: ill"], ["epoch 4: it is ill"]]
    assert health.news(3, "epoch", ill) == ["epoch 4: it is ill"], "signs of another thing are others"
