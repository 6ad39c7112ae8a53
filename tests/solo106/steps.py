"""Some steps of HCSC in a Trainer on given tensors, the same for both versions of solo-learn.

`python steps.py FOLDER` takes the adapter of 1.0.6 with the `solo` that is found first, and FOLDER/start.pt; it writes
FOLDER/end.pt.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

IMAGES, BATCH, SIZE, EPOCHS = 40, 8, 32, 2
NORMALISE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # solo-learn's of custom data
CENTRE = transforms.Compose([transforms.Resize(37), transforms.CenterCrop(SIZE), transforms.ToTensor(), NORMALISE])
OPTIONS = {
    "num_prototypes": [6, 3],
    "min_cluster_size": 2,
    "queue_size": 32,
    "clustering_start": 0,
    "proto_warmup_epochs": 0,
    "proto_ramp_epochs": 0,
}


class Views(Dataset):
    """Random pictures; two views of each that are the same whenever they are read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (IMAGES, 44, 40, 3), generator=generator, dtype=torch.uint8)
        self.transform: Any = self.views

    @staticmethod
    def views(image: Image.Image) -> list[torch.Tensor]:
        crop = CENTRE(image)
        return [crop, crop.flip(2) * 0.9, crop[:, ::2, ::2]]

    def __getitem__(self, index: int) -> Any:
        return index, self.transform(Image.fromarray(self.pixels[index].numpy())), index % 4

    def __len__(self) -> int:
        return IMAGES


def train(model: Any, lightning: Any) -> dict[str, Any]:
    """Trains for two epochs of five steps; returns every loss, the tree and the queue, and the encoder's weights."""
    losses = []

    class Watch(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            losses.append(trainer.callback_metrics["train_hcsc_loss_step"].clone())

    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Watch()],
    )
    trainer.fit(model, DataLoader(Views(), BATCH))
    online, momentum = model.encoders
    return {
        "losses": torch.stack(losses),
        "coding": {name: value for name, value in model.coding.state_dict().items() if "extra" not in name},
        "encoder": online.state_dict(),
        "momentum": momentum.state_dict(),
    }


def config() -> dict[str, Any]:
    """The settings in 1.0.6's layout."""
    return {
        "method": "hcsc",
        "max_epochs": EPOCHS,
        "seed": 7,
        "backbone": {"name": "resnet18", "kwargs": {}},
        "method_kwargs": {"proj_output_dim": 16, "proj_hidden_dim": 32, **OPTIONS},
        "momentum": {"base_tau": 0.9, "final_tau": 0.9, "classifier": True},
        "data": {
            "dataset": "custom",
            "format": "image_folder",
            "num_classes": 4,
            "num_large_crops": 2,
            "num_small_crops": 1,
            "num_workers": 0,
        },
        "augmentations": [_augmentation(SIZE, 2), _augmentation(SIZE // 2, 1)],
        "optimizer": {"name": "sgd", "batch_size": BATCH, "lr": 0.05, "classifier_lr": 0.1, "weight_decay": 1e-4},
        "scheduler": {"name": "none"},
        "performance": {"disable_channel_last": True},
    }


def _augmentation(size: int, crops: int) -> dict[str, Any]:
    plain = {name: {"prob": 0.0} for name in ("color_jitter", "grayscale", "gaussian_blur", "solarization")}
    plain |= {name: {"prob": 0.0} for name in ("equalization", "horizontal_flip")}
    rrc = {"enabled": True, "crop_min_scale": 0.2, "crop_max_scale": 1.0}
    return {"rrc": rrc, **plain, "crop_size": size, "num_crops": crops}


def main(folder: Path) -> None:
    import lightning.pytorch
    from omegaconf import OmegaConf

    from solo_hcsc.solo106.register import HCSC, register

    register()
    cfg = OmegaConf.create(config())
    cfg.optimizer.kwargs = {}
    model = HCSC(cfg)
    model.load_state_dict(torch.load(folder / "start.pt", weights_only=True), strict=True)
    torch.save(train(model, lightning.pytorch), folder / "end.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
