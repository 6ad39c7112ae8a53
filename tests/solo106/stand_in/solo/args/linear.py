from omegaconf import DictConfig


def parse_cfg(cfg: DictConfig) -> DictConfig:
    return cfg
