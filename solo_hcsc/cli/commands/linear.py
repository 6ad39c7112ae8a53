"""`solo-hcsc linear`: trains a linear classifier on a frozen encoder."""

import math
from argparse import Action, Namespace
from collections.abc import Sequence
from typing import Any

from solo_hcsc.cli.flags import add_cache_flag, add_resume_flags, check_labelled_checkpoint, probe_parser
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.errors import UserError
from solo_hcsc.progress import say
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import POSITIVE, Settings

# The paper's appendix B; all with momentum 0.9.
CONFIGS: dict[str, dict[str, Any]] = {
    name: {"lr": lr, **schedule, "weight_decay": 0.0, "batch_size": 256, "max_epochs": 100, "optimizer": "sgd"}
    for name, lr, schedule in (
        ("pcl", 5.0, {"scheduler": "step", "lr_decay_steps": [60, 80]}),
        ("adco", 10.0, {"scheduler": "cosine"}),
        ("moco", 30.0, {"scheduler": "step", "lr_decay_steps": [60, 80]}),
    )
}
UNUSED_RATE = 0.3  # solo-learn's default, which a sweep's model is made with
SWEEP = [0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0]


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    source = evaluated_images(flags).located(needs_val=True).labelled()

    from solo_hcsc.training.resume import FinishedError

    try:
        evaluate(flags, argv, source)
    except FinishedError as finished:
        if not flags.auto_resume:
            raise
        say(f"nothing to do: {finished}")


def evaluate(flags: Settings, argv: Sequence[str], source: ImageSource) -> None:
    """Train the classifier, or one for each learning rate, and write the result."""
    from solo_hcsc.data.folders import classes_of
    from solo_hcsc.encoders.recorded import recorded_flags
    from solo_hcsc.evaluation.models import Sweep
    from solo_hcsc.evaluation.probe import Probe
    from solo_hcsc.runs.results import column, named_accuracies, shown_accuracies
    from solo_hcsc.solo102 import LinearModel
    from solo_hcsc.solo102.datasets import evaluation_sets

    probe = Probe(flags, Invocation("linear", tuple(argv)), source, CONFIGS.get(flags.config, {}))
    train_set, val_set = evaluation_sets(source, *probe.transforms)
    classes = classes_of(train_set)
    tops = shown_accuracies(classes)
    headings = list(map(column, tops))
    settings: dict[str, Any] = {"config": flags.config} if flags.config else {}
    title = " ".join(filter(None, ["linear", flags.config, "(cached)" if flags.cache_features else None]))
    if probe.deviations():
        title += f", not the paper's {', '.join(probe.deviations())}"
    changes: dict[str, Any] = {"batch_size": batch_for(flags, len(train_set))}  # type: ignore[arg-type]
    if flags.lr is None and not flags.lr_sweep:
        before = recorded_flags(flags.resume_from_checkpoint) if flags.resume_from_checkpoint else {}
        if before.get("lr") is not None:
            changes["lr"] = before["lr"]
        else:
            plain = probe.transforms[1]
            rate = probe.choose_rate(classes, evaluation_sets(source, plain, plain)[0], changes)
            changes["lr"] = rate.lr
            settings["chosen"] = rate.said
            say(f"--lr {rate.lr:g}: {rate.said}; typed, it stays as typed")
    if not flags.lr_sweep:
        trained = probe.fit(LinearModel, classes, train_set, val_set, changes)
        logged = trained.logged
        metrics = {f"acc{k}": logged[f"val_acc{k}"] for k in tops if f"val_acc{k}" in logged}
        probe.report(trained, metrics, settings, ("evaluation", *headings), [(title, *metrics.values())])
        return
    recorded = {} if flags.lr is not None else {"lr": UNUSED_RATE}
    trained = probe.fit(Sweep, classes, train_set, val_set, changes | recorded)
    logged = trained.logged
    rows: list[tuple[Any, ...]] = [
        (f"{lr:g}", *(logged[f"val_acc{k}_lr{lr:g}"] for k in tops))
        for lr in flags.lr_sweep
        if f"val_acc1_lr{lr:g}" in logged
    ]
    metrics, remark = {}, ""
    if rows:
        best = max(rows, key=lambda row: row[1])
        metrics = named_accuracies(tops, best[1:])
        settings |= {"lr": float(best[0])}
        settings["all"] = [{"lr": float(lr), **named_accuracies(tops, values)} for lr, *values in rows]
        settings["chosen"] = f"best of {len(rows)} learning rates on the validation images"
        remark = f"best: {best[1]:.2f} % with lr {best[0]}, chosen on the validation images"
        diverged = [lr for lr, *_ in rows if not math.isfinite(logged[f"val_loss_lr{lr}"])]
        if diverged:
            remark += f"; diverged: {', '.join(diverged)}"
    probe.report(trained, metrics, settings, ("lr", *headings), rows, remark)


def batch_for(flags: Settings, images: int) -> int:
    """The batch as typed or as a configuration has it; without these, a quarter of the images where they are few."""
    typed = "batch_size" in flags.typed or flags.config
    if typed or images >= flags.batch_size:
        return int(flags.batch_size)
    batch = max(1, images // 4)
    say(f"--batch_size {batch}: there are {images} training images")
    return batch


def parse(argv: Sequence[str]) -> Settings:
    first = Parser("linear", add_help=False)
    first.add_argument("--config")
    config = first.parse_known_args(list(argv))[0].config
    # A sweep cannot have solo-learn's default schedule, which watches one classifier.
    flags = build_parser(CONFIGS.get(config, {"scheduler": "cosine"} if "--lr_sweep" in argv else {})).parse(argv)
    if flags.lr_sweep is not None:
        if len({f"{lr:g}" for lr in flags.lr_sweep}) < len(flags.lr_sweep):
            raise UserError("--lr_sweep: a learning rate is given twice, or two differ by less than a millionth")
        if flags.gradient_clip_val is not None:
            raise UserError("--lr_sweep: --gradient_clip_val would clip all classifiers together; leave it out")
        if flags.scheduler == "reduce":
            raise UserError("--lr_sweep: --scheduler reduce watches one classifier's loss; use step or cosine")
    check_labelled_checkpoint(flags)
    return flags


class _OrSweep(Action):
    """The usual rates where the flag stands alone."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, values or SWEEP)


def build_parser(defaults: dict[str, Any]) -> Parser:
    parser = probe_parser(
        "linear", "Trains a linear classifier on the frozen encoder of a checkpoint.", {"lr": None, **defaults}
    )
    told = "learning rate; if neither it nor --config is given, chosen on held-out training images"
    parser.change("lr", help=told)
    group = parser.add_argument_group("linear")
    group.add_argument(
        "--config",
        choices=list(CONFIGS),
        help="settings of the paper's appendix: lr 5 step, lr 10 cosine or lr 30 step; other flags override them",
    )
    group.add_argument(
        "--lr_sweep",
        type=float,
        nargs="*",
        action=_OrSweep,
        metavar="LR",
        bound=POSITIVE,
        help=f"trains a classifier for each learning rate at once, on the same features ({' '.join(map(str, SWEEP))})",
    )
    add_cache_flag(parser)
    add_resume_flags(parser.add_argument_group("records"))
    return parser
