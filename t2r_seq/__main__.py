"""`python -m t2r_seq`: the command line without the installed command."""

from __future__ import annotations

import sys

from t2r_seq.cli import main

if __name__ == "__main__":
  sys.exit(main())
