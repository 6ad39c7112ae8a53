"""The page of `solo-hcsc explore` for 50,000 images and 3,000-2,000-1,000 prototypes, beside a page of 500.

The pictures are those of a folder, again and again; the tree is of random embeddings in groups. Chromium opens the
pages in turns; what counts is the time from a navigation's start to the first picture on the map, and how long frames
take while the map zooms. The goals: 150 MB on disk, and 3 times the small page's time.
"""

import statistics
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from benchmarks import measure
from benchmarks.browser import Tab, chromium
from solo_hcsc.data.images import list_images, read_image
from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.embedding import Embeddings, _place
from solo_hcsc.hcsc.hierarchy import build_hierarchy
from solo_hcsc.hcsc.options import Options
from solo_hcsc.report.explore import write_page
from solo_hcsc.report.findings import Findings
from solo_hcsc.trees.mislabelled import find_mislabelled

FIRST = "performance.getEntriesByName('first-picture')[0]?.startTime"
# Goes from node to node by the address, as a click does, and returns the milliseconds between frames.
ZOOM = """new Promise((done) => {
  const found = []; let last = 0; let left = NODES.length; let since = 0;
  const step = (now) => {
    if (last) found.push(now - last);
    last = now;
    if (!since || now - since > 450) {
      if (!left--) return done(found);
      since = now;
      location.hash = left % 2 ? "#node=3." + NODES[left] : "#";
    }
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""


class Repeated(Dataset):
    """So many images, which are a folder's in turns."""

    def __init__(self, folder: Path, images: int) -> None:
        self.files = list_images(folder).images
        self.images = images
        self.transform: Any = None

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(read_image(self.files[index % len(self.files)])), -1

    def __len__(self) -> int:
        return self.images


def main() -> None:
    flags = measure.parser(__doc__, repeats=9)
    flags.add_argument("--data_dir", type=Path, required=True, help="a folder of images")
    args = flags.parse_args()
    del args.threads
    sizes = {"500 images": (500, (60, 20, 8)), "50,000 images": (50_000, (3000, 2000, 1000))}
    if args.small:
        sizes = {"20 images": (20, (4, 3, 2)), "2,000 images": (2000, (40, 20, 10))}
    with tempfile.TemporaryDirectory() as name, chromium(Path(name)) as tab:
        pages = {way: make(Path(name) / str(images), images, tree, args) for way, (images, tree) in sizes.items()}
        seconds: dict[str, list[float]] = {way: [] for way in pages}
        for _ in range(args.repeats):
            for way, (page, _, _) in pages.items():
                seconds[way].append(first_picture(tab, page))
        small = next(iter(seconds.values()))
        rows = [
            measure.row(
                way,
                seconds[way],
                small,
                bytes=size,
                seconds_to_make=made,
                frames=frames(tab, page, 2 if args.small else 12),
            )
            for way, (page, size, made) in pages.items()
        ]
    header = ["page", "MB", "first picture ms", "x small", "frame ms, median", "95 %", "made in s"]
    measure.show(header, [shown(row) for row in rows])
    named = Namespace(**(vars(args) | {"data_dir": args.data_dir.name}))
    measure.write("explore", named, rows)


def make(folder: Path, images: int, prototypes: tuple[int, ...], args: Any) -> tuple[str, int, float]:
    """A page, its bytes, and how long it took to write, the tree not counted."""
    vectors = measure.embeddings(images, args.seed)
    tree = build_hierarchy(vectors, Options(num_prototypes=prototypes, min_cluster_size=1))
    places = _place(tree, vectors)
    groups = places.clusters[:, -1] % 10
    paths = [f"{group}/{number:05}.jpg" for number, group in enumerate(groups)]
    classes = tuple(f"class {group}" for group in range(10))
    outliers = places.similarities[:, 0] < np.quantile(places.similarities[:, 0], 0.02)
    found = Embeddings(paths, np.empty((images, 0)), groups, classes, places.clusters, places.similarities, outliers)
    folder.mkdir()
    started = time.perf_counter()
    findings = Findings(None, np.flatnonzero(outliers), np.ones(outliers.sum()), find_mislabelled(vectors, groups))
    loading = Loading(batch_size=256, num_workers=2)
    write_page(folder, found, Repeated(args.data_dir, images), loading, "Benchmark", findings)
    seconds = time.perf_counter() - started
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder.as_uri()}/index.html", size, seconds


def first_picture(tab: Tab, page: str) -> float:
    tab.events.clear()
    tab.open(page)
    return tab.wait(FIRST) / 1000


def frames(tab: Tab, page: str, steps: int) -> dict[str, Any]:
    """While the map zooms in and out of the largest top clusters: milliseconds."""
    tab.open(page)
    tab.wait(FIRST)
    nodes = tab.run("(({nodes}) => nodes)(JSON.parse(document.getElementById('tree').textContent))")
    tops = [i for i, level in enumerate(nodes["level"]) if level == max(nodes["level"])]
    tops.sort(key=lambda i: -nodes["size"][i])
    numbers = [nodes["number"][tops[i % len(tops)]] for i in range(steps)]
    tab.run(ZOOM.replace("NODES", str(numbers)))  # once, so that the sheets are there
    found = tab.run(ZOOM.replace("NODES", str(numbers)))
    return {
        "median": statistics.median(found),
        "p95": float(np.quantile(found, 0.95)),
        "most": max(found),
        "count": len(found),
    }


def shown(row: dict[str, Any]) -> tuple[Any, ...]:
    figures = row["frames"]
    milliseconds = f"{1000 * row['median_seconds']:.0f}"
    made = f"{row['seconds_to_make']:.0f}"
    mb = f"{row['bytes'] / 1e6:.1f}"
    return row["way"], mb, milliseconds, row["ratio"], f"{figures['median']:.1f}", f"{figures['p95']:.1f}", made


if __name__ == "__main__":
    main()
