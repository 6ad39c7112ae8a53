"""What is clustered, and what that does to accuracy: all images, a sample of them, or the last epoch's keys.

Pretrains with each on one part of a folder of labelled images and evaluates KNN on the rest, which no training sees.
Not a timing: runs share the machine.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from os import environ
from pathlib import Path
from typing import Any

from sklearn.model_selection import train_test_split

from benchmarks import measure
from solo_hcsc.digits import lay_out_digits

WAYS = {
    "all images": "--clustered_features images",
    "a sample": "--clustered_features images --cluster_sample {sample}",
    "last keys": "--clustered_features keys",
    "nothing (MoCo)": "--instance_selection false --prototype_loss false",
}


def main() -> None:
    flags = measure.parser(__doc__, repeats=1)
    flags.add_argument("--images", type=Path, help="a folder of class folders; scikit-learn's digits if not given")
    flags.add_argument("--held_out", type=float, default=0.5, help="share of the images that is not trained on")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    flags.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    flags.add_argument("--runs", type=Path, help="a new folder to keep the runs in")
    flags.add_argument("--sample", type=int, default=1000, help="images in the sample")
    flags.add_argument("--k", type=int, nargs="+", default=[10, 20, 100, 200], help="neighbours; the best counts")
    flags.add_argument("pretraining", nargs="*", help="flags for solo_hcsc.pretrain, after --")
    args = flags.parse_args()
    folder = args.runs or Path(tempfile.mkdtemp())
    try:
        images = args.images or lay_out_digits(folder) / "train"
        split(images, folder, args)
        jobs = list(product(WAYS, args.seeds))
        with ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda job: accuracy(*job, folder, args), jobs))
    finally:
        if not args.runs:
            shutil.rmtree(folder)
    rows = []
    for way in WAYS:
        found = [result for (name, _), result in zip(jobs, results, strict=True) if name == way]
        rows.append({"way": way, "seeds": args.seeds, "knn": [result["knn"] for result in found]})
    measure.show(
        ["clustered", "KNN, mean", *(f"seed {seed}" for seed in args.seeds)],
        [(row["way"], statistics.mean(row["knn"]), *row["knn"]) for row in rows],
    )
    measure.write("features", args, rows)


def split(images: Path, folder: Path, args: Namespace) -> None:
    """Links the images into `train` and `val`, every class in its proportion."""
    files = sorted(file for file in images.glob("*/*") if file.is_file())
    parts = train_test_split(files, test_size=args.held_out, stratify=[f.parent for f in files], random_state=args.seed)
    for name, part in zip(("train", "val"), parts, strict=True):
        for file in part:
            target = folder / name / file.parent.name / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())
    print(f"{len(parts[0])} images to train on, {len(parts[1])} held out", flush=True)


def accuracy(way: str, seed: int, folder: Path, args: Namespace) -> dict[str, Any]:
    """KNN accuracy of a run, at the best number of neighbours."""
    started = time.monotonic()
    runs = folder / f"{way} {seed}"
    data = f"--dataset custom --data_dir {folder} --train_dir train --val_dir val".split()
    chosen = WAYS[way].format(sample=args.sample).split()
    keep = ["--method", "hcsc", "--seed", str(seed), "--checkpoint_dir", str(runs), "--limit_val_batches", "0"]
    run("pretrain", *data, *args.pretraining, *chosen, *keep)
    given = args.pretraining
    size = ["--crop_size", given[given.index("--crop_size") + 1]] if "--crop_size" in given else []
    neighbours = ["--k", *map(str, args.k)]
    run("knn", *data, *size, *neighbours, "--num_workers", "0", "--pretrained_feature_extractor", str(runs))
    (file,) = runs.rglob("knn-*.json")
    best = json.loads(file.read_text())["metrics"]["acc1"]
    print(f"{way}, seed {seed}: {best:.2f} after {time.monotonic() - started:.0f} s", flush=True)
    return {"knn": best}


def run(module: str, *flags: str) -> None:
    command: Sequence[str] = [sys.executable, "-m", f"solo_hcsc.{module}", *flags]
    out = subprocess.run(command, env=environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{' '.join(command)}\n{out.stderr}")


if __name__ == "__main__":
    main()
