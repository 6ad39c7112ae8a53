"""Settings of the augmentation pipelines: name, type, default, bound and help of each."""

from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE_SHARE, SHARE, at_least, at_most

OWN_SIZE = "CIFAR's 32 and STL-10's 96 if not given"
# One value for all pipelines, or one for each. solo-learn requires the colour jitter; ours is MoCo v2's.
PIPELINE = (
    ("brightness", float, [0.4], NOT_NEGATIVE, "strength of brightness jitter, per pipeline"),
    ("contrast", float, [0.4], NOT_NEGATIVE, "strength of contrast jitter, per pipeline"),
    ("saturation", float, [0.4], NOT_NEGATIVE, "strength of saturation jitter, per pipeline"),
    ("hue", float, [0.1], at_most(0.5), "strength of hue jitter, per pipeline"),
    ("color_jitter_prob", float, [0.8], SHARE, "probability of colour jitter, per pipeline"),
    ("gray_scale_prob", float, [0.2], SHARE, "probability of turning grey, per pipeline"),
    ("horizontal_flip_prob", float, [0.5], SHARE, "probability of a flip, per pipeline"),
    ("gaussian_prob", float, [0.5], SHARE, "probability of a blur, per pipeline"),
    ("solarization_prob", float, [0.0], SHARE, "probability of solarisation, per pipeline"),
    ("equalization_prob", float, [0.0], SHARE, "probability of equalising the histogram, per pipeline"),
    (
        "crop_size",
        int,
        [224],
        at_least(1),
        f"side of the crops in pixels, per pipeline; the first is the large one; {OWN_SIZE}",
    ),
    ("min_scale", float, [0.08], POSITIVE_SHARE, "smallest share of the image that a crop covers, per pipeline"),
    ("max_scale", float, [1.0], POSITIVE_SHARE, "largest share of the image that a crop covers, per pipeline"),
)
AUGMENTATIONS = tuple(row[0] for row in PIPELINE)
