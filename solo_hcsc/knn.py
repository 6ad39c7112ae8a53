"""`python -m solo_hcsc.knn`: weighted KNN on a frozen encoder's features, without training."""

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from solo_hcsc.errors import UserError, command
from solo_hcsc.flags import Parser, refuse_unlabelled
from solo_hcsc.quiet import quiet


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    from solo_hcsc.registry import load_methods

    load_methods()
    args = parse(argv)

    from solo_hcsc import data
    from solo_hcsc.checkpoints import find_checkpoint, load_encoder
    from solo_hcsc.results import table, write_result

    started = time.monotonic()
    checkpoint = find_checkpoint(args.pretrained_feature_extractor)
    encoder, name, taken = load_encoder(checkpoint, args.encoder, args.crop_size[0])
    data.resolve_folders(args, needs_val=True)
    _, transform = data.evaluation_transforms(args)
    train_set, val_set = data.evaluation_sets(args, transform, transform)
    images = len(train_set)  # type: ignore[arg-type]
    if max(args.k) > images:
        raise UserError(f"--k {max(args.k)}: there are only {images} training images")
    device = choose_device(args.accelerator)
    print(taken)
    print(f"knn of {checkpoint} ({name}) on {args.dataset}: {images} images in the bank, {device}", flush=True)

    encoder = encoder.eval().to(device)
    bank = extract(encoder, data.plain_loader(train_set, args), device, "bank")
    queries = extract(encoder, data.plain_loader(val_set, args), device, "queries")
    rows = [(k, *accuracy(bank, queries, k, args.temperature, args.distance_function)) for k in args.k]
    best = max(rows, key=lambda row: row[1])
    settings = {"k": best[0], "temperature": args.temperature, "distance": args.distance_function}
    settings["all"] = [{"k": k, "acc1": acc1, "acc5": acc5} for k, acc1, acc5 in rows]
    result = checkpoint.parent / f"knn-{args.dataset}.json"
    try:
        write_result(
            result,
            "knn",
            args.dataset,
            checkpoint,
            {"acc1": best[1], "acc5": best[2]},
            settings,
            time.monotonic() - started,
        )
    except OSError as error:
        raise UserError(f"{result}: cannot be written ({error.strerror})") from error
    print(table(("k", "top-1 %", "top-5 %"), rows))
    print(f"best: {best[1]:.2f} % with k={best[0]}; result in {result}")


@torch.no_grad()
def extract(
    encoder: nn.Module, loader: DataLoader, device: torch.device, title: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, D) and labels (N,) of every image, in order."""
    features, labels = [], []
    for images, label in tqdm(loader, desc=title, unit="batch", leave=False, disable=None):
        features.append(encoder(images.to(device, non_blocking=True)))
        labels.append(label.to(device))
    return torch.cat(features), torch.cat(labels)


def accuracy(
    bank: tuple[torch.Tensor, torch.Tensor],
    queries: tuple[torch.Tensor, torch.Tensor],
    k: int,
    temperature: float,
    distance: str,
) -> tuple[float, float]:
    """Top-1 and top-5 accuracy of the framework's weighted KNN classifier, in percent."""
    from solo.utils.knn import WeightedKNNClassifier

    knn = WeightedKNNClassifier(k=k, T=temperature, distance_fx=distance)
    knn.update(
        train_features=bank[0],
        train_targets=bank[1],
        test_features=queries[0],
        test_targets=queries[1],
    )
    return knn.compute()


def choose_device(accelerator: str) -> torch.device:
    gpu = torch.cuda.is_available()
    if accelerator == "gpu" and not gpu:
        raise UserError("--accelerator gpu: there is no GPU here; use --accelerator cpu")
    return torch.device("cuda" if gpu and accelerator != "cpu" else "cpu")


def parse(argv: Sequence[str]) -> Namespace:
    args = build_parser().parse(argv)
    if args.pretrained_feature_extractor is None:
        raise UserError("--pretrained_feature_extractor is missing: the checkpoint to evaluate")
    for flag, values in (("k", args.k), ("crop_size", args.crop_size), ("batch_size", [args.batch_size])):
        if min(values) < 1:
            raise UserError(f"--{flag} {min(values)}: must be at least 1")
    refuse_unlabelled(args)
    if args.num_workers < 0:
        raise UserError(f"--num_workers {args.num_workers}: must not be negative")
    if args.temperature <= 0:
        raise UserError(f"--temperature {args.temperature}: must be greater than 0")
    if args.dali:
        raise UserError("--dali: knn reads images with the default loader; leave it out")
    return args


def build_parser() -> Parser:
    from solo.args.dataset import custom_dataset_args, dataset_args, linear_augmentations_args
    from solo.methods.base import BaseMethod

    from solo_hcsc.data import DATASETS

    parser = Parser(
        prog="solo_hcsc.knn",
        usage="%(prog)s --pretrained_feature_extractor PATH --dataset NAME [flags]",
        description="Weighted KNN accuracy of the frozen encoder of a checkpoint; trains nothing.",
    )
    group = parser.add_argument_group("encoder")
    group.add_argument("--pretrained_feature_extractor", "--pretrained_checkpoint_dir", type=Path)
    group.add_argument(
        "--encoder", choices=BaseMethod._SUPPORTED_ENCODERS, help="architecture, where no args.json tells it"
    )
    group = parser.add_argument_group("data")
    dataset_args(group)
    linear_augmentations_args(group)
    custom_dataset_args(group)
    group.add_argument("--batch_size", type=int, default=128, help="images per forward pass")
    group.add_argument("--num_workers", type=int, default=4)
    group = parser.add_argument_group("KNN")
    group.add_argument(
        "--k", type=int, nargs="+", default=[10, 20, 100, 200], help="neighbours to try; the best is reported"
    )
    group.add_argument("--temperature", type=float, default=0.07, help="of the votes' weights (cosine)")
    group.add_argument(
        "--distance_function", choices=["cosine", "euclidean"], default="cosine", help="between features"
    )
    group.add_argument(
        "--accelerator", choices=["auto", "cpu", "gpu"], default="auto", help="where to compute features"
    )
    parser.explain({"data_dir": Path("datasets")})
    parser.choose("dataset", DATASETS)
    return parser


if __name__ == "__main__":
    main()
