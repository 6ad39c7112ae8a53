import pytest
import torch
from tiny import run_here

from solo_hcsc.commands import pretrain
from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.devices import resolve_hardware
from solo_hcsc.framework.registry import load_methods, method_names

REQUIRED = ["--dataset", "custom"]


@pytest.mark.parametrize("method", method_names())
def test_every_flag_of_a_method_is_explained(method):
    parser = pretrain.build_parser(load_methods()[method], method_names())
    assert [action.option_strings for action in parser._actions if not action.help] == []


@pytest.mark.parametrize("module", "linear knn semisup clustering zeroshot voc places summary".split())
def test_every_flag_of_an_evaluation_is_explained(module, monkeypatch):
    parsers = []

    def see(self, argv):
        parsers.append(self)
        raise UserError("seen")

    monkeypatch.setattr(Parser, "parse", see)
    with pytest.raises(SystemExit):
        run_here(module)
    assert [action.option_strings for action in parsers[-1]._actions if not action.help] == []


def parsed(*flags: str):
    args = pretrain.parse([*REQUIRED, "--method", "mocov2plus", *flags])
    resolve_hardware(args)
    return args


@pytest.fixture
def eight_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)


def test_solo_learns_gpus_are_indexes(eight_gpus):
    args = parsed("--gpus", "2,3", "--accelerator", "ddp", "--precision", "16")
    assert (args.accelerator, args.devices, args.gpus) == ("gpu", [2, 3], [2, 3])
    assert (args.strategy, args.precision) == ("ddp_find_unused_parameters_true", "16-mixed")
    assert parsed("--gpus", "0").devices == [0]
    assert len(parsed("--gpus", "-1").gpus) == 8
    with pytest.raises(UserError, match="the GPUs here are 0 to 7"):
        parsed("--gpus", "8")


def test_lightning_2s_devices_are_a_number(eight_gpus):
    assert parsed("--devices", "3").devices == [0, 1, 2]
    assert parsed("--devices", "1,5").devices == [1, 5]
    assert parsed().devices == [0]
    assert parsed("--accelerator", "cpu", "--devices", "2").devices == 2
    with pytest.raises(UserError, match="only 8 GPUs"):
        parsed("--devices", "9")


def test_a_later_accelerator_cpu_overrides_a_scripts_gpus(eight_gpus):
    args = parsed("--gpus", "0,1", "--accelerator", "ddp", "--sync_batchnorm", "--accelerator", "cpu")
    assert (args.accelerator, args.devices, args.strategy) == ("cpu", 1, "auto")
    assert not args.sync_batchnorm


def test_learning_rate_grows_with_the_devices(monkeypatch, images):
    flags = ["--data_dir", str(images), "--train_dir", "train", "--batch_size", "8", "--queue_size", "64", "--lr", "1"]
    args = parsed(*flags, "--accelerator", "cpu", "--devices", "2")
    pretrain.set_up(args)
    assert args.lr == pytest.approx(1 * 8 * 2 / 256)
    assert args.num_classes == 3
