"""Carry out a comparison or an ablation, from its rows to its record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from solo_hcsc.data.augmentation import AUGMENTATIONS
from solo_hcsc.errors import UserError
from solo_hcsc.progress import say
from solo_hcsc.settings import Settings
from solo_hcsc.study import record
from solo_hcsc.study.runner import (
    Evaluation,
    Experiments,
    Finished,
    Variant,
    check_judged_alike,
    check_unchanged,
    finished_runs,
)
from solo_hcsc.study.tally import tally

# What a fair comparison has in common, beside the augmentations.
_COMMON = (
    *("dataset", "data_dir", "train_dir", "val_dir", "class_level", "data_fraction", "skip_unreadable", "mean", "std"),
    *("encoder", "encoder_args", "init_weights", "zero_init_residual", "batch_size", "accumulate_grad_batches"),
    *("devices", "precision", "max_epochs", "limit_train_batches"),
    *("freeze_encoder_epochs", "freeze_batchnorm"),
)
SETTINGS = (*_COMMON, "num_crops_per_aug", *AUGMENTATIONS)


@dataclass(frozen=True)
class Plan:
    """Rows, evaluations and folder of a study."""

    kind: Literal["compare", "ablate"]
    subject: str | None  # of the title; the finished methods if None
    data: str  # what the images are called
    command: str  # that repeats it, for the report
    out: Path
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    evaluations: tuple[Evaluation, ...]
    settings: Mapping[str, Any]  # what all rows have in common, for the report
    order: tuple[str, ...] = ()  # of the report's rows, those of earlier commands too; others follow
    reference: str | None = None  # the row that the others are compared with
    equal_time: bool = False  # whether the faster ones get more epochs
    search: record.Search | None = None  # the trials that the variants' settings were chosen by


class Study:
    """A plan that is carried out."""

    def __init__(self, plan: Plan) -> None:
        """Refuse other evaluation settings than those of the runs in the folder; `check_beside` comes first."""
        self.before = rows_before(plan.out, plan.kind)
        self.plan = plan
        names = [variant.name for variant in plan.variants]

        def is_repeated(run: Finished) -> bool:
            return run.seed in plan.seeds and (run.base if plan.equal_time else run.name) in names

        check_judged_alike(plan.out, plan.evaluations, is_repeated)
        self.experiments = Experiments(plan.out, plan.evaluations)

    def run(self) -> record.Comparison:
        """Do all runs; return the record, which is also written."""
        plan, variants = self.plan, list(self.plan.variants)
        names = " | ".join(variant.name for variant in variants)  # an ablation's have commas
        seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}"
        say(f"{names}; {seeds}, {len(variants) * len(plan.seeds)} runs; results in {plan.out}")
        if plan.equal_time:
            self.experiments.run(variants, plan.seeds[:1])  # tells the time of an epoch
            longer = self.at_equal_time()
            self.experiments.run(longer, plan.seeds)
            variants += [variant for variant in longer if variant not in variants]
        else:
            self.experiments.run(variants, plan.seeds)
        return self.conclude(variants)

    def at_equal_time(self) -> list[Variant]:
        """Return the variants with the epochs nearest to the slowest one's time, or those that were begun for it."""
        runs = sorted(finished_runs(self.plan.out), key=lambda run: -run.cost["epoch_seconds"])
        seconds = {run.name: run.cost["epoch_seconds"] for run in runs}  # of the fastest seed, as in the report
        missing = [variant.name for variant in self.plan.variants if variant.name not in seconds]
        if missing:
            raise UserError(
                f"`budget` seconds: {', '.join(missing)} did not finish, so the time of an epoch is unknown"
            )
        slowest = max(self.plan.variants, key=lambda variant: seconds[variant.name]).name
        longer = []
        for variant in self.plan.variants:
            nearest = round(variant.epochs * seconds[slowest] / seconds[variant.name])
            begun = variant.begun_longer(self.plan.out)
            epochs = begun or nearest
            told = f"{nearest} epochs in {slowest}'s time" + (f", {begun} as begun" if begun else "")
            say(f"{variant.name}: {seconds[variant.name]:.1f} s per epoch, {told}")
            longer.append(variant if epochs == variant.epochs else variant.longer(epochs))
        return longer

    def conclude(self, variants: Sequence[Variant]) -> record.Comparison:
        """Aggregate all finished runs of the folder."""
        plan, runs, elsewhere = self.plan, finished_runs(self.plan.out), self.experiments.elsewhere()
        finished = {run.name for run in runs}
        if not finished:
            reasons = [*self.experiments.failed.values()]
            reasons += [f"another process works on {label}" for label in elsewhere]
            raise UserError(f"no run was finished; {'; '.join(reasons)}")
        order = dict.fromkeys(
            [*(plan.order or self.before), *(variant.name for variant in variants), *sorted(finished)]
        )
        rows = [name for name in order if name in finished]
        at_equal_epochs = {run.name for run in runs if run.name == run.base}
        subject = plan.subject or ", ".join(name for name in rows if name in at_equal_epochs)
        about = {
            "title": f"{subject} on {plan.data}",
            "kind": plan.kind,
            "budget": "epochs" if at_equal_epochs == finished else "seconds",
            "command": plan.command,
            "settings": dict(plan.settings),
            "reference": plan.reference,
            "search": plan.search,
            "elsewhere": elsewhere,
        }
        comparison = tally(plan.out, runs, rows, about, self.experiments.failed)
        comparison.save(plan.out)
        return comparison


def check_beside(out: Path, kind: str, variants: Sequence[Variant]) -> None:
    """Refuse a folder of something else, and rows that it has with other settings."""
    if out.exists() and not out.is_dir():
        raise UserError(f"`out` {out}: is a file; give a folder")
    rows_before(out, kind)
    check_unchanged(out, variants)


def rows_before(out: Path, kind: str) -> tuple[str, ...]:
    """Return the names of the rows that the folder's last report has, in its order."""
    try:
        found = record.read(out)
    except UserError:  # there is none yet, or what there is will be made anew from the runs
        return ()
    if found.kind != kind:
        raise UserError(f"`out` {out}: was written by solo-hcsc {found.kind}; give another folder")
    return tuple(row.name for row in found.rows)


def check_alike(flags: Mapping[str, Settings]) -> None:
    """Refuse settings of one row that make it another task."""
    first, *others = flags
    for name in others:
        for setting in SETTINGS:
            here, there = said(flags[name], setting), said(flags[first], setting)
            if here != there:
                raise UserError(
                    f"`{setting}` is {here} for {name} and {there} for {first}; a comparison needs it to be the "
                    "same: give it once for all, or give another `out`"
                )


def said(flags: Settings, name: str) -> str:
    """Return a setting as text."""
    value = getattr(flags, name)
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
