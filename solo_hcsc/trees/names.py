"""Names that the command line needs without torch, and refusals of names."""

from pathlib import Path

from solo_hcsc.errors import ArgumentError

WAYS = ("typical", "nearest", "farthest")  # to choose images from a cluster
SORT_BY = ("link", "copy")  # how images are sorted into folders
LEAF_WAYS = ("nearest", "farthest", "random")  # to keep images of a bottom cluster
ENDINGS = {  # of what a chosen image list is handed over as, by the formats' names; folders have none
    "label-studio": ".json",
    "coco": ".json",
    "cvat": ".xml",
    "fiftyone": ".json",
    "imagefolder": "",
    "folders": "",
}
FORMATS = ("csv", *ENDINGS)


def check_list_name(file: Path, argument: str = "out") -> None:
    """Refuse a name for a list that its tables would have too."""
    if file.suffix in ("", ".csv", ".parquet"):
        raise ArgumentError(f"`{argument}` {file}: give the name of a list, such as {file.with_suffix('.txt')}")
    if file.is_dir():
        raise ArgumentError(f"`{argument}` {file}: is a folder; give a file in it, such as {file / 'kept.txt'}")
