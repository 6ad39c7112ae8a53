"""HCSC (Hierarchical Contrastive Selective Coding, CVPR 2022) as a method of solo-learn 1.0.6."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from solo.methods.base import BaseMomentumMethod
from solo.utils.misc import gather, omegaconf_select
from torch import nn

from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.options import options_in, suitable_levels, suitable_warmup
from solo_hcsc.methods.learner import Learner
from solo_hcsc.progress import note
from solo_hcsc.solo106.images import centre_crops, training_images
from solo_hcsc.solo106.refusing import in_config
from solo_hcsc.solo106.settings import check_dali, check_resumed, method_settings, warmup_is_open, wrongly_scaled


class HCSC(Learner, BaseMomentumMethod):
    """A MoCo v2 whose negatives are selected by a tree of prototypes, and a contrast with those prototypes.

    Args:
        cfg: solo-learn's config. `method_kwargs` has `proj_output_dim` (128), `proj_hidden_dim` (the size of the
            encoder's features) and the fields of `solo_hcsc.Options`.
    """

    cfg: DictConfig

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        check_dali(cfg)
        self.given = method_settings(cfg)
        self.chosen = suitable_warmup(self.given, cfg.max_epochs) if warmup_is_open(self.given) else {}
        self.given |= self.chosen
        options = options_in(self.given)
        options.check_schedule(cfg.max_epochs)
        if options.needs_tree:
            import_faiss()
        self.build_projectors(self.given.get("proj_hidden_dim"), self.given["proj_output_dim"])

    @staticmethod
    def add_and_assert_specific_cfg(cfg: DictConfig) -> DictConfig:
        cfg.momentum = omegaconf_select(cfg, "momentum") or {}
        cfg.method_kwargs = omegaconf_select(cfg, "method_kwargs") or {}
        for name in ("base_tau", "final_tau"):
            cfg.momentum[name] = omegaconf_select(cfg, f"momentum.{name}", 0.999)
        cfg = super(HCSC, HCSC).add_and_assert_specific_cfg(cfg)
        cfg.method_kwargs.proj_output_dim = omegaconf_select(cfg, "method_kwargs.proj_output_dim", 128)
        return cfg

    @property
    def encoders(self) -> tuple[nn.Module, nn.Module]:
        return self.get_submodule("backbone"), self.get_submodule("momentum_backbone")

    def tell(self, text: str) -> None:
        note(in_config(text))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return gather(values)

    def setup(self, stage: str) -> None:
        """Count the images and make queue, memory and tree; checkpoints are loaded after this."""
        if stage != "fit":
            return
        for name, value in self.chosen.items():
            self.tell(f"`{name}` {value}: suits max_epochs {self.cfg.max_epochs}")
        line = wrongly_scaled(self.cfg.get("devices"), self.trainer.num_devices)
        if line:
            self.tell(line)
        if self.trainer.precision.endswith("-true") and self.trainer.precision != "32-true":
            raise UserError(f"precision={self.trainer.precision}: hcsc trains in 32-true, 16-mixed or bf16-mixed")
        self.trainer.fit_loop.setup_data()  # the loader is made now instead of a moment later
        images = training_images(self.cfg, self.trainer.train_dataloader)
        self._begin(len(images), centre_crops(images, self.cfg))  # type: ignore[arg-type]
        self.options.check_batch(self.cfg.optimizer.batch_size * self.trainer.world_size)

    def _begin(self, num_images: int, crops: Any = None) -> None:
        chosen, why = suitable_levels(self.given, num_images)
        self.begin(options_in(self.given | chosen), num_images, self.cfg.seed, crops)
        if why and crops is not None:
            self.tell(why)
        self.cfg.hcsc_options = OmegaConf.create(self.options.as_dict())  # recorded in args.json

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["hcsc_images"] = self.num_images

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if not hasattr(self, "coding"):  # of an evaluation, which has no training images
            self.given = options_in(checkpoint["hcsc_options"]).as_dict()
            self._begin(checkpoint["hcsc_images"])
        check_resumed(checkpoint, self.options, self.num_images)
        super().on_load_checkpoint(checkpoint)
