"""Names of encoders: solo-learn's ten, and `timm/` before any of timm's."""

ENCODERS = (
    *("resnet18", "resnet50", "vit_tiny", "vit_small", "vit_base", "vit_large"),
    *("swin_tiny", "swin_small", "swin_base", "swin_large"),
)
TIMM = "timm/"  # before the name of one of timm's models
AUTO = "auto"  # the best weights at hand, in place of a name or a path
# What would give a model of timm weights, another head or other files; no recorded run or exported file may.
NOT_TAKEN = ("pretrained", "num_classes", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
