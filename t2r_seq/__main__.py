"""`python -m t2r_seq`: the command line without the installed command."""

from __future__ import annotations

import os
import sys

# `-m` puts the current folder first on the path of imports, where a data set may have
# brought a `json.py`. Commands that import a project's code add the folder at the end.
if sys.path[:1] in ([""], [os.getcwd()]):
  del sys.path[0]

from t2r_seq.cli import main

if __name__ == "__main__":
  sys.exit(main())
