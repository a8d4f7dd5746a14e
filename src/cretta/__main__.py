"""Run the command line by ``python -m cretta``."""

from cretta.cli import app

if __name__ == "__main__":
    app()
