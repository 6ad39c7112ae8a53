"""HCSC among the methods of solo-learn 1.0.6, on a stand-in for it and through Hydra itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tiny import ROOT, make_images

from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.options import Options
from solo_hcsc.solo106.settings import check_resumed, method_settings, warmup_is_open, wrongly_scaled
from solo_hcsc.solo_version import CHECKOUTS, HYDRA, OLD_TAG, RELEASE, installed_solo, solo_in

HERE = Path(__file__).parent
STAND_IN = HERE / "stand_in"
NAMED = "--config-path {configs} --config-name {name}.yaml"
CONFIGS = ROOT / "solo_hcsc" / "solo106" / "configs"
PLAIN = "augmentations.0.crop_size=32 optimizer.batch_size=8 data.num_workers=0"
TREE = "method_kwargs.queue_size=16 'method_kwargs.num_prototypes=[4,2]' ++method_kwargs.min_cluster_size=2"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    make_images(root / "train", classes=3, per_class=8)
    make_images(root / "val", classes=3, per_class=2, seed=1)
    (root / "configs" / "cifar").mkdir(parents=True)
    config = OmegaConf.load(CONFIGS / "pretrain" / "cifar" / "hcsc.yaml")
    config.method, config.method_kwargs = "swav", {"num_prototypes": 3000, "sk_iters": 3, "queue_size": 16}
    OmegaConf.save(config, root / "configs" / "cifar" / "swav.yaml")
    (root / "configs" / "cifar" / "augmentations").mkdir()
    for count, name in ((1, "one"), (2, "two")):  # as solo-learn has them beside its configs
        views = OmegaConf.load(CONFIGS / "shared" / "augmentations" / "hcsc_32.yaml")
        views[0].num_crops = count
        OmegaConf.save(views, root / "configs" / "cifar" / "augmentations" / f"{name}.yaml")
    return root


@pytest.fixture
def runs(data, python):
    """Runs the stand-in's script for each line of overrides in one process; returns codes and lines."""

    def call(*lines):
        where = f"data.dataset=custom data.train_path={data / 'train'} data.val_path={data / 'val'}"
        texts = []
        for line in lines:
            name, _, rest = line.rpartition("|")
            named = NAMED.format(configs=data / "configs" / "cifar", name=name or "hcsc")
            texts.append(f"{named} {where} {PLAIN if name else f'{PLAIN} {TREE}'} {rest}")
        text = "\n".join(texts)
        done = python(STAND_IN, HERE / "many.py", STAND_IN / "main_pretrain.py", text=text)
        found = re.findall(r"^RESULT (\S+) ?(.*)$", done.stdout, re.MULTILINE)
        assert len(found) == len(lines), done.stdout + done.stderr
        return found

    return call


def test_it_trains_resumes_and_refuses(runs, tmp_path):
    """The config is found by its name beside a folder that does not have it."""
    saved = tmp_path / "run" / "last.ckpt"
    short = "method_kwargs.proto_warmup_epochs=1 max_epochs=2"
    resumed = f"method_kwargs.proto_warmup_epochs=1 max_epochs=3 '++resume_from_checkpoint={saved}'"
    results = runs(
        f"{short} '++save={saved}' ++knn_eval.enabled=True",
        resumed,
        f"{resumed} method_kwargs.temperature=0.3",
        f"{resumed} ++method_kwargs.query_cluster=cosine",
        f"{short} +method_kwargs.tempreature=1",
        f"{short} +method_kwargs.oracle_labels=True",
        f"swav|method=hcsc max_epochs=1 ++method_kwargs.min_cluster_size=2 "
        f"++method_kwargs.tree_builder=ward '++save={tmp_path / 'other.ckpt'}'",
        "swav|method=hcsc max_epochs=1 +method_kwargs.pred_hidden_dim=8",
        f"{short} method_kwargs.proj_output_dim=abc",
        f"{short} method_kwargs.queue_size=4",
        f"{short} 'method_kwargs.num_prototypes=[20,10]'",
        f"{short} augmentations=one",
        f"{short} devices=2",
        f"{short} data.format=dali",
        f"{short} data.format=dali ++dali.encode_indexes_into_labels=True",
        "method_kwargs.proto_warmup_epochs=100 max_epochs=2",
        f"max_epochs=2 augmentations=two wandb=private '++save={tmp_path / 'short.ckpt'}'",
    )
    expected = [
        ("0", ""),
        ("0", ""),
        ("2", "method_kwargs.temperature 0.3: the checkpoint to resume from was trained with 0.2; give that, or start"),
        ("2", "method_kwargs.query_cluster cosine: the checkpoint to resume from was trained with assignment"),
        ("2", "method_kwargs.tempreature: hcsc has no such option; did you mean method_kwargs.temperature?"),
        ("2", "method_kwargs.oracle_labels: is for the ceiling of `solo-hcsc ablate`; leave it out"),
        ("0", ""),
        ("2", "method_kwargs.pred_hidden_dim: hcsc has no such option; did you mean method_kwargs.proj_hidden_dim?"),
        ("2", "method_kwargs.proj_output_dim abc: must be a whole number greater than 0"),
        ("2", "method_kwargs.queue_size 4: smaller than the 8 keys of a batch over all processes"),
        ("2", "method_kwargs.num_prototypes 20: needs 40 images (method_kwargs.min_cluster_size 2 each) and there are"),
        (
            "2",
            "augmentations: 1 large crop(s), and hcsc compares two; type augmentations=symmetric",
        ),
        ("2", "devices=2: solo-learn wants a list; type devices=[0], with all numbers"),
        ("2", "data.format=dali: DALI must tell hcsc which image is which; add ++dali.encode_indexes_into_labels=True"),
        ("2", "dali.device=gpu: there is no GPU; add ++dali.device=cpu"),
        ("2", "method_kwargs.proto_warmup_epochs 100: must be shorter than the run, max_epochs 2"),
        ("0", ""),
    ]
    if torch.cuda.is_available():
        del results[-3], expected[-3]
    for (code, line), (wanted, text) in zip(results, expected, strict=True):
        assert code == wanted, line
        assert code == "0" or line.startswith(f"error: {text}"), line
        assert code == "0" or "|" not in line, "one line"
    checkpoint = torch.load(saved, weights_only=True)
    assert checkpoint["hcsc_images"] == 24
    assert checkpoint["hcsc_options"]["num_prototypes"] == [4, 2]
    of_another = torch.load(tmp_path / "other.ckpt", weights_only=True)["hcsc_options"]
    assert (of_another["num_prototypes"], of_another["queue_size"]) == ([2], 16)
    of_short = torch.load(tmp_path / "short.ckpt", weights_only=True)["hcsc_options"]
    assert of_short["proto_warmup_epochs"] == 1, "the file's 100 are for its 1000 epochs"


def test_resuming_on_other_images_is_refused():
    options = Options(queue_size=16)
    before = {"hcsc_options": options.as_dict(), "hcsc_images": 30}
    check_resumed(before, options, 30)
    with pytest.raises(UserError, match=r"data.train_path: has 31 images, and the checkpoint .* was trained on 30"):
        check_resumed(before, options, 31)
    older = {name: value for name, value in options.as_dict().items() if name != "clustered_space"}
    check_resumed(before | {"hcsc_options": older}, options, 30)
    with pytest.raises(UserError, match="not one of hcsc"):
        check_resumed({}, options, 30)


def test_unknown_option_is_answered_with_those_there_are():
    """Not with a file of docs/, which an installed package does not have."""
    with pytest.raises(UserError, match=r"method_kwargs.zzz: hcsc has no such option; it has .*queue_size") as refused:
        method_settings(OmegaConf.create({"method_kwargs": {"zzz": 1}}))
    assert "docs/" not in str(refused.value)


def test_a_config_that_hydra_did_not_read_keeps_its_warm_up():
    assert warmup_is_open({})
    assert not warmup_is_open({"proto_warmup_epochs": 3})


def test_learning_rates_that_were_scaled_for_other_devices_are_named():
    """solo-learn multiplies them by the length of what the config says of devices."""
    assert wrongly_scaled([0, 1], 2) is None
    assert wrongly_scaled("1", 1) is None
    assert "for 1 device(s), and there are 2; type devices=[0, 1] on GPUs" in str(wrongly_scaled("2", 2))
    assert "optimizer.classifier_lr times 2" in str(wrongly_scaled("2", 2))


MADE_FROM_A_RECORD = """
import sys
sys.path.insert(0, sys.argv[1])
from steps import config
from omegaconf import OmegaConf
from solo_hcsc.solo106.register import HCSC, register
register()
cfg = OmegaConf.create(config())
cfg.optimizer.kwargs = {}
del cfg.method_kwargs.proto_warmup_epochs
HCSC(cfg)
"""


def test_a_script_that_only_evaluates_is_told_nothing_about_training(python):
    assert python(STAND_IN, "-c", MADE_FROM_A_RECORD, HERE).stderr == ""


def test_main_linear_is_offered_linear_configs_and_refuses_one_for_pretraining(python, tmp_path):
    OmegaConf.save(OmegaConf.create({"method": "hcsc", "name": "own"}), tmp_path / "own.yaml")
    lines = [f"--config-path {tmp_path} --config-name {name} hydra.run.dir={tmp_path}" for name in ("hcsc", "own")]
    done = python(STAND_IN, HERE / "many.py", STAND_IN / "main_linear.py", text="\n".join(lines))
    assert re.findall(r"^RESULT (.*)$", done.stdout, re.MULTILINE) == [
        "2 error: pretrained_feature_extractor: give the checkpoint (.ckpt) to evaluate",
        "2 error: own: is for pretraining; evaluate with a config that has pretrained_feature_extractor",
    ]


def test_other_hydra_programs_are_left_alone(tmp_path, python):
    (tmp_path / "app.py").write_text(
        "import sys, hydra\n"
        "@hydra.main(version_base='1.2', config_path=None)\n"
        "def main(cfg):\n"
        "    print('torch' in sys.modules, 'solo_hcsc.solo106.register' in sys.modules)\n"
        "main()\n"
    )
    assert python(tmp_path, "app.py").stdout.split() == ["False", "False"]


def test_versions_are_told_apart(tmp_path):
    found = installed_solo()
    assert found is not None
    assert found.version == RELEASE
    assert solo_in(STAND_IN / "solo").version == HYDRA
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "base.py").write_text("self.backbone = None\n")
    assert solo_in(tmp_path).version == "1.0.3 to 1.0.5"
    (tmp_path / "methods" / "base.py").write_text("from pl_bolts.optimizers import lr_scheduler\n")
    (tmp_path / "args").mkdir()
    (tmp_path / "args" / "pretrain.py").touch()
    assert solo_in(tmp_path).version == OLD_TAG


def test_wrong_solo_is_refused_in_one_line(python):
    """As for someone who stands in a checkout and types python -m solo_hcsc."""
    done = python(STAND_IN, "-m", "solo_hcsc", "pretrain", *"--method hcsc --dataset cifar10".split(), expect=2)
    assert done.stderr.splitlines() == [
        f"error: found solo-learn 1.0.6 in {STAND_IN / 'solo'}, and this command needs 1.0.2; "
        "you are in its checkout: type solo-hcsc instead of python -m solo_hcsc, or go elsewhere"
    ]


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("none.py", "none.py: there is no such script; give one of a checkout of solo-learn, as main_knn.py"),
        ("alone.py", f"alone.py: there is no solo-learn beside it; give a script of a checkout ({CHECKOUTS})"),
        ("old/main_knn.py", f"old/main_knn.py: solo-learn 1.0.2 is beside it; check out {CHECKOUTS}"),
    ],
)
def test_solo_refuses_what_is_no_checkout(script, line, tmp_path, refused):
    (tmp_path / "alone.py").write_text("")
    (tmp_path / "old" / "solo" / "methods").mkdir(parents=True)
    (tmp_path / "old" / "solo" / "methods" / "base.py").write_text("self.encoder = None")
    (tmp_path / "old" / "main_knn.py").write_text("")
    assert refused("solo", script) == f"error: {line}"


def test_solo_refuses_a_run_that_the_checkout_cannot_read(hcsc_run, refused):
    for words in (["--pretrained_checkpoint_dir", hcsc_run], [f"--pretrained_checkpoint_dir={hcsc_run}"]):
        line = refused("solo", STAND_IN / "main_pretrain.py", *words)
        assert f"solo-hcsc export {hcsc_run} --format solo-learn --out FOLDER" in line
    line = refused("solo", STAND_IN / "main_pretrain.py", "--pretrained_checkpoint_dir", hcsc_run.parent)
    assert "no args.json in it; give the folder of one run" in line


def test_solo_runs_a_script_with_hcsc_among_its_methods(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "solo").symlink_to(STAND_IN / "solo")
    (folder / "main_any.py").write_text(
        "import sys, torch\n"
        "from solo.methods import METHODS\n"
        "print(sorted(METHODS), sys.argv[1:], torch.zeros(1).cuda().device.type)\n"
        "print(torch.nn.Linear(1, 1).to('cuda:0').weight.to('cuda:0', non_blocking=True).device.type)\n"
        "torch.save({'state_dict': {'encoder.conv1.weight': torch.ones(1), 'fc.weight': torch.ones(1)}}, 'old.ckpt')\n"
        "print(sorted(torch.load('old.ckpt')['state_dict']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "solo_hcsc", "solo", folder / "main_any.py", "--k", "5"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert done.stdout.splitlines() == [
        f"['hcsc', 'other'] ['--k', '5'] {device}",
        device,
        "['backbone.conv1.weight', 'encoder.conv1.weight', 'fc.weight']",
    ]
