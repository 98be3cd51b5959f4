"""``python -m whimbrel`` is the program ``whimbrel``."""

from whimbrel.cli.main import entry

if __name__ == "__main__":
    entry()
