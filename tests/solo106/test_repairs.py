"""Every repair of solo-learn 1.0.6 is still needed, and works; on the stand-in, and on the checkout if there is one."""

import json

import pytest
import torch
from solo106.conftest import STAND_IN

PROBE = """
import json
from solo_hcsc.solo106.repairs import FIXES, WHILE_RUNNING, while_running
torch_itself = [torch.load, torch.Tensor.to, torch.Tensor.cuda, torch.nn.Module.to]
found = {fix.name: [fix.broken(), fix.apply(), fix.broken()] for fix in FIXES.all}
for fix in WHILE_RUNNING.all:
    before = fix.broken()
    with fix.apply():
        within = fix.broken()
    found[fix.name] = [before, fix.broken(), within]
with while_running():
    assert torch.load is not torch_itself[0]
assert torch_itself == [torch.load, torch.Tensor.to, torch.Tensor.cuda, torch.nn.Module.to]
print(json.dumps(found))
"""
FIXES = ("knn_metric", "few_classes", "saved_schedulers", "dali_without_gpu")
WHILE_RUNNING = ("old_checkpoints", "cpu_for_gpu")
ON_A_CPU = ("dali_without_gpu", "cpu_for_gpu")


@pytest.fixture(params=["stand_in", pytest.param("checkout", marks=pytest.mark.checkout)])
def solo_learn(request):
    return STAND_IN if request.param == "stand_in" else request.getfixturevalue("checkout")


def test_things_are_broken_without_the_fix_and_not_with_it(solo_learn, python):
    found = json.loads(python(solo_learn, "-c", f"import torch{PROBE}").stdout.splitlines()[-1])
    assert found.keys() == {*FIXES, *WHILE_RUNNING}
    for name in FIXES:
        before, _, after = found[name]
        if name in ON_A_CPU and torch.cuda.is_available():
            continue
        assert before, f"{name} is no longer needed: remove it"
        assert not after, name
    for name in WHILE_RUNNING:
        before, afterwards, within = found[name]
        if name in ON_A_CPU and torch.cuda.is_available():
            continue
        assert before, f"{name} is no longer needed: remove it"
        assert afterwards, f"{name} outlives the script"
        assert not within, name


def test_main_linear_takes_an_old_checkpoint_and_torch_is_as_before_when_it_has_ended(python, tmp_path):
    torch.save({"state_dict": {"encoder.conv1.weight": torch.ones(1)}}, tmp_path / "old.ckpt")
    code = "import runpy, sys, torch\nkept = torch.load\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')\nprint(torch.load is kept)"
    words = [
        "--config-path",
        tmp_path,
        "--config-name",
        "hcsc",
        f"pretrained_feature_extractor={tmp_path / 'old.ckpt'}",
    ]
    start = f"import sys; sys.argv = {['main_linear.py', *map(str, words)]!r}\n"
    printed = python(STAND_IN, "-c", start + code).stdout.splitlines()
    assert printed[-2:] == ["TAKEN conv1.weight 3.0 False", "True"]
