"""`solo-hcsc pack FOLDER --out SHARDS`: a folder of images as tar files, with an index beside each."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import PACKING
from solo_hcsc.data.source import check_packing
from solo_hcsc.settings import Settings
from solo_hcsc.tables import clock, pace

_TOLD = (
    "Writes the images of a folder as shards: tar files in WebDataset's layout, with an index beside each. Everything "
    "that reads a folder reads them with --dataset shards. Files stay as they are unless --shorter_side is given. "
    "After a kill, the same command goes on."
)


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    check_packing(settings)

    from solo_hcsc.data.packing import pack_as
    from solo_hcsc.evaluation.features import tell_skipped

    done = pack_as(settings)
    print(done.table())
    if done.seconds and not done.kept:
        print(f"{clock(done.seconds)}, {pace(done.images / done.seconds)}; checksums in shards.json")
    tell_skipped(done.skipped, done.images + len(done.skipped))
    print(f"try: solo-hcsc pretrain --dataset shards --data_dir {settings.out}")


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser("pack", _TOLD, "FOLDER --out SHARDS [flags]")
    folder, out, *others = PACKING
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=folder.help)
    parser.add_argument("--out", type=Path, metavar="SHARDS", required=True, help=out.help)
    add(parser, *others)
    return parser.parse(argv)
