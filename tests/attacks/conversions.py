"""Conversions that are killed again and again, and go on to the same files."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import convert, specs, store
from t2r_seq.formats import lerobot_folder
from tests.attacks import stores

_SPEC = {
  "x": specs.ExtendedTensorSpec((3,), tf.float32, is_sequence=True),
  "number": specs.ExtendedTensorSpec((2,), tf.int64),
}
_TARGETS = ("copy", "data.tfrecord", "data.hdf5", "data.zarr", "data.lerobot")
_MAX_KILLS = 6


class ConversionAttack(stores.StoreAttack):
  """Kills a conversion at random calls until one run comes to its end."""

  def _attack(self, rng: random.Random) -> Iterator[str]:
    source, name = os.path.join(self._folder, "source"), rng.choice(_TARGETS)
    _write(source, rng)
    if name.endswith(".lerobot"):
      lerobot_folder.load_parquet()  # Once, and not in each of the processes.
    whole, killed = (os.path.join(self._folder, n) for n in ("whole", "killed"))
    for folder in (whole, killed):
      os.mkdir(folder)
    if _run(source, os.path.join(whole, name), None):
      yield f"{name}: a conversion failed"
      return
    for _ in range(_MAX_KILLS):
      moment = int(np.exp(rng.uniform(0, 6)))
      status = _run(source, os.path.join(killed, name), moment)
      if os.WIFEXITED(status):
        break
      self.counts["killed"] += 1
    if _run(source, os.path.join(killed, name), None):
      yield f"{name}: after kills a conversion failed"
      return
    want, got = _hashes(whole), _hashes(killed)
    if want != got:
      names = sorted(n for n in {*want, *got} if want.get(n) != got.get(n))
      yield f"{name}: other files than without kills: {names}"


def _write(folder: str, rng: random.Random) -> None:
  with store.EpisodeStore.create(folder, _SPEC) as writer:
    for number in range(rng.randrange(1, 12)):
      x = np.full((rng.randrange(1, 60), 3), number, np.float32)
      writer.append_episode({"x": x, "number": [number, -number]})


def _run(source: str, target: str, moment: int | None) -> int:
  """Converts in a process, which is killed at its n-th call; returns its status."""
  child = os.fork()
  if child:
    return os.waitpid(child, 0)[1]
  status = 1
  try:
    if moment is not None:
      _kill_at(moment)
    kind = "store" if os.path.basename(target) == "copy" else None
    options = dict(fps=10)
    convert.convert(source, target, format=kind, **options)
    status = 0
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stderr.flush()
    os._exit(status)


def _kill_at(moment: int) -> None:
  left = [moment]

  def killing(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
      left[0] -= 1
      if left[0] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
      return original(*args, **kwargs)

    return call

  for name in stores.CALLS:
    setattr(os, name, killing(getattr(os, name)))


def _hashes(folder: str) -> dict[str, str]:
  """By file, but for what says when and where the conversion ran."""
  found = {}
  for place, _, names in os.walk(folder):
    for name in names:
      if name == "lock" or name.endswith("conversion.json"):
        continue
      path = os.path.join(place, name)
      with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
      found[os.path.relpath(path, folder)] = digest
  return found
