"""`solo-hcsc pretrain`: trains any solo-learn method, with solo-learn's flags."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add, pretraining_parser
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.hcsc.options import PRESETS, Options
from solo_hcsc.methods.names import METHODS
from solo_hcsc.methods.settings import OWN, check_method
from solo_hcsc.settings import Settings, rows_of
from solo_hcsc.training.request import check_early, completed
from solo_hcsc.training.settings import DEFAULT_METHOD


def run(argv: Sequence[str]) -> None:
    refuse_early(argv)
    flags = typed(argv)

    from solo_hcsc.training.pretraining import pretrain_as

    done = pretrain_as(flags)
    if done.session is not None:
        done.session.report(done.started, next_command(done.folder, done.source, done.has_tree), done.warnings)


def next_command(folder: Path, source: ImageSource, has_tree: bool) -> str:
    """Return the command that a user would try first, on the run's own images."""
    if source.no_labels and has_tree:
        return shlex.join(["solo-hcsc", "explore", str(folder), "--out", str(folder / "explore")])
    words = ["solo-hcsc", "analyse" if source.no_labels else "knn", "--pretrained_feature_extractor", str(folder)]
    alone = not source.no_labels and (source.dataset == "custom" or source.is_stored) and source.val_dir is None
    return shlex.join([*words, *(["--val_dir", "LABELLED_IMAGES"] if alone else [])])


def parse(argv: Sequence[str]) -> Settings:
    """Parse the flags, and fill in what was not typed."""
    return completed(typed(argv))


def typed(argv: Sequence[str]) -> Settings:
    """Parse the flags. A method's own come from its class; a help without a method needs none."""
    method = method_in(argv)
    if method is None and {"-h", "--help"} & set(argv):
        pretraining_parser(None).parse(argv)

    from solo_hcsc.solo102 import load_methods

    return pretraining_parser(load_methods()[method or DEFAULT_METHOD]).parse(argv)


def method_in(argv: Sequence[str]) -> str | None:
    """Return the method that is typed; refuse one that is not there."""
    first = Parser("pretrain", add_help=False)
    first.add_argument("--method")
    method = first.parse_known_args(list(argv))[0].method
    check_method(method or DEFAULT_METHOD)
    return method


def refuse_early(argv: Sequence[str]) -> Settings | None:
    """Refuse mistakes before anything heavy is imported; return the flags without the method's defaults."""
    if {"-h", "--help"} & set(argv):
        return None
    method = method_in(argv) or DEFAULT_METHOD
    parser = pretraining_parser(None)
    add(parser, *(rows_of(Options, PRESETS) if method == "hcsc" else ()), *(OWN if method in METHODS else ()))
    # A method of another package may have any flag.
    flags = completed(parser.parse(argv) if method in METHODS else parser.parse_part(argv)[0])
    check_early(flags)
    return flags
