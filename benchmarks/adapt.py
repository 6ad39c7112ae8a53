"""What an adapter is worth, and which part of it: losses on the same cached views, over seeds, in pairs.

`FOLDER/SET/CLASS/...` has labelled pictures, as `benchmarks.tree_images` lays them out; a set with train/, val/ and
test/ keeps these, another one is split at random. Test images are judged, held-out ones with `--judge val`. With
`--parts judging` many runs with random settings say which figure without labels ranks them as labels do.
"""

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.metrics import adjusted_mutual_info_score

from benchmarks import measure
from solo_hcsc.data.images import list_images
from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.adapter import Adapter
from solo_hcsc.hcsc.kmeans import fast_kmeans, nearest
from solo_hcsc.hcsc.measures import rankme, uniformity
from solo_hcsc.hcsc.options import Options
from solo_hcsc.runs.run import open_run
from solo_hcsc.training.adapting import Recipe, epochs_for, fit_adapter, levels_for
from solo_hcsc.training.held_out import judge_labelled, judge_views

VAL, TEST = 1000, 2500  # images of a set, at most; a fifth and a third of a smaller one
MEASURES = ("knn", "labels_1", "labels_5", "ami")
ROWS: dict[str, dict[str, Any]] = {
    "frozen": {"loss": "none"},
    "InfoNCE": {"loss": "infonce"},
    "SwAV": {"loss": "swav"},
    "one flat level": {"hierarchy": False},
    "tree": {},
    "tree, Ward": {"tree_builder": "ward"},
    "tree, no Eq. 7": {"prototype_selection": False},
    "tree, Eq. 4 drawn": {"instance_selection": True},
    "tree, Eq. 4 by assignment": {"instance_selection": True, "entry_cluster": "assignment"},
    "tree, neighbours": {"neighbours": 0.2},
    "tree, weight 1": {"proto_weight": 1.0},
    "tree, weight 6": {"proto_weight": 6.0},
    "tree, weight 6, neighbours": {"proto_weight": 6.0, "neighbours": 0.2},
    "tree, weight 12": {"proto_weight": 12.0},
    "true labels": {"oracle": True},
}
PAIRS = (("tree", "InfoNCE"), ("tree", "one flat level"), ("tree", "SwAV"), ("tree", "frozen"), ("InfoNCE", "frozen"))


def main() -> None:
    flags = measure.parser(__doc__, repeats=1)
    flags.add_argument("--pictures", type=Path, help="folder of sets")
    flags.add_argument("--weights", type=Path, help="of EfficientNet-lite0, from scripts/data/weights.sh")
    flags.add_argument("--encoder", default="timm/tf_efficientnet_lite0")
    flags.add_argument("--cache", type=Path, default=Path("datasets/features"), help="folder where features are kept")
    flags.add_argument("--sets", nargs="+", default=["cifar10", "grocery", "fashion", "clipart", "emoji", "digits"])
    flags.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    flags.add_argument("--images", type=int, default=2500, help="training images of a set, at most")
    flags.add_argument("--seeds", type=int, default=20)
    flags.add_argument("--judge", choices=["val", "test"], default="test")
    flags.add_argument("--parts", nargs="+", choices=["losses", "judging", "search"], default=["losses"])
    flags.add_argument(
        "--tail", type=float, default=1.0, help="classes get fewer training images, down to one in so many"
    )
    flags.add_argument("--trials", type=int, default=8, help="of each loss, judged on held-out images")
    flags.add_argument("--name", default="adapt", help="of the record")
    args = flags.parse_args()
    torch.set_num_threads(args.threads[0])
    if "losses" in args.parts:
        losses(args)
    if "judging" in args.parts:
        judging(args)
    if "search" in args.parts:
        search(args)


# ---- pictures and their points ----


def split(folder: Path, images: int, tail: float, small: bool) -> dict[str, list[tuple[str, str]]]:
    """Return the files and classes of each split: so many training images at most, and fewer from class to class."""
    parts = {name: folder / name for name in ("train", "val", "test")}
    if all(part.is_dir() for part in parts.values()):
        found = {name: list_images(part).images for name, part in parts.items()}
    else:
        files = list_images(folder).images
        order = np.random.default_rng(0).permutation(len(files))
        ends = np.cumsum([min(most, len(files) // share) for most, share in ((images, 2), (VAL, 5), (TEST, 3))])
        shares = (order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] : ends[2]])
        found = {name: [files[place] for place in np.sort(own)] for name, own in zip(parts, shares, strict=True)}
        parts = dict.fromkeys(parts, folder)
    step = {name: max(1, len(files) // 60) if small else 1 for name, files in found.items()}
    labelled = {
        name: [(file, Path(file).relative_to(parts[name]).parts[0]) for file in files[:: step[name]]]
        for name, files in found.items()
    }
    if tail > 1:
        kept = long_tail(np.array([label for _, label in labelled["train"]]), tail)
        labelled["train"] = [labelled["train"][place] for place in kept]
    return labelled


class Pictures:
    """The points of a set: of training images with views."""

    def __init__(self, name: str, args: Namespace) -> None:
        self.name = name
        parts = split(args.pictures / name, args.images, args.tail, args.small)
        classes = sorted({label for files in parts.values() for _, label in files})
        colours = {"mean": [0.5] * 3, "std": [0.5] * 3}
        run = open_run(args.weights, args.encoder, crop_size=32 if args.small else 96, **colours)
        vectors = {}
        for part, files in parts.items():
            embedder = run.embedder([file for file, _ in files], cache=args.cache)
            if part == "train":
                embedder = embedder.of_views(6)
            found = embedder.embeddings(Loading(16 if part == "train" else 128, 0, skip_unreadable=True))
            assert not found.skipped, found.skipped
            vectors[part] = torch.from_numpy(found.vectors)
        train = vectors["train"].view(len(parts["train"]), 7, -1)
        self.adapter = Adapter.of(train[:, 0].numpy())
        self.views = self.adapter.points(train)
        self.labels = torch.tensor([classes.index(label) for _, label in parts["train"]])
        self.asked = self.adapter.points(vectors[args.judge])
        self.wanted = torch.tensor([classes.index(label) for _, label in parts[args.judge]])

    def some(self, rows: np.ndarray) -> "Pictures":
        """Return the set with some of its training images."""
        other = object.__new__(Pictures)
        vars(other).update(vars(self) | {"views": self.views[rows], "labels": self.labels[rows]})
        return other


def long_tail(labels: np.ndarray, ratio: float, seed: int = 0) -> np.ndarray:
    """Return images of which each class has fewer than the one before, exponentially, the last one in `ratio`."""
    random, kept = np.random.default_rng(seed), []
    classes = np.unique(labels)
    for place, label in enumerate(classes):
        own = np.flatnonzero(labels == label)
        count = max(1, round(len(own) * ratio ** (-place / max(1, len(classes) - 1))))
        kept.append(random.permutation(own)[:count])
    return np.sort(np.concatenate(kept))


# ---- losses ----


def recipe(row: Mapping[str, Any], seed: int, images: int, small: bool = False) -> tuple[Recipe, bool]:
    """Return a row's recipe for so many images, and whether the true labels are its tree."""
    own = {name: row[name] for name in ("loss", "neighbours", "lr", "epochs", "balance_strength") if name in row}
    options = {name: value for name, value in row.items() if name not in own and name != "oracle"}
    epochs = 2 if small else own.pop("epochs", epochs_for(images))
    return Recipe(**own | {"epochs": epochs}, options=options, seed=seed), bool(row.get("oracle"))


@torch.no_grad()
def judged(pictures: Pictures, adapter: Adapter, frozen: bool) -> dict[str, float]:
    """Return all measures of an adapter's features, or of the frozen points."""
    features = (lambda points: points) if frozen else adapter.beside
    bank, asked = features(pictures.views[:, 0]), features(pictures.asked)
    clusters = clustered(bank, max(2, len(bank) // 20))
    found = judge_labelled(bank, pictures.labels, asked, pictures.wanted).measures
    return found | {"ami": 100 * float(adjusted_mutual_info_score(pictures.labels.numpy(), clusters))}


def clustered(points: torch.Tensor, count: int) -> np.ndarray:
    return nearest(points.numpy(), fast_kmeans(points.numpy(), count, Options(num_prototypes=(count,)), 0))[1]


def losses(args: Namespace) -> None:
    """Train and judge every row on every set; rows that the record has already are kept, so that it can go on."""
    seeds = 1 if args.small else args.seeds
    rows = recorded(args, seeds)
    for name in args.sets:
        wanted = [row for row in args.rows if (name, row) not in {(one["set"], one["row"]) for one in rows}]
        pictures = Pictures(name, args) if wanted else None
        for row in wanted:
            found: dict[str, list[float]] = {}
            started = time.process_time()
            for seed in range(1 if row == "frozen" else seeds):
                how, oracle = recipe(ROWS[row], seed, len(pictures.views), args.small)
                labels = pictures.labels[:, None] if oracle else None
                adapter = fit_adapter(pictures.adapter, pictures.views, how, labels)
                for measured, value in judged(pictures, adapter, row == "frozen").items():
                    found.setdefault(measured, []).append(value)
            seconds = (time.process_time() - started) / len(found["knn"])
            told_of = {"images": len(pictures.views), "asked": len(pictures.asked), "cpu_seconds": round(seconds, 2)}
            rows.append({"set": name, "row": row, **told_of, **found})
            measure.write("adapt", args, rows, file=args.name, pairs=pairs(rows))
            shown = [f"{np.mean(found[one]):.1f} ± {np.std(found[one]):.1f}" for one in MEASURES]
            measure.show(("set", "row", *MEASURES, "CPU s"), [(name, row, *shown, f"{seconds:.1f}")])
    differences = [
        (one["set"], f"{one['row']} - {one['against']}", *(told(one[what]) for what in MEASURES)) for one in pairs(rows)
    ]
    measure.show(("set", "paired difference [95 %]", *MEASURES), differences)


def recorded(args: Namespace, seeds: int) -> list[dict[str, Any]]:
    """Return the rows of an earlier record of the same images and seeds; none without one."""
    file = args.out / f"{args.name}.json"
    if not file.is_file():
        return []
    record = json.loads(file.read_text())
    same = all(record["arguments"].get(name) == getattr(args, name) for name in ("judge", "images", "tail", "encoder"))
    return [row for row in record["rows"] if len(row["knn"]) in (1, seeds)] if same else []


def pairs(rows: Sequence[Mapping[str, Any]], names: Sequence[tuple[str, str]] = PAIRS) -> list[dict[str, Any]]:
    """Return the differences of two rows of the same seeds, with their 95 % intervals."""
    known = {(row["set"], row["row"]): row for row in rows}
    return [
        {"set": name, "row": row, "against": other}
        | {one: difference(known[name, row][one], known[name, other][one]) for one in MEASURES}
        for name in dict.fromkeys(row["set"] for row in rows)
        for row, other in names
        if (name, row) in known and (name, other) in known
    ]


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of pairs and its 95 % interval, Student's; one value is compared with all."""
    differences = np.array(first) - (np.array(second) if len(second) == len(first) else second[0])
    mean = float(differences.mean())
    if len(differences) < 2:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    return mean, mean - half, mean + half


def told(values: tuple[float, float, float]) -> str:
    mean, low, high = values
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


# ---- equal search ----


def search(args: Namespace) -> None:
    """Give each loss as many trials on held-out images; judge the winners on test images."""
    rows, values = [], []
    for name in args.sets:
        held, asked = (Pictures(name, Namespace(**vars(args) | {"judge": part})) for part in ("val", "test"))
        for loss in ("infonce", "swav", "hcsc"):
            random = np.random.default_rng(args.seed)
            trials = [trial(loss, random) for _ in range(2 if args.small else args.trials)]
            scores = [np.mean([judge_of(held, one, 0, args)[what] for what in MEASURES[:3]]) for one in trials]
            best = trials[int(np.argmax(scores))]
            found = [judge_of(asked, best, seed, args) for seed in range(1, 2 if args.small else args.seeds + 1)]
            row = {one: [values[one] for values in found] for one in MEASURES}
            rows.append({"set": name, "row": loss, "trials": trials, "scores": scores, "best": best, **row})
            values.append((name, loss, *(f"{np.mean(row[one]):.1f} ± {np.std(row[one]):.1f}" for one in MEASURES)))
            names = (("hcsc", "infonce"), ("hcsc", "swav"))
            measure.write("adapt", args, rows, file=f"{args.name}_search", pairs=pairs(rows, names))
    measure.show(("set", "loss", *MEASURES), values)


def trial(loss: str, random: np.random.Generator) -> dict[str, Any]:
    """Draw a recipe; what two losses have in common has the same ranges."""
    common = {"lr": float(10 ** random.uniform(-3, -2)), "neighbours": float(random.choice([0.0, 0.2]))}
    common["epochs"] = int(random.choice([20, 40, 80]))
    heat = float(random.choice([0.1, 0.2, 0.3]))
    weight = float(random.choice([1.0, 3.0, 6.0]))
    own = {"infonce": {"temperature": heat}, "swav": {}, "hcsc": {"temperature": heat, "proto_weight": weight}}
    return {"loss": loss, **common, **own[loss]}


def judge_of(pictures: Pictures, row: Mapping[str, Any], seed: int, args: Namespace) -> dict[str, float]:
    how, _ = recipe(row, seed, len(pictures.views), args.small)
    return judged(pictures, fit_adapter(pictures.adapter, pictures.views, how), frozen=False)


# ---- figures without labels ----


def without_labels(features: Any, pictures: Pictures, held: torch.Tensor, rest: torch.Tensor) -> dict[str, float]:
    """Return figures of features that need no labels."""
    bank, (centre, first, second) = (
        features(pictures.views[rest, 0]),
        (features(pictures.views[held, one]) for one in range(3)),
    )
    own = torch.arange(len(held))
    similar = first @ centre.T
    same, others = similar.diagonal(), similar[~torch.eye(len(held), dtype=torch.bool)]
    means = fast_kmeans(bank.numpy(), max(2, len(bank) // 20), Options(num_prototypes=(max(2, len(bank) // 20),)), 0)
    seen = [nearest(points.numpy(), means)[1] for points in (centre, first)]
    half = len(bank) // 2
    trees = [fast_kmeans(part.numpy(), max(2, half // 20), Options(num_prototypes=(max(2, half // 20),)), 0)
             for part in (bank[:half], bank[half:])]  # fmt: skip
    halves = [nearest(centre.numpy(), one)[1] for one in trees]
    return {
        "agreement": judge_views(bank, centre, first).measures["agreement"],
        "retrieval of another view": float(((first @ second.T).argmax(dim=1) == own).double().mean()),
        "separation of views": float((same.mean() - others.mean()) / ((same.var() + others.var()) / 2).sqrt()),
        "clusters under views (AMI)": float(adjusted_mutual_info_score(*seen)),
        "clusters of two halves (AMI)": float(adjusted_mutual_info_score(*halves)),
        "RankMe": float(rankme(bank)),
        "uniformity": -float(uniformity(centre)),
    }


def judging(args: Namespace) -> None:
    """Rank runs with random settings by labels and without."""
    rows = []
    for name in args.sets:
        pictures, random = Pictures(name, args), np.random.default_rng(args.seed)
        order = torch.randperm(len(pictures.views), generator=torch.Generator().manual_seed(args.seed))
        count = min(500, len(order) // 5)
        held, rest = order[:count], order[count:]
        part = pictures.some(rest.numpy())
        for number in range(2 if args.small else args.seeds):
            options: dict[str, Any] = {"temperature": float(random.choice([0.05, 0.1, 0.2, 0.5]))}
            loss = ("hcsc", "infonce", "hcsc", "swav")[number % 4]
            if loss == "hcsc":
                levels = levels_for(len(rest) // int(random.choice([1, 2, 4])))
                options |= {"proto_weight": float(random.choice([0.3, 1, 3, 10])), "num_prototypes": levels}
            drawn = {"lr": float(random.choice([3e-4, 3e-3, 1e-2, 3e-2])), "epochs": int(random.choice([5, 20, 40]))}
            how, _ = recipe({"loss": loss, **drawn, **options}, number, len(rest), args.small)
            adapter = fit_adapter(part.adapter, part.views, how)
            with torch.no_grad():
                for way, features in (("adapted", adapter.adapted), ("beside", adapter.beside)):
                    bank, asked = features(part.views[:, 0]), features(part.asked)
                    labelled = judge_labelled(bank, part.labels, asked, part.wanted).measures
                    rows.append({"set": name, "way": way, "loss": loss, **drawn, **options, **labelled,
                                 "without": without_labels(features, pictures, held, rest)})  # fmt: skip
        frozen = judge_labelled(part.views[:, 0], part.labels, part.asked, part.wanted).measures
        figures = without_labels(lambda points: points, pictures, held, rest)
        rows.append({"set": name, "way": "frozen", **frozen, "without": figures})
        measure.write("adapt", args, rows, file="adapt_judging", ranks=ranks(rows))
    shown = [(one["set"], one["figure"], *(f"{one[name]:.2f}" for name in ("knn", "labels_1", "labels_5")),
              told(one["mean"]), f"{one['right']:.2f}") for one in ranks(rows)]  # fmt: skip
    measure.show(("set", "figure", "KNN", "1 label", "5 labels", "mean [95 %]", "right decisions"), shown)


def ranks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return Spearman's rank correlation of each figure with those by labels, of each set's runs."""
    found = []
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name and row["way"] != "frozen"]
        frozen = next((row for row in rows if row["set"] == name and row["way"] == "frozen"), None)
        labelled = {one: np.array([row[one] for row in own]) for one in ("knn", "labels_1", "labels_5")}
        score = np.mean(list(labelled.values()), axis=0)
        for figure in own[0]["without"]:
            values = np.array([row["without"][figure] for row in own])
            each = {one: float(stats.spearmanr(values, of_it).statistic) for one, of_it in labelled.items()}
            right = float("nan")
            if frozen is not None:
                before = np.mean([frozen[one] for one in labelled])
                right = float(np.mean((values > frozen["without"][figure]) == (score > before)))
            found.append({"set": name, "figure": figure, **each, "mean": resampled(values, score), "right": right})
    return found


def resampled(values: np.ndarray, score: np.ndarray, times: int = 1000) -> tuple[float, float, float]:
    """Return a rank correlation with its 95 % interval, by the bootstrap."""
    random = np.random.default_rng(0)
    draws = (random.integers(len(values), size=len(values)) for _ in range(times))
    found = np.array([stats.spearmanr(values[rows], score[rows]).statistic for rows in draws])
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(stats.spearmanr(values, score).statistic), float(low), float(high)


if __name__ == "__main__":
    main()
