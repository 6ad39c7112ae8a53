"""Names that the command line needs without torch."""

WAYS = ("typical", "nearest", "farthest")  # to choose images from a cluster
