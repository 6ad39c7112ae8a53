"""Runs a checkout's script once for each line of stdin, in one process, and prints how each ended."""

import io
import runpy
import shlex
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

from hydra.core.global_hydra import GlobalHydra

script = sys.argv[1]
for line in sys.stdin.read().splitlines():
    sys.argv = [script, *shlex.split(line)]
    GlobalHydra.instance().clear()
    code: object = 0
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stopped:
            code = stopped.code
        except Exception:
            traceback.print_exc()
            code = "traceback"
    refused = [text for text in errors.getvalue().splitlines() if text.startswith("error: ")]
    print("RESULT", code, "|".join(refused) or errors.getvalue()[-2000:].replace("\n", "\\n"), flush=True)
