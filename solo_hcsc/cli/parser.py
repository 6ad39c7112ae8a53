"""Argument parsers whose errors are one line, and whose flags know their bounds."""

import argparse
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from solo_hcsc.errors import UNUSABLE_PATH, ArgumentError, UserError, on_one_line, told_path
from solo_hcsc.settings import HIDDEN, Bound, Setting, Settings, check_bound, count_or_share, nearest
from solo_hcsc.tables import width

SYNONYMS = {  # flags as releases of solo-learn other than 1.0.2 call them, and what they are here
    "--backbone": "--encoder",
    "--feature_type": "--features",
    "--output_dim": "--proj_output_dim",
    "--pretrained_checkpoint_dir": "--pretrained_feature_extractor",
}
_OTHERWISE = {"--train_data_path": "--train_dir", "--val_data_path": "--val_dir"}  # whose values are not the same


FLAGS: set[str] = set()  # names of the flags of all parsers of this process


def in_flags(text: str) -> str:
    """Return the library's text, which names arguments as `name`, with the flags --name of the command line.

    Only names that are flags of a parser of this process are changed: other words in backticks are commands.
    """
    return re.sub(r"`(\w+)`", lambda found: f"--{found[1]}" if found[1] in FLAGS else found[0], text)


class _Container(argparse._ActionsContainer):
    """Take a `bound` for each flag, and leave alone a flag that is there already."""

    def add_argument(self, *names: str, bound: Bound | None = None, **settings: Any) -> argparse.Action:
        known = self._option_string_actions.get(names[0])
        if known is not None:  # solo-learn's methods add the flags that all of them share
            return known
        if settings.get("help") == HIDDEN:
            settings["help"] = argparse.SUPPRESS
        action = super().add_argument(*names, **settings)
        FLAGS.add(action.dest)
        action.bound = bound  # type: ignore[attr-defined]
        return action


class _Group(_Container, argparse._ArgumentGroup):
    pass


class _Help(argparse.HelpFormatter):
    """Shows a default where it says something."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=width())

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        says_nothing = isinstance(default, bool) or default in (None, "", argparse.SUPPRESS)
        if action.help is None:
            return None
        also = [new for new, ours in SYNONYMS.items() if ours in action.option_strings]
        told = "; also ".join([in_flags(action.help), *also])
        if action.required or says_nothing:
            return told
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        return f"{told} ({shown})".replace("%", "%%")

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "N" if action.type in (int, float, count_or_share) else "X"


class Parser(_Container, argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose groups of one name are one group."""

    def __init__(self, command: str, description: str = "", usage: str | None = None, add_help: bool = True) -> None:
        self._by_title: dict[str | None, _Group] = {}
        super().__init__(
            prog=f"solo-hcsc {command}",
            usage=usage and f"%(prog)s {usage}",
            description=description,
            add_help=add_help,
            allow_abbrev=False,
            formatter_class=_Help,
        )

    def add_argument_group(self, title: Any = None, *args: Any, also: str | None = None, **kwargs: Any) -> _Group:
        """Return the group of this title; `also` is another title for it."""
        if title not in self._by_title:
            group = _Group(self, title, *args, **kwargs)
            self._action_groups.append(group)
            self._by_title[title] = group
        if also is not None:
            self._by_title[also] = self._by_title[title]
        return self._by_title[title]

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")

    def parse(self, argv: Iterable[str]) -> Settings:
        """Parse all of `argv`, check the bounds of numbers, and name an unknown flag with the nearest known one."""
        flags, unknown = self.parse_part(argv)
        if unknown:
            words = [word for word in unknown if word.startswith("--")] or unknown[:1]
            self.refuse(words)
        return flags

    def refuse(self, words: Iterable[str], others: Iterable[str] = ()) -> None:
        """Refuse words of a command line that are flags neither of this parser nor among `others`."""
        known = [*self._option_string_actions, *others]
        unknown = [name for name in dict.fromkeys(word.partition("=")[0] for word in words) if name not in known]
        if unknown:
            raise UserError("; ".join(_explain(name, known) for name in unknown))

    def parse_part(self, argv: Iterable[str]) -> tuple[Settings, list[str]]:
        """Return the flags that this parser knows, and the other words."""
        words = [in_our_words(word) for word in argv]
        flags, others = self.parse_known_args(words)
        for action in self._actions:
            value = getattr(flags, action.dest, None)
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path):
                    _check_path(f"--{action.dest} " if action.option_strings else "", path)
            check_bound(action.dest, value, getattr(action, "bound", None))
        given = [
            action.dest for action in self._actions if getattr(flags, action.dest, action.default) != action.default
        ]
        options = (self._option_string_actions.get(word.partition("=")[0]) for word in words)
        return Settings(given, [action.dest for action in options if action], **vars(flags)), others

    def explain(self, rows: Iterable[Setting]) -> None:
        """Give help and bounds to the flags that solo-learn's methods declare without."""
        known = {row.name: row for row in rows}
        for action in self._actions:
            if action.dest in known:
                action.help = action.help or known[action.dest].help
                action.bound = getattr(action, "bound", None) or known[action.dest].bound  # type: ignore[attr-defined]

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        """Parse a value; tell why one of our own kinds refuses it."""
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, ArgumentError):
                raise argparse.ArgumentError(action, str(error.__context__)) from None
            raise

    def change(self, dest: str, **settings: Any) -> None:
        """Replace the help, the choices or the default of a flag that means something else in a command."""
        action = next(action for action in self._actions if action.dest == dest)
        for name, value in settings.items():
            setattr(action, name, value)
        if "default" in settings:
            action.required = False

    def hide(self, *dests: str) -> None:
        """Leave flags of solo-learn that mean nothing in a command out of its help."""
        for dest in dests:
            self.change(dest, help=argparse.SUPPRESS)


def _check_path(flag: str, path: Path) -> None:
    """Refuse a path that no file can have, and what a command would wait for without end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in UNUSABLE_PATH:
            raise UserError(f"{flag}{told_path(error, path)}") from error
        return
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise UserError(f"{flag}{on_one_line(path)}: is a pipe or a socket; give a file or a folder")


def _explain(word: str, known: Iterable[str]) -> str:
    if word in _GONE:
        return f"{word} no longer exists in Lightning 2; leave it out"
    if word in _OTHER_RELEASES:
        return f"{word}: {_OTHER_RELEASES[word]}"
    return f"unknown flag or stray value {word}: {nearest(word, known) or 'see --help for the known ones'}"


def in_our_words(word: str) -> str:
    """Translate a flag of another release of solo-learn, maybe with `=value`; return all else as it is."""
    name, equals, value = word.partition("=")
    return SYNONYMS.get(name, name) + equals + value


def as_typed(message: str, argv: Iterable[str]) -> str:
    """Call the flags in a message as the command line did that it answers."""
    typed = {word.partition("=")[0] for word in argv}
    for name, ours in (SYNONYMS | _OTHERWISE).items():
        if name in typed and ours not in typed:
            message = re.sub(rf"{ours}\b", name, message)
    return message


_GONE = {
    f"--{name}"
    for name in (
        "amp_backend amp_level auto_lr_find auto_scale_batch_size auto_select_gpus checkpoint_callback"
        " flush_logs_every_n_steps ipus log_gpu_memory move_metrics_to_cpu plugins prepare_data_per_node"
        " process_position stochastic_weight_avg tpu_cores track_grad_norm truncated_bptt_steps weights_save_path"
        " weights_summary"
    ).split()
}
_SMALL_CROPS = "small crops are now given as in --crop_size 224 96 --num_crops_per_aug 2 6"
_OTHER_RELEASES = {  # flags of solo-learn before and after 1.0.2, and what to do instead
    "--multicrop": _SMALL_CROPS,
    "--num_crops": _SMALL_CROPS,
    "--num_small_crops": _SMALL_CROPS,
    "--scheduler_interval": "the learning rate changes after each epoch, as in solo-learn 1.0.2; leave it out",
    "--no_channel_last": "decides only how fast later releases of solo-learn are; leave it out",
    "--num_nodes_horovod": "horovod no longer exists in Lightning 2; use --num_nodes",
}
