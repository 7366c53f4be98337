"""Modules of a user's project: only what names one may import from the folder."""

from __future__ import annotations

import os
import sys


def allow() -> None:
  """Lets modules be imported from the current folder, after all that is installed.

  For commands that were told to import a project's code, and not before TensorFlow and
  this library are loaded: what is optional to them, and missing, is not looked for
  there. A folder of data may be somebody else's, and hold a `tensorflow.py`.
  """
  folder = os.getcwd()
  if folder not in sys.path:
    sys.path.append(folder)
