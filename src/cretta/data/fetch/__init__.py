"""Getting datasets: by download, or from archives and folders on disk; verified, and installed completely or not."""

from cretta.data.fetch.download import Progress, RetryPolicy, UnreachableError
from cretta.data.fetch.install import Report, get

__all__ = ["Progress", "Report", "RetryPolicy", "UnreachableError", "get"]
