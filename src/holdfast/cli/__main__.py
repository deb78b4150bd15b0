"""Entry point of `python -m holdfast.cli`, which equals `holdfast`."""

import sys

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
