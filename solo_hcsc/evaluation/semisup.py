"""Fine-tune an encoder and a linear classifier on few labels."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, Subset

from solo_hcsc.data.folders import classes_of, files_and_labels, labels_of
from solo_hcsc.data.sets import evaluation_sets
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.evaluation.models import FineTuned
from solo_hcsc.evaluation.probe import Evaluated, Probe
from solo_hcsc.evaluation.protocols import SEMISUP, SEMISUP_SETTINGS, check_semisup, folders, settled
from solo_hcsc.progress import note, say
from solo_hcsc.quiet import hushed
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation, Result, column, shown_accuracies
from solo_hcsc.settings import Settings


def semisup(weights: Any, train: Any = None, val: Any = None, **settings: Any) -> Result:
    """Fine-tune an encoder and a linear classifier on few labels, by the protocol of the paper's appendix A.

    Args:
        weights: a `Run`, an `Encoder` from a file, or the path of a run or of weights.
        train: a folder with a folder of images for each class, of which a part keep their labels; the run's own images
            if not given, like `val`.
        val: the same, for validation.
        **settings: `label_fraction`, the share of each class's labels, or `label_list`, a file of images' names; and
            any other setting of `solo-hcsc semisup`, such as `max_epochs=20` or `checkpoint_dir="runs"`.

    Returns:
        The accuracies of the last epoch; `settings["best"]` has those of the best one; `origin["run"]` is the folder
        of the fine-tuned encoder.

    Example:
        >>> semisup("trained_models/hcsc", label_fraction=0.01).metrics  # doctest: +SKIP
        {'acc1': 48.1, 'acc5': 77.0}
    """
    asked = settled(SEMISUP_SETTINGS, weights, folders(train, val) | settings)
    check_semisup(asked)
    with hushed():
        return fine_tune(asked, evaluated_images(asked).located(needs_val=True).labelled()).result


def fine_tune(settings: Settings, source: ImageSource, command: Invocation | None = None) -> Evaluated:
    """Train encoder and classifier on the labelled part of `source`, and write a run's folder.

    Args:
        settings: all that `solo-hcsc semisup` has, by name.
        source: the images, located and labelled.
        command: as it was typed, for the record.
    """
    if settings.label_list and not source.in_folders:
        raise UserError(f"`label_list` names files, and `dataset` {source.dataset} has none; use `label_fraction`")
    head_lr = settings.lr if settings.head_lr is None else settings.head_lr
    probe = Probe("semisup", settings, source, SEMISUP | {"head_lr": SEMISUP["lr"]}, command=command)
    train_set, val_set = evaluation_sets(source, *probe.transforms)
    classes, images, labels = classes_of(train_set), len(train_set), labels_of(train_set)  # type: ignore[arg-type]
    if settings.label_list:
        chosen = listed_images(settings.label_list, train_set)
        told = f"the images of {settings.label_list}"
    else:
        chosen = stratified_sample(labels, settings.label_fraction, settings.seed)
        told = f"{settings.label_fraction:.2%} of each class, drawn with seed {settings.seed}"
    missing = classes - len({labels[index] for index in chosen})
    if missing:
        note(f"{missing} of {classes} classes have no labelled image")
    batch_size = batch_that_fits(len(chosen), settings.batch_size, probe.devices.processes)
    say(f"semisup: {len(chosen)} labels for {images} images ({told})")

    changes = {"batch_size": batch_size, "head_lr": head_lr}
    trained = probe.fit(FineTuned, classes, Subset(train_set, chosen), val_set, changes)
    tops = shown_accuracies(classes)
    last, best = trained.accuracies(tops), trained.accuracies(tops, "best_")
    own = {
        "labels": told,
        "label_fraction": settings.label_fraction or len(chosen) / images,  # of a list: what it comes to
        "head_lr": head_lr,
        "best": best,
    }
    rows = [{"epoch": "last epoch", **last}, {"epoch": "best epoch (chosen on the validation images)", **best}]
    columns = {"epoch": "semisup", **{f"acc{k}": column(k) for k in tops}}
    return probe.result(trained, last, own, rows, columns, labelled_images=len(chosen))


def batch_that_fits(labelled: int, batch_size: int, processes: int) -> int:
    """Lower the batch size to what each process has."""
    each = labelled // processes
    if min(each, batch_size) < 2:
        raise UserError(
            f"{labelled} labelled images in batches of {batch_size}: batch norm needs at least two images in "
            "each process's batch; use more labels or a larger `batch_size`"
        )
    if each < batch_size:
        note(f"`batch_size` {batch_size}: lowered to {each}, since there are {labelled} labelled images")
    return min(each, batch_size)


def stratified_sample(labels: Sequence[int], share: float, seed: int) -> list[int]:
    """Draw the same share of every class, at least one image of each; return their indexes."""
    of_class = defaultdict(list)
    for index, label in enumerate(labels):
        of_class[label].append(index)
    generator = random.Random(seed)
    chosen: list[int] = []
    for label in sorted(of_class):
        chosen += generator.sample(of_class[label], max(1, round(share * len(of_class[label]))))
    return sorted(chosen)


def listed_images(file: Path, dataset: Dataset) -> list[int]:
    """Return indexes of the images that a file names: one in each line, by its name or the end of its path.

    The usual lists of ImageNet's 1 % and 10 % have names (`n02389026_4329.JPEG`); a label after the name is not read.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"`label_list` {file}: cannot be read ({reason})") from error
    files = files_and_labels(dataset)[0]
    ends = defaultdict(list)  # images by the end of their path: `x.png`, `class/x.png`, `train/class/x.png`, ...
    depth = 1 + max(line.count("/") for line in [*lines, ""])
    for index, path in enumerate(files):
        parts = Path(path).parts
        for length in range(1, min(depth, len(parts)) + 1):
            ends["/".join(parts[-length:])].append(index)
    chosen = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        found = next((ends[name] for name in (line, line.rpartition(" ")[0].strip()) if name in ends), [])
        where = f"`label_list` {file}, line {number}: {line!r}"
        if not found:
            raise UserError(f"{where} is not among the training images")
        if len(found) > 1:
            both = " and ".join(on_one_line(files[index]) for index in found[:2])
            raise UserError(f"{where} may be {both}; give as much of the path as tells them apart")
        chosen.add(found[0])
    if not chosen:
        raise UserError(f"`label_list` {file}: it names no image")
    return sorted(chosen)
