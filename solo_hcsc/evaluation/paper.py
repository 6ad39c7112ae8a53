"""The figures that the paper reports, to stand beside one's own: ResNet-50, pretrained on ImageNet.

Only methods that solo-learn has. The paper's multi-crop models have their own rows.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    evaluation: str
    dataset: str
    setting: str  # the protocol, where the paper has several
    method: str
    multi_crop: bool
    epochs: int
    values: tuple[float | None, float | None]  # in the order of `MEASURES`
    table: str  # the paper's label of it


TREE = [3000, 2000, 1000]
MEASURES = {
    "linear": ("acc1", "acc5"),
    "knn": ("acc1", "acc5"),
    "zeroshot": ("acc1", "acc5"),
    "places": ("acc1", "acc5"),
    "semisup": ("acc1", "acc5"),
    "voc": ("mAP11", "mAP"),
    "clustering": ("nmi", "ami"),
}


def _model_zoo() -> list[Published]:
    """Linear and KNN by epochs: tab:lincls and tab:model_zoo_epochs.

    The paper evaluated KNN itself. Its linear figures of other methods are their authors', with their own settings: of
    those, only HCSC's (PCL's configuration) and MoCo v2's (its own) are of a configuration that we have.
    """
    rows = [
        ("simclr", False, 200, None, 57.4),
        ("mocov2plus", False, 200, 67.5, 55.8),
        ("hcsc", False, 200, 69.2, 60.7),
        ("swav", True, 200, None, 62.4),
        ("hcsc", True, 200, 73.3, 66.6),
        ("deepclusterv2", False, 400, None, 62.4),
        ("swav", False, 400, None, 61.3),
        ("hcsc", False, 400, 71.0, 64.1),
        ("deepclusterv2", True, 400, None, 66.0),
        ("hcsc", True, 400, 74.1, 69.9),
        ("mocov2plus", False, 800, 71.1, 61.8),
        ("hcsc", False, 800, 72.0, 64.5),
        ("deepclusterv2", True, 800, None, 66.9),
        ("swav", True, 800, None, 65.7),
        ("hcsc", True, 800, 74.2, 70.6),
    ]
    published = []
    for method, multi_crop, epochs, linear, knn in rows:
        model = method, multi_crop, epochs
        table = "lincls" if epochs == 200 else "model_zoo_epochs"
        if linear is not None:
            config = "pcl" if method == "hcsc" else "moco"
            published.append(Published("linear", "imagenet", config, *model, (linear, None), table))
        published.append(Published("knn", "imagenet", "", *model, (knn, None), table))
    return published


def _others() -> list[Published]:
    rows: list[tuple[str, str, str, str, dict[tuple[str, bool], tuple[float | None, float | None]]]] = [
        ("linear", "imagenet", "adco", "lincls configs", {("hcsc", False): (68.9, None)}),
        ("linear", "imagenet", "moco", "lincls configs", {("hcsc", False): (67.3, None)}),
        (
            "semisup",
            "imagenet",
            "1 % of labels",
            "res-semi",
            {
                ("mocov2plus", False): (36.7, 64.4),
                ("simclr", False): (46.8, 74.2),
                ("hcsc", False): (48.0, 75.6),
                ("swav", True): (51.3, 76.7),
                ("hcsc", True): (55.5, 80.9),
            },
        ),
        (
            "semisup",
            "imagenet",
            "10 % of labels",
            "res-semi",
            {
                ("mocov2plus", False): (60.7, 83.4),
                ("simclr", False): (63.6, 86.0),
                ("hcsc", False): (64.3, 86.0),
                ("swav", True): (65.5, 87.5),
                ("hcsc", True): (68.7, 88.6),
            },
        ),
        (
            "voc",
            "voc07",
            "",
            "res-transfer",
            {
                ("mocov2plus", False): (84.0, None),
                ("hcsc", False): (92.8, None),
                ("swav", True): (87.6, None),
                ("hcsc", True): (93.3, None),
            },
        ),
        (
            "places",
            "places205",
            "",
            "res-transfer",
            {
                ("mocov2plus", False): (50.1, None),
                ("hcsc", False): (52.2, None),
                ("swav", True): (51.2, None),
                ("hcsc", True): (55.0, None),
            },
        ),
        (
            "zeroshot",
            "cub",
            "",
            "knn-cub",
            {
                ("simclr", False): (23.9, None),
                ("mocov2plus", False): (23.1, None),
                ("hcsc", False): (26.9, None),
                ("swav", True): (26.2, None),
                ("hcsc", True): (31.5, None),
            },
        ),
        ("clustering", "imagenet", "k-means k=25000", "clustering quality", {("mocov2plus", False): (None, 0.285)}),
        (
            "clustering",
            "imagenet",
            "hierarchy level 1 of 25000-10000-1000",
            "clustering quality",
            {("hcsc", False): (0.629, 0.462)},
        ),
        (
            "clustering",
            "imagenet",
            "hierarchy level 3 of 3000-2000-1000",
            "clustering quality",
            {("hcsc", False): (0.638, 0.616)},
        ),
    ]
    return [
        Published(evaluation, dataset, setting, method, multi_crop, 200, values, table)
        for evaluation, dataset, setting, table, models in rows
        for (method, multi_crop), values in models.items()
    ]


PUBLISHED = _model_zoo() + _others()


def find(
    evaluation: str, dataset: str, setting: str, method: str | None, pretraining: dict[str, Any]
) -> Published | None:
    """The paper's row for a model like this one.

    What a foreign checkpoint does not tell counts as the paper's: ImageNet, two crops, the prototypes.
    """
    if pretraining.get("encoder") != "resnet50" or pretraining.get("dataset", "imagenet") != "imagenet":
        return None
    if method == "hcsc" and evaluation != "clustering" and pretraining.get("num_prototypes", TREE) != TREE:
        return None
    wanted = (
        evaluation,
        dataset,
        setting,
        method,
        bool(pretraining.get("multi_crop", False)),
        pretraining.get("max_epochs"),
    )
    for row in PUBLISHED:
        if (row.evaluation, row.dataset, row.setting, row.method, row.multi_crop, row.epochs) == wanted:
            return row
    return None
