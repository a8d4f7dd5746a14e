"""Settings of the service, validated."""

from __future__ import annotations

import dataclasses

from cretta.options import OptionSet, choice, integer, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(OptionSet):
    """Limits and times of a service."""

    batch_size: int = integer(64, "images per batch, at most", at_least=1)
    wait_ms: float = number(20.0, "milliseconds that a batch waits to be filled", at_least=0)
    queue: int = integer(1024, "images that may wait", at_least=1)
    when_full: str = choice("429", "the status of a request that finds the queue full", among=("429", "503"))
    timeout: float = number(30.0, "seconds that a request may wait for its batch", above=0)
    max_body: int = integer(32 * 2**20, "bytes of a request's body, at most", at_least=1)
    max_pending: int = integer(256 * 2**20, "bytes of all bodies being read or decoded, at most", at_least=1)
    max_pixels: int = integer(20_000_000, "pixels of an image, at most", at_least=1)
    max_images: int = integer(256, "images of a request, at most", at_least=1)
    rate: float = number(1000.0, "requests per second and client address; 0: no limit", at_least=0)
    upload_seconds: float = number(30.0, "seconds that an upload may take", above=0)
    header_seconds: float = number(10.0, "seconds that the headers of a request may take", above=0)
    connections: int = integer(1024, "open connections, at most", at_least=1)
    pages: int = integer(16, "pages that may be open at once", at_least=0)
    recent: int = integer(24, "images that the page shows; 0 shows none", at_least=0)
    monitor_every: int = integer(5, "batches between estimates of the accuracy", at_least=1)
    monitor_after: int = integer(50, "images before the first estimate: fewer say little", at_least=1)
    window: int = integer(500, "images that these estimates are computed from", at_least=1)
    snapshot_every: int = integer(100, "steps between snapshots; 0 is only at the end", at_least=0)
    snapshots: int = integer(5, "snapshots that are stored", at_least=1)
    grace: float = number(0.0, "seconds from SIGTERM until connections are refused", at_least=0)
    drain: float = number(30.0, "seconds for the requests that were accepted before", above=0)
    stuck: float = number(120.0, "seconds without progress of the writer after which the health check fails", above=0)
