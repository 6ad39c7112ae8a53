"""Write the bash files of scripts/ and the configs for a checkout of solo-learn from scripts/experiments.yaml.

python scripts/write_experiments.py
"""

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from solo_hcsc.cli.commands import linear, pretrain

SCRIPTS = Path(__file__).parent
CONFIGS = Path("solo_hcsc/solo106/configs")
WIDTH = 110
# What an argument of a script is in a config.
ARGUMENTS = {"cifar": ["cifar10", None], "custom": ["./datasets", "train", "val", None]}
PAPERS = {"hcsc": "pcl", "hcsc_adco": "adco", "hcsc_moco": "moco"}  # its three linear evaluations
OPTIONS = ("preset", "num_prototypes", "queue_size", "temperature", "proto_warmup_epochs", "local_selection")
HEADER = """\
# {about}.
# The same values as scripts/{script} of solo_hcsc.
defaults:
  - _self_
{groups}  - wandb: disabled.yaml
  - override hydra/hydra_logging: disabled
  - override hydra/job_logging: disabled

# Hydra writes no files of its own.
hydra:
  output_subdir: null
  run:
    dir: .

"""


def read() -> dict[str, Any]:
    """Return the blocks of settings and the experiments made of them."""
    content: dict[str, Any] = yaml.safe_load((SCRIPTS / "experiments.yaml").read_text(encoding="utf-8"))
    return content


def settings_of(step: Mapping[str, Any], blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a step's blocks, in their order, and its own settings."""
    merged: dict[str, Any] = {}
    for name in step.get("blocks", ()):
        merged |= blocks[name]
    return merged | step["settings"]


# ---- bash ----


def words(settings: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the words of each flag."""
    for name, value in settings.items():
        if isinstance(value, Mapping):  # flags for another command, in one word
            text = " ".join(word for flag in words(value) for word in flag)
            lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
            yield [f"--{name}", '"' + "\n        ".join(lines) + '"']
        elif value is True:
            yield [f"--{name}"]
        else:
            values = value if isinstance(value, list) else [value]
            yield [f"--{name}", *(f'"{one}"' if "$" in str(one) else str(one) for one in values)]


def bash(experiment: Mapping[str, Any], blocks: Mapping[str, Any]) -> str:
    """Return the text of an experiment's script."""
    lines = ["#!/usr/bin/env bash", *(f"# {line}" for line in experiment["about"].splitlines())]
    for step in experiment["steps"]:
        if isinstance(step, str):
            lines += [*step.splitlines(), ""]
            continue
        program = "${LAUNCH:-python} -m solo_hcsc" if step.get("launch") else "solo-hcsc"
        flags = [" ".join(flag) for flag in words(settings_of(step, blocks))]
        if "arguments" in step:
            flags.append('"$@"' if step["arguments"] == 0 else f'"${{@:{step["arguments"] + 1}}}"')
        lines += [" \\\n    ".join([f"{program} {step['command']}", *flags]), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


# ---- configs of solo-learn 1.0.6 ----


def command_line(experiment: Mapping[str, Any], blocks: Mapping[str, Any], arguments: list[str | None]) -> list[str]:
    """Return the flags of an experiment of one step, with its script's arguments filled in."""
    settings = settings_of(experiment["steps"][0], blocks)
    found = []
    for flag in words(settings):
        for number, argument in enumerate(arguments, start=1):
            flag = [word.strip('"').replace(f"${number}", argument or "x") for word in flag]
        found += flag
    return found


def images(flags: Any) -> dict[str, Any]:
    """Return the section `data`."""
    of_folders = flags.dataset not in ("cifar10", "cifar100")
    folders = {"train": flags.train_dir, "val": flags.val_dir}
    found = {
        f"{split}_path": None if of_folders and below is None else f"./{flags.data_dir / (below or '')}"
        for split, below in folders.items()
    }
    how = {"format": "dali" if flags.dali else "image_folder", "num_workers": flags.num_workers}
    return {"dataset": flags.dataset, **found, **how}


def optimiser(flags: Any, *more: str) -> dict[str, Any]:
    """Return the section `optimizer`."""
    names = ("batch_size", "lr", *more, "weight_decay")
    return {"name": flags.optimizer, **{name: getattr(flags, name) for name in names}}


# 1.0.2's cosine is a warm-up of no epochs, one step an epoch.
COSINE = {"name": "warmup_cosine", "warmup_epochs": 0, "interval": "epoch"}


def records(flags: Any) -> dict[str, Any]:
    """Return what is saved, and that a run goes on as in solo-learn's own files."""
    saved = {"enabled": True, "dir": str(flags.checkpoint_dir), "frequency": flags.checkpoint_frequency}
    return {"checkpoint": saved, "auto_resume": {"enabled": True}}


def trainer(flags: Any) -> dict[str, Any]:
    """Return the settings of Lightning's trainer."""
    devices = [int(number) for number in str(flags.gpus).split(",")] if flags.gpus else "1"
    return {
        "max_epochs": flags.max_epochs,
        "devices": devices,
        "sync_batchnorm": flags.sync_batchnorm,
        "accelerator": "gpu" if flags.gpus else "auto",
        "strategy": "ddp" if len(devices) > 1 else "auto",
        "precision": "16-mixed" if flags.precision == "16" else "32-true",
    }


def pretraining_config(flags: Any) -> dict[str, Any]:
    """Return what a pretraining's flags are in a config, but for the augmentations."""
    if flags.scheduler != "cosine":
        raise ValueError(f"scheduler {flags.scheduler}: say here what it is in a config")
    momentum = {"base_tau": flags.base_tau_momentum, "final_tau": flags.final_tau_momentum}
    typed = {name: getattr(flags, name) for name in OPTIONS if name in flags.typed}
    dali = {"dali": {"device": "gpu", "encode_indexes_into_labels": True}} if flags.dali else {}
    return {
        "name": flags.name,
        "method": flags.method,
        "backbone": {"name": flags.encoder},
        "method_kwargs": {"proj_output_dim": flags.proj_output_dim, **typed},
        "momentum": {**momentum, "classifier": flags.momentum_classifier},
        "data": images(flags),
        **dali,
        "optimizer": optimiser(flags, "classifier_lr"),
        "scheduler": COSINE,
        **records(flags),
        "seed": flags.seed,
        **trainer(flags),
    }


def augmentations(flags: Any) -> list[dict[str, Any]]:
    """Return one entry for each pipeline; equal ones are one."""

    def at(name: str, number: int) -> Any:
        values = getattr(flags, name)
        return values[0] if len(values) == 1 else values[number]

    entries: list[dict[str, Any]] = []
    for number, crops in enumerate(flags.num_crops_per_aug):
        colours = {name: at(name, number) for name in ("brightness", "contrast", "saturation", "hue")}
        scales = {f"crop_{name}": at(name, number) for name in ("min_scale", "max_scale")}
        probabilities = {
            "grayscale": at("gray_scale_prob", number),
            "gaussian_blur": at("gaussian_prob", number),
            "solarization": at("solarization_prob", number),
            "equalization": 0.0,
            "horizontal_flip": at("horizontal_flip_prob", number),
        }
        entry = {
            "rrc": {"enabled": True, **scales},
            "color_jitter": {"prob": at("color_jitter_prob", number), **colours},
            **{name: {"prob": probability} for name, probability in probabilities.items()},
            "crop_size": at("crop_size", number),
        }
        if flags.dataset == "custom":
            entry |= {"mean": flags.mean, "std": flags.std}
        if entries and entries[-1] == entry | {"num_crops": entries[-1]["num_crops"]}:
            entries[-1]["num_crops"] += crops
        else:
            entries.append({**entry, "num_crops": crops})
    return entries


def linear_config(flags: Any) -> dict[str, Any]:
    """Return what a linear evaluation's flags are in a config, but for its name and its encoder."""
    step = {"name": "step", "lr_decay_steps": flags.lr_decay_steps}
    return {
        "data": images(flags),
        "optimizer": optimiser(flags),
        "scheduler": COSINE if flags.scheduler == "cosine" else step,
        **records(flags),
        **trainer(flags),
    }


class Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line."""

    def represent_list(self, values: list[Any]) -> yaml.SequenceNode:
        flat = not any(isinstance(value, Mapping) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)


Dumper.add_representer(list, Dumper.represent_list)


def as_yaml(content: Any) -> str:
    """Return YAML in the order of the content."""
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, width=WIDTH)


def configs(content: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield each config's path and text."""
    for name, enabled in (("disabled", False), ("private", True)):
        wandb = {"enabled": enabled, "entity": None, "project": "solo-learn", "offline": False}
        yield CONFIGS / "shared" / "wandb" / f"{name}.yaml", as_yaml(wandb)
    for name, experiment in content["experiments"].items():
        kind, folder, stem = (*name.split("/"), "", "")[:3]
        about = experiment["about"].splitlines()[0].partition(": bash")[0].rstrip(":")
        if kind == "pretrain" and stem.startswith("hcsc"):
            flags = pretrain.parse(command_line(experiment, content["blocks"], ARGUMENTS.get(folder, [])))
            size = "custom" if folder == "custom" else flags.crop_size[0]
            views = f"hcsc_{size}{stem.removeprefix('hcsc')}"
            yield CONFIGS / "shared" / "augmentations" / f"{views}.yaml", as_yaml(augmentations(flags))
            header = HEADER.format(about=about, script=f"{name}.sh", groups=f"  - augmentations: {views}.yaml\n")
            yield CONFIGS / f"{name}.yaml", header + as_yaml(pretraining_config(flags))
        elif kind == "linear":
            line = command_line(experiment, content["blocks"], ARGUMENTS.get(folder, []))
            for config, paper in PAPERS.items() if "--config" in line else [("hcsc", None)]:
                if paper is not None:
                    line[line.index("--config") + 1] = paper
                flags = linear.parse(line)
                chosen = f" --config {paper}" if paper else ""
                header = HEADER.format(about=about, script=f"{name}.sh{chosen}", groups="")
                of_encoder = {
                    "name": f"{config.replace('_', '-')}-{flags.dataset}-linear",
                    "pretrained_feature_extractor": None,  # which is typed
                    "backbone": {"name": "resnet50" if folder == "imagenet" else "resnet18"},
                    "pretrain_method": "hcsc",
                }
                yield (
                    CONFIGS / "linear" / folder / f"{config}.yaml",
                    header + as_yaml(of_encoder | linear_config(flags)),
                )


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every file that is written, below the project's folder."""
    content = read()
    for name, experiment in content["experiments"].items():
        yield Path("scripts") / f"{name}.sh", bash(experiment, content["blocks"])
    yield from configs(content)


if __name__ == "__main__":
    for path, text in files():
        (SCRIPTS.parent / path).parent.mkdir(parents=True, exist_ok=True)
        (SCRIPTS.parent / path).write_text(text, encoding="utf-8")
