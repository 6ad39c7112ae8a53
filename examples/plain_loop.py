"""HCSC in a plain PyTorch loop on scikit-learn's digits, without labels. Prints the accuracy of KNN (K = 20, cosine,
360 held-out digits) on the encoder's pooled features, `untrained: ...%` and then `trained: ...%`: 90 to 93 and 97 to 99
with seeds 0 to 5, in 15 seconds on one core."""

import argparse
import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from solo_hcsc.hcsc.coding import SelectiveCoding
from solo_hcsc.hcsc.options import Options


def augment(images: torch.Tensor) -> torch.Tensor:
    """Another view of each image: turned, stretched and moved a little, and noisy."""
    places = torch.eye(2, 3) + 0.15 * torch.randn(len(images), 2, 3)
    views = F.grid_sample(images, F.affine_grid(places, list(images.shape), align_corners=False), align_corners=False)
    return views + 0.1 * torch.randn_like(views)


@torch.no_grad()
def accuracy(encoder: nn.Module, images: torch.Tensor, labels: torch.Tensor, train: int = 1437) -> str:
    features = F.normalize(encoder.eval()(images), dim=1)
    votes = labels[(features[train:] @ features[:train].T).topk(20).indices]
    return f"{(votes.mode(dim=1).values == labels[train:]).float().mean():.1%}"


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
torch.manual_seed(seed := parser.parse_args().seed)
digits = load_digits()
order = torch.randperm(len(digits.images))
images, labels = torch.tensor(digits.images).float()[order, None] / 16, torch.tensor(digits.target)[order]
sizes = [(1, 32, 1), (32, 64, 2), (64, 128, 1)]  # channels in and out, stride
blocks = [(nn.Conv2d(a, b, 3, stride, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b, stride in sizes]
encoder = nn.Sequential(*[layer for block in blocks for layer in block], nn.AdaptiveAvgPool2d(1), nn.Flatten())
online = nn.Sequential(encoder, nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
target = copy.deepcopy(online).requires_grad_(False)
print("untrained:", accuracy(encoder, images, labels))

options = Options(num_prototypes=(60, 30, 10), queue_size=512, proto_warmup_epochs=5)
coding = SelectiveCoding(options, dim=64, num_images=1437, seed=seed)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
for epoch in range(40):
    if coding.due(epoch):
        coding.cluster(epoch)  # of the keys that the epochs before gave each image
    online.train()
    for step, index in enumerate(torch.randperm(1437).split(64)):
        queries, keys = (F.normalize(net(augment(images[index])), dim=1) for net in (online, target))
        coded = coding.step([queries], [keys], index, epoch=epoch, step=23 * epoch + step)
        optimizer.zero_grad()
        coded.loss.backward()
        optimizer.step()
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.lerp_(fast, 0.01)
print("trained:", accuracy(encoder, images, labels))
