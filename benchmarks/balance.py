"""What balancing over a tree is worth on uneven images: drawing them evenly, and choosing a part of them.

The classes of a set get fewer and fewer training images, down to one in `--tail`; test images stay as they are. On
the same cached views, over seeds, adapters are trained on all images as they come, drawn evenly over a tree, over its
bottom level alone, or over the true classes; and on parts that `curate` chooses, and random ones. The pictures are
those of `benchmarks.adapt`.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measure
from benchmarks.adapt import Pictures, difference, recipe, told
from solo_hcsc.encoders.adapter import Adapter
from solo_hcsc.training.adapting import fit_adapter
from solo_hcsc.training.held_out import few_labels, judge_labelled
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.curating import curate

MEASURES = ("knn", "labels_5", "head", "middle", "tail")
WAYS = ("as they come", "tree", "bottom level", "classes")
SHARES = (0.1, 0.25, 0.5)
LOSSES = {"InfoNCE": {"loss": "infonce"}, "HCSC": {}}


def main() -> None:
    flags = measure.parser(__doc__, repeats=1)
    flags.add_argument("--pictures", type=Path, help="folder of sets")
    flags.add_argument("--weights", type=Path, help="of EfficientNet-lite0, from scripts/data/weights.sh")
    flags.add_argument("--encoder", default="timm/tf_efficientnet_lite0")
    flags.add_argument("--cache", type=Path, default=Path("datasets/features"), help="folder where features are kept")
    flags.add_argument("--sets", nargs="+", default=["cifar10", "fashion"])
    flags.add_argument("--images", type=int, default=5000, help="training images of a set, before their tail is cut")
    flags.add_argument("--seeds", type=int, default=20)
    flags.add_argument("--judge", choices=["val", "test"], default="test")
    flags.add_argument(
        "--tail", type=float, default=100.0, help="each class has fewer training images, the last 1 in X"
    )
    args = flags.parse_args()
    torch.set_num_threads(args.threads[0])
    rows: list[dict[str, Any]] = []
    for name in args.sets:
        pictures = Pictures(name, args)
        rows += [*balanced(pictures, args), *parts(pictures, args)]
        measure.write("balance", args, rows, pairs=pairs(rows))
    shown = [(row["set"], row["row"], row["images"], *(f"{np.mean(row[one]):.1f}" for one in MEASURES)) for row in rows]
    measure.show(("set", "row", "images", *MEASURES), shown)
    shown = [
        (one["set"], f"{one['row']} - {one['against']}", *(told(one[name]) for name in MEASURES)) for one in pairs(rows)
    ]
    measure.show(("set", "paired difference [95 %]", *MEASURES), shown)


def balanced(pictures: Pictures, args: Namespace) -> list[dict[str, Any]]:
    """Train on all images, drawn in each way."""
    levels = build_tree(pictures.views[:, 0]).levels
    clusters = {"tree": levels, "bottom level": levels[:, :1], "classes": pictures.labels.numpy()[:, None]}
    found = []
    for loss, own in LOSSES.items():
        for way in WAYS:
            asked = own | ({} if way == "as they come" else {"balance_strength": 1.0})
            row = {"set": pictures.name, "row": f"{loss}, {way}", "images": len(pictures.views)}
            for seed in seeds(args):
                how, _ = recipe(asked, seed, len(pictures.views), args.small)
                adapter = fit_adapter(pictures.adapter, pictures.views, how, clusters=clusters.get(way))
                add(row, judged(pictures, adapter))
            found.append(row)
    return found


def parts(pictures: Pictures, args: Namespace) -> list[dict[str, Any]]:
    """Train on a part of the images, that `curate` chooses or a random one; all are the bank."""
    found = []
    centres = pictures.views[:, 0].numpy()
    for share in SHARES:
        count = max(8, round(share * len(centres)))
        chosen = curate(centres, count).kept
        for way in ("curated", "random"):
            row = {"set": pictures.name, "row": f"{way} {share:.0%}", "images": len(chosen)}
            for seed in seeds(args):
                random = np.sort(np.random.default_rng(seed).permutation(len(centres))[: len(chosen)])
                part = pictures.some(chosen if way == "curated" else random)
                how, _ = recipe({}, seed, len(part.views), args.small)
                add(row, judged(pictures, fit_adapter(part.adapter, part.views, how)))
            found.append(row)
    return found


def seeds(args: Namespace) -> range:
    return range(1 if args.small else args.seeds)


def add(row: dict[str, Any], measures: Mapping[str, float]) -> None:
    for name, value in measures.items():
        row.setdefault(name, []).append(value)


@torch.no_grad()
def judged(pictures: Pictures, adapter: Adapter) -> dict[str, float]:
    """Return KNN accuracy, that of five labels a class, and KNN accuracy of each third of the classes by size."""
    bank, asked = adapter.beside(pictures.views[:, 0]), adapter.beside(pictures.asked)
    hits = judge_labelled(bank, pictures.labels, asked, pictures.wanted).hits
    sizes = torch.bincount(pictures.labels, minlength=int(pictures.wanted.max()) + 1)
    thirds = np.array_split(torch.argsort(sizes, descending=True, stable=True).numpy(), 3)
    by_size = {
        name: 100 * float(hits[np.isin(pictures.wanted.numpy(), classes)].mean())
        for name, classes in zip(("head", "middle", "tail"), thirds, strict=True)
    }
    few = few_labels(bank, pictures.labels, asked, pictures.wanted, each=5)
    return {"knn": 100 * float(hits.mean()), "labels_5": few, **by_size}


def pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the differences of two rows of the same seeds, with their 95 % intervals."""
    asked = [(f"{loss}, {way}", f"{loss}, as they come") for loss in LOSSES for way in WAYS[1:]]
    asked += [(f"{loss}, tree", f"{loss}, bottom level") for loss in LOSSES]
    asked += [(f"curated {share:.0%}", f"random {share:.0%}") for share in SHARES]
    asked += [("curated 25%", "random 50%")]
    by_name = {(row["set"], row["row"]): row for row in rows}
    return [
        {"set": name, "row": row, "against": other}
        | {one: difference(by_name[name, row][one], by_name[name, other][one]) for one in MEASURES}
        for name in dict.fromkeys(row["set"] for row in rows)
        for row, other in asked
    ]


if __name__ == "__main__":
    main()
