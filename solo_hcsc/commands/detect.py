"""`solo-hcsc detect RUN`: trains a detector on an encoder, all of whose weights learn, and reports its precision."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.console import announce, table
from solo_hcsc.cli.errors import UserError, is_main_process
from solo_hcsc.cli.flags import (
    add_record_flags,
    add_trainer_flags,
    check_colours,
    check_name,
    encoder,
    key_value,
)
from solo_hcsc.cli.parser import NOT_NEGATIVE, POSITIVE, SHARE, Flags, Invocation, Parser, at_least, take, yes_or_no

if TYPE_CHECKING:
    from solo_hcsc.data.detection import AnnotatedImage
    from solo_hcsc.evaluation.detecting import Detections
    from solo_hcsc.evaluation.encoders import Encoder
    from solo_hcsc.training.run import Run

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
    "precise_bn": 200,
    "horizontal_flip_prob": 0.5,
    "keep_empty": False,
    "random_weights": False,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
}
_VOC = {
    **_SHARED,
    "max_steps": 24000,
    "lr_steps": (18000, 22000),
    "min_size_train": tuple(range(480, 801, 32)),
    "masks": False,
}
_COCO = {
    **_SHARED,
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
_COLUMNS = {
    "AP": "AP",
    "AP50": "AP50",
    "AP75": "AP75",
    "AP50_11": "VOC AP50, 11 points",
    "AP50_all": "VOC AP50, all points",
}
_MASK_COLUMNS = {"AP": "mask AP", "AP50": "mask AP50", "AP75": "mask AP75"}


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)

    import torch
    from pytorch_lightning import seed_everything

    from solo_hcsc.cli.devices import resolve_devices
    from solo_hcsc.data.detection import DetectionImages, Sizes, collate, refuse_without_outlines, with_objects
    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.evaluation.detector import DetectorSettings, make_detector
    from solo_hcsc.evaluation.encoders import load_encoder
    from solo_hcsc.training.checkpoints import EVALUATION
    from solo_hcsc.training.detection import DetectorTraining, Schedule
    from solo_hcsc.training.resume import FinishedError, check_resume, check_same_flags
    from solo_hcsc.training.run import Run, batches_per_epoch, new_folder
    from solo_hcsc.training.settings import Loop, Records, Wandb, check_wandb

    started = time.monotonic()
    gpus = torch.cuda.device_count()
    devices = resolve_devices(flags if "sync_batchnorm" in flags.typed else flags.but(sync_batchnorm=gpus > 1), gpus)
    if flags.batch_size % devices.processes:
        raise UserError(f"--batch_size {flags.batch_size}: is shared by all {devices.processes} processes; they divide it")
    if flags.masks:
        check_masks()
    train_images, test_images, classes = read_images(flags)
    if flags.masks:
        for images in (train_images, test_images):
            refuse_without_outlines(images, f"--masks true: --dataset {flags.dataset}")
    trained_on = train_images if flags.keep_empty else with_objects(train_images)
    name = flags.name or f"detect-{flags.dataset}"
    records, wandb = take(Records, flags, name=name, keep_best=None), take(Wandb, flags, name=name)
    check_wandb(wandb)

    taken = load_encoder(flags.pretrained_feature_extractor, flags.encoder, None, flags.encoder_args)
    seed_everything(flags.seed, workers=True)
    if flags.random_weights:
        taken = without_weights(taken)
    mean, std = colours(flags, taken)
    detector = make_detector(taken, len(classes), take(DetectorSettings, flags, mean=mean, std=std))
    model = DetectorTraining(detector, take(Schedule, flags), flags.weight_decay, flags.weight_decay_norm)

    loading = Loading(flags.batch_size // devices.processes, flags.num_workers)
    sizes = Sizes(flags.min_size_train, flags.max_size)
    train_set = DetectionImages(trained_on, sizes, True, flags.masks, flags.horizontal_flip_prob)
    test_set = DetectionImages(test_images, Sizes((flags.min_size_test,), flags.max_size), False)
    batches = batches_per_epoch("--data_dir", len(train_set), loading.batch_size, devices, take(Loop, flags))
    epochs = math.ceil(flags.max_steps * flags.accumulate_grad_batches / batches)
    loop = take(Loop, flags, max_epochs=epochs, num_sanity_val_steps=0)
    test_loader = loading.validation(test_set, devices.processes, collate, "--data_dir")
    settings = {
        **{key: value for key, value in vars(flags).items() if key not in _NOT_TAKEN},
        "name": name,
        "role": EVALUATION,
        "optimizer": "sgd",
        "encoder": taken.name,
        "backbone_args": taken.settings,
        "checkpoint_sha256": taken.fingerprint,
        "classes": classes,
        "mean": mean,
        "std": std,
        "precision": devices.precision,
        "processes": devices.processes,
        "sync_batchnorm": devices.sync_batchnorm,
    }
    resume, folder = flags.resume_from_checkpoint, new_folder(records, "detect")
    is_trained = False
    if resume is not None:
        check_same_flags(resume, settings)
        try:
            check_resume(resume, model, loop)
        except FinishedError:
            is_trained, folder = True, resume.parent
    training = Run(folder, devices, loop, records, wandb, settings, resume, [])
    if not is_trained:
        training.begin(model)
    announce(taken.taken)
    told = "its training is done; testing it" if is_trained else f"{flags.max_steps} iterations, batch {flags.batch_size}"
    announce(
        f"detect: {flags.head} on {taken.name}, {flags.dataset}: {len(train_set)} training and {len(test_set)} test "
        f"images, {len(classes)} classes; {devices}; {told}; writing to {folder}"
    )
    if is_trained:
        load_trained(model, resume)
    else:
        training.fit(model, loading.repeatable(train_set, loop.seed, devices.shards, collate), None)
        folder = training.checkpoints.folder  # on which several processes have agreed
        if training.trainer.global_step < flags.max_steps:
            announce(f"stopped after {training.trainer.global_step} of {flags.max_steps} iterations: no result is written")
            return training.report(started, "go on with --resume_from_checkpoint")
    again = loading.repeatable(train_set, loop.seed, devices.shards, collate)  # from its first epoch, however trained
    found = test(detector, again, test_loader, len(test_set), flags, training)
    if is_main_process():
        data = {
            "name": flags.dataset,
            "data_dir": str(flags.data_dir),
            "train_images": len(train_set),
            "val_images": len(test_set),
            "classes": len(classes),
            "crop_size": flags.min_size_test,
        }
        recorded = record(flags, settings, devices.processes > 1 and not devices.sync_batchnorm)
        seconds = time.monotonic() - started
        finish(flags, Invocation("detect", tuple(argv)), taken, test_images, found, classes, data, recorded, folder, seconds)
    training.report(started, f"solo-hcsc summary {records.checkpoint_dir}")


# ---- the data, the encoder ----


def read_images(flags: Flags) -> tuple[list["AnnotatedImage"], list["AnnotatedImage"], tuple[str, ...]]:
    """Training images, test images and the classes of both."""
    from solo_hcsc.data.coco import read_coco
    from solo_hcsc.data.pascal import CLASSES, find_folder, read_boxes

    if flags.dataset == "coco":
        train, classes = read_coco(flags.data_dir, flags.train_split)
        return train, read_coco(flags.data_dir, flags.test_split, classes)[0], classes
    if flags.dataset == "voc":
        folder = find_folder(flags.data_dir)
        train, classes = read_boxes(folder, flags.train_split)
        return train, read_boxes(folder, flags.test_split, classes)[0], classes
    folders = [flags.data_dir / year for year in ("VOC2007", "VOC2012")]
    for folder in folders:
        if not (folder / "ImageSets" / "Main").is_dir():
            raise UserError(
                f"--data_dir {flags.data_dir}: no folder {folder.name} with ImageSets/Main, Annotations and JPEGImages; "
                "--dataset voc0712 trains on trainval of VOC2007 and VOC2012"
            )
    train = [image for folder in folders for image in read_boxes(folder, flags.train_split, CLASSES)[0]]
    return train, read_boxes(folders[0], flags.test_split, CLASSES)[0], CLASSES


def check_masks() -> None:
    from importlib.util import find_spec

    if find_spec("pycocotools") is None:
        raise UserError("masks need pycocotools; run: pip install 'solo_hcsc[coco]', or use --masks false")


def without_weights(taken: "Encoder") -> "Encoder":
    """The same encoder with random weights, for what pretraining is worth."""
    from dataclasses import replace

    from solo_hcsc.framework import make_encoder

    fresh = make_encoder(taken.name, taken.settings)
    return replace(taken, module=fresh, taken=f"encoder: {taken.name} with random weights")


def colours(flags: Flags, taken: "Encoder") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of the encoder's own images, but for what is typed."""
    from solo_hcsc.framework.datasets import trained_colours

    trained = dict(zip(("mean", "std"), trained_colours(taken.trained_with), strict=True))
    mean, std = (
        tuple(getattr(flags, name) if name in flags.typed or not trained[name] else trained[name])
        for name in ("mean", "std")
    )
    return mean, std


def load_trained(model: Any, checkpoint: Path) -> None:
    from solo_hcsc.training.checkpoints import load_checkpoint, weights_in

    model.load_state_dict(weights_in(load_checkpoint(checkpoint), checkpoint))


# ---- the test ----


def test(
    detector: Any, train_loader: Any, test_loader: Any, images: int, flags: Flags, training: "Run"
) -> list["Detections"]:
    """What the detector finds, with batch norm's averages computed anew."""
    from solo_hcsc.evaluation.detecting import Place, detect, set_batch_norm

    trainer = training.trainer
    place = Place(trainer.strategy.root_device, trainer.precision_plugin.forward_context)
    synced = training.devices.sync_batchnorm and training.devices.processes > 1
    detector = set_batch_norm(detector, train_loader, flags.precise_bn, place, flags.seed, synced)
    return detect(detector, test_loader, images, place)


def record(flags: Flags, settings: Mapping[str, Any], unsynced: bool) -> dict[str, Any]:
    """What the result says of how it was measured, with what differs from the paper's protocol."""
    protocol = PROTOCOLS[flags.dataset] | {"pool_size": POOLS["c4"]}
    deviations = [name for name, value in protocol.items() if getattr(flags, name) != value]
    deviations += ["sync_batchnorm"] if unsynced else []
    names = (*protocol, "channel_order", "mean", "std", "precision", "processes", "sync_batchnorm", "seed")
    return {**{name: settings[name] for name in names}, "deviations": deviations}


def finish(
    flags: Flags,
    invocation: Invocation,
    taken: "Encoder",
    images: Sequence["AnnotatedImage"],
    found: Sequence["Detections"],
    classes: Sequence[str],
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
    folder: Path,
    seconds: float,
) -> None:
    """Writes the result and the sheet of pictures, and prints the table."""
    from solo_hcsc.data.detection import few
    from solo_hcsc.evaluation.detection_ap import average_precisions
    from solo_hcsc.evaluation.results import Result
    from solo_hcsc.report.detection import sheet, write_sheet

    boxes = average_precisions(images, found, classes)
    masks = average_precisions(images, found, classes, masks=True) if flags.masks else {}
    each = {
        name: boxes[name] | {f"mask_{key}": value for key, value in masks.get(name, {}).items()} for name in boxes
    }
    metrics = known(each.pop("mean"))
    pictures: dict[str, str] = {}
    if flags.pictures:
        picture = sheet(images, found, few(images, flags.pictures), classes)
        file, _ = write_sheet(picture, folder)
        pictures = {"file": file.name, "title": picture.title, "caption": picture.caption}
    all_settings = {**settings, "per_class": {name: known(one) for name, one in each.items()}, "pictures": pictures}
    result = Result("detect", flags.method, data, metrics, all_settings, seconds)
    result.write(folder / "detect.json", taken, invocation)
    columns = [*_COLUMNS, *(f"mask_{name}" for name in _MASK_COLUMNS if masks)]
    heads = [*_COLUMNS.values(), *(_MASK_COLUMNS.values() if masks else [])]
    rows = [
        (name, *(values.get(column, "-") for column in columns))
        for name, values in (*((name, known(one)) for name, one in each.items()), ("mean", metrics))
    ]
    print(table(("class", *heads), rows))
    without = [name for name, one in each.items() if math.isnan(one["AP"])]
    remarks = [f"in percent, of {len(images)} test images"]
    remarks += [f"left out of the mean, since no test image shows it: {', '.join(without)}"] if without else []
    print("; ".join(remarks))
    if pictures:
        print(f"boxes in {min(flags.pictures, len(images))} test images: {folder / 'detections.png'}")


def known(figures: Mapping[str, float]) -> dict[str, float]:
    """Those that are numbers: there may be no large object, or none at all."""
    return {name: value for name, value in figures.items() if not math.isnan(value)}


# ---- flags ----


def parse(argv: Sequence[str]) -> Flags:
    flags = build_parser().parse(argv)
    given = [name for name in _NOT_TAKEN if name in flags.typed]
    if given:
        raise UserError(f"--{given[0]}: detect counts iterations, --max_steps, and tests at the end; leave it out")
    protocol = PROTOCOLS[flags.dataset]
    chosen = {name: value for name, value in protocol.items() if getattr(flags, name) is None}
    if flags.max_steps is not None and flags.lr_steps is None:  # at the same shares of another length
        chosen["lr_steps"] = tuple(
            round(step * flags.max_steps / protocol["max_steps"]) for step in protocol["lr_steps"]
        )
    chosen |= {
        name: tuple(getattr(flags, name))
        for name in ("lr_steps", "min_size_train", "anchor_sizes")
        if getattr(flags, name) is not None
    }
    chosen["pool_size"] = flags.pool_size or POOLS[flags.head]
    splits = ("train2017", "val2017") if flags.dataset == "coco" else ("trainval", "test")
    for name, split in zip(("train_split", "test_split"), splits, strict=True):
        chosen[name] = getattr(flags, name) or split
    flags = Flags(flags.given, flags.typed, **(vars(flags) | chosen))
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
        "the checkpoint, or a folder whose newest one is taken: of any method, of MoCo or the authors' HCSC, or weights "
        "of torchvision or timm"
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
    steps = "iterations at which it falls to a tenth; 18000 22000, for coco 120000 160000, or in proportion to --max_steps"
    group.add_argument("--lr_steps", type=int, nargs="*", bound=at_least(1), help=steps)
    group.add_argument("--warmup_steps", type=int, default=100, bound=NOT_NEGATIVE, help="iterations of linear warm-up")
    start = "share of the learning rate that the warm-up starts with"
    group.add_argument("--warmup_factor", type=float, default=0.001, bound=SHARE, help=start)
    group.add_argument("--weight_decay", type=float, default=0.0001, bound=NOT_NEGATIVE, help="weight decay")
    norms = "weight decay of norms' weights"
    group.add_argument("--weight_decay_norm", type=float, default=0.0, bound=NOT_NEGATIVE, help=norms)
