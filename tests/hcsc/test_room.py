"""The room stands alone: torch and faiss, and nothing of the framework, the flags or the other rooms."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
blocked = ["solo", "pytorch_lightning", "lightning", "torchmetrics", "torchvision", "timm", "PIL", "sklearn", "wandb"]
sys.modules |= dict.fromkeys(blocked)  # as if they were not installed
import solo_hcsc.hcsc as room
for module in pkgutil.iter_modules(room.__path__, "solo_hcsc.hcsc."):
    importlib.import_module(module.name)
others = {name for name in sys.modules if name.startswith("solo_hcsc.") and not name.startswith("solo_hcsc.hcsc")}
from solo_hcsc import Options, SelectiveCoding, build_hierarchy
import torch
build_hierarchy(torch.randn(40, 4), Options(num_prototypes=(4, 2), min_cluster_size=1))
sys.exit(", ".join(sorted(others - {"solo_hcsc.version", "solo_hcsc.errors", "solo_hcsc.typed"})) or 0)
"""


def test_nothing_else_is_imported():
    """In a process of its own, because this one has imported everything."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_room_opens_without_an_import():
    """Its `__init__` imports nothing, so that `solo_hcsc.hcsc.options` is had without torch."""
    code = "import sys, solo_hcsc.hcsc; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
