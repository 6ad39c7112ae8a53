"""`solo-hcsc detect RUN`: trains a detector on an encoder, all of whose weights learn, and reports its precision."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.cli.flags import add_record_flags, add_trainer_flags
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import SKIP_UNREADABLE, check_colours
from solo_hcsc.data.source import check_folder
from solo_hcsc.encoders.recorded import newest_checkpoints
from solo_hcsc.encoders.settings import encoder, key_value
from solo_hcsc.errors import UserError
from solo_hcsc.launch import is_main_process
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE, SHARE, Settings, at_least, yes_or_no
from solo_hcsc.training.settings import check_name

# MoCo's configurations R50-C4, which the paper follows; `voc` is for data of one's own in that layout.
_SHARED: dict[str, Any] = {
    "batch_size": 16,
    "lr": 0.02,
    "warmup_steps": 100,
    "warmup_factor": 0.001,
    "weight_decay": 0.0001,
    "weight_decay_norm": 0.0,
    "min_size_test": 800,
    "max_size": 1333,
    "head": "c4",
    "anchor_sizes": None,
    "rois_per_image": 512,
    "pool_size": 14,
    "precise_bn": 200,
    "horizontal_flip_prob": 0.5,
    "keep_empty": False,
    "random_weights": False,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
}
_VOC = {
    **_SHARED,
    "train_split": "trainval",
    "test_split": "test",
    "max_steps": 24000,
    "lr_steps": (18000, 22000),
    "min_size_train": tuple(range(480, 801, 32)),
    "masks": False,
}
_COCO = {
    **_SHARED,
    "train_split": "train2017",
    "test_split": "val2017",
    "max_steps": 180000,
    "lr_steps": (120000, 160000),
    "min_size_train": tuple(range(640, 801, 32)),
    "masks": True,
}
PROTOCOLS = {"voc0712": _VOC, "coco": _COCO, "voc": _VOC}
POOLS = {"c4": 14, "fpn": 7}
# A detector is trained by iterations and tested at its end: these would be about epochs and validation on the way.
_NOT_TAKEN = (
    "max_epochs min_epochs min_steps limit_train_batches limit_val_batches overfit_batches check_val_every_n_epoch"
    " val_check_interval num_sanity_val_steps fast_dev_run keep_best"
).split()


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    newest_checkpoints(flags.pretrained_feature_extractor)
    check_folder("data_dir", flags.data_dir)

    from solo_hcsc.data.detection import few
    from solo_hcsc.evaluation.detection import Detection, DetectionData, shown
    from solo_hcsc.report.detection import sheet, write_sheet

    data = DetectionData.read(flags.dataset, flags.data_dir, flags.train_split, flags.test_split)
    detection = Detection(flags, data, PROTOCOLS[flags.dataset])
    if not detection.train():
        return detection.run.report(detection.started, "the same command with --resume_from_checkpoint CHECKPOINT")
    images, found = detection.test()
    if is_main_process():
        figures, pictures = detection.figures(images, found), {}
        if flags.pictures:
            picture = sheet(images, found, few(images, flags.pictures), data.classes)
            pictures = write_sheet(picture, detection.run.checkpoints.folder)
        detection.write(figures, len(images), pictures, Invocation("detect", tuple(argv)))
        print(shown(figures, len(images)))
    detection.run.report(detection.started, f"solo-hcsc summary {flags.checkpoint_dir}")


def parse(argv: Sequence[str]) -> Settings:
    flags = build_parser().parse(argv)
    given = [name for name in _NOT_TAKEN if name in flags.typed]
    if given:
        raise UserError(f"--{given[0]}: detect counts iterations, --max_steps, and tests at the end; leave it out")
    protocol = PROTOCOLS[flags.dataset]
    chosen = {name: value for name, value in protocol.items() if getattr(flags, name) is None}
    chosen |= {} if flags.pool_size else {"pool_size": POOLS[flags.head]}
    if flags.max_steps is not None and flags.lr_steps is None:  # at the same shares of another length
        chosen["lr_steps"] = tuple(
            round(step * flags.max_steps / protocol["max_steps"]) for step in protocol["lr_steps"]
        )
    chosen |= {
        name: tuple(getattr(flags, name))
        for name in ("lr_steps", "min_size_train", "anchor_sizes")
        if getattr(flags, name) is not None
    }
    flags = Settings(flags.given, flags.typed, **(vars(flags) | chosen))
    if flags.max_steps < 1:
        raise UserError(f"--max_steps {flags.max_steps}: detect needs an end; give the number of iterations")
    if list(flags.lr_steps) != sorted(flags.lr_steps):
        raise UserError(f"--lr_steps {' '.join(map(str, flags.lr_steps))}: give them in rising order")
    if flags.masks and flags.dataset != "coco":
        raise UserError(f"--masks true: --dataset {flags.dataset} has no masks; leave it out")
    if max(*flags.min_size_train, flags.min_size_test) > flags.max_size:
        raise UserError(f"--max_size {flags.max_size}: is below a shorter side that images are resized to; raise it")
    check_colours(flags)
    check_name(flags)
    return flags


def build_parser() -> Parser:
    parser = Parser(
        "detect",
        "Trains a detector on the encoder of a checkpoint, nothing frozen, and reports average precision on the test "
        "images. The defaults are the paper's: Faster R-CNN C4 on VOC07+12, Mask R-CNN C4 on COCO.",
        "RUN --data_dir FOLDER [--dataset voc0712|coco|voc] [flags]",
    )
    _add_encoder_flags(parser.add_argument_group("encoder"))
    _add_data_flags(parser.add_argument_group("data"))
    _add_detector_flags(parser.add_argument_group("detector"))
    _add_schedule_flags(parser.add_argument_group("schedule"))
    add_trainer_flags(parser, max_epochs=1)
    add_record_flags(parser, best=())
    parser.change("max_steps", default=None, help="iterations to train; 24000, for coco 180000")
    parser.change("sync_batchnorm", help="batch statistics over all GPUs; on if there are several")
    parser.hide(*_NOT_TAKEN)
    return parser


def _add_encoder_flags(group: Any) -> None:
    told = (
        "the checkpoint, or a folder whose newest one is taken: of any method, of MoCo or the authors' HCSC, or "
        "weights of torchvision or timm"
    )
    group.add_argument("pretrained_feature_extractor", type=Path, metavar="RUN", help=told)
    group.add_argument("--method", help="what made the checkpoint, for the tables, where no args.json beside it tells")
    group.add_argument("--encoder", type=encoder, help="architecture, where no args.json tells it; also timm/NAME")
    args = "settings of a timm/NAME, as key=value, where no args.json tells them"
    group.add_argument("--encoder_args", type=key_value, nargs="+", default=[], help=args)
    group.add_argument("--random_weights", action="store_true", help="the same encoder untrained, to compare with")
    group.add_argument("--mean", type=float, nargs="+", default=[0.485, 0.456, 0.406], help="channel means; the run's")
    deviations = "channel deviations; the run's"
    group.add_argument("--std", type=float, nargs="+", default=[0.229, 0.224, 0.225], bound=POSITIVE, help=deviations)
    order = "in which the encoder takes colours: rgb, but for some of Caffe's"
    group.add_argument("--channel_order", choices=("rgb", "bgr"), default="rgb", help=order)


def _add_data_flags(group: Any) -> None:
    told = "voc0712; coco, also for data of your own in its layout; voc, for your own in a folder like VOC2007"
    group.add_argument("--dataset", choices=tuple(PROTOCOLS), default="voc0712", help=told)
    folder = "VOCdevkit with VOC2007 and VOC2012; or COCO's, with annotations, train2017 and val2017"
    group.add_argument("--data_dir", type=Path, required=True, help=folder)
    train, test = (f"the list, or COCO's file and folder, of the {which} images" for which in ("training", "test"))
    group.add_argument("--train_split", help=f"{train}; trainval, for coco train2017")
    group.add_argument("--test_split", help=f"{test}; test, for coco val2017")
    group.add_argument("--keep_empty", action="store_true", help="train also on images that show no object")
    group.add_argument("--num_workers", type=int, default=4, bound=NOT_NEGATIVE, help="processes that load images")
    group.add_argument("--skip_unreadable", action="store_true", help=SKIP_UNREADABLE)
    sizes = "shorter sides that training images are resized to, at random; 480 to 800 by 32, for coco 640 to 800"
    group.add_argument("--min_size_train", type=int, nargs="+", bound=at_least(16), help=sizes)
    group.add_argument("--min_size_test", type=int, default=800, bound=at_least(16), help="the same of test images")
    flip = "probability of a flip in training"
    group.add_argument("--horizontal_flip_prob", type=float, default=0.5, bound=SHARE, help=flip)
    group.add_argument("--max_size", type=int, default=1333, bound=at_least(16), help="the longer side at most")


def _add_detector_flags(group: Any) -> None:
    head = "c4: layer4 judges each region (ResNets), the paper's; fpn: a feature pyramid, any encoder with feature maps"
    group.add_argument("--head", choices=tuple(POOLS), default="c4", help=head)
    masks = "masks too: Mask R-CNN, for coco; true there if not given"
    group.add_argument("--masks", type=yes_or_no, nargs="?", const=True, help=masks)
    anchors = "sides of the anchors in pixels; 32 to 512, for fpn one per level"
    group.add_argument("--anchor_sizes", type=int, nargs="+", bound=at_least(1), help=anchors)
    rois = "regions of an image that the head is trained on"
    group.add_argument("--rois_per_image", type=int, default=512, bound=at_least(4), help=rois)
    pool = "side of what is pooled of a region, in cells; 14, for fpn 7"
    group.add_argument("--pool_size", type=int, bound=at_least(2), help=pool)
    precise = "training batches on which batch norm's averages are computed anew before the test (PreciseBN); 0: none"
    group.add_argument("--precise_bn", type=int, default=200, bound=NOT_NEGATIVE, help=precise)
    pictures = "test images on the sheet of pictures; 0: no sheet"
    group.add_argument("--pictures", type=int, default=12, bound=NOT_NEGATIVE, help=pictures)


def _add_schedule_flags(group: Any) -> None:
    batch = "images per iteration, of all processes together"
    group.add_argument("--batch_size", type=int, default=16, bound=at_least(1), help=batch)
    group.add_argument("--lr", type=float, default=0.02, bound=POSITIVE, help="learning rate")
    steps = (
        "iterations at which it falls to a tenth; 18000 22000, for coco 120000 160000, or in proportion to --max_steps"
    )
    group.add_argument("--lr_steps", type=int, nargs="*", bound=at_least(1), help=steps)
    group.add_argument("--warmup_steps", type=int, default=100, bound=NOT_NEGATIVE, help="iterations of linear warm-up")
    start = "share of the learning rate that the warm-up starts with"
    group.add_argument("--warmup_factor", type=float, default=0.001, bound=SHARE, help=start)
    group.add_argument("--weight_decay", type=float, default=0.0001, bound=NOT_NEGATIVE, help="weight decay")
    norms = "weight decay of norms' weights"
    group.add_argument("--weight_decay_norm", type=float, default=0.0, bound=NOT_NEGATIVE, help=norms)
