"""Errors that a user can mend. Messages name arguments as `name`; the command line turns these into its flags."""

import errno


class UserError(Exception):
    """One line that names what is wrong and what to do about it."""

    in_one_process = False  # whether one of several processes may raise it while the others go on
    code = 2  # with which the command line ends

    def __init__(self, message: str) -> None:
        # From a loader's worker only the traceback comes back, as the message of a new exception: its last line is
        # `module.Class: message`.
        if message.startswith("Caught ") and "\nOriginal Traceback" in message:
            message = message.strip().splitlines()[-1].partition(": ")[2]
        super().__init__(message)


class Ended(UserError):
    """The end of a training that is no mistake in what was asked for: a signal, or a process that was lost.

    Args:
        message: a line for the user; empty where another process tells it.
        code: the exit code of the command line.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ArgumentError(UserError, ValueError):
    """An argument, or several together, that make no sense; the message names them, as in "`queue_size` 0: ..."."""


class NotFinite(ArgumentError):
    """Vectors of which some are NaN or infinite.

    Args:
        argument: what they are called.
        rows: how many are not finite.
        of: how many there are.
    """

    in_one_process = True  # the one that clusters

    def __init__(self, argument: str, rows: int, of: int) -> None:
        super().__init__(f"`{argument}`: {rows} of {of} rows have NaN or infinite values; leave them out")
        self.rows, self.of = rows, of


class MissingPackage(UserError, ImportError):
    """A package that is not installed, or too old; the message says how to get it."""


def on_one_line(text: object) -> str:
    """Return text for a message or a list: as it is, or with escapes where it has line breaks or invalid Unicode."""
    text = str(text)
    return text if text.isprintable() else repr(text)[1:-1]


UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ELOOP)  # what no other error of a path is like: nothing can be there


def told_path(error: OSError, path: object = None) -> str:
    """Return the line for an error of `UNUSABLE_PATH`; the path is that of the error if not given."""
    shown = on_one_line(error.filename if path is None else path)
    shown = shown if len(shown) <= 100 else f"{shown[:50]}...{shown[-40:]}"
    reason = "a link that leads back to itself" if error.errno == errno.ELOOP else "this path is too long"
    return f"{shown}: {reason}; give another one"
