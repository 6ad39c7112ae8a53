"""A run as solo-learn's own script makes one, on folders of images."""

import hydra
from lightning.pytorch import Trainer, seed_everything
from omegaconf import DictConfig, OmegaConf
from solo.args.pretrain import parse_cfg
from solo.data.classification_dataloader import prepare_transforms
from solo.data.pretrain_dataloader import Crops, Indexed, build_transform_pipeline
from solo.methods import METHODS
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


@hydra.main(version_base="1.2")
def main(cfg: DictConfig) -> None:
    OmegaConf.set_struct(cfg, False)
    cfg = parse_cfg(cfg)
    seed_everything(cfg.seed)
    model = METHODS[cfg.method](cfg)
    crops = Crops([(build_transform_pipeline(cfg.data.dataset, entry), entry.num_crops) for entry in cfg.augmentations])
    images = Indexed(cfg.data.train_path, crops)
    train = DataLoader(images, cfg.optimizer.batch_size, shuffle=True, drop_last=True)
    val = DataLoader(ImageFolder(cfg.data.val_path, prepare_transforms(cfg.data.dataset)[1]), cfg.optimizer.batch_size)
    plain = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=cfg.max_epochs, accelerator="cpu", **plain)
    trainer.fit(model, train, val, ckpt_path=cfg.get("resume_from_checkpoint"))
    if cfg.get("save"):
        trainer.save_checkpoint(cfg.save)
    for name, value in sorted(trainer.callback_metrics.items()):
        print(name, float(value))


if __name__ == "__main__":
    main()
