"""`solo-hcsc export RUN`: the encoder as a file for other libraries, with a model card beside it, or the whole run."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.flags import EXPORTED_RUN, EXPORTS, encoder, key_value
from solo_hcsc.cli.parser import Parser
from solo_hcsc.encoders.recorded import newest_checkpoints
from solo_hcsc.errors import UserError
from solo_hcsc.files import check_folder_to_write, folder_written_whole, try_writing, written_together
from solo_hcsc.settings import at_least

if TYPE_CHECKING:
    from solo_hcsc.encoders.export import Subject


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)

    from solo_hcsc.encoders.export import Subject

    subject = Subject.load(flags.run, flags.encoder, flags.encoder_args, flags.method, flags.crop_size)
    write = write_run if flags.format == EXPORTED_RUN else write_file
    said, code = write(flags, subject)
    print(subject.encoder.taken)
    print(f"{flags.format}: {said}\nload it with:\n")
    print("\n".join(f"    {line}" for line in code.splitlines()))


def write_file(flags: Namespace, subject: "Subject") -> tuple[str, str]:
    """Write the encoder and its card; return what to say of them, and the code that loads it."""
    from solo_hcsc.encoders.export import export
    from solo_hcsc.report.card import write_card

    card = card_of(flags.out)
    if flags.out.resolve() == subject.encoder.checkpoint.resolve():
        raise UserError(f"--out {flags.out}: is the checkpoint itself; give another file")
    exported = export(subject, flags.format, flags.out.suffix)
    text = write_card(subject, exported, flags.format, flags.out.name, flags.data_license)
    with written_together(flags.out.parent, [flags.out.name, card.name]) as (file, beside):
        file.write_bytes(exported.content)
        beside.write_text(text, encoding="utf-8")
    size = f"{len(exported.content) / 1e6:.1f} MB"
    return f"{flags.out} ({size})\nmodel card: {card}", exported.code_for(flags.out)


def write_run(flags: Namespace, subject: "Subject") -> tuple[str, str]:
    """Write the folder of a whole run and its card; return what to say of them, and the code that loads it."""
    from solo_hcsc.report.card import write_card
    from solo_hcsc.runs.solo_learn import RECORD, export_run

    exported = export_run(subject)
    text = write_card(subject, exported.checkpoint, flags.format, exported.name, flags.data_license)
    card = card_of(Path(exported.name)).name

    def is_earlier(folder: Path) -> bool:
        found = {file.name for file in folder.iterdir()}
        return found == {RECORD, exported.name, card}

    with folder_written_whole(flags.out, is_earlier) as folder:
        (folder / RECORD).write_text(exported.record, encoding="utf-8")
        (folder / exported.name).write_bytes(exported.checkpoint.content)
        (folder / card).write_text(text, encoding="utf-8")
    size = f"{len(exported.checkpoint.content) / 1e6:.1f} MB"
    said = f"{flags.out} ({RECORD} and {exported.name}, {size})\nmodel card: {flags.out / card}"
    return said, exported.checkpoint.code.replace("FOLDER", str(flags.out))


def card_of(file: Path) -> Path:
    """Return the path of a file's model card, beside it: files of several formats each have one."""
    return file.with_name(f"{file.name}.md")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "export",
        "Writes the encoder of a run as a file for another library, and a model card, FILE.md, beside it. The file "
        "gives the same features; nothing in it can run code. For solo-learn, which means 1.0.6, it writes the whole "
        "run to a folder that main_knn.py, main_umap.py and main_linear.py read.",
        f"RUN --format {'|'.join((*EXPORTS, EXPORTED_RUN))} --out FILE [flags]",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the checkpoint, or a folder whose newest one is taken")
    parser.add_argument("--format", choices=(*EXPORTS, EXPORTED_RUN), required=True, help="what is to load it")
    endings = "; ".join(f"{name}: {' or '.join(suffixes)}" for name, suffixes in EXPORTS.items())
    told = f"its name ends in ({endings}); {EXPORTED_RUN}: a new or an empty folder"
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=told)
    parser.add_argument("--data_license", metavar="TEXT", help="licence of the training images, for the card")
    group = parser.add_argument_group("where no args.json beside the checkpoint tells")
    group.add_argument("--encoder", type=encoder, help="architecture of the encoder, also timm/NAME")
    group.add_argument("--encoder_args", type=key_value, nargs="+", default=[], help="settings of a timm/NAME")
    group.add_argument("--method", help="what made the checkpoint, for the card")
    group.add_argument("--crop_size", type=int, bound=at_least(1), help="side of the images in pixels")
    flags = parser.parse(argv)
    newest_checkpoints(flags.run)
    if flags.format == EXPORTED_RUN:
        check_folder_to_write(flags.out)
        return flags
    if flags.out.is_dir():
        raise UserError(f"--out {flags.out}: is a folder; give a file")
    if flags.out.suffix not in EXPORTS[flags.format]:
        allowed = " or ".join(EXPORTS[flags.format])
        raise UserError(f"--out {flags.out}: a file for --format {flags.format} ends in {allowed}")
    for file in (flags.out, card_of(flags.out)):
        try_writing(file, "give another --out")
    return flags
