"""`solo-hcsc fewlabels`: the accuracy with few labels, of images that `pick` chooses and of random ones."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.commands._labelling import features_of, next_command, picks_from_run
from solo_hcsc.cli.flags import add_way_flags, check_frozen, embed_parser
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_folder_to_write, written_together
from solo_hcsc.runs.images import check_embedded
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings, at_least
from solo_hcsc.tables import table

if TYPE_CHECKING:
    from solo_hcsc.evaluation.budgets import Labelled, Score
    from solo_hcsc.evaluation.embedding import Embedder

NAMES = ("fewlabels.json", "fewlabels.svg")


def run(argv: Sequence[str]) -> None:
    """Check, measure, and write the table and the files."""
    flags = parse(argv)
    check_embedded(flags, "train", "val")
    started = time.monotonic()

    from solo_hcsc.evaluation.budgets import drawn_from, measure
    from solo_hcsc.evaluation.embedding import Embedder
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.report.few_labels import draw_scores
    from solo_hcsc.report.figures import to_svg, write_svg
    from solo_hcsc.runs.results import Result, describe_data

    import_faiss("fewlabels clusters")
    train, val = (Embedder.load(flags.but(split=split)) for split in ("train", "val"))
    if "budgets" not in flags.typed:
        flags = flags.but(budgets=[one for one in flags.budgets if one <= drawn_from(train.images)] or [1])
    if max(flags.budgets) > drawn_from(train.images):
        raise UserError(
            f"--budgets {max(flags.budgets)}: a draw has only {drawn_from(train.images)} of {train.images} images; "
            "give fewer"
        )
    (train, pool), (val, judged) = labelled([train, val], flags)
    print("choosing, training, judging ...", flush=True)
    scores = measure(pool, judged, sorted({*flags.budgets}), flags.draws, flags.way)
    encoder, source = train.frozen.encoder, replace(train.source, val_dir=val.source.val_dir)
    said = {
        "budgets": sorted({*flags.budgets}),
        "draws": flags.draws,
        "features": flags.features,
        "way": flags.way,
        "tree": None if flags.way == "farthest" else "features" if pool.paths is None else "run",
        "scores": [asdict(score) for score in scores],
    }
    skipped = train.skipped + val.skipped
    counts = {"train": len(pool.classes), "val": len(judged.classes)}
    data = describe_data(source, int(pool.classes.max()) + 1, skipped, **counts)
    result = Result("fewlabels", headline(scores), said, data, seconds=time.monotonic() - started)
    with written_together(flags.out, NAMES) as (text, picture):
        result.of(encoder, Invocation("fewlabels", tuple(argv))).save(text)
        write_svg(picture, to_svg("fewlabels", lambda: draw_scores(scores)))
    say(scores, len(judged.classes), flags)
    tell_skipped(skipped, train.images + val.images + len(skipped))


def headline(scores: "Sequence[Score]") -> dict[str, float]:
    """Average the linear classifier's accuracy with picked and with random labels over budgets and draws."""
    return {
        choice: statistics.fmean(
            value for one in scores if (one.classifier, one.choice) == ("linear", choice) for value in one.accuracies
        )
        for choice in ("picked", "random")
    }


def labelled(embedders: "Sequence[Embedder]", flags: Settings) -> "list[tuple[Embedder, Labelled]]":
    """Return the readable images of both splits that have a class, with the same numbers for the same classes."""
    import numpy as np

    from solo_hcsc.evaluation.budgets import Labelled

    names = [embedder.labels() for embedder in embedders]
    if any(own is None or not any(own) for own in names):
        raise UserError("fewlabels compares with true labels: give images in class folders")
    classes = sorted({name for own in names for name in own or () if name})
    if len(classes) < 2:
        raise UserError(f"fewlabels needs at least two classes; all images are {classes[0]!r}")
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(classes)}
    found = []
    for embedder in embedders:
        walked = embedder.split == "train" and picks_from_run(embedder, flags)
        read, features, clusters = features_of(embedder, flags, walked)
        own = read.labels() or []
        known = [number for number, name in enumerate(own) if name]
        classes_of = np.array([numbers[name] for name in own if name])
        found.append((read, Labelled(features[known], classes_of, None if clusters is None else clusters[:, known])))
    return found


def say(scores: "Sequence[Score]", judged: int, flags: Settings) -> None:
    """Print the table, where the files are, and what to do next."""
    from solo_hcsc.evaluation.budgets import CLASSIFIERS

    def shown(values: Sequence[float]) -> str:
        return f"{statistics.mean(values):.1f} ± {statistics.pstdev(values):.1f}"

    header = ("labels", "chosen", *CLASSIFIERS, *(f"{name}, surer half" for name in CLASSIFIERS))
    cells: dict[tuple[int, str], list[Score]] = {}
    for one in scores:
        cells.setdefault((one.budget, one.choice), []).append(one)
    rows = [
        (*key, *(shown(one.accuracies) for one in own), *(shown(one.surer_half) for one in own))
        for key, own in cells.items()
    ]
    print(f"accuracy in % on {judged} images; mean ± standard deviation of {flags.draws} draws")
    print(table(header, rows))
    print(f"{', '.join(NAMES)} in {flags.out}")
    dropped = ("budgets", "draws", "out", "val_dir")
    line = next_command("pick", flags, dropped, "--budget", max(flags.budgets), "--out", "labels.csv")
    print(f"to choose images for labelling: {line}")


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "fewlabels",
        "What few labels are worth: the accuracy of a linear classifier, KNN and `spread` on val images, with labels "
        "of training images that `pick` chooses, of random ones and of equally many random ones of each class.",
        "RUN [--data_dir FOLDER --train_dir FOLDER --val_dir FOLDER] --out FOLDER [flags]",
    )
    parser.hide("split", "no_labels")
    group = parser.add_argument_group("few labels")
    budgets = [10, 20, 50, 100, 250, 500]
    told = "how many images are labelled"
    group.add_argument("--budgets", type=int, nargs="+", default=budgets, bound=at_least(1), metavar="N", help=told)
    told = "times that each choice is made, each from another four fifths of the training images"
    group.add_argument("--draws", type=int, default=5, bound=at_least(1), metavar="N", help=told)
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="where the files go")
    add_way_flags(group)
    flags = parser.parse(argv)
    check_frozen(flags)
    check_folder_to_write(flags.out)
    return flags
