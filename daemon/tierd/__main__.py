"""`python -m tierd` is `tierd`."""

from __future__ import annotations

import sys

from tierd.cli import main

if __name__ == "__main__":
    sys.exit(main())
