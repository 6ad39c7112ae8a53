"""Every repair is still needed, and works. The probes run in a fresh process, where nothing is repaired yet."""

import json
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from solo_hcsc.methods.names import METHOD_GROUP
from solo_hcsc.solo102.repairs.fix import FIXES, bare_method
from solo_hcsc.solo102.repairs.stand_ins import LinearWarmupCosineAnnealingLR, strtobool

LATER = "auto_umap"  # in a module that only a run with --auto_umap imports
PROBE = """
import importlib, json, sys, types, warnings
from pathlib import Path

import solo_hcsc

warnings.simplefilter("ignore")
folder = Path(solo_hcsc.__file__).parent
for name in ("solo102", "repairs"):  # as packages without their __init__, which applies every repair
    folder = folder / name
    package = types.ModuleType(".".join(["solo_hcsc", *folder.relative_to(Path(solo_hcsc.__file__).parent).parts]))
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package

from solo_hcsc.solo102.repairs import fix, stand_ins

stand_ins.install()
stand_ins.import_solo()
fix.apply = lambda: None  # which repairs/umap.py calls where it is imported
for path in sorted(folder.glob("[a-z]*.py")):
    if path.stem != "umap" or importlib.util.find_spec("umap"):
        importlib.import_module(f"{package.__name__}.{path.stem}")
print(json.dumps({one.name: [one.broken(), one.apply(), one.broken()] for one in fix.FIXES}))
"""


def in_a_fresh_process(code: str) -> str:
    """What the code prints."""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout


@pytest.fixture(scope="module")
def probes() -> dict[str, list]:
    return json.loads(in_a_fresh_process(PROBE).splitlines()[-1])


@pytest.mark.parametrize("name", sorted({fix.name for fix in FIXES} | {LATER}))
def test_thing_is_broken_before_the_fix_and_not_after(probes, name):
    if name == LATER and find_spec("umap") is None:
        pytest.skip("needs the extra umap")
    before, _, after = probes[name]
    assert before, f"{name} is no longer needed: remove it"
    assert not after


def test_importing_the_framework_applies_every_repair_but_the_one_for_umap(probes):
    code = "import json\nimport solo_hcsc.solo102\nfrom solo_hcsc.solo102.repairs import FIXES\n"
    code += "print(json.dumps({fix.name: fix.broken() for fix in FIXES}))"
    broken = json.loads(in_a_fresh_process(code).splitlines()[-1])
    assert broken == dict.fromkeys(probes.keys() - {LATER}, False)


def test_importing_the_framework_adds_hcsc_to_solo_learns_methods_and_no_optional_package():
    code = "import sys\nimport solo_hcsc.solo102, solo.methods\nprint(solo.methods.METHODS['hcsc'].__module__, "
    code += "[name for name in ('nvidia.dali', 'umap') if name in sys.modules])"
    assert in_a_fresh_process(code).strip() == "solo_hcsc.solo102.method []"


def test_solo_does_not_import_without_the_stand_ins():
    code = "import sys; sys.modules.pop('pl_bolts', None); import solo"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pl_bolts" in out.stderr


def test_stand_in_replaces_a_missing_distutils():
    code = "import sys; sys.modules['distutils'] = None\nimport solo_hcsc.solo102.repairs\nimport distutils.util as d\n"
    code += "print(d.strtobool('Yes'))"
    assert in_a_fresh_process(code).strip() == "1"


def test_strtobool_refuses_what_is_neither():
    assert strtobool("off") == 0
    with pytest.raises(ValueError, match="maybe"):
        strtobool("maybe")


def test_warmup_rises_linearly_then_falls_as_a_cosine():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = LinearWarmupCosineAnnealingLR(optimizer, 3, 11, warmup_start_lr=0.1, eta_min=0.2)
    rates = []
    for _ in range(11):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:4] == pytest.approx([0.1, 0.55, 1.0, 1.0])
    assert rates[7] == pytest.approx(0.6)  # half-way down
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_lars_update_equals_the_papers():
    from solo.utils.lars import LARSWrapper

    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3))
    start, lr, eta, decay = weight.detach().clone(), 0.5, 0.02, 0.1
    optimizer = LARSWrapper(torch.optim.SGD([weight], lr=lr, weight_decay=decay), eta=eta)

    def closure():
        optimizer.zero_grad()
        loss = (weight**3).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    gradient = 3 * start**2
    rate = eta * start.norm() / (gradient.norm() + decay * start.norm())
    expected = start - lr * rate * (gradient + decay * start)
    torch.testing.assert_close(weight.detach(), expected)
    assert loss == (start**3).sum()


def test_lars_changes_what_lightning_trains(tmp_path):
    """Through Lightning's closure, where the original is silently plain SGD."""
    import pytorch_lightning as pl
    from solo.utils.lars import LARSWrapper

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((2, 2), 2.0))

        def training_step(self, batch, _):
            return (5 * self.weight).sum() + 0 * batch.sum()

        def configure_optimizers(self):
            return LARSWrapper(torch.optim.SGD([self.weight], lr=1.0), eta=0.25)

    module = Module()
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(1, 1)))
    torch.testing.assert_close(module.weight.detach(), torch.full((2, 2), 1.5))  # 2 - 0.25 * |w| / 2


def test_swav_multicrop_loss_equals_the_frameworks_on_two_crops():
    from solo.losses.swav import swav_loss_func

    from solo_hcsc.solo102.repairs.methods import swav_multicrop_loss

    torch.manual_seed(0)
    preds = [torch.randn(6, 5) for _ in range(4)]
    assignments = [torch.randn(6, 5).softmax(1) for _ in range(2)]
    ours = swav_multicrop_loss(preds[:2], assignments, 0.1)
    torch.testing.assert_close(ours, swav_loss_func(preds[:2], assignments, 0.1))

    with_small = 0.0
    for i in range(2):
        for j in range(4):
            if i != j:
                for a, p in zip(assignments[i], preds[j], strict=True):
                    with_small -= float(a @ torch.log_softmax(p / 0.1, 0)) / 6 / 6
    assert swav_multicrop_loss(preds, assignments, 0.1).item() == pytest.approx(with_small, rel=1e-5)


def plain_loop_knn(bank, bank_labels, queries, labels, k, temperature):
    hits = [0, 0]
    for query, label in zip(queries, labels, strict=True):
        similarity = [q @ query / np.linalg.norm(q) / np.linalg.norm(query) for q in bank]
        votes: dict[int, float] = {}
        for i in np.argsort(similarity)[::-1][:k]:
            votes[bank_labels[i]] = votes.get(bank_labels[i], 0.0) + np.exp(similarity[i] / temperature)
        ranked = sorted(votes, key=lambda c: -votes[c])
        hits[0] += ranked[0] == label
        hits[1] += label in ranked[:5]
    return [100 * hit / len(labels) for hit in hits]


def test_knn_equals_a_plain_loop_also_with_gaps_between_labels():
    from solo.utils.knn import WeightedKNNClassifier

    random = np.random.default_rng(0)
    bank, queries = random.normal(size=(60, 4)), random.normal(size=(25, 4))
    names = np.array([2, 3, 11, 12, 40, 41, 90])
    bank_labels, labels = random.choice(names, 60), random.choice(names, 25)
    knn = WeightedKNNClassifier(k=9, T=0.07, max_distance_matrix_size=300)
    knn(train_features=torch.tensor(bank), train_targets=torch.tensor(bank_labels))
    knn(test_features=torch.tensor(queries), test_targets=torch.tensor(labels))
    top1, top5 = knn.compute()
    expected = plain_loop_knn(bank, bank_labels, queries, labels, 9, 0.07)
    assert [top1, top5] == pytest.approx(expected)


def test_knn_takes_bf16_features():
    from solo.utils.knn import WeightedKNNClassifier

    knn = WeightedKNNClassifier(k=1)
    features, labels = torch.eye(3).bfloat16(), torch.arange(3)
    knn(train_features=features, train_targets=labels, test_features=features, test_targets=labels)
    assert knn.compute() == (100.0, 100.0)


def test_whitening_gives_unit_covariance():
    from solo.utils.whitening import Whitening2d

    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.tensor([1.0, 2, 3, 4]))
    torch.testing.assert_close(torch.cov(Whitening2d(4)(x).T), torch.eye(4), atol=1e-4, rtol=0)


def test_static_learning_rate_survives_saving():
    from solo.methods.simsiam import SimSiam

    optimizers, schedulers = bare_method(SimSiam, pred_hidden_dim=8).configure_optimizers()
    optimizers[0].step()
    schedulers[0].step()
    state = schedulers[0].state_dict()
    assert not any(callable(value) for value in state.values())
    schedulers[0].load_state_dict(state)
    predictor = [group for group in optimizers[0].param_groups if group.get("static_lr")]
    assert [group["lr"] for group in predictor] == [0.1]


def test_entry_point_group_is_the_documented_one():
    assert METHOD_GROUP == "solo_learn.methods"
    assert all(entry.value.count(":") == 1 for entry in entry_points(group=METHOD_GROUP))
