"""What a config's `method_kwargs` say of HCSC."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.options import Options, options_in
from solo_hcsc.progress import note
from solo_hcsc.settings import nearest

PROJECTOR = ("proj_hidden_dim", "proj_output_dim")
_ANOTHER_TREE = ("num_prototypes",)  # of SwAV, DINO and DeepCluster v2: no levels of a tree
KNOWN = (*PROJECTOR, *(item.name for item in fields(Options)))


def method_settings(cfg: DictConfig) -> dict[str, Any]:
    """Take HCSC's settings that a config gives; remove what was meant for another method.

    In a file of another method, with `method=hcsc` typed, keys that HCSC does not have are left aside, and so is its
    number of prototypes. A key that was typed, or stands in a file of HCSC's own, must be HCSC's.
    """
    given: dict[str, Any] = OmegaConf.to_container(cfg.method_kwargs, resolve=True)  # type: ignore[assignment]
    typed = _typed()
    foreign = "method" in typed
    aside = [name for name in given if foreign and name not in typed and (name not in KNOWN or name in _ANOTHER_TREE)]
    unknown = next((name for name in given if name not in KNOWN and name not in aside), None)
    if unknown is not None:
        hint = nearest(unknown, KNOWN, "method_kwargs.") or f"it has {', '.join(KNOWN)}"
        raise UserError(f"method_kwargs.{unknown}: hcsc has no such option; {hint}")
    if given.get("oracle_labels"):
        raise UserError("method_kwargs.oracle_labels: is for the ceiling of `solo-hcsc ablate`; leave it out")
    for name in aside:
        del cfg.method_kwargs[name]
    settings = {name: value for name, value in given.items() if name not in aside and value is not None}
    kept = [f"method_kwargs.{name} {value}" for name, value in settings.items() if foreign and name not in typed]
    if aside:
        note(f"{', '.join(f'method_kwargs.{name}' for name in aside)}: for another method, not used by hcsc")
    if kept:
        note(f"{', '.join(kept)}: of this file, used by hcsc too")
    for name in PROJECTOR:
        if not isinstance(settings.get(name, 1), int) or settings.get(name, 1) < 1:
            raise UserError(f"method_kwargs.{name} {settings[name]}: must be a whole number greater than 0")
    return settings


def _typed() -> set[str]:
    """Return the last parts of the keys that were typed behind the config's name: `method`, `queue_size`, ..."""
    if not HydraConfig.initialized():
        return set()
    keys = (override.partition("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task)
    return {key.removeprefix("method_kwargs.") for key in keys}


def warmup_is_open(given: Mapping[str, Any]) -> bool:
    """Return whether the warm-up follows the run's length: not given, or of a file with another `max_epochs`."""
    typed = _typed()
    return given.get("proto_warmup_epochs") is None or ("max_epochs" in typed and "proto_warmup_epochs" not in typed)


def wrongly_scaled(devices: Any, count: int) -> str | None:
    """Return a line for the user where solo-learn counted other devices than there are, in scaling the learning rates.

    It takes `len` of what the config says: of "2" that is 1.

    Args:
        devices: as the config has them.
        count: how many there are on each node.

    Example:
        >>> wrongly_scaled("1", 1), wrongly_scaled([0, 1], 2)
        (None, None)
    """
    if devices is None or len(devices) == count:
        return None
    return (
        f"devices='{devices}': solo-learn scaled the learning rates for {len(devices)} device(s), "
        f"and there are {count}; "
        f"type devices={list(range(count))} on GPUs, or optimizer.lr and optimizer.classifier_lr times "
        f"{count / len(devices):g}"
    )


def check_dali(cfg: DictConfig) -> None:
    """Refuse DALI where it does not tell which image is which, or has no GPU to work on."""
    if cfg.data.format != "dali":
        return
    if not cfg.dali.encode_indexes_into_labels:
        raise UserError(
            "data.format=dali: DALI must tell hcsc which image is which; add ++dali.encode_indexes_into_labels=True"
        )
    if cfg.dali.device == "gpu" and not torch.cuda.is_available():
        raise UserError("dali.device=gpu: there is no GPU; add ++dali.device=cpu")


def check_resumed(checkpoint: Mapping[str, Any], options: Options, num_images: int) -> None:
    """Refuse a checkpoint of other options or images, which solo-learn's auto-resume does not compare."""
    recorded = checkpoint.get("hcsc_options")
    if not isinstance(recorded, dict):
        raise UserError("the checkpoint to resume from is not one of hcsc; start anew with auto_resume.enabled=False")
    before, now = options_in(recorded).as_dict(), options.as_dict()  # an older one lacks newer options
    for name in now:
        if before[name] != now[name]:
            raise UserError(
                f"method_kwargs.{name} {now[name]}: the checkpoint to resume from was trained with {before[name]}; "
                "give that, or start anew with auto_resume.enabled=False"
            )
    if checkpoint.get("hcsc_images") != num_images:
        raise UserError(
            f"data.train_path: has {num_images} images, and the checkpoint to resume from was trained on "
            f"{checkpoint.get('hcsc_images')}; give those, or start anew with auto_resume.enabled=False"
        )
