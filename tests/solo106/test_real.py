"""The real solo-learn 1.0.6, where SOLO_LEARN names a checkout: its own unmodified commands run HCSC."""

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from tiny import ROOT, make_images

from solo_hcsc.solo_version import HYDRA, OLD_TAG, solo_in

pytestmark = pytest.mark.checkout
CPU = "devices='1' strategy=auto accelerator=cpu precision=32-true sync_batchnorm=False"
SMALL = "data.num_workers=0 optimizer.batch_size=8 augmentations.0.crop_size=32 ++wandb.enabled=False"
TREE = "method_kwargs.num_prototypes=[4,2] ++method_kwargs.min_cluster_size=2 method_kwargs.queue_size=16"
TREE += " method_kwargs.proto_warmup_epochs=1"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders and H5 files with 24 training and 6 validation images of three classes."""
    root = tmp_path_factory.mktemp("data")
    for part, count in (("train", 8), ("val", 2)):
        make_images(root / part, classes=3, per_class=count, seed=count)
        for number, folder in enumerate(sorted((root / part).iterdir())):
            folder.rename(folder.with_name(f"class{number}"))
        with h5py.File(root / f"{part}.h5", "w") as file:
            for folder in sorted((root / part).iterdir()):
                group = file.create_group(folder.name)
                for image in sorted(folder.iterdir()):
                    group.create_dataset(image.name, data=np.frombuffer(image.read_bytes(), dtype="uint8"))
    return root


@pytest.fixture
def pretrain(checkout, data, python, tmp_path):
    """Runs main_pretrain.py; returns the folder of the run."""

    def call(name, *more, folder="cifar", expect=0):
        where = f"data.dataset=custom data.train_path={data / 'train'} data.val_path={data / 'val'}"
        where += f" data.format=image_folder checkpoint.dir={tmp_path / 'runs'}"
        config = ["--config-path", f"scripts/pretrain/{folder}", "--config-name", f"{name}.yaml"]
        words = f"{CPU} {SMALL} {where} max_epochs=2 name=tiny".split()
        extra = [word for words in more for word in words.split()]
        done = python(checkout, "main_pretrain.py", *config, *words, *extra, expect=expect)
        (tmp_path / "said").write_text(done.stderr)
        if expect:
            return [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        return max((tmp_path / "runs").rglob("args.json"), key=lambda file: file.stat().st_mtime).parent

    return call


def checkpoint_of(run: Path) -> dict:
    return torch.load(next(run.glob("*.ckpt")), map_location="cpu", weights_only=True)


def solo(checkout, *words):
    """`solo-hcsc solo ...` from within the checkout, as its console script does it."""
    code = "import sys; sys.path.remove('') if '' in sys.path else None; from solo_hcsc.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "solo", *map(str, words)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("name", "folder", "more"),
    [
        (
            "hcsc",
            "cifar",
            "++knn_eval.enabled=True augmentations=asymmetric wandb=private",
        ),
        ("hcsc_multicrop", "cifar-multicrop", "augmentations.1.num_crops=2"),
        ("hcsc", "imagenet-100", "data.format=dali dali.device=cpu data.num_workers=1"),
        ("hcsc", "custom", "+method_kwargs.clustering_start=0"),
        ("simclr", "cifar", "method=hcsc"),
    ],
)
def test_hcsc_trains(name, folder, more, pretrain):
    tree = TREE.replace("method_kwargs.num", "++method_kwargs.num").replace(" method_kwargs.", " ++method_kwargs.")
    run = pretrain(name, *tree.split(), more, folder=folder)
    state = checkpoint_of(run)
    assert state["hcsc_images"] == 24
    assert state["hcsc_options"]["num_prototypes"] == [4, 2]
    assert state["global_step"] == 6
    assert json.loads((run / "args.json").read_text())["hcsc_options"] == state["hcsc_options"]
    assert state["state_dict"]["coding.tree.assignments"].max() >= 0, "it has clustered"


def test_hcsc_trains_on_h5(pretrain, data):
    paths = f"data.dataset=imagenet100 data.format=h5 data.train_path={data / 'train.h5'} data.val_path=null"
    run = pretrain("hcsc", TREE, paths, "+method_kwargs.clustering_start=0")
    assert checkpoint_of(run)["state_dict"]["coding.tree.assignments"].min() >= 0


def test_dali_numbers_images_as_the_centre_crops_do(checkout, python, tmp_path):
    """Every image by DALI, without augmentation, and the centre crop of its index have the same colour."""
    data = tmp_path / "plain"
    for number in range(24):
        folder = data / "train" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 36), (10 * number, 250 - 10 * number, 5 * number)).save(folder / f"{number}.png")
    script = tmp_path / "dali.py"
    script.write_text(f"""
from omegaconf import OmegaConf
import torch
from solo.data.dali_dataloader import PretrainDALIDataModule, build_transform_pipeline_dali
from solo.data.pretrain_dataloader import FullTransformPipeline, NCropAugmentation
from types import SimpleNamespace
from solo_hcsc.solo106.register import register
from solo_hcsc.solo106.images import centre_crops, training_images
register()
plain = {{k: {{"prob": 0.0}} for k in
    ("color_jitter", "grayscale", "gaussian_blur", "solarization", "equalization", "horizontal_flip")}}
aug = {{"rrc": {{"enabled": False}}, **plain, "crop_size": 32, "num_crops": 2}}
cfg = OmegaConf.create({{"data": {{"train_path": {str(data / "train")!r}, "dataset": "custom", "format": "dali",
    "no_labels": False, "fraction": -1, "num_workers": 0}}, "optimizer": {{"batch_size": 8}}, "augmentations": [aug]}})
crop = NCropAugmentation(build_transform_pipeline_dali("custom", cfg.augmentations[0], "cpu"), 2)
module = PretrainDALIDataModule("custom", cfg.data.train_path, FullTransformPipeline([crop]), 2, 0, 8, 1,
    dali_device="cpu", encode_indexes_into_labels=True)
module.trainer = SimpleNamespace(local_rank=0, global_rank=0, world_size=1)
module.setup("fit")
images = training_images(cfg, None)
crops = torch.cat(list(centre_crops(images, cfg)(range(len(images)))))
seen = 0
for index, views, labels in module.train_loader:
    assert torch.allclose(crops[index].mean((2, 3)), views[0].mean((2, 3)), atol=0.02)
    assert labels.tolist() == [images.files[i][1] for i in index.tolist()]
    seen += len(index)
print("seen", seen)
""")
    assert "seen 24" in python(checkout, script).stdout


def test_two_processes(pretrain, tmp_path):
    run = pretrain("hcsc", TREE, "devices='2' strategy=ddp +method_kwargs.clustering_start=0")
    state = checkpoint_of(run)
    assert state["global_step"] == 2
    assert state["state_dict"]["coding.tree.assignments"].max() >= 0
    said = (tmp_path / "said").read_text()
    assert said.count("note: devices='2': solo-learn scaled the learning rates for 1 device(s), and there are 2") == 1


def test_it_resumes_what_it_began_and_refuses_other_options(pretrain, tmp_path):
    begun = f"{TREE} auto_resume.enabled=True"
    first = pretrain("hcsc", begun)
    saved = next(first.glob("*.ckpt"))
    refused = pretrain("hcsc", begun, "method_kwargs.temperature=0.3", expect=2)
    assert len(refused) == 1
    assert "method_kwargs.temperature 0.3: the checkpoint to resume from was trained with 0.2" in refused[0]
    moved = saved.rename(tmp_path / "first.ckpt")
    longer = pretrain("hcsc", TREE, f"max_epochs=3 ++resume_from_checkpoint={moved}")
    assert checkpoint_of(longer)["global_step"] == 9
    assert checkpoint_of(longer)["epoch"] == 2


@pytest.mark.parametrize("method", ["mocov2plus", "swav"])
def test_other_methods_run_as_before(method, pretrain):
    run = pretrain(method, "++method_kwargs.queue_size=16 auto_resume.enabled=False ++knn_eval.enabled=True")
    assert checkpoint_of(run)["global_step"] == 6


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("|mae|method=hcsc", "augmentations: 1 large crop(s), and hcsc compares two"),
        ("+method_kwargs.tempreature=1", "did you mean method_kwargs.temperature?"),
        ("method_kwargs.queue_size=4", "method_kwargs.queue_size 4: smaller than the 8 keys"),
        ("method_kwargs.num_prototypes=[20,10]", "method_kwargs.num_prototypes 20: needs 40 images"),
        ("data.format=dali", "DALI must tell hcsc which image is which"),
    ],
)
def test_refusals(override, line, pretrain):
    name = "hcsc"
    if override.startswith("|"):
        _, name, override = override.split("|")
    refused = pretrain(name, TREE if name == "hcsc" else "", override, expect=2)
    assert len(refused) == 1
    assert line in refused[0]


def test_linear_and_knn_of_an_hcsc_run(pretrain, checkout, data, python, tmp_path):
    run = pretrain("hcsc", TREE, "++knn_eval.enabled=True")
    where = f"data.dataset=custom data.train_path={data / 'train'} data.val_path={data / 'val'}"
    words = f"{CPU} data.num_workers=0 optimizer.batch_size=8 ++wandb.enabled=False data.format=image_folder {where}"
    encoder_file = shutil.copy(next(run.glob("*.ckpt")), tmp_path / "encoder.ckpt")
    words += f" pretrained_feature_extractor={encoder_file} max_epochs=1 name=linear"
    words += f" checkpoint.dir={tmp_path / 'linear'}"
    config = ["--config-path", "scripts/linear/imagenet-100", "--config-name", "hcsc.yaml"]
    python(checkout, "main_linear.py", *config, *words.split())
    args = json.loads(next((tmp_path / "linear").rglob("args.json")).read_text())
    assert (args["optimizer"]["lr"], args["scheduler"]["lr_decay_steps"]) == (5.0 * 8 / 256, [60, 80]), "the paper's"
    trained = torch.load(next((tmp_path / "linear").rglob("*.ckpt")), map_location="cpu", weights_only=True)
    encoder = {k.removeprefix("backbone."): v for k, v in trained["state_dict"].items() if k.startswith("backbone.")}
    before = checkpoint_of(run)["state_dict"]
    assert encoder
    for name, value in encoder.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert torch.equal(value, before[f"backbone.{name}"]), name

    flags = f"--dataset custom --train_data_path {data / 'train'} --val_data_path {data / 'val'} --batch_size 8"
    flags += f" --num_workers 0 --pretrained_checkpoint_dir {run} --k 1 5 --temperature 0.1 0.2"
    flags += " --feature_type backbone projector --distance_function cosine euclidean"
    printed = solo(checkout, "main_knn.py", *flags.split())
    found = re.findall(r"acc@1=([\d.]+)", printed.stdout)
    assert "note:" not in printed.stderr, "nothing is trained"
    assert len(found) == 2 * 2 * 3
    assert max(map(float, found)) > 50


def test_the_extra_has_every_package_that_the_checkout_imports(checkout):
    files = [*(checkout / "solo").rglob("*.py"), *checkout.glob("main_*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    imported = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"solo", "nvidia"}
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    listed = "\n".join([setup["options"]["install_requires"], extras["checkout"], extras["umap"]])
    declared = {re.split("[<>=\\[]", line)[0].lower() for line in listed.split()}
    assert "solo_hcsc[umap]" in extras["checkout"]
    distributions = packages_distributions()
    assert {name for name in names if not declared & {one.lower() for one in distributions[name]}} == set()


@pytest.mark.skipif("SOLO_LEARN_GIT" not in os.environ, reason="SOLO_LEARN_GIT names no git directory of solo-learn")
@pytest.mark.parametrize(("tag", "version"), [("1.0.6", OLD_TAG), ("1.0.7", HYDRA), ("1.0.8", HYDRA)])
def test_tags_are_told_apart_and_those_that_run_get_hcsc(tag, version, python, tmp_path):
    git = ["git", "--git-dir", os.environ["SOLO_LEARN_GIT"]]
    archive = subprocess.run([*git, "archive", tag, "solo"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tmp_path, filter="data")
    assert solo_in(tmp_path / "solo").version == version
    code = "from solo_hcsc.solo106.register import register; register()\nfrom solo.methods import METHODS\n"
    code += "print('hcsc' in METHODS)"
    if version == HYDRA:
        assert python(tmp_path, "-c", code).stdout.split()[-1] == "True"
    else:
        assert "pl_bolts" in python(tmp_path, "-c", code, expect=1).stderr
