"""KNN of 10,000 queries in a bank of 50,000 features of length 512: the framework's own classifier and ours.

Both get the same features. The framework's computes one K at a time; the paper takes the best of four.
"""

from functools import partial
from typing import Any

import torch
from torchmetrics import Metric

from benchmarks import measure
from solo_hcsc.solo102.repairs.knn_metric import ORIGINAL, WeightedKNNClassifier

KS = (10, 20, 100, 200)


class FrameworkKNN(ORIGINAL):  # type: ignore[misc, valid-type]
    """solo-learn 1.0.2's computation; only its constructor, which torchmetrics 1 refuses, is ours."""

    def __init__(self, k: int) -> None:
        Metric.__init__(self)
        vars(self).update(vars(WeightedKNNClassifier(k=k)))


def main() -> None:
    args = measure.parser(__doc__, repeats=5).parse_args()
    images, queries, length = (600, 100, 16) if args.small else (50_000, 10_000, 512)
    generator = torch.Generator().manual_seed(args.seed)
    # Features around class means, so that neighbours agree as those of a trained encoder do.
    classes = 10 if args.small else 100
    means = torch.randn(classes, length, generator=generator)
    data: dict[str, torch.Tensor] = {}
    for part, count in (("train", images), ("test", queries)):
        labels = torch.arange(count) % classes
        features = means[labels] + 2 * torch.randn(count, length, generator=generator)
        data |= {f"{part}_features": torch.nn.functional.normalize(features), f"{part}_targets": labels}

    def classifier(cls: type, k: int = 200) -> Any:
        knn = cls(k=k)
        knn.update(**data)
        return knn

    ways = {
        "framework, K=200": lambda: classifier(FrameworkKNN).compute(),
        "solo_hcsc, K=200": lambda: classifier(WeightedKNNClassifier).compute(),
        "framework, four K": lambda: [classifier(FrameworkKNN, k).compute() for k in KS],
        "solo_hcsc, four K": lambda: list(classifier(WeightedKNNClassifier).accuracies(KS).values()),
    }
    found = {name: way() for name, way in ways.items()}
    rows = []
    for number in args.threads:
        with measure.threads(number):
            seconds = measure.side_by_side(ways, args.repeats, settle=False)
        for name, taken in seconds.items():
            reference = seconds["framework," + name.partition(",")[2]]
            rows.append(measure.row(name, taken, reference, threads=number, accuracies=found[name]))
    memory = {name: measure.peak_memory(partial(ways[name])) for name in ways}
    measure.show(
        ["threads", "way", "seconds", "x framework", "peak MB of torch"],
        [(r["threads"], r["way"], r["median_seconds"], r["ratio"], memory[r["way"]] / 1e6) for r in rows],
    )
    measure.write("knn", args, rows, peak_bytes=memory, sizes=[images, queries, length])


if __name__ == "__main__":
    main()
