"""Work in several processes, which end with this one however it ends."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from solo_hcsc.errors import UserError
from solo_hcsc.interrupts import deferred

Task = TypeVar("Task")
Done = TypeVar("Done")


def in_processes(work: Callable[[Task], Done], tasks: Iterable[Task], processes: int) -> Iterator[Done]:
    """Yield what `work` returns for each task, in order; in this process for 0.

    What it raises ends the work at once, and so does this process's end: tasks that are under way are given up.
    """
    if processes < 1:
        yield from map(work, tasks)
        return
    others = {*multiprocessing.active_children()}
    pool = ProcessPoolExecutor(processes, initializer=_end_with, initargs=(os.getpid(),))
    waiting = iter(tasks)
    try:
        with deferred():
            under_way: deque[Future[Done]] = deque(pool.submit(work, task) for task in islice(waiting, 2 * processes))
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(pool.submit(work, task) for task in islice(waiting, 1))
    except BrokenProcessPool as error:
        raise UserError("a process was killed, perhaps for want of memory; give the same command again") from error
    finally:
        for child in {*multiprocessing.active_children()} - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)


def _end_with(parent: int) -> None:
    """Leave Ctrl-C to the main process, and end when that is gone, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_for_end, args=(parent,), daemon=True).start()


def _wait_for_end(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
