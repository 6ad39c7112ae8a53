"""As much of solo-learn's script as its config and its handling of a checkpoint."""

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from solo.args.linear import parse_cfg
from solo.methods import linear


@hydra.main(version_base="1.2")
def main(cfg: DictConfig) -> None:
    OmegaConf.set_struct(cfg, False)
    cfg = parse_cfg(cfg)
    assert linear
    state = torch.load(cfg.pretrained_feature_extractor)["state_dict"]
    for name in list(state.keys()):  # like the original it loses what is called encoder
        if "encoder" in name:
            state[name.replace("encoder", "backbone")] = state[name]
        if "backbone" in name:
            state[name.replace("backbone.", "")] = state[name]
        del state[name]
    print("TAKEN", *sorted(state), cfg.optimizer.lr, cfg.wandb.enabled)


if __name__ == "__main__":
    main()
