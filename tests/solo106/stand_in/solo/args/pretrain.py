"""What the config gets before a method is made."""

from pathlib import Path

from omegaconf import DictConfig

from solo.utils.misc import omegaconf_select


def parse_cfg(cfg: DictConfig) -> DictConfig:
    cfg.seed = omegaconf_select(cfg, "seed", 5)
    cfg.num_nodes = 1
    cfg.data.no_labels = omegaconf_select(cfg, "data.no_labels", False)
    cfg.data.fraction = omegaconf_select(cfg, "data.fraction", -1)
    cfg.dali = omegaconf_select(cfg, "dali", {})
    cfg.dali.device = omegaconf_select(cfg, "dali.device", "gpu")
    cfg.dali.encode_indexes_into_labels = omegaconf_select(cfg, "dali.encode_indexes_into_labels", False)
    cfg.data.num_classes = sum(entry.is_dir() for entry in Path(cfg.data.train_path).iterdir())
    crops = [(entry.crop_size, entry.num_crops) for entry in cfg.augmentations]
    cfg.data.num_large_crops = sum(count for size, count in crops if size == crops[0][0])
    cfg.data.num_small_crops = sum(count for size, count in crops if size != crops[0][0])
    cfg.optimizer.kwargs = omegaconf_select(cfg, "optimizer.kwargs", {})
    return cfg
