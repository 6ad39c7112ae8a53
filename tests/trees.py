"""A run's tree of prototypes, and embeddings, from its checkpoint's tensors alone."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import only
from torchvision import transforms
from torchvision.models import resnet18


def checkpoint_of(run: Path, epoch: int) -> Path:
    return only(run, f"*ep={epoch}.ckpt")


def raw_embeddings(checkpoint: Path, folder: Path, side: str, project: bool):
    """Unit vectors of the images' centre crops and their labels, from the checkpoint's tensors alone."""
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    encoder = resnet18()
    encoder.fc = torch.nn.Identity()
    prefix = f"{side}encoder."
    encoder.load_state_dict({key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)})
    crop = transforms.Compose([transforms.Resize(37), transforms.CenterCrop(32), transforms.ToTensor()])
    files = sorted(folder.rglob("*.png"), key=str)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.228, 0.224, 0.225])
    pixels = [((crop(Image.open(file).convert("RGB")).movedim(0, 2) - mean) / std).movedim(2, 0) for file in files]
    with torch.no_grad():
        out = encoder.eval()(torch.stack(pixels))
        if project:
            weights = [state[f"{side}projector.{layer}.{kind}"] for layer in (0, 2) for kind in ("weight", "bias")]
            out = F.linear(F.linear(out, *weights[:2]).relu(), *weights[2:])
    return F.normalize(out, dim=1), np.array([int(file.parent.name[-1]) for file in files])


def spread_prototypes(checkpoint: Path, folder: Path) -> None:
    """Puts a tree in the checkpoint that tells its images apart, and keeps 3 of the 4 prototypes asked for.

    After eight steps, centre crops all have one prototype; with batch norm's batches for its averages they have four.
    """
    z, _ = raw_embeddings(checkpoint, folder, "momentum_", project=True)
    whole = torch.load(checkpoint, weights_only=True)
    state = whole["state_dict"]
    state["coding.tree.prototypes_0"] = torch.cat([z[[30, 3, 15]], z[[20]]])  # the last is padding
    state["coding.tree.parents_0"] = torch.tensor([1, 0, 1, 0])
    state["coding._extra_state"]["tree"]["kept"] = [3, 2]
    torch.save(whole, checkpoint)
