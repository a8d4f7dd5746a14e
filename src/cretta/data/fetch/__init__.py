"""Getting datasets: by download, or from archives and folders on disk; verified, and installed completely or not."""

from cretta.data.fetch.download import RetryPolicy, UnreachableError
from cretta.data.fetch.install import Progress, Report, get

__all__ = ["Progress", "Report", "RetryPolicy", "UnreachableError", "get"]
