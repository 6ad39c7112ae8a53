"""Which devices a run uses, from Lightning 2's flags or Lightning 1's."""

from dataclasses import dataclass

from solo_hcsc.errors import UserError
from solo_hcsc.progress import note
from solo_hcsc.settings import HIDDEN, ONE, Setting, Settings, yes_or_no

_ACCELERATOR = "cpu, gpu or auto; `ddp`, as scripts for Lightning 1 have it, means `strategy` ddp"
_GPUS = "indexes of the GPUs to use, as in 0,1 (Lightning 1's spelling); ignored with `accelerator` cpu"
DEVICES = (
    Setting("accelerator", str, "auto", None, _ACCELERATOR),
    Setting(
        "devices", str, None, None, "number of GPUs (or CPU processes), or GPU indexes as in 0,1; one if not given"
    ),
    Setting("gpus", str, None, None, _GPUS),
    Setting("num_processes", int, None, None, "number of CPU processes (Lightning 1's spelling of `devices`)"),
    Setting("num_nodes", int, 1, ONE, "number of machines"),
    Setting("strategy", str, None, None, "how processes work together; ddp as soon as there are several"),
    Setting("distributed_backend", str, None, None, HIDDEN),
    Setting("precision", str, "32", None, "32, 16 or bf16 (mixed), or Lightning 2's own names"),
    Setting("sync_batchnorm", yes_or_no, False, None, "batch statistics over all GPUs"),
    Setting("use_distributed_sampler", yes_or_no, True, None, "let Lightning shard the data over processes"),
    Setting("replace_sampler_ddp", yes_or_no, None, None, HIDDEN),
    Setting("benchmark", yes_or_no, None, None, "let cuDNN choose the fastest algorithms"),
    Setting("deterministic", yes_or_no, None, None, "only deterministic algorithms"),
)

_PRECISIONS = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
_LIGHTNING_1_STRATEGIES = ("ddp", "ddp_spawn", "ddp_cpu")
_REMOVED_STRATEGIES = ("dp", "ddp2", "horovod")


@dataclass(frozen=True)
class Devices:
    """What Lightning's Trainer is told."""

    accelerator: str
    indexes: tuple[int, ...]  # of this machine's GPUs, or of its processes
    num_nodes: int
    strategy: str
    precision: str
    sync_batchnorm: bool
    shards: bool  # whether processes share the images

    @property
    def devices(self) -> list[int] | int:
        """Return the devices as the Trainer takes them."""
        return list(self.indexes) if self.accelerator == "gpu" else len(self.indexes)

    @property
    def processes(self) -> int:
        return len(self.indexes) * self.num_nodes

    def __str__(self) -> str:
        name = {"cpu": "CPU", "gpu": "GPU", "mps": "MPS"}[self.accelerator]
        unit = " process" if self.accelerator == "cpu" else ""
        plural = "" if self.processes == 1 else ("es" if unit else "s")
        return f"{self.processes} {name}{unit}{plural}, {self.precision}"


def resolve_devices(flags: Settings, gpus: int) -> Devices:
    """Resolve the flags of devices on a machine with so many GPUs."""
    accelerator, strategy = flags.accelerator, flags.strategy or flags.distributed_backend
    for value in (accelerator, strategy):
        if value in _REMOVED_STRATEGIES:
            raise UserError(f"{value} no longer exists in Lightning 2; use `strategy` ddp")
    if accelerator in _LIGHTNING_1_STRATEGIES:
        strategy = strategy or accelerator.removesuffix("_cpu")
        accelerator = "cpu" if accelerator == "ddp_cpu" else "auto"

    if strategy == "ddp_spawn":
        note("ddp_spawn: the processes are started as with `strategy` ddp")
        strategy = "ddp"

    if flags.gpus is not None and accelerator != "cpu":
        if not gpus:
            raise UserError(f"`gpus` {flags.gpus}: there is no GPU here; leave it out, or add `accelerator` cpu")
        accelerator, indexes = "gpu", _gpu_indexes("`gpus`", flags.gpus, gpus)
    elif accelerator in ("gpu", "cuda", "auto") and gpus:
        accelerator, indexes = "gpu", _chosen_gpus(flags, gpus)
    elif accelerator in ("gpu", "cuda"):
        raise UserError(f"`accelerator` {accelerator}: there is no GPU here; use `accelerator` cpu")
    elif accelerator in ("cpu", "auto"):
        accelerator, indexes = "cpu", list(range(_process_count(flags)))
    elif accelerator == "mps":
        indexes = [0]
    else:
        raise UserError(f"`accelerator` {accelerator}: choose from cpu, gpu, mps, auto, ddp")

    if flags.sync_batchnorm and accelerator == "cpu":
        note("`sync_batchnorm` needs GPUs; each process uses its own batch statistics")
    shards = flags.replace_sampler_ddp  # Lightning 1's spelling
    return Devices(
        accelerator,
        tuple(indexes),
        flags.num_nodes,
        _strategy(strategy, len(indexes) * flags.num_nodes > 1),
        _precision(flags.precision, accelerator),
        flags.sync_batchnorm and accelerator != "cpu",
        flags.use_distributed_sampler if shards is None else shards,
    )


def _chosen_gpus(flags: Settings, available: int) -> list[int]:
    text = "1" if flags.devices is None else str(flags.devices)
    if text in ("auto", "-1"):
        return list(range(available))
    if "," in text or text == "0":  # no number of GPUs: the first one, as solo-learn 1.0.4's files have it
        return _gpu_indexes("`devices`", text, available)
    count = _positive("`devices`", text)
    if count > available:
        raise UserError(f"`devices` {count}: there are only {available} GPUs here")
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


def _process_count(flags: Settings) -> int:
    if flags.devices in (None, "auto", "-1"):
        return _positive("`num_processes`", flags.num_processes or 1)
    if "," in flags.devices or flags.devices == "0":  # indexes of GPUs, which mean nothing here; so it is with --gpus
        return 1
    return _positive("`devices`", flags.devices)


def _positive(flag: str, value: object) -> int:
    text = str(value)
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{flag} {text}: give a number of at least 1")
    return int(text)


def _precision(text: str, accelerator: str) -> str:
    precision = _PRECISIONS.get(text, text)
    known = ("16-mixed", "bf16-mixed", "32-true", "64-true", "16-true", "bf16-true")
    if precision not in known:
        raise UserError(f"`precision` {text}: choose from 32, 16, bf16, {', '.join(known)}")
    if precision.startswith("16") and accelerator == "cpu":
        note(f"`precision` {text} needs a GPU; training in 32 bits on the CPU")
        return "32-true"
    return precision


def _strategy(strategy: str | None, several: bool) -> str:
    if strategy in (None, "auto", "ddp"):
        # As the framework's own script: a method may have a parameter that a step does not use.
        return "ddp_find_unused_parameters_true" if several else "auto"
    assert strategy is not None
    return strategy
