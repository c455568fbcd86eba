"""Commands: `lakemark.cli:main` is the entry."""

from lakemark.cli.cli import main

__all__ = ["main"]
