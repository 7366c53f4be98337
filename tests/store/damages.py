"""Damage to the files of a store."""

from __future__ import annotations

import os


def in_main(path, name):
  return os.path.join(path, "segments", "main", name)


def flip(name, position=0):
  with open(name, "r+b") as file:
    file.seek(position)
    byte = file.read(1)
    file.seek(position)
    file.write(bytes([byte[0] ^ 1]))
