"""`solo-hcsc COMMAND ...`, the same as `python -m solo_hcsc COMMAND ...`."""

import sys
from collections.abc import Sequence
from importlib import import_module

from solo_hcsc.cli.errors import UNUSABLE_PATH, UserError, in_flags, refuse, stop, told_path
from solo_hcsc.cli.parser import as_typed, nearest
from solo_hcsc.cli.quiet import quiet
from solo_hcsc.hcsc.errors import ArgumentError, MissingPackage
from solo_hcsc.version import __version__

# Each command is a module of solo_hcsc.commands with a function `run(argv)`.
COMMANDS = {
    "train": {"pretrain": "train an encoder with HCSC or any method of solo-learn"},
    "evaluate": {
        "knn": "KNN accuracy of a frozen encoder; trains nothing",
        "linear": "a linear classifier on a frozen encoder",
        "semisup": "fine-tune an encoder on few labels",
        "clustering": "agreement of clusters, and of HCSC's own tree, with labels",
        "zeroshot": "KNN accuracy on another data set than that of pretraining",
        "voc": "a linear classifier for PASCAL VOC 2007",
        "places": "a linear classifier for Places205",
        "detect": "a detector for PASCAL VOC or COCO that starts from an encoder",
        "fewlabels": "accuracy with few labels, of picked images and of random ones",
        "summary": "all results below a folder in one table, with the paper's figures",
    },
    "compare": {
        "compare": "several methods side by side, over seeds, with a report",
        "ablate": "the rows of the paper's ablation and sensitivity tables, with a report",
        "report": "the page of a comparison or an ablation, made anew",
    },
    "look inside": {
        "explore": "a page to walk through a run's tree of images, which opens by double click",
        "analyse": "pictures of a run's prototypes, left-out negatives and features",
    },
    "use": {
        "export": "an encoder as a file for timm, torchvision, ONNX or detectron2, with a model card",
        "embed": "a table of images: path, label, embedding, clusters, neighbours, place in a map",
        "pick": "the images worth labelling first, with the reason for each",
        "spread": "from few labels to labels of all images, with confidences",
    },
    "solo-learn 1.0.6": {"solo": "run a script of its checkout, such as main_knn.py, with HCSC among its methods"},
    "data": {"digits": "write the embedded data set, handwritten digits, as folders of images"},
}


def main() -> None:
    """The console script: what a user can mend becomes one line on stderr and exit code 2."""
    try:
        run(sys.argv[1:])
    except (UserError, ArgumentError, MissingPackage) as error:
        message = str(error) if isinstance(error, UserError) else in_flags(str(error))
        refuse(as_typed(message, sys.argv), getattr(error, "alone", False))
    except OSError as error:  # of a path that was put together from several flags
        if error.errno not in UNUSABLE_PATH:
            raise
        refuse(told_path(error))
    except KeyboardInterrupt:
        stop("interrupted", 130)


def run(argv: Sequence[str]) -> None:
    """Runs a command, given as its name and its flags."""
    quiet()
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        print(overview())
    elif name == "--version":
        print(f"solo_hcsc {__version__}")
    elif name in known():
        import_module(f"solo_hcsc.commands.{name}").run(list(argv[1:]))
    else:
        hint = nearest(name, known()) or "`solo-hcsc --help` lists them"
        raise UserError(f"{name}: no such command; {hint}")


def known() -> list[str]:
    return [name for commands in COMMANDS.values() for name in commands]


def overview() -> str:
    """All commands in groups, with a line each."""
    lines = ["usage: solo-hcsc COMMAND [flags]", "", "HCSC and solo-learn's methods: train, evaluate, compare."]
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:", *(f"  {name:<12}{line}" for name, line in commands.items())]
    return "\n".join([*lines, "", "`solo-hcsc COMMAND --help` explains a command's flags."])


if __name__ == "__main__":
    main()
