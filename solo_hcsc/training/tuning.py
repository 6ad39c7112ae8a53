"""Go on training an encoder itself, gently: the slow way of `adapt`.

Batch norms keep their statistics, early layers learn more slowly than late ones, and HCSC clusters the encoder's own
features before every epoch.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import group_parameters
from torch import nn
from torch.utils.data import Dataset

from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.embedding import Embedder
from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.options import Options
from solo_hcsc.progress import epoch as tell_epoch
from solo_hcsc.training.adapting import DEFAULTS, DIM, follow, levels_for

_LAYER_DECAY = 0.7  # of the rate, from each layer to the one before it
_LARGEST_QUEUE = 4096


@dataclass(frozen=True)
class Tuning:
    """How an encoder is trained.

    Args:
        depth: how many of the last layers, as timm groups them; None for all.
        loss: `hcsc` or `infonce`.
        epochs: how often each image is seen.
        batch: images of a step.
        lr: of AdamW for the last layer; the projector's is ten times as high.
        options: of HCSC, in place of `adapting.DEFAULTS`.
        seed: of all random numbers.
    """

    depth: int | None = None
    loss: str = "hcsc"
    epochs: int = 5
    batch: int = 64
    lr: float = 1e-4
    weight_decay: float = 0.05
    momentum: float = 0.99
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


class _Numbered(Dataset):
    """Gives each image with its number."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.dataset[index][0]

    def __len__(self) -> int:
        return len(self.dataset)


def layers_of(encoder: nn.Module) -> dict[str, int]:
    """Return the layer of each parameter by its name, from 0: as timm groups them, or by the encoder's own parts."""
    names = [name for name, _ in encoder.named_parameters()]
    matcher: Any = getattr(encoder, "group_matcher", None)
    if matcher is not None:
        return group_parameters(encoder, matcher(coarse=False), reverse=True)
    parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return {name: parts.index(name.partition(".")[0]) for name in names}


def trained_parameters(encoder: nn.Module, tuning: Tuning) -> list[dict[str, Any]]:
    """Return the parameters of each layer that is trained, with its rate; all others need no gradient."""
    layers = layers_of(encoder)
    kept = sorted({*layers.values()}, reverse=True)[: tuning.depth]
    found: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(layers[name] in kept)
        if parameter.requires_grad:
            found.setdefault((layers[name], parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": tuning.lr * _LAYER_DECAY ** (kept[0] - layer),
            "weight_decay": tuning.weight_decay if is_matrix else 0.0,
        }
        for (layer, is_matrix), parameters in found.items()
    ]


def tune_encoder(embedder: Embedder, loading: Loading, tuning: Tuning) -> nn.Module:
    """Train the encoder of an embedder on its images; return another one, on the CPU.

    Args:
        embedder: of all training images.
        loading: how its images are embedded for the clusters.
        tuning: how.
    """
    images, device = len(embedder.images), embedder.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tuning.seed)
        encoder = copy.deepcopy(embedder.encoder.module).eval()
        size = embedder.encoder(torch.zeros(1, 3, *[embedder.encoder.crop_size] * 2)).shape[1]
        projector = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, DIM))
    online = nn.Sequential(encoder, projector).to(device)
    momentum = copy.deepcopy(online).requires_grad_(False)
    batch = min(tuning.batch, images // 2)
    groups = [*trained_parameters(encoder, tuning), {"params": list(projector.parameters()), "lr": 10 * tuning.lr}]
    optimizer = torch.optim.AdamW(groups, weight_decay=tuning.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, tuning.epochs * (images // batch))
    coding = SelectiveCoding(_options(tuning, images, batch), DIM, images, tuning.seed).to(device)
    pairs = _Numbered(embedder.of_views(2, centre=False).images.dataset)
    loader = Loading(batch, loading.num_workers).repeatable(pairs, tuning.seed, shards=False)
    step = 0
    for number in range(tuning.epochs):
        if coding.due(number):
            _cluster(coding, number, embedder, loading, momentum)
        loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
        total = 0.0
        for rows, views in loader:
            views = views.to(device, non_blocking=True)
            with torch.no_grad():
                keys = F.normalize(momentum(views[:, 1]), dim=1)
            queries = F.normalize(online(views[:, 0]), dim=1)
            loss = coding.step([queries], [keys], rows.to(device), epoch=number, step=step).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            follow(momentum, online, tuning.momentum)
            total, step = total + float(loss.detach()), step + 1
        if not torch.isfinite(torch.tensor(total)):
            raise UserError("the loss is not finite: give a lower `lr`")
        tell_epoch(f"epoch {number + 1} of {tuning.epochs}: loss {total / (images // batch):.3f}")
    return encoder.cpu().requires_grad_(True)


def _options(tuning: Tuning, images: int, batch: int) -> Options:
    """Return HCSC's options: clusters of the encoder's features before every epoch, and a queue of keys."""
    queue = max(batch, min(_LARGEST_QUEUE, images // 2))
    own = {} if tuning.loss == "hcsc" else {"instance_selection": False, "prototype_loss": False}
    given = {"queue_size": queue, "num_prototypes": levels_for(images), "recluster_every": 1, **tuning.options}
    return Options(**{**DEFAULTS, **given, **own})


@torch.no_grad()
def _cluster(coding: SelectiveCoding, number: int, embedder: Embedder, loading: Loading, momentum: nn.Module) -> None:
    """Make the tree of the centres' features, by the momentum encoder."""
    trunk, head = momentum.children()
    encoder = replace(embedder.encoder, module=trunk)
    found = replace(embedder, origin=replace(embedder.origin, encoder=encoder), cache=None).embeddings(loading)
    features = torch.from_numpy(found.vectors)
    head = copy.deepcopy(head).cpu()
    embeddings = torch.cat([F.normalize(head(part), dim=1) for part in features.split(8192)])
    coding.cluster(number, embeddings, features=F.normalize(features, dim=1))
