"""`solo-hcsc COMMAND ...`, the same as `python -m solo_hcsc COMMAND ...`."""

import os
import select
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TextIO

from solo_hcsc.cli.parser import as_typed, in_flags
from solo_hcsc.cli.terminal import Terminal
from solo_hcsc.errors import UNUSABLE_PATH, Ended, UserError, told_path
from solo_hcsc.extras import require
from solo_hcsc.interrupts import is_interrupt, raise_again_what_finalisers_swallow
from solo_hcsc.launch import end_of
from solo_hcsc.progress import listen
from solo_hcsc.quiet import quiet
from solo_hcsc.settings import nearest
from solo_hcsc.tables import width
from solo_hcsc.version import __version__

READER_GONE = 141  # the exit code that a shell gives to what SIGPIPE ended

# Each command is a module of solo_hcsc.cli.commands with a function `run(argv)`.
COMMANDS = {
    "train": {
        "pretrain": "train an encoder with HCSC or any method of solo-learn",
        "adapt": "fit given weights to your own images in seconds; keeps whichever features are better",
    },
    "evaluate": {
        "knn": "measure the KNN accuracy of a frozen encoder",
        "linear": "train a linear classifier on a frozen encoder",
        "semisup": "fine-tune an encoder on few labels",
        "clustering": "compare clusters, and HCSC's own tree, with labels",
        "zeroshot": "measure KNN accuracy on another data set than that of pretraining",
        "voc": "train a linear classifier for PASCAL VOC 2007",
        "places": "train a linear classifier for Places205",
        "detect": "train a detector for PASCAL VOC or COCO from an encoder",
        "fewlabels": "measure the accuracy with few labels, of picked and of random images",
        "summary": "put all results below a folder in one table, with the paper's figures",
    },
    "compare": {
        "compare": "run several methods side by side, over seeds, and write a report",
        "ablate": "run the paper's ablation and sensitivity tables, and write a report",
        "report": "write the page of a comparison or an ablation again",
    },
    "look inside": {
        "explore": "write a page with the tree of any images, which opens by double click",
        "tree": "build a tree of any images, which other commands take in place of a run",
        "analyse": "draw a run's prototypes, left-out negatives and features",
    },
    "prepare": {
        "check": "find leaks between splits, duplicates, conflicting labels and broken files",
        "curate": "choose images to train on: even over a tree, without duplicates and broken files",
    },
    "use": {
        "export": "write an encoder for timm, torchvision, ONNX, detectron2 or the Hugging Face hub",
        "embed": "write a table of images: path, label, embedding, clusters, neighbours, place in a map",
        "pick": "choose the images worth labelling first",
        "spread": "label all images from few labels, with confidences",
    },
    "solo-learn 1.0.6": {"solo": "run a script of its checkout, such as main_knn.py, with HCSC among its methods"},
    "data": {
        "digits": "write handwritten digits as folders of images",
        "pack": "pack a folder of images into shards: tar files with an index, for millions of images",
        "index": "index shards that others wrote",
    },
}
EXTRAS = {  # of setup.cfg, and the commands that need them
    "report": ("check", "compare", "ablate", "report", "explore", "analyse", "fewlabels", "detect", "export"),
    "tables": ("curate", "embed", "spread", "tree"),
}


def main() -> None:
    """Run the console script: what a user can mend becomes one line on stderr and exit code 2.

    Where the reader of the output has gone, as in `solo-hcsc --help | head`, it ends without a word.
    """
    try:
        try:
            answer()
        finally:
            sys.stdout.flush()  # at the interpreter's exit it would be too late for a word about it
    except BrokenPipeError:
        if not reader_is_gone():
            raise
        sys.exit(READER_GONE)


def answer() -> None:
    """Run the command line; end with a line where its user can mend what went wrong."""
    raise_again_what_finalisers_swallow()
    try:
        return run(sys.argv[1:])
    except UserError as error:
        end = error
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in UNUSABLE_PATH:  # a path put together from several flags
            end = UserError(told_path(error))
        elif not isinstance(error, SystemExit) and is_interrupt(error):
            end = Ended((isinstance(error, KeyboardInterrupt) and str(error)) or "interrupted", 130)
        else:
            raise
    sys.exit(end_of(end, as_typed(in_flags(str(end)), sys.argv)))


def run(argv: Sequence[str]) -> None:
    """Run a command, given as its name and its flags."""
    quiet()
    listen(Terminal())
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        print(overview())
    elif name == "--version":
        print(f"solo_hcsc {__version__}")
    elif name in known():
        for extra, commands in EXTRAS.items():
            if name in commands and not {"-h", "--help"} & set(argv):
                require(extra, name)
        import_module(f"solo_hcsc.cli.commands.{name}").run(list(argv[1:]))
    else:
        hint = nearest(name, known()) or "`solo-hcsc --help` lists them"
        raise UserError(f"{name}: no such command; {hint}")


def reader_is_gone() -> bool:
    """Return whether nobody reads the output or the errors any more; what is left of such a stream goes nowhere."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if is_broken(stream)]
    for stream in gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(gone)


def is_broken(stream: TextIO) -> bool:
    """Return whether a stream is a pipe that has no reader: a second write need not fail, if none is left to do."""
    state = select.poll()
    state.register(stream, 0)
    return bool(state.poll(0))


def known() -> list[str]:
    return [name for commands in COMMANDS.values() for name in commands]


def overview() -> str:
    """Return all commands in groups, with a line each, or several on a narrow terminal."""
    lines = ["usage: solo-hcsc COMMAND [flags]", "", "Trees of your images, and HCSC among solo-learn's methods."]
    wrap = partial(textwrap.wrap, width=width(), subsequent_indent=" " * 14)
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:"]
        for name, line in commands.items():
            lines += wrap(line, initial_indent=f"  {name:<12}")
    return "\n".join([*lines, "", "`solo-hcsc COMMAND --help` explains a command's flags."])


if __name__ == "__main__":
    main()
