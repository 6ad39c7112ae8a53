"""`solo-hcsc index SHARDS`: the index of shards that others wrote, and a comparison of shards with their checksums."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import INDEXING
from solo_hcsc.data.source import check_folder
from solo_hcsc.settings import Settings
from solo_hcsc.tables import clock

_TOLD = (
    "Makes an index beside each tar file of a folder, in WebDataset's layout (KEY.jpg with KEY.cls or KEY.json), and "
    "the list shards.json. An index that fits its shard is kept, so that the same command goes on after a kill and "
    "takes in new shards. --check compares the shards with their checksums instead."
)


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    check_folder("", settings.folder)

    from solo_hcsc.data.indexing import index_as

    done = index_as(settings)
    print(done.table())
    print(f"{'all checksums are right' if settings.check else 'indexed'}: {clock(done.seconds)}")


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser("index", _TOLD, "SHARDS [flags]")
    folder, *others = INDEXING
    parser.add_argument("folder", type=Path, metavar="SHARDS", help=folder.help)
    add(parser, *others)
    return parser.parse(argv)
