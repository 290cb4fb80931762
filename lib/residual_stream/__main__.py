"""``python -m residual_stream``: see :mod:`residual_stream.cli`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
