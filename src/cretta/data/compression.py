"""Streams compressed with gzip, bzip2 or xz, read to the end so that their checksums are verified."""

import bz2
import gzip
import io
import lzma
import tarfile
import zlib

ERRORS = (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged tar archive may raise."""


def decompress(file: io.BufferedReader) -> io.BufferedIOBase:
    """Return a stream of the decompressed content; the file itself if it is not compressed."""
    start = file.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(file)
    if start.startswith(b"BZh"):
        return bz2.open(file)
    return lzma.open(file) if start.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00\x80")) else file


def drain(stream: io.BufferedIOBase) -> None:
    """Read to the end, where the checksums are; tarfile does not read that far, nor check the one of gzip."""
    while stream.read(1 << 18):
        pass
