"""``python -m lakemark``: the same as the command ``lakemark``."""

from lakemark.cli.cli import main

if __name__ == "__main__":
    main()
