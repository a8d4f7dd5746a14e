"""The report as one page that needs nothing but a browser."""

from cretta.report.page.page import write_page

__all__ = ["write_page"]
