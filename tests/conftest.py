from pathlib import Path

import pytest
from tiny import make_images

from solo_hcsc import compat

compat.apply()


_LONGEST = ("test_twenty_kills", "test_quickstarts_recipe")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, or one test process waits for the other at the end."""
    items.sort(key=lambda item: not item.name.startswith(_LONGEST))


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
