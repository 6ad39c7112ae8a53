WAYS = ("typical", "nearest", "farthest")
"""Names of the ways to choose images from a cluster."""
