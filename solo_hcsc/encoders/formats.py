"""Formats that an encoder is exported in, and where such a file may go; needs no torch."""

from pathlib import Path

from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import check_folder_to_write, try_writing

EXPORTS = {  # formats that are a file, and how its name may end
    "timm": (".safetensors", ".pth"),
    "torchvision": (".safetensors", ".pth"),
    "safetensors": (".safetensors",),
    "onnx": (".onnx",),
    "detectron2": (".pkl",),
}
EXPORTED_RUN, HUB = "solo-learn", "hub"
FOLDERS = (EXPORTED_RUN, HUB)  # formats that are a folder


def card_of(file: Path) -> Path:
    """Return the path of a file's model card, beside it: files of several formats each have one."""
    return file.with_name(f"{file.name}.md")


def check_place(out: Path, format: str) -> None:
    """Refuse a format that is unknown, and a file that cannot be written or has another format's ending."""
    if format not in (*EXPORTS, *FOLDERS):
        raise ArgumentError(f"`format` {format}: choose from {', '.join((*EXPORTS, *FOLDERS))}")
    if format in FOLDERS:
        check_folder_to_write(out)
        return
    if out.is_dir():
        raise ArgumentError(f"`out` {out}: is a folder; give a file")
    if out.suffix not in EXPORTS[format]:
        raise ArgumentError(f"`out` {out}: a file for `format` {format} ends in {' or '.join(EXPORTS[format])}")
    for file in (out, card_of(out)):
        try_writing(file, "give another `out`")
