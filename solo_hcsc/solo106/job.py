"""What happens before and after one of solo-learn's scripts works on a config that Hydra has composed."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from solo_hcsc.errors import UserError
from solo_hcsc.solo106.refusing import end
from solo_hcsc.solo106.repairs import while_running

CONFIGS = Path(__file__).parent / "configs"


class AroundJob(Callback):
    """Repair torch while the script runs; end with one line where HCSC refuses what was asked for."""

    def __init__(self) -> None:
        self.repairs = ExitStack()

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        try:
            check_job(config, script_kind())
        except UserError as error:  # Hydra makes a warning of what a callback raises
            end(error)
        self.repairs.enter_context(while_running())

    def on_job_end(self, config: DictConfig, job_return: Any, **_: Any) -> None:
        self.repairs.close()
        if isinstance(job_return._return_value, UserError):
            end(job_return._return_value)


def watch_jobs() -> None:
    """Have Hydra call `AroundJob` from now on."""
    target = f"{AroundJob.__module__}.{AroundJob.__name__}"
    node = HydraConf(callbacks={"solo_hcsc": {"_target_": target}})
    ConfigStore.instance().store("config", node, group="hydra", provider="solo_hcsc")


def script_kind() -> str:
    """Return `linear` in a script that reads its config as main_linear.py does, else `pretrain`."""
    parse = getattr(sys.modules["__main__"], "parse_cfg", None)
    return "linear" if getattr(parse, "__module__", "") == "solo.args.linear" else "pretrain"


def config_folders(kind: str, shown: str) -> list[Path]:
    """Return where HCSC's configs for a script are.

    Args:
        kind: as `script_kind` tells it.
        shown: the folder that the user gave; its name says which data the configs are for.
    """
    folder = CONFIGS / kind / Path(shown).name.removesuffix("-multicrop")
    return [folder if folder.is_dir() else CONFIGS / kind / "custom", CONFIGS / "shared"]


def check_job(config: DictConfig, kind: str) -> None:
    """Refuse a config of HCSC on which the script would fail without a reason, or do something else.

    Args:
        config: as Hydra has composed it.
        kind: as `script_kind` tells it.
    """
    method, file = OmegaConf.select(config, "method"), config.hydra.job.config_name
    if kind == "linear":
        if method == "hcsc":
            raise UserError(f"{file}: is for pretraining; evaluate with a config that has pretrained_feature_extractor")
        given = OmegaConf.select(config, "pretrained_feature_extractor")
        if OmegaConf.select(config, "pretrain_method") == "hcsc" and given in (None, "None"):
            raise UserError("pretrained_feature_extractor: give the checkpoint (.ckpt) to evaluate")
    elif method == "hcsc":
        pipelines = OmegaConf.select(config, "augmentations") or []
        large = sum(one.num_crops for one in pipelines if one.crop_size == pipelines[0].crop_size)
        if large != 2:
            raise UserError(
                f"augmentations: {large} large crop(s), and hcsc compares two; type augmentations=symmetric, or "
                "let num_crops be 2 in all"
            )
        if isinstance(OmegaConf.select(config, "devices"), int):
            raise UserError(f"devices={config.devices}: solo-learn wants a list; type devices=[0], with all numbers")
