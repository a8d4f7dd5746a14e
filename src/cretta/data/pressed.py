"""What is pressed with gzip, bzip2 or xz, as a stream that is checked."""

import bz2
import gzip
import io
import lzma
import tarfile
import zlib

FAULTS = (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged tar archive may raise."""


def unpressed(file: io.BufferedReader) -> io.BufferedIOBase:
    """What ``file`` holds, by its first bytes; the file itself where it is not pressed."""
    start = file.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(file)
    if start.startswith(b"BZh"):
        return bz2.open(file)
    return lzma.open(file) if start.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00\x80")) else file


def read_out(stream: io.BufferedIOBase) -> None:
    """Reads to the end, where the checksums are; tarfile neither gets that far nor looks at that of gzip."""
    while stream.read(1 << 18):
        pass
