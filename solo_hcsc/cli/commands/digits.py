"""`solo-hcsc digits`: writes the embedded data set as folders of images, one for each class."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "digits",
        "Writes scikit-learn's handwritten digits as folders of images, the layout that --dataset custom reads; "
        "--dataset digits does so by itself.",
    )
    parser.add_argument("--data_dir", type=Path, default=Path("datasets"), help="digits/ is made below it")
    flags = parser.parse(argv)

    from solo_hcsc.data.digits import lay_out_digits

    try:
        folder = lay_out_digits(flags.data_dir)
    except OSError as error:
        raise UserError(f"--data_dir {flags.data_dir}: cannot write digits there: {error.strerror}") from error
    print(f"digits are in {folder}: 1,437 training images in train, 360 in val, 10 classes")
