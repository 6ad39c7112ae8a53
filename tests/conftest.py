import gc
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import SMALL, give_memory_back, make_images, resident, run_here
from torchvision.models import resnet18

import solo_hcsc.solo102  # noqa: F401  repairs solo-learn for the tests that use it directly
from solo_hcsc import progress
from solo_hcsc.cli.terminal import Terminal

_LONGEST = ("test_twenty_kills", "test_quickstarts_recipe")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, or one test process waits for the other at the end."""
    items.sort(key=lambda item: not item.name.startswith(_LONGEST))


def pytest_collection_finish() -> None:
    """What the imports made stays: a collection after each command need not look at it, which would take 0.3 s."""
    gc.collect()
    gc.freeze()


class PeakMemory:
    """Says after a run how much memory each test process had at most; 2 GB are the aim."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["peak"] = peak
        else:
            self.peaks = self.peaks or {"main": peak}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.peaks[node.gateway.id] = node.workeroutput["peak"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name, peak in self.peaks.items():
            terminalreporter.write_line(f"peak memory of {name}: {peak / 1e9:.2f} GB")


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background has ignored
    config.pluginmanager.register(PeakMemory())


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What commands keep for later ones goes nowhere near the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Nothing leaves torch with another number of threads: numba did, and all tests after it took ten times as long."""
    before = torch.get_num_threads()
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """What a test leaves in cycles, or had in an exception's frames, goes before the next one."""
    yield
    if resident() > 1.3e9:
        give_memory_back()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train` with 36 and `val` with 9 images of three classes, and `flat` with 20 images without classes."""
    root = tmp_path_factory.mktemp("images")
    make_images(root / "train", classes=3, per_class=12)
    make_images(root / "val", classes=3, per_class=3, seed=1)
    make_images(root / "flat", classes=1, per_class=20)
    return root


@pytest.fixture
def custom(images: Path) -> list[str]:
    """The flags that name the tiny data set."""
    return ["--dataset", "custom", "--data_dir", str(images), "--train_dir", "train", "--val_dir", "val"]


@pytest.fixture(scope="session")
def hcsc_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny HCSC run on `images`: a checkpoint before the first clustering, and one after it."""
    folder = tmp_path_factory.mktemp("hcsc")
    flags = "--method hcsc --num_prototypes 4 2 --min_cluster_size 2 --queue_size 20 --proto_warmup_epochs 1"
    flags += " --momentum_classifier --knn_eval --crop_size 32 16 --num_crops_per_aug 2 1 --num_sanity_val_steps 0"
    flags += (
        f" --max_epochs 2 --keep_checkpoints 2 --dataset custom --train_dir train --val_dir val --data_dir {images}"
    )
    run_here("pretrain", *SMALL, *flags.split(), "--checkpoint_dir", folder)
    return next(folder.rglob("*.ckpt")).parent


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet-18 with random weights, as torchvision saves one."""
    file = tmp_path_factory.mktemp("untrained") / "resnet18.pth"
    torch.manual_seed(0)
    torch.save(resnet18().state_dict(), file)
    return file


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls an entry point that must refuse; returns the line it printed."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "no-netrc-here"))

    def call(module: str, *flags: object) -> str:
        files = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as stopped:
            run_here(module, *flags)
        assert stopped.value.code == 2
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        assert sorted(tmp_path.rglob("*")) == files
        return lines[0]

    return call


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print what the library tells, as the command line does."""
    monkeypatch.setattr(progress, "_reporter", Terminal())
