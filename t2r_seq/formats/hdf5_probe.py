"""Walks through HDF5 files in a process that may crash.

    python -I hdf5_probe.py PATHS_OF_IMPORTS < FILES

libhdf5 crashes on some damaged files, and never returns from others. So a subprocess
reads all names, attributes and chunk indices with this program before the caller opens
a file. It reads a JSON list of files from stdin, and prints a line of JSON for each:
places in the file, and descriptions of the links and external data there.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from typing import Any

# CPU time for one object: a list of millions of chunks takes some seconds.
MAX_SECONDS = 30
# Start of the description of a link to another place in the same file.
WITHIN = "a link within the file"
# Every object takes some bytes of a file; a damaged group may contain itself.
_MIN_OBJECT_BYTES = 16


def main(import_paths: str) -> None:
  """Prints the links and the external data of files."""
  sys.path[:] = json.loads(import_paths)
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  for path in json.loads(sys.stdin.read()):
    print(json.dumps(find_foreign(path)), flush=True)


def find_foreign(path: str) -> list[tuple[str, str]]:
  """Returns links and external data: (place in the file, description) of each."""
  import h5py

  _, hard = resource.getrlimit(resource.RLIMIT_CPU)

  def extend_cpu_limit() -> None:
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, hard))

  foreign: list[tuple[str, str]] = []
  num_left = os.path.getsize(path) // _MIN_OBJECT_BYTES

  def visit(name: str, item: Any) -> None:
    nonlocal num_left
    num_left -= 1
    if num_left < 0:
      raise SystemExit("it has more objects than room for them")
    extend_cpu_limit()
    with contextlib.suppress(Exception):  # The caller reports damage.
      for key in item.attrs:
        item.attrs.get(key)
    with contextlib.suppress(Exception):
      if isinstance(item, h5py.Dataset):
        if item.external:
          foreign.append((item.name, "data in other files"))
        elif item.is_virtual:
          foreign.append((item.name, "a virtual dataset"))
        elif item.chunks:
          item.id.get_num_chunks()
        return
      for key in item:
        link = item.get(key, getlink=True)
        place = f"{item.name.rstrip('/')}/{key}"
        if isinstance(link, h5py.ExternalLink):
          foreign.append((place, f"a link to {link.filename}"))
        elif isinstance(link, h5py.SoftLink):
          foreign.append((place, f"{WITHIN} to {link.path}"))

  extend_cpu_limit()
  unreadable = (OSError, RuntimeError, KeyError)
  with contextlib.suppress(*unreadable), h5py.File(path, "r") as file:
    visit("/", file)
    file.visititems(visit)
  return foreign


if __name__ == "__main__":
  main(*sys.argv[1:])
