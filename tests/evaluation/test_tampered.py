"""Checkpoints and records that somebody changed: one line that names the file, soon, and no traceback."""

import json
import shutil

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny import only

from solo_hcsc import embed, load_encoder, load_tree, open_run
from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.hierarchy import KIND, Hierarchy
from solo_hcsc.hcsc.tree_buffers import TreeBuffers
from solo_hcsc.runs.results import read_metrics


@pytest.mark.parametrize(
    ("name", "shape"),
    [("layer4.1.conv2.weight", (10**6, 10**7)), ("conv1.weight", (64, 3, 7, 7)), ("extra", (10**12,))],
)
def test_expanded_tensor_is_refused_before_its_values_are_looked_at(name, shape, untrained, tmp_path):
    """One number that stands for 10^12 takes hours to look at."""
    weights = torch.load(untrained, weights_only=True)
    torch.save(weights | {name: torch.zeros(1).expand(shape)}, tmp_path / "x.pth")
    assert (tmp_path / "x.pth").stat().st_size < 60e6
    with pytest.raises(UserError, match=rf"{name} has shape .* \(an expanded tensor\); save it with .contig"):
        load_encoder(tmp_path / "x.pth", "resnet18")


def test_part_of_a_larger_tensor_is_no_expanded_one(untrained, tmp_path):
    weights = torch.load(untrained, weights_only=True)
    torch.save(weights | {"bn1.bias": torch.zeros(2, 128)[1, ::2]}, tmp_path / "x.pth")
    assert load_encoder(tmp_path / "x.pth", "resnet18").name == "resnet18"


@pytest.mark.parametrize("kind", ["args.json", "safetensors"])
@pytest.mark.parametrize("size", [[10**9], [0], ["32"]])
def test_crop_size_that_no_image_has_is_refused(size, kind, untrained, tmp_path):
    known = {"encoder": "resnet18", "crop_size": size}
    if kind == "args.json":
        shutil.copy(untrained, tmp_path / "x.pth")
        (tmp_path / "args.json").write_text(json.dumps(known))
    else:
        metadata = {name: json.dumps(value) for name, value in known.items()}
        save_file(torch.load(untrained, weights_only=True), tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(UserError, match=r"crop_size is \[.*\], which no run writes; give `crop_size`"):
        load_encoder(only(tmp_path, "x.*"), "resnet18")


@pytest.mark.parametrize(
    ("name", "value"),
    [("std", [0, 0, 0]), ("std", [1e-50, 1, 1]), ("mean", [float("nan"), 0, 0]), ("dataset", ["custom"])],
    ids=str,
)
def test_settings_of_images_that_no_run_has_are_refused(name, value, untrained, tmp_path):
    shutil.copy(untrained, tmp_path / "x.pth")
    known = {"encoder": "resnet18", "dataset": "custom", "crop_size": [32], "mean": [0.5] * 3, "std": [0.2] * 3}
    (tmp_path / "args.json").write_text(json.dumps(known | {name: value}))
    with pytest.raises(UserError, match=rf"{name} is \[.*\], which no run writes; give `{name}`"):
        embed(tmp_path / "x.pth", [Image.new("RGB", (40, 40))])


def test_metadata_nested_without_end_are_refused(tmp_path):
    file = tmp_path / "x.safetensors"
    save_file({"x": torch.zeros(1)}, file, metadata=dict.fromkeys(("encoder", KIND), "[" * 100000))
    with pytest.raises(UserError, match=r"x.safetensors: not a readable .*: its metadata are nested too deeply"):
        load_encoder(file, "resnet18")
    with pytest.raises(ValueError, match=r"not a tree that Hierarchy.save wrote"):
        Hierarchy.load(file)


@pytest.fixture
def changed(hcsc_run, tmp_path):
    """A copy of a run's newest checkpoint after a change of its tree's facts or of its args.json."""

    def make(facts=None, flags=None, arrays=None):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        newest = only(hcsc_run, "*ep=1.ckpt")
        content = torch.load(newest, weights_only=True)
        content["state_dict"]["coding._extra_state"]["tree"].update(facts or {})
        for key, change in (arrays or {}).items():
            content["state_dict"][f"coding.tree.{key}"] = change(content["state_dict"][f"coding.tree.{key}"])
        torch.save(content, folder / "x.ckpt")
        known = json.loads((hcsc_run / "args.json").read_text())
        (folder / "args.json").write_text(json.dumps(known | (flags or {})))
        return folder

    return make


FACTS = {
    "kept": ("ab", ["4", "2"], [4.0, 2.0], [4], [4, 2, 1], [400, 2], [0, 2], [-1, 2], None),
    "highest": ("ab", [3], [400, 1], 7),
    "epoch": ("x", [1], None),
    "statistics": ("x", [], [[0, 1.0]], [[0, "x"], [0, 1.0]], [[0], [1]]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in FACTS for value in FACTS[name]])
def test_trees_facts_that_do_not_fit_it_are_refused(name, value):
    tree = TreeBuffers((4, 2), dim=3, images=0)
    facts = {"kept": [3, 2], "highest": [2, 1], "epoch": 5, "statistics": [[1, 0.5], [0, 0.25]]}
    tree.set_facts(facts)
    assert tree.facts() == facts
    with pytest.raises((TypeError, ValueError)):
        tree.set_facts(facts | {name: value})
    assert tree.facts() == facts  # nothing of it was taken


def test_checkpoint_whose_tree_is_text_is_named(changed):
    folder = changed(facts={"kept": "ab"})
    with pytest.raises(UserError, match=r"x.ckpt: does not fit its args.json, or is of an older version; its tree's"):
        load_tree(folder)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"parents_0": lambda parents: parents + 10**6}, "parents that are not in the level above"),
        ({"prototypes_0": lambda prototypes: prototypes * torch.nan}, "NaN or infinite prototypes"),
    ],
)
def test_checkpoint_whose_tree_is_none_is_named(arrays, reason, changed):
    with pytest.raises(UserError, match=rf"x.ckpt: does not fit its args.json, .*; level 0 of the tree has {reason}"):
        load_tree(changed(arrays=arrays))


def test_unchanged_tree_is_loaded(changed):
    assert load_tree(changed()).hierarchy.assignments is not None


@pytest.mark.parametrize(
    "flags",
    [
        {"proj_output_dim": 10**12},
        {"proj_hidden_dim": "text"},
        {"proj_hidden_dim": [[1]]},
        {"hcsc_options": {"num_prototypes": [10**12, 10**11], "queue_size": 16}},
        {"hcsc_options": {"queue_size": 10**13}},
    ],
    ids=str,
)
def test_args_json_of_no_run_is_named(flags, changed):
    with pytest.raises(UserError, match=r"args.json: does not describe a hcsc run \("):
        load_tree(changed(flags=flags))


def test_method_that_is_no_name_is_refused(changed):
    run = open_run(changed(flags={"method": ["hcsc"]}))
    assert run.encoder.name == "resnet18"
    with pytest.raises(UserError, match=r"no args.json of a pretraining run beside it"):
        _ = run.projector


@pytest.mark.parametrize("epoch", ["9" * 400, "9" * 5000, "x"])
def test_epoch_that_no_run_reaches_is_refused(epoch, tmp_path):
    (tmp_path / "metrics.csv").write_text(f"epoch,step,rankme\n{epoch},0,1.5\n")
    with pytest.raises(UserError, match=r"metrics.csv: not what a run writes \(ValueError: "):
        read_metrics(tmp_path / "metrics.csv", "rankme".__eq__)
