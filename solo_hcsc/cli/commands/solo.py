"""`solo-hcsc solo SCRIPT ...`: a script of a solo-learn 1.0.6 checkout, with HCSC among its methods.

`main_pretrain.py` and `main_linear.py` need none of this: Hydra, which they use, finds HCSC by itself.
"""

import runpy
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from solo_hcsc.cli.parser import Parser
from solo_hcsc.encoders.hydra_settings import is_nested
from solo_hcsc.errors import UserError
from solo_hcsc.files import read_json
from solo_hcsc.solo_version import CHECKOUTS, HYDRA, solo_in


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "solo",
        f"Runs a script of a checkout of solo-learn ({CHECKOUTS}), such as main_knn.py or main_umap.py, with HCSC "
        "among its methods; on a machine without a GPU, on the CPU. main_pretrain.py and main_linear.py need no help: "
        "python main_pretrain.py --config-path scripts/pretrain/cifar --config-name hcsc.yaml.",
        usage="SCRIPT [its own flags]",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script, in its checkout")
    given, flags = parser.parse(argv[:1]).script, list(argv[1:])  # the rest is the script's, --help too
    script = Path(given).resolve()
    check_script(script, given)
    check_run(flags)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *flags]
    try:
        from solo_hcsc.solo106.register import register
        from solo_hcsc.solo106.repairs import while_running
    except ModuleNotFoundError as error:
        raise UserError(
            f"solo-learn {HYDRA} needs {error.name}, which is not installed; run: pip install 'solo_hcsc[checkout]'"
        ) from error
    register()
    with while_running():
        runpy.run_path(str(script), run_name="__main__")


def check_script(script: Path, given: str) -> None:
    """Refuse anything but a script of a checkout of the right version."""
    if not script.is_file():
        raise UserError(f"{given}: there is no such script; give one of a checkout of solo-learn, as main_knn.py")
    package = script.parent / "solo"
    if not package.is_dir():
        raise UserError(f"{given}: there is no solo-learn beside it; give a script of a checkout ({CHECKOUTS})")
    found = solo_in(package).version
    if found != HYDRA:
        raise UserError(f"{given}: solo-learn {found} is beside it; check out {CHECKOUTS}")


def check_run(flags: list[str]) -> None:
    """Refuse a run of our own `pretrain`, whose args.json the checkout's scripts cannot read."""
    words = [part for word in flags for part in word.split("=", 1)]
    for flag, value in pairwise(words):
        if flag != "--pretrained_checkpoint_dir":
            continue
        record = Path(value) / "args.json"
        if not record.is_file():
            raise UserError(f"--pretrained_checkpoint_dir {value}: no args.json in it; give the folder of one run")
        recorded = read_json(record)
        if not (isinstance(recorded, dict) and is_nested(recorded)):
            raise UserError(
                f"{value}: a run of solo-hcsc pretrain; "
                f"first run `solo-hcsc export {value} --format solo-learn --out FOLDER`, and give that folder"
            )
