"""Names of methods, told without importing one."""

from importlib.metadata import entry_points

METHODS = (
    *("barlow_twins", "byol", "deepclusterv2", "dino", "hcsc", "mocov2plus", "nnbyol", "nnclr", "nnsiam", "ressl"),
    *("simclr", "simsiam", "swav", "vicreg", "wmse"),
)
METHOD_GROUP = "solo_learn.methods"  # entry points of packages that add methods


def method_names() -> list[str]:
    """Return the names that `method` takes: solo-learn's, ours, and those of installed packages."""
    return sorted({*METHODS, *(entry.name for entry in entry_points(group=METHOD_GROUP))})
