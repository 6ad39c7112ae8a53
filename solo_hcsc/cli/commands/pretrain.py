"""`solo-hcsc pretrain`: trains any solo-learn method, with solo-learn's flags."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add, add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.hcsc.options import PRESETS, Options
from solo_hcsc.methods.names import METHODS
from solo_hcsc.methods.settings import OWN, check_method
from solo_hcsc.settings import Settings, rows_of
from solo_hcsc.training.request import check_early, completed
from solo_hcsc.training.settings import DEFAULT_METHOD, pretraining


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
        return f"solo-hcsc explore {shlex.quote(str(folder))} --out {shlex.quote(str(folder / 'explore'))}"
    if source.no_labels:
        return f"solo-hcsc analyse --pretrained_feature_extractor {shlex.quote(str(folder))}"
    words = ["--pretrained_feature_extractor", folder]
    if source.dataset == "custom" and source.val_dir is None:
        words += ["--val_dir", "LABELLED_IMAGES"]
    return f"solo-hcsc knn {shlex.join(map(str, words))}"


def parse(argv: Sequence[str]) -> Settings:
    """Parse the flags, and fill in what was not typed."""
    return completed(typed(argv))


def typed(argv: Sequence[str]) -> Settings:
    """Parse the flags. A method's own come from its class; a help without a method needs none."""
    method = method_in(argv)
    if method is None and {"-h", "--help"} & set(argv):
        build_parser(None).parse(argv)
    method = method or DEFAULT_METHOD
    check_method(method)

    from solo_hcsc.solo102 import load_methods

    return build_parser(load_methods()[method]).parse(argv)


def method_in(argv: Sequence[str]) -> str | None:
    """Return the method that is typed."""
    first = Parser("pretrain", add_help=False)
    first.add_argument("--method")
    return first.parse_known_args(list(argv))[0].method


def refuse_early(argv: Sequence[str]) -> Settings | None:
    """Refuse wrong names, values, files and folders before anything heavy is imported.

    Returns:
        The flags without the defaults of the method; None where a help is asked for.
    """
    if {"-h", "--help"} & set(argv):
        return None
    method = method_in(argv) or DEFAULT_METHOD
    check_method(method)
    parser = build_parser(None)
    add(parser, *(rows_of(Options, PRESETS) if method == "hcsc" else ()), *(OWN if method in METHODS else ()))
    # A method of another package may have any flag.
    flags = completed(parser.parse(argv) if method in METHODS else parser.parse_part(argv)[0])
    check_early(flags)
    return flags


def build_parser(method: type | None) -> Parser:
    """Build the parser of all flags, with those of a method's class."""
    parser = Parser(
        "pretrain",
        "Pretrains any solo-learn method. Add --method NAME to see that method's own flags.",
        "--data_dir FOLDER [--method NAME] [--dataset NAME] [flags]",
    )
    add_all(parser, pretraining())
    parser.change("method", metavar="NAME")
    if method is not None:
        method.add_model_specific_args(parser)  # type: ignore[attr-defined]
        parser.explain(OWN)
    return parser
