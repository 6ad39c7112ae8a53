"""The figures that the paper reports, to stand beside one's own: ResNet-50, pretrained on ImageNet.

They are in `paper.json`: only methods that solo-learn has, and the paper's multi-crop models in rows of their own. The
paper evaluated KNN itself. Its linear figures of other methods are their authors', with their own settings: of those,
only HCSC's (PCL's configuration) and MoCo v2's (its own) are of a configuration that we have.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, field_validator

TREE = [3000, 2000, 1000]
METRICS = {  # of each evaluation, those to compare by
    "linear": ("acc1", "acc5"),
    "knn": ("acc1", "acc5"),
    "zeroshot": ("acc1", "acc5"),
    "places": ("acc1", "acc5"),
    "semisup": ("acc1", "acc5"),
    "voc": ("mAP11", "mAP", "image_AP"),
    "detect": ("AP", "AP50", "AP75", "AP50_11", "AP50_all", "mask_AP"),
    "fewlabels": ("picked", "random"),
    "adapt": ("knn", "labels_1", "labels_5", "agreement"),
    "clustering": ("nmi", "ami", "accuracy", "dendrogram_purity", "leaf_purity"),
}


class Published(BaseModel):
    """A row of the paper."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    evaluation: str
    dataset: str
    setting: str  # the protocol, where the paper has several
    method: str
    multi_crop: bool
    epochs: int
    values: dict[str, float]  # by metric
    table: str  # the paper's label of it

    @field_validator("evaluation")
    @classmethod
    def _is_ours(cls, evaluation: str) -> str:
        if evaluation not in METRICS:
            raise ValueError(f"none of {', '.join(METRICS)}")
        return evaluation


PUBLISHED = TypeAdapter(list[Published]).validate_json(
    files("solo_hcsc.evaluation").joinpath("paper.json").read_bytes()
)


def find(
    evaluation: str, dataset: str, setting: str, method: str | None, pretraining: Mapping[str, Any]
) -> Published | None:
    """Return the paper's row for a model like this one.

    What a foreign checkpoint does not tell counts as the paper's: ImageNet, two crops, the prototypes.
    """
    if pretraining.get("encoder") != "resnet50" or pretraining.get("dataset", "imagenet") != "imagenet":
        return None
    if "init_weights" in pretraining or "oracle_labels" in pretraining:
        return None
    if method == "hcsc" and evaluation != "clustering" and pretraining.get("num_prototypes", TREE) != TREE:
        return None
    epochs = pretraining.get("epochs", pretraining.get("max_epochs"))
    model = method, bool(pretraining.get("multi_crop", False)), epochs
    for row in PUBLISHED:
        key = row.evaluation, row.dataset, row.setting, row.method, row.multi_crop, row.epochs
        if key == (evaluation, dataset, setting, *model):
            return row
    return None
