"""A help, or a word about a misspelt command, needs none of the heavy packages."""

import os
import subprocess
import sys

import pytest

from solo_hcsc.__main__ import COMMANDS, known, main

HEAVY = ("torch", "pytorch_lightning", "solo")
# Prints at the end which of them a command line has imported, after all that the command itself has to say.
CODE = f"""
import atexit, sys
atexit.register(lambda: print("imported:", *(name for name in {HEAVY} if name in sys.modules)))
from solo_hcsc.__main__ import main
main()
"""


def started(*words: str, expect: int = 0) -> tuple[str, str]:
    """What a command line prints in a process of its own, on stdout and stderr, having imported nothing heavy."""
    out = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert out.returncode == expect, out.stderr
    *lines, imported = out.stdout.splitlines()
    assert imported.strip() == "imported:"
    return "\n".join(lines), out.stderr


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_overview_names_every_command_with_its_line(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    out, err = started(*words)
    assert out.startswith("usage: solo-hcsc COMMAND [flags]")
    for commands in COMMANDS.values():
        for name, line in commands.items():
            assert f"  {name:<12}{line}" in out.splitlines()
    assert err == ""


@pytest.mark.parametrize("command", known())
def test_help_of_a_command(command):
    out, err = started(command, "--help")
    assert out.startswith(f"usage: solo-hcsc {command} ")
    assert err == ""


def test_version():
    out, _ = started("--version")
    assert out.startswith("solo_hcsc ")


@pytest.mark.parametrize(
    ("word", "hint"), [("pretrian", "did you mean pretrain?"), ("xyzzy", "`solo-hcsc --help` lists them")]
)
def test_misspelt_command_is_refused_with_the_nearest(word, hint):
    out, err = started(word, expect=2)
    assert out == ""
    assert err == f"error: {word}: no such command; {hint}\n"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["pretrain", "--help"]])
def test_output_whose_reader_has_gone_ends_without_a_word(words, buffered):
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "solo_hcsc", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() in (0, 141)  # argparse passes over what it could not print


def test_broken_pipe_that_is_not_the_output_is_told(monkeypatch):
    def lose_a_worker(words):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("solo_hcsc.__main__.run", lose_a_worker)
    with pytest.raises(BrokenPipeError):
        main()


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [["--help"], ["pretrain", "--help"]])
def test_help_follows_the_terminals_width(columns, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out, _ = started(*words)
    lines = [line for line in out.splitlines() if not line.startswith("usage: ")]
    assert columns - 20 < max(map(len, lines)) <= columns


def test_missing_and_unknown_method_are_refused():
    unknown = "--method hscs: unknown; did you mean hcsc?"
    for flags, said in (([], "--method is missing"), (["--method", "hscs"], unknown)):
        _, err = started("pretrain", "--dataset", "digits", *flags, expect=2)
        assert err.startswith(f"error: {said}")
        assert len(err.splitlines()) == 1
