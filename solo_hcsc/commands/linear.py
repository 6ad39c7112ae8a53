"""`python -m solo_hcsc.linear`: trains a linear classifier on a frozen encoder."""

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from solo_hcsc.cli.errors import UserError, command
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

# The paper's appendix B; all with momentum 0.9.
CONFIGS: dict[str, dict[str, Any]] = {
    name: {"lr": lr, **schedule, "weight_decay": 0.0, "batch_size": 256, "max_epochs": 100, "optimizer": "sgd"}
    for name, lr, schedule in (
        ("pcl", 5.0, {"scheduler": "step", "lr_decay_steps": [60, 80]}),
        ("adco", 10.0, {"scheduler": "cosine"}),
        ("moco", 30.0, {"scheduler": "step", "lr_decay_steps": [60, 80]}),
    )
}
SWEEP = [0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0]


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.framework.registry import load_methods

    methods = load_methods()
    args = parse(argv)

    from solo_hcsc.data import folders as data
    from solo_hcsc.evaluation.probe import Probe
    from solo_hcsc.evaluation.sweep import Sweep

    data.resolve_folders(args, needs_val=True)
    probe = Probe(args, "linear", CONFIGS.get(args.config, {}))
    train_set, val_set = data.evaluation_sets(args, *probe.transforms)
    classes = data.classes_of(train_set)
    settings: dict[str, Any] = {"config": args.config} if args.config else {}
    title = " ".join(filter(None, ["linear", args.config, "(cached)" if args.cache_features else None]))
    if probe.deviations:
        title += f", other {', '.join(probe.deviations)}"
    if not args.lr_sweep:
        logged = probe.fit(methods["linear"], classes, train_set, val_set)
        metrics = {f"acc{k}": logged[f"val_acc{k}"] for k in (1, 5) if f"val_acc{k}" in logged}
        probe.report(metrics, settings, ("evaluation", "top-1 %", "top-5 %"), [(title, *metrics.values())])
        return
    logged = probe.fit(Sweep, classes, train_set, val_set)
    rows = [
        (f"{lr:g}", logged[f"val_acc1_lr{lr:g}"], logged[f"val_acc5_lr{lr:g}"])
        for lr in args.lr_sweep
        if f"val_acc1_lr{lr:g}" in logged
    ]
    metrics, remark = {}, ""
    if rows:
        best = max(rows, key=lambda row: row[1])
        metrics = {"acc1": best[1], "acc5": best[2]}
        settings |= {"lr": float(best[0])}
        settings["all"] = [{"lr": float(lr), "acc1": acc1, "acc5": acc5} for lr, acc1, acc5 in rows]
        settings["chosen"] = f"best of {len(rows)} learning rates on the validation images"
        remark = f"best: {best[1]:.2f} % with lr {best[0]}, chosen on the validation images"
        diverged = [lr for lr, *_ in rows if not math.isfinite(logged[f"val_loss_lr{lr}"])]
        if diverged:
            remark += f"; diverged: {', '.join(diverged)}"
    probe.report(metrics, settings, ("lr", "top-1 %", "top-5 %"), rows, remark)


def parse(argv: Sequence[str]) -> Namespace:
    from solo_hcsc.evaluation.probe import check

    first = Parser(add_help=False)
    first.add_argument("--config")
    config = first.parse_known_args(list(argv))[0].config
    # A sweep cannot have solo-learn's default schedule, which watches one classifier.
    defaults = CONFIGS.get(config, {"scheduler": "cosine"} if "--lr_sweep" in argv else {})
    parser = build_parser(defaults)
    args = parser.parse(argv)
    if args.lr_sweep is not None:
        args.lr_sweep = args.lr_sweep or SWEEP
        if min(args.lr_sweep) <= 0:
            raise UserError(f"--lr_sweep {min(args.lr_sweep):g}: must be greater than 0")
        if len({f"{lr:g}" for lr in args.lr_sweep}) < len(args.lr_sweep):
            raise UserError("--lr_sweep: a learning rate is given twice, or two differ by less than a millionth")
        if args.gradient_clip_val is not None:
            raise UserError("--lr_sweep: --gradient_clip_val would clip all classifiers together; leave it out")
        if args.scheduler == "reduce":
            raise UserError("--lr_sweep: --scheduler reduce watches one classifier's loss; use step or cosine")
    return check(args, "linear")


def build_parser(defaults: dict[str, Any]) -> Parser:
    from solo_hcsc.evaluation import probe as probing
    from solo_hcsc.data.folders import DATASETS

    parser = probing.build_parser(
        "linear", "Trains a linear classifier on the frozen encoder of a checkpoint.", defaults
    )
    parser.choose("dataset", DATASETS)
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
        metavar="LR",
        help=f"trains a classifier for each learning rate at once, on the same features ({' '.join(map(str, SWEEP))})",
    )
    probing.add_cache_flag(parser)
    return parser


if __name__ == "__main__":
    main()
