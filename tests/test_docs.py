"""Every block of Python and of shell in the README and the tutorials runs, and the site builds without a warning.

Blocks run as they stand, page by page, in a folder with small images: trainings get one epoch of small crops, and what
would be downloaded is made up. A comment `<!-- not run: WHY -->` before a block leaves it out.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pandas
import pytest
import timm
from tiny import ROOT, SMALL, make_images, run_here

import solo_hcsc
from solo_hcsc.encoders import loading
from solo_hcsc.training import pretraining

PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
LEFT_OUT = r"(?:<!-- not run: (?P<why>.+?) -->\n)?"
BLOCK = re.compile(LEFT_OUT + r"^```(?P<language>python|bash)\n(?P<text>.*?)^```", re.M | re.S)
FETCHED = re.compile(r'<(?:script|link|img)[^>]+"(https?:[^"]+)')
TREE = "--num_prototypes 3 2 --min_cluster_size 2 --queue_size 16".split()
HERE = ["--num_workers", "0", "--accelerator", "cpu"]
SMALLER = {  # what a command gets behind its own flags
    "pretrain": [*SMALL, "--max_epochs", "1", "--limit_train_batches", "3", *TREE],
    "linear": ["--max_epochs", "1", *HERE],
    "adapt": [*HERE, "--views", "2", "--crop_size", "32"],
    **dict.fromkeys(("explore", "pick", "spread", "curate", "embed", "knn"), HERE),
}


class Block(NamedTuple):
    language: str
    text: str
    why: str | None  # it is not run


def blocks_of(page: Path) -> list[Block]:
    return [Block(found["language"], found["text"], found["why"]) for found in BLOCK.finditer(page.read_text())]


def run_shell(text: str) -> None:
    """Runs our own commands in this process; of others there may only be those that fill in or show something."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "solo-hcsc", f"{line}: what is this? say <!-- not run: WHY --> before it"
        if "--labels" in words:
            fill_in(Path(words[words.index("--labels") + 1]))
        run_here(*words[1:], *SMALLER.get(words[1], []))


def fill_in(labels: Path) -> None:
    """Write the labels that a person would: what the images' folders say."""
    table = pandas.read_csv(labels)
    table["label"] = [Path(path).parent.name for path in table["path"]]
    table.to_csv(labels, index=False)


@pytest.fixture
def small_world(page, tmp_path, monkeypatch):
    """A folder with images where the pages have theirs, and trainings that take a second."""
    monkeypatch.chdir(tmp_path)
    each = 70 if "solo-hcsc knn" in page.read_text() else 20  # the paper's K goes to 200
    for folder in ("photos", "datasets/cifar10"):
        make_images(tmp_path / folder / "train", classes=3, per_class=each)
        make_images(tmp_path / folder / "val", classes=3, per_class=4, seed=1)
    pretrain = pretraining.pretrain
    small = {
        "epochs": 1,
        "crop_size": 32,
        "batch_size": 8,
        "num_workers": 0,
        "accelerator": "cpu",
        "limit_train_batches": 3,
    }
    tree = {"num_prototypes": [3, 2], "min_cluster_size": 2, "queue_size": 16}
    monkeypatch.setattr(pretraining, "pretrain", lambda *given, **more: pretrain(*given, **more | small | tree))
    random = lambda name: timm.create_model(name.removeprefix("timm/"), pretrained=False).state_dict()  # noqa: E731
    monkeypatch.setattr(loading, "timm_weights", random)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_runs(page, small_world):
    names: dict = {}
    for block in blocks_of(page):
        if block.why is None and block.language == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.why is None:
            run_shell(block.text)


def test_few_blocks_are_left_out():
    blocks = [block for page in PAGES for block in blocks_of(page)]
    left_out = [block for block in blocks if block.why is not None]
    assert len(left_out) <= len(blocks) / 3


def test_what_is_installed_is_there():
    """Extras, scripts and files that any page or the README names."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    setup = (ROOT / "setup.cfg").read_text()
    extras = {extra for found in re.findall(r"solo_hcsc\[([\w,-]+)\]", text) for extra in found.split(",")}
    assert [extra for extra in extras if not re.search(rf"^{extra} =$", setup, re.M)] == []
    scripts = set(re.findall(r"(?:bash|python) ((?:scripts|benchmarks)/[\w/.-]+)", text))
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_site_builds_without_a_warning(tmp_path):
    """About four CPU seconds. Links, anchors, names in the reference, pages without a place: each is an error."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path]
    out = subprocess.run(build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    assert {one for page in pages for one in FETCHED.findall(page.read_text())} == set()  # no page needs a network


def test_reference_has_every_public_name():
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = re.findall(r"^::: solo_hcsc\.(\w+)$", text, re.M)
    assert sorted(listed) == sorted(name for name in solo_hcsc.__all__ if name != "__version__")
