"""Which devices a run uses, from Lightning 2's flags or Lightning 1's."""

from argparse import Namespace

import torch

from solo_hcsc.cli.errors import UserError, note

_PRECISIONS = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
_LIGHTNING_1_STRATEGIES = ("ddp", "ddp_spawn", "ddp_cpu")
_REMOVED_STRATEGIES = ("dp", "ddp2", "horovod")


def resolve_hardware(args: Namespace) -> None:
    """Replaces the device flags by resolved ones: `accelerator`, `devices`, `strategy`, `precision`.

    `args.gpus` becomes the list of this machine's devices, by whose length solo-learn scales the learning rate.
    """
    accelerator, strategy = args.accelerator, args.strategy or args.distributed_backend
    for value in (accelerator, strategy):
        if value in _REMOVED_STRATEGIES:
            raise UserError(f"{value} no longer exists in Lightning 2; use --strategy ddp")
    if accelerator in _LIGHTNING_1_STRATEGIES:
        strategy = strategy or accelerator.removesuffix("_cpu")
        accelerator = "cpu" if accelerator == "ddp_cpu" else "auto"

    if strategy == "ddp_spawn":
        note("ddp_spawn: the processes are started as with --strategy ddp")
        strategy = "ddp"

    available = torch.cuda.device_count()
    if args.gpus is not None and accelerator != "cpu":
        if not available:
            raise UserError(f"--gpus {args.gpus}: there is no GPU here; leave it out, or add --accelerator cpu")
        accelerator, devices = "gpu", _gpu_indexes("--gpus", args.gpus, available)
    elif accelerator in ("gpu", "cuda", "auto") and available:
        accelerator, devices = "gpu", _devices(args, available)
    elif accelerator in ("gpu", "cuda"):
        raise UserError(f"--accelerator {accelerator}: there is no GPU here; use --accelerator cpu")
    elif accelerator in ("cpu", "auto"):
        accelerator, devices = "cpu", list(range(_process_count(args)))
    elif accelerator == "mps":
        devices = [0]
    else:
        raise UserError(f"--accelerator {accelerator}: choose from cpu, gpu, mps, auto, ddp")
    if args.num_nodes < 1:
        raise UserError(f"--num_nodes {args.num_nodes}: must be at least 1")

    args.accelerator = accelerator
    args.gpus = devices
    args.devices = devices if accelerator == "gpu" else len(devices)
    args.precision = _precision(args.precision, accelerator)
    several = len(devices) * args.num_nodes > 1
    args.strategy = _strategy(strategy, several)
    if args.sync_batchnorm and accelerator == "cpu":
        note("--sync_batchnorm needs GPUs; each process uses its own batch statistics")
        args.sync_batchnorm = False


def describe_devices(args: Namespace) -> str:
    count = len(args.gpus) * args.num_nodes
    name = {"cpu": "CPU", "gpu": "GPU", "mps": "MPS"}[args.accelerator]
    unit = " process" if args.accelerator == "cpu" else ""
    plural = "" if count == 1 else ("es" if unit else "s")
    return f"{count} {name}{unit}{plural}, {args.precision}"


def _devices(args: Namespace, available: int) -> list[int]:
    text = "1" if args.devices is None else str(args.devices)
    if text in ("auto", "-1"):
        return list(range(available))
    if "," in text:
        return _gpu_indexes("--devices", text, available)
    count = _positive("--devices", text)
    if count > available:
        raise UserError(f"--devices {count}: there are only {available} GPUs here")
    return list(range(count))


def _gpu_indexes(flag: str, text: str, available: int) -> list[int]:
    if text == "-1":
        return list(range(available))
    try:
        indexes = [int(index) for index in text.split(",") if index]
    except ValueError:
        indexes = []
    if not indexes or min(indexes) < 0 or len(set(indexes)) < len(indexes):
        raise UserError(f"{flag} {text}: give GPU indexes as in 0,1")
    if max(indexes) >= available:
        raise UserError(f"{flag} {text}: the GPUs here are 0 to {available - 1}")
    return indexes


def _process_count(args: Namespace) -> int:
    if args.devices in (None, "auto", "-1"):
        return _positive("--num_processes", args.num_processes or 1)
    return _positive("--devices", args.devices)


def _positive(flag: str, value: object) -> int:
    text = str(value)
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{flag} {text}: give a number of at least 1")
    return int(text)


def _precision(text: str, accelerator: str) -> str:
    precision = _PRECISIONS.get(text, text)
    known = ("16-mixed", "bf16-mixed", "32-true", "64-true", "16-true", "bf16-true")
    if precision not in known:
        raise UserError(f"--precision {text}: choose from 32, 16, bf16, {', '.join(known)}")
    if precision.startswith("16") and accelerator == "cpu":
        note(f"--precision {text} needs a GPU; training in 32 bits on the CPU")
        return "32-true"
    return precision


def _strategy(strategy: str | None, several: bool) -> str:
    if strategy in (None, "auto", "ddp"):
        # As the framework's own script: a method may have a parameter that a step does not use.
        return "ddp_find_unused_parameters_true" if several else "auto"
    assert strategy is not None
    return strategy
