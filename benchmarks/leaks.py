"""Leaks between splits that `check` finds: recall on planted copies, and false alarms, with the hash and with features.

Some photos of train get a copy in val or test: encoded anew, resized, or cropped at a random place. A leak that joins
photos of which neither is a copy of the other is a false alarm, or one that the data set came with.
"""

import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.duplicates import COPIES, pictures
from benchmarks.trees import named
from solo_hcsc.report.checked import Checked, check
from solo_hcsc.trees.duplicates import open_image

SPLITS = ("train", "val", "test")


def main() -> None:
    flags = measure.parser(__doc__, repeats=3)
    flags.set_defaults(threads=[1])
    flags.add_argument(
        "--data_dir", type=Path, help="folder with train, val and test, such as the Grocery Store photos"
    )
    flags.add_argument("--images", type=int, default=1500, help="photos of all splits, for each seed")
    flags.add_argument("--copies", type=int, default=180, help="of them that get a copy in another split")
    flags.add_argument("--weights", type=Path, help="of EfficientNet-lite0, from scripts/data/weights.sh")
    args = flags.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder, measure.threads(args.threads[-1]):
            root = Path(folder) / "photos"
            gather(root, seed, args)
            planted = plant(root, seed, 6 if args.small else args.copies)
            rows += [{"seed": seed} | row for row in found_by(root, planted, args)]
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        shown = [
            (row["seed"], row["recall"], row["others"], *row["recall_of"].values(), row["cpu_seconds"]) for row in own
        ]
        measure.show([f"{way}: seed", "recall", "other leaks", *COPIES, "s"], shown)
    measure.write("leaks", named(args), rows)


def gather(root: Path, seed: int, args: Namespace) -> None:
    """Copies photos of the splits, so many of each as its share of all."""
    draw = np.random.default_rng(seed)
    if args.small:
        made = pictures("made", seed, args, root.parent)
        files = {f"{SPLITS[max(1, number // 3) - 1]}/a/{file.name}": file for number, file in enumerate(made)}
    else:
        there = sorted(file for split in SPLITS for file in (args.data_dir / split).rglob("*") if file.is_file())
        chosen = draw.choice(len(there), args.images, replace=False)
        files = {str(there[number].relative_to(args.data_dir)): there[number] for number in chosen}
    for name, file in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / name)


def plant(root: Path, seed: int, count: int) -> dict[str, tuple[str, str]]:
    """Copies photos of train into val and test; returns the original and the kind of each copy."""
    draw = np.random.default_rng(seed)
    files = sorted(file for file in (root / "train").rglob("*") if file.is_file())
    count = min(count, len(files))
    planted = {}
    for number, place in enumerate(draw.choice(len(files), count, replace=False)):
        original, kind = files[place], list(COPIES)[number % len(COPIES)]
        ending = original.suffix if kind == "same file" else ".jpg"
        below = original.relative_to(root / "train").with_name(f"{original.stem}-copy{ending}")
        copy = root / SPLITS[1 + number % 2] / below
        copy.parent.mkdir(parents=True, exist_ok=True)
        if kind == "same file":
            shutil.copyfile(original, copy)
        else:
            quality = 40 if kind.startswith("JPEG") else 85
            COPIES[kind](open_image(str(original)), draw).save(copy, quality=quality)
        planted[str(copy.relative_to(root))] = str(original.relative_to(root)), kind
    return planted


def found_by(root: Path, planted: Mapping[str, tuple[str, str]], args: Namespace) -> list[dict[str, Any]]:
    ways: dict[str, Any] = {"hash": None}
    if args.weights:
        from solo_hcsc.runs.run import embed

        normalised: dict[str, Any] = {"crop_size": 96, "mean": [0.5] * 3, "std": [0.5] * 3, "no_labels": True}
        ways["hash and features"] = embed(args.weights, root, encoder="timm/tf_efficientnet_lite0", **normalised)
    judged = []
    for way, vectors in ways.items():
        started = time.process_time()
        found = check(root, vectors)
        judged.append({"way": way, "cpu_seconds": time.process_time() - started} | judge(found, planted))
    return judged


def judge(found: Checked, planted: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Returns which planted copies are in a leak with their original, and which leaks join others."""
    pairs, others = set(), []
    for leak in found.leaks:
        paths = sorted(image.path for image in leak.images)
        pairs |= {*combinations(paths, 2)}
        if len({planted[path][0] if path in planted else path for path in paths}) > 1:
            others.append(paths)
    right = {copy: tuple(sorted((copy, original))) in pairs for copy, (original, _) in planted.items()}
    kinds = {kind: [right[copy] for copy, (_, own) in planted.items() if own == kind] for kind in COPIES}
    return {
        "images": len(found.images),
        "planted": len(planted),
        "leaks": len(found.leaks),
        "recall": float(np.mean([*right.values()])),
        "recall_of": {kind: float(np.mean(own)) for kind, own in kinds.items()},
        "others": len(others),
        "other_leaks": others[:20],
    }


if __name__ == "__main__":
    main()
