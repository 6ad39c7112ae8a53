"""`solo-hcsc spread`: from few labels to labels of all images, with a confidence for each, as CSV and Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.commands._labelling import check_labels, features_of, next_command, of_readable, read_labels
from solo_hcsc.cli.flags import check_frozen, embed_parser
from solo_hcsc.data.cells import as_cell
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_folder_to_write, written_together
from solo_hcsc.runs.images import check_embedded
from solo_hcsc.settings import SHARE, Settings
from solo_hcsc.tables import table

if TYPE_CHECKING:
    import numpy as np

NAMES = ("labels.csv", "labels.parquet")


def run(argv: Sequence[str]) -> None:
    """Check, spread, and write the files together."""
    flags = parse(argv)
    check_embedded(flags, flags.split)
    check_labels("--labels", flags.labels)

    import numpy as np

    from solo_hcsc.evaluation.embedding import Embedder
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.trees.spreading import spread

    import_faiss("spread clusters")
    embedder = Embedder.load(flags)
    paths = embedder.paths()
    given = {number: label for number, label in read_labels("--labels", flags.labels, paths).items() if label}
    check(given, flags)
    embedder, features, _ = features_of(embedder, flags)
    paths, given = embedder.paths(), of_readable(embedder, given)
    check(given, flags)
    names, classes = np.unique(list(given.values()), return_inverse=True)
    shares = spread(features, list(given), classes)
    write(flags, paths, names, shares, given)
    left = len(paths) - round(flags.abstain * (len(paths) - len(given)))
    print(f"{len(given)} labels spread to {left} of {len(paths)} images: {', '.join(NAMES)} in {flags.out}")
    report(embedder.labels(), names, shares, features, np.array(list(given)), classes)
    more = ("--already", *flags.labels, "--budget", len(given), "--out", "more.csv")
    print(
        f"to label more images where it helps most: {next_command('pick', flags, ('labels', 'out', 'abstain'), *more)}"
    )
    tell_skipped(embedder.skipped, embedder.images + len(embedder.skipped))


def check(given: dict[int, str], flags: Settings) -> None:
    """Refuse labels that are missing or all the same."""
    files = " ".join(map(str, flags.labels))
    if not given:
        raise UserError(f"--labels {files}: no label is filled in; write classes into its column label")
    if len({*given.values()}) == 1:
        raise UserError(
            f"--labels {files}: all {len(given)} labels are {min(given.values())!r}; give at least two classes"
        )


def write(flags: Settings, paths: list[str], names: "np.ndarray", shares: "np.ndarray", given: dict[int, str]) -> None:
    """Write both files: path, label, confidence, and whether the label was given; no label for the least sure ones."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    confidence, known = shares.max(axis=1), np.isin(np.arange(len(paths)), list(given))
    order = np.argsort(np.where(known, np.inf, confidence), kind="stable")
    unsure = order[: round(flags.abstain * (len(paths) - len(given)))]
    labels = pa.array(names[shares.argmax(axis=1)], pa.string(), mask=np.isin(np.arange(len(paths)), unsure))
    rows = pa.table({"path": paths, "label": labels, "confidence": confidence.round(4), "given": known})
    cells = {name: [one and as_cell(one) for one in rows[name].to_pylist()] for name in ("path", "label")}
    with written_together(flags.out, NAMES) as (text, binary):
        csv.write_csv(pa.table(cells | {name: rows[name] for name in rows.column_names[2:]}), text)
        parquet.write_table(rows, binary)


def report(
    truth: list[str | None] | None,
    names: "np.ndarray",
    shares: "np.ndarray",
    features: "np.ndarray",
    known: "np.ndarray",
    classes: "np.ndarray",
) -> None:
    """Print the accuracy on the other images beside that of KNN, where class folders tell the true classes."""
    import numpy as np

    from solo_hcsc.hcsc.kmeans import normalise
    from solo_hcsc.trees.spreading import accuracy, knn_shares

    if truth is None or not {*names.tolist()} <= {*truth}:
        return
    numbers = {name: number for number, name in enumerate(names.tolist())}
    right = np.array([numbers.get(name or "", -1) for name in truth])
    others = np.setdiff1d(np.flatnonzero([name is not None for name in truth]), known)
    if not len(others):
        return
    unit = normalise(features)
    ways = {"spread": shares[others], "knn": knn_shares(unit[others], unit[known], classes, len(names))}
    rows = [(way, *(f"{accuracy(own, right[others], part):.1f}" for part in (1, 0.5))) for way, own in ways.items()]
    print(f"accuracy in % on the other {len(others)} images, by their class folders:")
    print(table(("", "all", "surest half"), rows))


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "spread",
        "Labels for all images from few: by weighted KNN, a linear classifier and the clusters of a tree, with a "
        "confidence for each image. The labels come from the files that `pick` wrote and you filled in.",
        "RUN [--data_dir FOLDER] --labels FILE.csv --out FOLDER [flags]",
    )
    group = parser.add_argument_group("labels")
    told = "CSV files with columns path and label; rows without a label are left out"
    group.add_argument("--labels", type=Path, nargs="+", required=True, metavar="FILE", help=told)
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="where the files go")
    told = "leave this share of the images without a label: those with the lowest confidence"
    group.add_argument("--abstain", type=float, default=0.0, bound=SHARE, metavar="SHARE", help=told)
    flags = parser.parse(argv)
    check_frozen(flags)
    check_folder_to_write(flags.out)
    return flags
