"""What the paper's code raises of its own. Messages name arguments in backticks; a command line may add its dashes."""


class ArgumentError(ValueError):
    """An argument, or several together, that make no sense; the message names them, as in "`queue_size` 0: ..."."""


class NotFinite(ArgumentError):
    """Vectors of which some are NaN or infinite.

    Args:
        argument: what they are called.
        rows: how many are not finite.
        of: how many there are.
    """

    def __init__(self, argument: str, rows: int, of: int) -> None:
        super().__init__(f"`{argument}`: {rows} of {of} rows have NaN or infinite values; leave them out")
        self.rows, self.of = rows, of


class MissingPackage(ImportError):
    """A package that is not installed, or too old; the message says how to get it."""
