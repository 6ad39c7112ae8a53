"""What the package imports is declared, and what only some commands need is asked for when they are."""

import ast
import re
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from tiny import ROOT

from solo_hcsc import extras
from solo_hcsc.errors import MissingPackage

SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]


def names_in(requirements: str) -> set[str]:
    """The distributions that lines of setup.cfg name, in the spelling that the index compares."""
    lines = (line for line in requirements.splitlines() if line and not line.startswith("solo_hcsc["))
    return {re.sub(r"[-_.]+", "-", re.split("[<>=\\[]", line)[0]).lower() for line in lines}


def imported() -> dict[str, str]:
    """The first parts of what the package imports, each with a file that does."""
    found = {}
    for file in [*(ROOT / "solo_hcsc").rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {module.partition(".")[0]: str(file.relative_to(ROOT)) for module in modules}
    return {name: file for name, file in found.items() if name not in sys.stdlib_module_names}


def test_every_import_is_declared():
    users = {name: lines for name, lines in EXTRAS.items() if name != "dev"}
    declared = names_in("\n".join([SETUP["options"]["install_requires"], *users.values()]))
    own = {"solo_hcsc", "solo"}  # solo-learn 1.0.2 is installed without its pins
    distributions = packages_distributions()
    missing = {
        f"{file}: {name}"
        for name, file in imported().items()
        if name not in own
        and not declared & {re.sub(r"[-_.]+", "-", one).lower() for one in distributions.get(name, [name])}
    }
    assert missing == set()


def test_oldest_versions_cover_what_is_required():
    pins = re.sub(r"^#.*\n", "", (ROOT / "tests/oldest.txt").read_text(), flags=re.M).replace("==", ">=")
    required = "\n".join([SETUP["options"]["install_requires"], EXTRAS["report"], EXTRAS["tables"], EXTRAS["wandb"]])
    assert names_in(required) <= names_in(pins)


def test_refusal_names_the_extra_that_setup_has():
    packages = packages_distributions()  # OpenCV's module is called otherwise
    for extra, modules in extras.EXTRAS.items():
        for module in modules:
            assert names_in("\n".join(packages[module])) & names_in(EXTRAS[extra])


@pytest.mark.parametrize(
    ("command", "missing", "told"),
    [
        ("compare", "matplotlib", "compare: Matplotlib is not installed; run: pip install 'solo_hcsc[report]'"),
        ("explore", "jinja2", "explore: Jinja2 is not installed; run: pip install 'solo_hcsc[report]'"),
        ("embed", "pyarrow", "embed: PyArrow is not installed; run: pip install 'solo_hcsc[tables]'"),
    ],
)
def test_command_says_at_once_which_extra_it_needs(command, missing, told):
    run = [sys.executable, Path(__file__).with_name("missing.py"), missing, command]
    out = subprocess.run([*run, "x"], capture_output=True, text=True)
    assert (out.returncode, out.stdout, out.stderr) == (2, "", f"error: {told}\n")
    assert subprocess.run([*run, "--help"], capture_output=True).returncode == 0


def test_wandb_is_asked_for_before_anything_is_written(monkeypatch, custom, tmp_path, refused):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    line = refused("pretrain", *custom, "--wandb", "--offline", "--crop_size", 32)
    assert line == "error: --wandb: wandb is not installed; run: pip install 'solo_hcsc[wandb]'"
    with pytest.raises(MissingPackage, match=r"a page: Jinja2 is not installed; .*solo_hcsc\[report\]"):
        extras.require("report", "a page")


def test_pretraining_needs_no_extra(tmp_path):
    """Nothing that a run imports is missing where only `pip install solo_hcsc[cpu]` was typed."""
    missing = "wandb,matplotlib,pandas,pyarrow,umap,seaborn,omegaconf,hydra,optuna,onnx,onnxruntime,pycocotools"
    flags = "pretrain --dataset digits --crop_size 16 --max_epochs 1 --limit_train_batches 1 --limit_val_batches 0"
    flags += " --num_workers 0 --batch_size 16 --method simclr --accelerator cpu"
    command = [sys.executable, Path(__file__).with_name("missing.py"), missing, *flags.split()]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert "next        solo-hcsc knn" in out.stdout
