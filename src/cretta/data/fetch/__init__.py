"""Getting datasets: by download, or from archives and folders on disk; verified, and installed completely or not."""

from cretta.data.fetch.download import Progress, UnreachableError
from cretta.data.fetch.install import Report, get

__all__ = ["Progress", "Report", "UnreachableError", "get"]
