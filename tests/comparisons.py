"""Made-up comparisons, as comparison.json has them."""

import copy
import json
import statistics


def run_of(name, seed, knn, pace):
    shares = {f"left_out_precision_{level}": [[2, 0.4 - 0.1 * level], [3, 0.5]] for level in range(2)}
    return {
        "seed": seed,
        "folder": f"{len(name)}/seed-{seed}",
        "command": f"solo-hcsc pretrain --name '{name}'",
        "flags": ["--name", name],
        "settings": {"name": name},
        "evaluations": {
            "knn": {"command": "solo-hcsc knn --k 20", "split": None, "images": 1000},
            "clustering": {"command": "solo-hcsc clustering", "split": "train", "images": 5000},
        },
        "measures": {"knn": knn, "linear": knn + 5, "ami": knn / 100, "nmi": knn / 90},
        "cost": {"epochs": 4, "epoch_seconds": pace, "seconds": 4 * pace, "peak_memory": 1234567890},
        "checkpoint_sha256": "0123456789abcdef" * 4,
        "warnings": [],
        "curves": {
            "val_knn_acc1": [[epoch, knn - 3 + epoch] for epoch in range(4)],
            "val_acc1": [[epoch, knn - 2 + epoch] for epoch in range(4)],
            **shares,
        },
    }


def row_of(name, values, pace=60.0, base=None, epochs=4):
    runs = [run_of(name, seed, knn, pace + seed) for seed, knn in enumerate(values)]
    measures = {}
    for measure in ("knn", "linear", "ami", "nmi"):
        found = [run["measures"][measure] for run in runs]
        spread = statistics.stdev(found) if len(found) > 1 else None
        images = 1000 if measure in ("knn", "linear") else 5000
        measures[measure] = {"mean": statistics.fmean(found), "spread": spread, "values": found, "images": images}
    cost = {"epochs": epochs, "epoch_seconds": pace, "seconds": epochs * pace, "peak_memory": 1234567890}
    return {
        "name": name,
        "base": base or name,
        "epochs": epochs,
        "flags": ["--queue_size", "20"],
        "settings": {"queue_size": 20},
        "measures": measures,
        "cost": cost,
        "runs": runs,
    }


def comparison(rows=None, **other):
    """hcsc wins clearly against mocov2plus, and swav is near to that."""
    rows = rows or {"hcsc": [45.0, 45.4], "mocov2plus": [41.0, 41.4], "swav": [41.1, 41.7]}
    return {
        "title": "three methods",
        "kind": "compare",
        "budget": "epochs",
        "command": "solo-hcsc compare",
        "settings": {"dataset": "custom", "encoder": "resnet18", "lr": 0.3},
        "reference": None,
        "machine": {"processor": "one", "cores": 2, "memory": 25000000000, "gpus": []},
        "versions": {"python": "3.11"},
        "rows": [row_of(name, values, 60.0 + 10 * place) for place, (name, values) in enumerate(rows.items())],
        "failed": {},
        "elsewhere": [],
        "search": None,
    } | other


def write(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


def change(content, path, value):
    """The content with another value at a path such as rows.0.name."""
    content = copy.deepcopy(content)
    *above, last = path.split(".")
    part = content
    for name in above:
        part = part[int(name) if name.isdigit() else name]
    part[last] = value
    return content
