"""`cretta serve`: predictions over HTTP, by a model that adapts to the images it gets."""

from __future__ import annotations

from pathlib import Path

import typer

from cretta.cli import options as shared
from cretta.cli import parse
from cretta.cli.app import app
from cretta.cli.console import say
from cretta.cli.options import ADAPTATION, MODEL, flag, option
from cretta.errors import OptionError, StateError
from cretta.options import known

SERVER, LIMITS, STATE = "Server", "Limits", "State"
LOGS = ("auto", "json", "text")
SHORTEST = 16
"""Characters of a token."""


@app.command()
def serve(
    ctx: typer.Context,
    model: str = option(
        "wrn-40-2-cifar10",
        "A shipped name; timm:NAME; a checkpoint, with --architecture and --classes; module:callable.",
        MODEL,
    ),
    method: str = shared.METHOD,
    buffer: str | None = option(
        None,
        "Source images for cretta and eata: a file of `cretta buffer build`, or embedded.",
        ADAPTATION,
        shown="embedded, with wrn-40-2-cifar10",
    ),
    preset: str | None = shared.PRESET,
    option: list[str] | None = shared.OPTION,
    statistics: str | None = shared.statistics("auto, which fits the size of the batch"),
    guard: str | None = shared.GUARD,
    batch_size: int = option(64, "Images per batch, at most.", ADAPTATION, min=1),
    wait_ms: float = option(20.0, "Milliseconds that a batch waits to be filled.", ADAPTATION, min=0),
    host: str = option("127.0.0.1", "Address to listen on. Another than loopback needs a token.", SERVER),
    port: int = option(8000, "Port to listen on; 0 chooses a free one.", SERVER, min=0),
    require_token: bool = flag(
        "--require-token", "Need the token on loopback too, for all routes: behind a reverse proxy.", SERVER
    ),
    token_file: Path | None = option(
        None, "A file with the bearer token of this service.", SERVER, shown="$CRETTA_TOKEN, else FOLDER/token"
    ),
    name: str = option("cretta", "Name of the model in the Open Inference Protocol.", SERVER),
    log: str = option("auto", "json or text (to stderr); auto is text on a terminal.", SERVER),
    folder: Path = option(Path("cretta-serve"), "Folder of the snapshots, for one process at a time.", STATE),
    snapshot_every: int = option(100, "Updates between snapshots; 0 saves only at the end.", STATE, min=0),
    snapshots: int = option(5, "Snapshots that are stored.", STATE, min=1),
    queue: int = option(1024, "Images that may wait; others get status 429.", LIMITS, min=1),
    when_full: str = option("429", "Status when the queue is full: 429 or 503.", LIMITS),
    timeout: float = option(30.0, "Seconds that a request may wait for its batch.", LIMITS),
    max_body: int = option(32 * 2**20, "Bytes of a request, at most.", LIMITS, min=1),
    max_pixels: int = option(20_000_000, "Pixels of an image, at most.", LIMITS, min=1),
    rate: float = option(1000.0, "Requests per second and client address; 0: no limit.", LIMITS, min=0),
    grace: float = option(0.0, "Seconds from SIGTERM until connections are refused.", LIMITS, min=0),
    drain: float = option(30.0, "Seconds to answer what was accepted before.", LIMITS),
    recent: int = option(24, "Images that the page shows; 0 shows none.", SERVER, min=0),
    size: str | None = shared.size("the model's, or the buffer's"),
    class_names: Path | None = shared.CLASS_NAMES,
    architecture: str | None = shared.ARCHITECTURE,
    classes: int | None = shared.CLASSES,
    mean: str | None = shared.MEAN,
    std: str | None = shared.STD,
    device: str = shared.DEVICE,
    seed: int = shared.SEED,
) -> None:
    r"""Serve predictions over HTTP by a model that adapts to the images it gets; with a page to watch at /.

    Answers do not wait for the model to learn from them. Snapshots of the adapted model are saved while it runs and
    when it ends (Ctrl-C, SIGTERM); started again, it continues from the last one. A guard detects collapse. Needs
    `pip install 'cretta[serve]'`. Routes, limits, metrics and deployment: docs/serving.md.

        # the model and the source images of cretta; the page is at
        # 127.0.0.1:8000/
        cretta serve
        curl --data-binary @photo.png -H 'Content-Type: image/png' \
            127.0.0.1:8000/predict
        curl -F images=@a.jpg -F images=@b.jpg \
            '127.0.0.1:8000/predict?adapt=false'

        # undo what was learned
        curl -X POST -H "Authorization: Bearer $(cat cretta-serve/token)" \
            127.0.0.1:8000/state/rollback

        # your own network, for other machines too
        cretta serve --model net:make --buffer source.safetensors --size 224 \
            --host 0.0.0.0 --token-file token
    """
    import os
    import sys

    try:
        import uvicorn  # noqa: F401  # reported before the model is loaded

        from cretta import serve as service
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cretta"):
            raise
        raise StateError(f"the service needs {error.name}: pip install 'cretta[serve]'.") from None
    from cretta.data.folder import class_names as read_class_names
    from cretta.serve.access import is_loopback
    from cretta.serve.logs import log_to_stderr
    from cretta.serve.server import bind
    from cretta.serve.server import serve as run
    from cretta.serve.shipped import BUFFER, service_options
    from cretta.serve.shipped import MODEL as SHIPPED

    known("--log", log, LOGS)
    token = _token(token_file)
    local = is_loopback(host) and not require_token
    if not is_loopback(host) and token is None:
        raise OptionError(
            f"--host {host}: other machines can reach this address, so a token is required: give --token-file FILE or "
            "set CRETTA_TOKEN."
        )
    action = parse.guard(guard)
    chosen = parse.options(method, option or [], statistics=statistics, guard=action, seed=seed or None)
    options = {"seed": seed, **service_options(method, chosen, preset, guarded=guard != "off")}
    opened = parse.model(model, architecture, classes, mean, std, device)
    # The embedded images are of CIFAR-10: a model of other classes needs its own.
    adapter = parse.adapter(opened.net, method, buffer or (BUFFER if model == SHIPPED else None), preset, options)
    made = service.app(
        adapter,
        folder=folder,
        token=token,
        local=local,
        name=name,
        labels=opened.classes if class_names is None else read_class_names(class_names),
        size=parse.size(size) or ((opened.side, opened.side) if opened.side else None),
        **{limit: value for limit, value in ctx.params.items() if limit in service.Settings.names()},
    )
    log_to_stderr(log if log != "auto" else "text" if os.isatty(2) else "json")
    listener = bind(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"

    def announce() -> None:
        say(f"Serving {model} with {method} at {address} (Ctrl-C stops)")
        if token is None:
            what = "snapshot, rollback and reset" if local else "all routes"
            say(f"Token of {what}: {folder / 'token'}")

    if not run(made, listener, announce):
        if made.state.service.writer.running:  # PyTorch would abort the process when the interpreter ends
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(1)
        raise typer.Exit(1)


def _token(file: Path | None) -> str | None:
    import os

    try:
        token = os.environ.get("CRETTA_TOKEN") if file is None else file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--token-file {file}: {error}; give a text file with the token.") from None
    if token is not None and len(token) < SHORTEST:
        raise OptionError(f"expected a token of at least {SHORTEST} characters, got {len(token)}; choose a longer one.")
    return token
