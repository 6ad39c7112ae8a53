"""The earlier interface of `Run.embedder`, for the commands about few labels until they take `Embeddings`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders import embedding
from solo_hcsc.encoders.embedding import Embeddings, Places
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.runs.images import choose_labels, embedded_images
from solo_hcsc.runs.run import Run
from solo_hcsc.settings import Settings


@dataclass(frozen=True)
class Embedder:
    """A run, and the images that it embeds."""

    made: embedding.Embedder
    found: Embeddings | None = None

    @classmethod
    def load(cls, flags: Settings) -> "Embedder":
        files = find_run(flags.pretrained_feature_extractor)
        source = choose_labels(embedded_images(flags, files.settings), flags, files.settings)
        chosen = {"split": flags.split, "features": flags.features, "accelerator": flags.accelerator}
        return cls(Run(files, flags.encoder, flags.encoder_args).embedder(source, **chosen))

    @property
    def frozen(self) -> Any:
        return SimpleNamespace(encoder=self.made.encoder, device=self.made.device)

    @property
    def tree(self) -> Any:
        return self.made.tree

    @property
    def source(self) -> Any:
        return self.made.origin.source

    @property
    def split(self) -> str:
        return self.made.origin.split

    @property
    def skipped(self) -> Any:
        return self.found.skipped if self.found else ()

    @property
    def images(self) -> int:
        return len(self.paths())

    def paths(self) -> list[str]:
        return self.found.paths if self.found else self.made.images.paths

    def labels(self) -> list[str | None] | None:
        images = self.made.images
        return (self.found or Embeddings(images.paths, np.empty((0, 0)), images.labels, images.classes)).names

    def run_through(self, loading: Loading, keep: Callable[[np.ndarray], None]) -> "tuple[Embedder, Places | None]":
        found = self.made.stream(loading, keep)
        places = None if found.clusters is None else Places(found.clusters, found.similarities)  # type: ignore[arg-type]
        return replace(self, found=found), places
