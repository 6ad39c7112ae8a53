"""The registry of solo-learn 1.0.2's fixes, and a method to probe."""

from typing import Any

from solo_hcsc.fixes import Fixes

_registry = Fixes()
FIXES, fixes, apply = _registry.all, _registry.of, _registry.apply


def bare_method(cls: type, **settings: Any) -> Any:
    """Make a real method with neutral settings, for the probes and for its encoder."""
    defaults: dict[str, Any] = {
        "encoder": "resnet18",
        "num_classes": 2,
        "backbone_args": {"cifar": False},
        "max_epochs": 2,
        "batch_size": 4,
        "optimizer": "sgd",
        "lars": False,
        "lr": 0.1,
        "weight_decay": 0.0,
        "classifier_lr": 0.1,
        "exclude_bias_n_norm": False,
        "accumulate_grad_batches": 1,
        "extra_optimizer_args": {},
        "scheduler": "cosine",
        "min_lr": 0.0,
        "warmup_start_lr": 0.0,
        "warmup_epochs": 0,
        "num_large_crops": 2,
        "num_small_crops": 0,
        "proj_output_dim": 8,
        "proj_hidden_dim": 8,
    }
    return cls(**(defaults | settings))
