"""Install each wheel into an empty environment outside the repository, and use it there.

    python scripts/check_wheels.py dist [--torch 2.13.0] [--environment FOLDER]

What a stranger does first: the version, the demo, the list of the paper's items, predictions for a
folder, and the service. With --environment an environment that has its dependencies already is used again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

IMAGES = """
from PIL import Image
import cretta
test = cretta.data.embedded("test")
for number in range(12):
    Image.fromarray(test.images[number]).save(f"photos/{number}.png")
assert "site-packages" in cretta.__file__, cretta.__file__
"""


def outside() -> dict[str, str]:
    """Return the environment variables without the repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder without the repository in its path; stop with its output if it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=outside(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def serve(cretta: Path, folder: Path) -> None:
    """Start the service, send it an image, and stop it."""
    command = [str(cretta), "serve", "--port", "0", "--log", "text"]
    environment = {**outside(), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if address := re.search(r"http://[\d.:]+", line):
                image = (folder / "photos" / "0.png").read_bytes()
                request = urllib.request.Request(f"{address[0]}/predict", image, {"Content-Type": "image/png"})
                with urllib.request.urlopen(request, timeout=600) as answer:
                    print(f"            cretta serve: {answer.read(200).decode()}")
                process.terminate()
                process.stdout.read()
                return
    sys.exit(f"cretta serve ended without an address:\n{''.join(lines)}")


def check(wheel: Path, programs: Path, folder: Path) -> None:
    """Install a wheel, and use it in an empty folder."""
    python, cretta = programs / "python", programs / "cretta"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[serve]", folder=folder)
    run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel, folder=folder)
    (folder / "photos").mkdir()
    run(python, "-c", IMAGES, folder=folder)
    photos = ("photos", "--model", "wrn-40-2-cifar10", "--buffer", "embedded", "--output", "photos.csv")
    for arguments in (
        (python, "-m", "cretta", "--version"),
        (cretta, "info"),
        (cretta, "demo", "--images", "4"),
        (cretta, "reproduce", "--list"),
        (cretta, "predict", *photos),
    ):
        begun = time.monotonic()
        output = run(*arguments, folder=folder)
        title = " ".join(map(str, (Path(arguments[0]).name, *arguments[1:])))
        print(f"  {time.monotonic() - begun:6.1f} s  {title}: {len(output.splitlines())} lines")
    rows = (folder / "photos.csv").read_text().splitlines()
    if len(rows) != 13:
        sys.exit(f"photos.csv: expected a heading and 12 rows, got {len(rows)} lines")
    serve(cretta, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="folder of the wheels, as make dist writes it")
    parser.add_argument("--torch", help="version of torch to install first (default: what pip chooses)")
    parser.add_argument("--environment", type=Path, help="environment to use (default: a new, temporary one)")
    arguments = parser.parse_args()
    wheels = sorted(arguments.dist.resolve().glob("cretta-*.whl"))
    if not wheels:
        sys.exit(f"{arguments.dist}: expected wheels, got none; run make dist.")
    with tempfile.TemporaryDirectory() as name:
        environment = (arguments.environment or Path(name) / "environment").resolve()
        if not environment.is_dir():
            run(sys.executable, "-m", "venv", environment, folder=Path(name))
        programs = environment / "bin"
        if arguments.torch:
            run(programs / "python", "-m", "pip", "install", "--quiet", f"torch=={arguments.torch}", folder=Path(name))
        for number, wheel in enumerate(wheels):
            print(wheel.name, flush=True)
            folder = Path(name) / str(number)
            folder.mkdir()
            check(wheel, programs, folder)


if __name__ == "__main__":
    main()
