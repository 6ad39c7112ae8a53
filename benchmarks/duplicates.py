"""Duplicates among pictures: precision and recall on planted copies, beside imagededup's hashes if it is installed.

Each picture gets one copy: encoded anew, resized, or cropped at a random place. Figures count pairs of a picture and
its copy; any other pair that is found is wrong.
"""

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import measure
from benchmarks.trees import named
from solo_hcsc.trees.duplicates import find_duplicates, open_image

Pairs = set[tuple[int, int]]
COPIES = {
    "same file": lambda image, draw: image,
    "JPEG, quality 40": lambda image, draw: image,
    "half size": lambda image, draw: image.resize((max(16, image.width // 2), max(16, image.height // 2))),
    "other shape, 1.3 times the size": lambda image, draw: image.resize(
        (round(image.width * 1.3), round(image.height * 1.27))
    ),
    "crop of 90 % a side": lambda image, draw: cropped(image, 0.9, draw),
    "crop of 80 % a side": lambda image, draw: cropped(image, 0.8, draw),
}


def main() -> None:
    flags = measure.parser(__doc__, repeats=3)
    flags.set_defaults(threads=[1])
    flags.add_argument("--pictures", type=Path, help="folder that benchmarks.tree_images wrote")
    flags.add_argument("--sets", nargs="+", default=["grocery", "clipart"])
    flags.add_argument("--images", type=int, default=180, help="pictures of each set, for each seed")
    flags.add_argument("--weights", type=Path, help="of EfficientNet-lite0, from scripts/data/weights.sh")
    args = flags.parse_args()
    rows: list[dict[str, Any]] = []
    for name in ["made"] if args.small else args.sets:
        for seed in range(args.repeats):
            with tempfile.TemporaryDirectory() as folder, measure.threads(args.threads[-1]):
                paths, kinds = plant(pictures(name, seed, args, Path(folder)), Path(folder) / "all", seed)
                rows += [
                    {"set": name, "seed": seed} | row for row in found_by(paths, kinds, Path(folder) / "all", args)
                ]
        of_set = [row for row in rows if row["set"] == name]
        ways = dict.fromkeys(row["way"] for row in of_set)
        shown = [(way, *means([row for row in of_set if row["way"] == way])) for way in ways]
        measure.show([name, "precision", "recall", *COPIES, "s"], shown)
    measure.write("duplicates", named(args), rows)


def means(rows: list[dict[str, Any]]) -> Iterable[float]:
    values = [[row["precision"], row["recall"], *row["recall_of"].values(), row["cpu_seconds"]] for row in rows]
    return np.mean(values, axis=0).tolist()


def pictures(name: str, seed: int, args: Namespace, folder: Path) -> list[Path]:
    draw = np.random.default_rng(seed)
    if name == "made":
        (folder / "made").mkdir()
        for number in range(12):
            pixels = draw.integers(256, size=(6, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((200, 150)).save(folder / "made" / f"{number}.png")
        return sorted((folder / "made").iterdir())
    files = sorted(file for file in (args.pictures / name).rglob("*") if file.is_file())
    found: list[Path] = []
    for number in draw.permutation(len(files)):
        with Image.open(files[number]) as image:
            if min(image.size) >= 64 and max(image.size) <= 2000 and len(found) < args.images:
                found.append(files[number])
        if len(found) == args.images:
            break
    return found


def plant(files: list[Path], folder: Path, seed: int) -> tuple[list[Path], list[str]]:
    """Writes each picture and a copy of it; returns the paths, pictures first, and the kind of each copy."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    kinds = [list(COPIES)[number % len(COPIES)] for number in range(len(files))]
    originals, copies = [], []
    for number, (file, kind) in enumerate(zip(files, kinds, strict=True)):
        original = folder / f"{number:04d}{file.suffix}"
        original.write_bytes(file.read_bytes())
        copy = folder / f"{number:04d}-copy{file.suffix if kind == 'same file' else '.jpg'}"
        if kind == "same file":
            copy.write_bytes(file.read_bytes())
        else:
            quality = 40 if kind.startswith("JPEG") else 85
            COPIES[kind](open_image(str(file)), draw).save(copy, quality=quality)
        originals.append(original)
        copies.append(copy)
    return originals + copies, kinds


def cropped(image: Image.Image, share: float, draw: np.random.Generator) -> Image.Image:
    width, height = round(image.width * share), round(image.height * share)
    left, top = draw.integers(image.width - width + 1), draw.integers(image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def found_by(paths: list[Path], kinds: list[str], folder: Path, args: Namespace) -> list[dict[str, Any]]:
    vectors = None
    if args.weights:
        from solo_hcsc.runs.run import embed

        normalised: dict[str, Any] = {"crop_size": 96, "mean": [0.5] * 3, "std": [0.5] * 3, "no_labels": True}
        found = embed(args.weights, folder, encoder="timm/tf_efficientnet_lite0", **normalised)
        rows = {path: row for row, path in enumerate(found.paths)}
        vectors = found.vectors[[rows[path.name] for path in paths]]
    ways: dict[str, Callable[[], Pairs]] = {"solo_hcsc, hash": lambda: pairs_of_groups(paths, None)}
    if vectors is not None:
        ways["solo_hcsc, hash and features"] = lambda: pairs_of_groups(paths, vectors)
    ways |= imagededup(paths, folder)
    judged = []
    for way, work in ways.items():
        started = time.process_time()
        pairs = work()
        right = [(number, number + len(kinds)) in pairs for number in range(len(kinds))]
        judged.append(
            {
                "way": way,
                "cpu_seconds": time.process_time() - started,
                "pairs": len(pairs),
                "precision": sum(right) / max(1, len(pairs)),
                "recall": float(np.mean(right)),
                "recall_of": {
                    kind: float(np.mean([r for r, own in zip(right, kinds, strict=True) if own == kind]))
                    for kind in COPIES
                },
                "wrong": sorted((paths[a].name, paths[b].name) for a, b in pairs if b - a != len(kinds))[:20],
            }
        )
    return judged


def pairs_of_groups(paths: list[Path], vectors: np.ndarray | None) -> Pairs:
    groups = find_duplicates(paths, vectors).groups
    return {pair for group in groups for pair in combinations(sorted((group.keep, *group.others)), 2)}


def imagededup(paths: list[Path], folder: Path) -> dict[str, Callable[[], Pairs]]:
    try:
        from imagededup.methods import DHash, PHash
    except ImportError:
        return {}
    number = {path.name: place for place, path in enumerate(paths)}

    def pairs(method: type) -> Pairs:
        found = method(verbose=False).find_duplicates(image_dir=str(folder), num_enc_workers=0, num_dist_workers=0)
        return {tuple(sorted((number[one], number[other]))) for one, of in found.items() for other in of}  # type: ignore[misc]

    return {"imagededup, PHash": lambda: pairs(PHash), "imagededup, DHash": lambda: pairs(DHash)}


if __name__ == "__main__":
    main()
