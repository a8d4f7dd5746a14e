"""Build what is published: the source archive, a wheel with the custom CPU kernels and one without.

    python scripts/build_dist.py [--output dist]

The first wheel is for Linux on x86-64 with glibc 2.28 or newer, and installs without a compiler; pip prefers it where
it fits. auditwheel checks that it needs nothing else. The other wheel is for all other systems. Both are built from the
source archive, so that they show that it is complete. Needs the packages of the extra `dist`, and a C compiler.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PLATFORM = "manylinux_2_28_x86_64"


def run(*command: str | Path, **environment: str) -> None:
    """Run a command with the programs of this environment; show its output only if it fails."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": programs, **environment}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def build(root: Path, output: Path) -> list[Path]:
    """Build the three files into ``output``, where nothing else of this project may be, and return their paths."""
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("cretta-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", output, root)
        (archive,) = output.glob("cretta-*.tar.gz")
        with tarfile.open(archive) as content:
            content.extractall(folder / "source", filter="data")
        (source,) = (folder / "source").iterdir()
        wheel = (sys.executable, "-m", "build", "--no-isolation", "--wheel")
        run(*wheel, "--outdir", output, source, CRETTA_WHEEL="any")
        run(*wheel, "--outdir", folder, source, CRETTA_WHEEL="kernels")
        (with_kernels,) = folder.glob("cretta-*.whl")
        options = ("--only-plat", "--plat", PLATFORM, "--wheel-dir", output)
        run(sys.executable, "-m", "auditwheel", "repair", *options, with_kernels)
    return sorted(output.glob("cretta-*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder of the files (default: %(default)s)")
    for path in build(Path(__file__).parent.parent, parser.parse_args().output):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")


if __name__ == "__main__":
    main()
