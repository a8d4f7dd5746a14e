"""One adapting model per stream on Ray Serve, for example one per camera. Not run here.

    pip install 'cretta[serve]' 'ray[serve]'
    python examples/serve/ray_serve.py
    curl --data-binary @photo.png -H 'Content-Type: image/png' http://127.0.0.1:8000/north/predict

Each stream is an application of its own with exactly one replica, since the model in it learns: two replicas would
learn from different images and give different answers. Therefore

- no autoscaling: one stream is as fast as one process;
- when Ray moves or restarts a replica, it continues from the last snapshot, if FOLDER is on storage that all nodes
  see; what was learned after it is lost, unless Ray stopped the replica gracefully;
- routes below /state need the token in FOLDER/<stream>/token, or CRETTA_TOKEN;
- Ray's proxy is the client of all replicas: limits per client address do not apply, so the rate is not limited.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ray import serve

FOLDER = Path(os.environ.get("CRETTA_STATE", "streams")).resolve()
STREAMS = ("north", "south")


def application(stream: str) -> Any:
    """Return the Ray application of one stream."""

    def build() -> Any:
        from cretta.serve import app  # on the replica's node

        return app(folder=FOLDER / stream, token=os.environ.get("CRETTA_TOKEN"), local=False, rate=0)

    @serve.deployment(
        name=stream,
        num_replicas=1,
        max_ongoing_requests=256,
        graceful_shutdown_timeout_s=60,
        ray_actor_options={"num_cpus": 2},
    )
    @serve.ingress(build)
    class Stream:
        """The ASGI application of cretta, whose startup and shutdown Ray runs."""

    return Stream.bind()  # type: ignore[attr-defined]  # the decorator adds it


if __name__ == "__main__":
    for name in STREAMS:
        serve.run(application(name), name=name, route_prefix=f"/{name}")
    input("Enter stops.")
    serve.shutdown()
