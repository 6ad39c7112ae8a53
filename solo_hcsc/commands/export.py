"""`solo-hcsc export RUN`: the encoder as a file for other libraries, with a model card beside it."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.files import try_writing, written_together
from solo_hcsc.cli.flags import EXPORTS, encoder, key_value
from solo_hcsc.cli.parser import Parser, at_least


def run(argv: Sequence[str]) -> None:
    flags = parse(argv)
    card = card_of(flags.out)

    from solo_hcsc.evaluation.export import Subject, export
    from solo_hcsc.report.card import write_card

    subject = Subject.load(flags.run, flags.encoder, flags.encoder_args, flags.method, flags.crop_size)
    if flags.out.resolve() == subject.encoder.checkpoint.resolve():
        raise UserError(f"--out {flags.out}: is the checkpoint itself; give another file")
    exported = export(subject, flags.format, flags.out.suffix)
    text = write_card(subject, exported, flags.format, flags.out.name, flags.data_license)
    with written_together(flags.out.parent, [flags.out.name, card.name]) as (file, beside):
        file.write_bytes(exported.content)
        beside.write_text(text, encoding="utf-8")
    print(subject.encoder.taken)
    print(f"{flags.format}: {flags.out} ({len(exported.content) / 1e6:.1f} MB)\nmodel card: {card}\nload it with:\n")
    print("\n".join(f"    {line}" for line in exported.code_for(flags.out).splitlines()))


def card_of(file: Path) -> Path:
    """Its model card, beside it: files of several formats each have one."""
    return file.with_name(f"{file.name}.md")


def parse(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "export",
        "Writes the encoder of a run as a file for another library, and a model card, FILE.md, beside it. The file "
        "gives the same features; nothing in it can run code.",
        f"RUN --format {'|'.join(EXPORTS)} --out FILE [flags]",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the checkpoint, or a folder whose newest one is taken")
    parser.add_argument("--format", choices=EXPORTS, required=True, help="what is to load it")
    endings = "; ".join(f"{name}: {' or '.join(suffixes)}" for name, suffixes in EXPORTS.items())
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=f"its name ends in ({endings})")
    parser.add_argument("--data_license", metavar="TEXT", help="licence of the training images, for the card")
    group = parser.add_argument_group("where no args.json beside the checkpoint tells")
    group.add_argument("--encoder", type=encoder, help="architecture of the encoder, also timm/NAME")
    group.add_argument("--encoder_args", type=key_value, nargs="+", default=[], help="settings of a timm/NAME")
    group.add_argument("--method", help="what made the checkpoint, for the card")
    group.add_argument("--crop_size", type=int, bound=at_least(1), help="side of the images in pixels")
    flags = parser.parse(argv)
    if flags.out.is_dir():
        raise UserError(f"--out {flags.out}: is a folder; give a file")
    if flags.out.suffix not in EXPORTS[flags.format]:
        allowed = " or ".join(EXPORTS[flags.format])
        raise UserError(f"--out {flags.out}: a file for --format {flags.format} ends in {allowed}")
    for file in (flags.out, card_of(flags.out)):
        try_writing(file, "give another --out")
    return flags
