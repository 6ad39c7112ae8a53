"""`solo-hcsc export RUN`: the encoder as a file for other libraries, with a model card beside it, or the whole run."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from solo_hcsc.cli.parser import Parser
from solo_hcsc.encoders.formats import EXPORTS, FOLDERS, check_place
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.encoders.settings import encoder, key_value
from solo_hcsc.settings import Settings, at_least


def run(argv: Sequence[str]) -> None:
    """Check, write the file and its card, and print the code that loads it."""
    flags = parse(argv)
    files = find_run(flags.run)

    from solo_hcsc.report.card import write_card
    from solo_hcsc.runs.exporting import refuse_evaluation, write_export
    from solo_hcsc.runs.run import Run

    opened = Run(files, flags.encoder, flags.encoder_args, flags.crop_size)
    refuse_evaluation(opened.content)
    card = partial(write_card, data_license=flags.data_license)
    written = write_export(opened.encoder, opened.content, flags.out, flags.format, flags.method, card)
    print(opened.encoder.taken)
    inside = "" if flags.format not in FOLDERS else f"{', '.join(sorted(file.name for file in flags.out.iterdir()))}; "
    print(f"{flags.format}: {written.path} ({inside}{written.megabytes})\nmodel card: {written.card}\nload it with:\n")
    print("\n".join(f"    {line}" for line in written.code.splitlines()))


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser(
        "export",
        "Writes the encoder of a run as a file for another library, and a model card, FILE.md, beside it. The file "
        "gives the same features; nothing in it can run code. For the Hugging Face hub it writes a folder that timm "
        "reads. For solo-learn, which means 1.0.6, it writes the whole run to a folder that main_knn.py, main_umap.py "
        "and main_linear.py read.",
        f"RUN --format {'|'.join((*EXPORTS, *FOLDERS))} --out FILE [flags]",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the checkpoint, or a folder whose newest one is taken")
    parser.add_argument("--format", choices=(*EXPORTS, *FOLDERS), required=True, help="what is to load it")
    endings = "; ".join(f"{name}: {' or '.join(suffixes)}" for name, suffixes in EXPORTS.items())
    told = f"its name ends in ({endings}); {' and '.join(FOLDERS)}: a new or an empty folder"
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=told)
    parser.add_argument("--data_license", metavar="TEXT", help="licence of the training images, for the card")
    group = parser.add_argument_group("for a checkpoint without args.json")
    group.add_argument("--encoder", type=encoder, help="architecture of the encoder, also timm/NAME")
    group.add_argument("--encoder_args", type=key_value, nargs="+", default=[], help="settings of a timm/NAME")
    group.add_argument("--method", help="method of the checkpoint, for the card")
    group.add_argument("--crop_size", type=int, bound=at_least(1), help="side of the images in pixels")
    flags = parser.parse(argv)
    check_place(flags.out, flags.format)
    return flags
