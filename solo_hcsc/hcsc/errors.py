"""What the paper's code raises of its own. Messages name arguments in backticks; a command line may add its dashes."""


class ArgumentError(ValueError):
    """An argument, or several together, that make no sense; the message names them, as in "`queue_size` 0: ..."."""


class NotFinite(ArithmeticError):
    """NaN or infinite values where a computation cannot go on; the message says in what."""


class MissingPackage(ImportError):
    """A package that is not installed, or too old; the message says how to get it."""
