import torch
from omegaconf import OmegaConf


def omegaconf_select(cfg, key, default=None):
    """Like OmegaConf's, and "None" in a file is None."""
    value = OmegaConf.select(cfg, key, default=default)
    return None if value == "None" else value


def gather(values):
    """Of one process."""
    return torch.cat([values])
