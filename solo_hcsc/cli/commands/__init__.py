"""What you type: one file a command, each with `run(argv)`, read top to bottom: flags, checks, the run.

A command imports what needs torch inside `run` and below, after its flags are parsed, so that `--help` answers at once.
"""
