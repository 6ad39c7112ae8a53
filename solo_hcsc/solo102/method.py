"""HCSC (Hierarchical Contrastive Selective Coding, CVPR 2022) as a method of solo-learn 1.0.2."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

import torch
from solo.methods.base import BaseMomentumMethod
from solo.utils.misc import gather
from torch import nn

from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.options import PRESETS, Options, options_in, suitable_levels, suitable_warmup
from solo_hcsc.methods.learner import CentreCropBatches, Learner
from solo_hcsc.progress import note, say
from solo_hcsc.settings import Setting, Settings, arguments, rows_of

_PROJECTOR = (
    Setting("proj_output_dim", int, 128),
    Setting("proj_hidden_dim", int, None, None, "the projector's hidden size; the encoder's if not given"),
)


class HCSC(Learner, BaseMomentumMethod):
    """A MoCo v2 whose negatives are selected by a tree of prototypes, and a contrast with those prototypes.

    Args:
        proj_output_dim: size of the embeddings (D).
        proj_hidden_dim: the projector's hidden size; the encoder's feature size if None.
        num_images: training images (N), which batches name by their indexes.
        seed: of k-means and of the selection's random numbers.
        centre_crops: given indexes of training images, yields their centre crops in that order, in batches. Needed
            where images are clustered, which is the first clustering if not every one.
        true_labels: (N, L) the images' labels at every level, which `oracle_labels` alone reads.
        **kwargs: solo-learn's own arguments, and the fields of `solo_hcsc.Options`.

    Example:
        >>> import solo_hcsc.solo102, solo.methods
        >>> solo.methods.METHODS["hcsc"].__name__
        'HCSC'
    """

    def __init__(
        self,
        proj_output_dim: int,
        proj_hidden_dim: int | None,
        num_images: int,
        seed: int = 0,
        centre_crops: CentreCropBatches | None = None,
        true_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        precision = str(kwargs.get("precision", "32-true"))
        if precision.endswith("-true") and precision != "32-true":
            raise UserError(f"`precision` {precision}: hcsc trains in 32, 16 (mixed) or bf16 (mixed)")
        self.build_projectors(proj_hidden_dim, proj_output_dim)
        self.begin(options_in(kwargs), num_images, seed, centre_crops, true_labels)

    @property
    def encoders(self) -> tuple[nn.Module, nn.Module]:
        return self.get_submodule("encoder"), self.get_submodule("momentum_encoder")

    def tell(self, text: str) -> None:
        note(text)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return gather(values)

    @staticmethod
    def add_model_specific_args(parent_parser: ArgumentParser) -> ArgumentParser:
        parent_parser = BaseMomentumMethod.add_model_specific_args(parent_parser)
        parser = parent_parser.add_argument_group("hcsc")
        for row in (*_PROJECTOR, *rows_of(Options, PRESETS)):
            parser.add_argument(f"--{row.name}", **arguments(row))
        parent_parser.set_defaults(base_tau_momentum=0.999, final_tau_momentum=0.999, lr=0.03)
        return parent_parser

    @staticmethod
    def shorten(flags: Settings) -> dict[str, Any]:
        """Return the warm-up that suits a short run, where none was typed."""
        typed = {"proto_warmup_epochs"} & flags.typed
        return {} if typed else suitable_warmup(vars(flags), flags.max_epochs)

    @staticmethod
    def choose_levels(settings: Mapping[str, Any], images: int) -> dict[str, Any]:
        """Choose as many prototypes as suit the images, where none were given; say where many will be dropped."""
        chosen, why = suitable_levels(settings, images)
        if why:
            say(why)
        return chosen

    @staticmethod
    def check_flags(flags: Mapping[str, Any]) -> None:
        """Refuse what can be refused before any data is read."""
        options = options_in(flags)
        options.check_schedule(flags["max_epochs"])
        if options.needs_tree:
            import_faiss()

    @staticmethod
    def check_batch(flags: Mapping[str, Any], batch: int) -> None:
        """Refuse more keys in a `batch` over all processes than the queue takes."""
        options_in(flags).check_batch(batch)
