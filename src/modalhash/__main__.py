"""``python -m modalhash``: the command line, for where the script is not on the path."""

from modalhash.cli import main

if __name__ == "__main__":
    main()
