"""One at a time."""

import contextlib
import time
from collections.abc import Iterator

from cretta.errors import StateError
from cretta.storage import lock

from .job import Job


@contextlib.contextmanager
def alone(job: Job) -> Iterator[None]:
    """Holds the dataset's lock, for which it waits if another process has it."""
    told = False
    while True:
        with contextlib.ExitStack() as stack:
            try:
                ours = stack.enter_context(lock(job.home / f".{job.wanted.name}.lock"))
            except OSError as error:
                raise StateError(f"{job.home} cannot be written to ({error}): give another folder as root.") from error
            if ours:
                yield
                return
        if not told:
            job.say(f"waiting for another process that is getting {job.wanted.name}")
            told = True
        time.sleep(0.1)
