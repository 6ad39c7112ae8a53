"""From what is asked for to a plan: every setting is checked before the first run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from solo_hcsc.data.folders import fingerprint
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import STORED, ImageSource
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.evaluation.budgets import drawn_from
from solo_hcsc.evaluation.frozen_settings import FEWEST_TO_ANALYSE
from solo_hcsc.progress import unheard
from solo_hcsc.settings import Settings
from solo_hcsc.study.asked import Evaluations, by_name, check_test_images, usual
from solo_hcsc.study.job import Job, plain
from solo_hcsc.study.runner import Evaluation, Variant, check_same_images, finished_runs
from solo_hcsc.study.study import SETTINGS, check_alike, check_beside, said
from solo_hcsc.training.pretraining import check_images as check_images_of_pretraining

MANY = 2**31  # images of a data set that has not been looked at
KINDS = {
    "knn": Evaluation("knn", "knn-*.json"),
    "linear": Evaluation("linear", "linear.json", into=("checkpoint_dir", "linear")),
    "clustering": Evaluation("clustering", "clustering-*.json"),
    "fewlabels": Evaluation("fewlabels", "fewlabels.json", into=("out", "fewlabels")),
    "analyse": Evaluation("analyse", "analysis.json", into=("out", "analysis"), first_seed_only=True),
}


@dataclass(frozen=True)
class CheckedRow:
    """A row and all its settings of pretraining."""

    variant: Variant
    settings: Settings


@dataclass(frozen=True)
class Request:
    """The part of a study that its rows share: folder, seeds and evaluations."""

    kind: Literal["compare", "ablate"]
    out: Path
    seeds: tuple[int, ...]
    evaluations: Evaluations
    test_dir: Path | None


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name a row or an evaluation in what is refused."""
    try:
        yield
    except UserError as error:
        kind = ArgumentError if isinstance(error, ArgumentError) else UserError
        raise kind(f"{name}: {error}") from error


def checked(name: str, settings: Mapping[str, Any]) -> CheckedRow:
    """Check a row: refuse before the first run what pretraining would refuse.

    Without `batch_size`, images that are too few for pretraining's have a quarter of them in a batch.
    """
    settings = plain(settings)
    with naming(name):
        found = Job("pretrain", settings).settle()
        source = ImageSource.of_flags(found).located(needs_val=True)
        if source.in_folders or source.is_stored:  # others are never too few, and may have to be downloaded
            images = round(training_images(source) * found.data_fraction)
            if images < found.batch_size and "batch_size" not in found.typed:
                settings["batch_size"] = max(1, images // 4)
                found = Job("pretrain", settings).settle()
            check_images_of_pretraining(found, images)
    return CheckedRow(Variant(name, settings, found.max_epochs, name), found)


def training_images(source: ImageSource) -> int:
    """Return how many training images there are."""
    with unheard():  # each run says what it finds in the folders
        return len(one_split(source, "train"))  # type: ignore[arg-type]


def check_early(request: Request, rows: Sequence[CheckedRow]) -> None:
    """Refuse what `shared_plan` would, apart from the folder's runs, before a search gives rows their last settings."""
    check_alike({row.variant.name: row.settings for row in rows})
    first = rows[0].settings
    check_test_images(request.test_dir, first)
    check_images(request.out, first)
    evaluations_of(request, first)


def shared_plan(request: Request, rows: Sequence[CheckedRow]) -> dict[str, Any]:
    """Return the fields of a plan that a comparison and an ablation have alike; refuse rows that are not alike."""
    variants = tuple(row.variant for row in rows)
    check_beside(request.out, request.kind, variants)
    runs = [run for run in finished_runs(request.out) if run.name == run.base]
    before = {run.name: Job("pretrain", run.settings).settle() for run in runs}
    check_alike({**before, **{row.variant.name: row.settings for row in rows}})
    first = rows[0].settings
    check_test_images(request.test_dir, first)
    check_images(request.out, first)
    settings = {name: said(first, name) for name in SETTINGS}
    if request.test_dir is not None:
        settings["test_dir"] = str(request.test_dir)
    return {
        "kind": request.kind,
        "data": first.data_dir.name if first.dataset in ("custom", *STORED) else first.dataset,
        "out": request.out,
        "seeds": request.seeds,
        "variants": variants,
        "evaluations": tuple(evaluations_of(request, first)),
        "settings": settings,
    }


def check_images(out: Path, first: Settings) -> None:
    """Refuse other images than those of the folder's runs, before any training."""
    source = ImageSource.of_flags(first).located(needs_val=True)
    if source.in_folders or source.is_stored:  # others are always the same
        check_same_images(out, fingerprint(one_split(source, "train"), source.folder("train")))


def evaluations_of(request: Request, first: Settings) -> list[Evaluation]:
    """Return the evaluations of each run, on the images it was pretrained on; refuse what cannot be."""
    source = ImageSource.of_flags(first).located(needs_val=True)
    images = training_images(source) if source.in_folders or source.is_stored else MANY
    shared: dict[str, Any] = {"num_workers": first.num_workers}  # all else is as in pretraining
    if request.test_dir is not None:
        shared["val_dir"] = request.test_dir
    if first.skip_unreadable:
        shared["skip_unreadable"] = True
    if first.accelerator in ("cpu", "gpu"):
        shared["accelerator"] = first.accelerator
    logged: dict[str, Any] = {"wandb": True, "project": first.project} if first.wandb else {}
    logged |= {"offline": True} if first.offline else {}
    logged |= {"entity": first.entity} if first.entity else {}
    found = []
    for name, given in by_name(request.evaluations).items():
        own = usual(name, images) if given is None else given
        settings = plain({**shared, **own, **(logged if name == "analyse" else {})})
        evaluation = replace(KINDS[name], settings=settings)
        with naming(f"`{name}`"):
            check_enough(name, evaluation.of(request.out).settle(), images)
        found.append(evaluation)
    return found


def check_enough(evaluation: str, settings: Settings, images: int) -> None:
    """Refuse an evaluation that needs more training images than there are."""
    there = f"there are only {images} training images"
    if evaluation == "knn" and max(settings.k) > images:
        raise UserError(f"`k` {max(settings.k)}: {there}; lower it")
    if evaluation == "linear" and settings.batch_size > images and ("batch_size" in settings.typed or settings.config):
        raise UserError(f"`batch_size` {settings.batch_size}: {there}; lower it")
    if evaluation == "clustering" and settings.split == "train" and max(settings.k or [0]) > images:
        raise UserError(f"`k` {max(settings.k)}: {there}; lower it")
    if evaluation == "fewlabels" and "budgets" in settings.typed and max(settings.budgets) > drawn_from(images):
        most = drawn_from(images)
        raise UserError(f"`budgets` {max(settings.budgets)}: {there}, and a draw takes {most}; lower it")
    if evaluation == "analyse" and settings.split == "train" and images < FEWEST_TO_ANALYSE:
        raise UserError(f"{there}, and it needs {FEWEST_TO_ANALYSE}; leave it out of `evaluations`")
