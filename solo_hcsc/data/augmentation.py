"""Settings of the augmentation pipelines."""

from solo_hcsc.settings import NOT_NEGATIVE, ONE, POSITIVE_SHARE, SHARE, Setting, Settings, at_most

OWN_SIZE = "CIFAR's 32 and STL-10's 96 if not given"
_SIZE = "side of the crops in pixels, per pipeline; the first is the large one"
# One value for all pipelines, or one for each. solo-learn requires the colour jitter; ours is MoCo v2's.
PIPELINE = (
    Setting("brightness", float, [0.4], NOT_NEGATIVE, "strength of brightness jitter, per pipeline"),
    Setting("contrast", float, [0.4], NOT_NEGATIVE, "strength of contrast jitter, per pipeline"),
    Setting("saturation", float, [0.4], NOT_NEGATIVE, "strength of saturation jitter, per pipeline"),
    Setting("hue", float, [0.1], at_most(0.5), "strength of hue jitter, per pipeline"),
    Setting("color_jitter_prob", float, [0.8], SHARE, "probability of colour jitter, per pipeline"),
    Setting("gray_scale_prob", float, [0.2], SHARE, "probability of turning grey, per pipeline"),
    Setting("horizontal_flip_prob", float, [0.5], SHARE, "probability of a flip, per pipeline"),
    Setting("gaussian_prob", float, [0.5], SHARE, "probability of a blur, per pipeline"),
    Setting("solarization_prob", float, [0.0], SHARE, "probability of solarisation, per pipeline"),
    Setting("equalization_prob", float, [0.0], SHARE, "probability of equalising the histogram, per pipeline"),
    Setting("crop_size", int, [224], ONE, f"{_SIZE}; {OWN_SIZE}"),
    Setting("min_scale", float, [0.08], POSITIVE_SHARE, "smallest share of the image that a crop covers, per pipeline"),
    Setting("max_scale", float, [1.0], POSITIVE_SHARE, "largest share of the image that a crop covers, per pipeline"),
)
AUGMENTATION = (
    Setting("num_crops_per_aug", int, [2], ONE, "crops that each augmentation pipeline makes, e.g. 1 1 6"),
    *PIPELINE,
    Setting("debug_augmentations", bool, False, None, "print the augmentation pipelines"),
)
AUGMENTATIONS = tuple(row.name for row in PIPELINE)


def pipelines(settings: Settings) -> int:
    """Count the pipelines that the settings describe."""
    return max(len(getattr(settings, name)) for name in AUGMENTATIONS)
