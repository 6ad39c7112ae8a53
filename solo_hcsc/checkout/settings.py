"""What a config's `method_kwargs` say of HCSC."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from solo.methods import METHODS

from solo_hcsc.cli.errors import UserError, note
from solo_hcsc.cli.parser import nearest
from solo_hcsc.hcsc.options import Options

PROJECTOR = ("proj_hidden_dim", "proj_output_dim")
KNOWN = (*PROJECTOR, *(item.name for item in fields(Options)))


def method_settings(cfg: DictConfig) -> dict[str, Any]:
    """HCSC's settings in a config: those that are given.

    What another method of solo-learn reads is left aside, so that any of its YAML files runs with `method=hcsc`; a key
    that nobody reads is a mistake.
    """
    given: dict[str, Any] = OmegaConf.to_container(cfg.method_kwargs, resolve=True)  # type: ignore[assignment]
    unknown = [name for name in given if name not in KNOWN]
    strangers = [name for name in unknown if name not in _read_by_others()]
    if strangers:
        hint = nearest(strangers[0], KNOWN, "method_kwargs.") or f"it has {', '.join(sorted(KNOWN))}"
        raise UserError(f"method_kwargs.{strangers[0]}: hcsc has no such option; {hint}")
    if unknown:
        note(f"{', '.join(f'method_kwargs.{name}' for name in unknown)}: of other methods, not used by hcsc")
    if given.get("oracle_labels"):
        raise UserError("method_kwargs.oracle_labels: is for studies by solo-hcsc ablate --table ceiling; leave it out")
    settings = {name: value for name, value in given.items() if name in KNOWN and value is not None}
    if isinstance(settings.get("num_prototypes"), int):  # of one level, as SwAV's is written
        settings["num_prototypes"] = [settings["num_prototypes"]]
    return settings


def _read_by_others() -> set[str]:
    """The keys of `method_kwargs` that solo-learn's own methods read."""
    sources = [inspect.getsource(method) for method in METHODS.values() if method.__module__.startswith("solo.")]
    return {name for source in sources for name in re.findall(r"method_kwargs\.(\w+)", source)}


def check_dali(cfg: DictConfig) -> None:
    """Refuses DALI where it does not tell which image is which, or has no GPU to work on."""
    if cfg.data.format != "dali":
        return
    if not cfg.dali.encode_indexes_into_labels:
        raise UserError(
            "data.format=dali: DALI must tell hcsc which image is which; add ++dali.encode_indexes_into_labels=True"
        )
    if cfg.dali.device == "gpu" and not torch.cuda.is_available():
        raise UserError("dali.device=gpu: there is no GPU; add ++dali.device=cpu")


def check_resumed(checkpoint: Mapping[str, Any], options: Options, num_images: int) -> None:
    """Refuses a checkpoint of other options or images, which solo-learn's auto-resume does not compare."""
    before, now = checkpoint.get("hcsc_options"), options.as_dict()
    if not isinstance(before, dict):
        raise UserError("the checkpoint to resume from is not one of hcsc; start anew with auto_resume.enabled=False")
    for name in now:
        if before.get(name) != now[name]:
            raise UserError(
                f"method_kwargs.{name} {now[name]}: the checkpoint to resume from was trained with "
                f"{before.get(name)}; give that, or start anew with auto_resume.enabled=False"
            )
    if checkpoint.get("hcsc_images") != num_images:
        raise UserError(
            f"data.train_path: has {num_images} images, and the checkpoint to resume from was trained on "
            f"{checkpoint.get('hcsc_images')}; give those, or start anew with auto_resume.enabled=False"
        )
