"""TensorFlow, loaded without its start-up notes."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile


def load_tensorflow() -> None:
  """Loads TensorFlow; what its libraries say meanwhile is shown only if that fails.

  They write to the process's stderr before any of their settings is read, and would
  bury the one line that a command has to say. Does nothing once it is loaded.
  """
  if "tensorflow" in sys.modules:
    return
  sys.stderr.flush()
  original = os.dup(2)
  with tempfile.TemporaryFile() as notes:
    os.dup2(notes.fileno(), 2)
    try:
      importlib.import_module("tensorflow")
    except BaseException:
      notes.seek(0)
      os.write(original, notes.read())
      raise
    finally:
      os.dup2(original, 2)
      os.close(original)
