"""Recordings whose clocks do not rise, and outputs that are no regular files."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import stat
import threading

import numpy as np
import tensorflow as tf

from t2r_seq import convert, errors, specs, statistics, store
from tests.attacks.cases import Attack

_MESSAGE = (
  "std_msgs/Header header\nfloat64[] position\n"
  + "=" * 80
  + "\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
)
_PERIOD = 10**8  # ns


class ClockAttack(Attack):
  """Converts recordings with stamps that repeat, fall or are not set.

  Each message of the clock is one step, in the order of the file; or the conversion
  fails, and has written no episode.
  """

  kind = "clocks"

  def _attack(self, rng: random.Random) -> list[str]:
    folder = os.path.join(self._folder, "recording")
    os.makedirs(folder)
    try:
      return self._convert(rng, folder)
    finally:
      shutil.rmtree(folder)

  def _convert(self, rng: random.Random, folder: str) -> list[str]:
    import mcap_ros2.writer

    names = ("bag.mcap", "out", "layout.json")
    bag, out, layout = (os.path.join(folder, name) for name in names)
    count, stamps, stamp = rng.randrange(2, 12), [], rng.choice([0, 10**18])
    for _ in range(count):
      step = rng.choice([1, 1, 1, 1, 1, 0, -1]) if rng.random() < 0.5 else 1
      stamp = max(0, stamp + step * _PERIOD)
      stamps.append(stamp)
    if rng.random() < 0.1:
      stamps = [0] * count
    time = rng.choice(["header", "log"])
    with open(bag, "wb") as file, mcap_ros2.writer.Writer(file) as writer:
      schema = writer.register_msgdef("lab/msg/Joint", _MESSAGE)
      for i, stamp in enumerate(stamps):
        header = {"stamp": {"sec": stamp // 10**9, "nanosec": stamp % 10**9}}
        message = {"header": {**header, "frame_id": ""}, "position": [float(i)]}
        log = stamp if time == "log" else i * _PERIOD
        writer.write_message("/joints", schema, message, log)
    with open(layout, "w") as file:
      json.dump(
        {"clock": "/joints", "paths": {"x": "/joints:position"}, "time": time}, file
      )
    try:
      convert.convert(bag, out, layout=layout)
    except errors.SpecError as error:
      self.counts["refused"] += 1
      if all(a < b for a, b in itertools.pairwise(stamps)):
        return [f"{stamps} by {time} were refused: {error}"]
      return [f"{stamps} by {time} were written"] if self._has_episodes(out) else []
    got = store.EpisodeStore(out).episode(0)["x"].ravel().tolist()
    self.counts["converted"] += 1
    falls = any(a > b for a, b in itertools.pairwise(stamps))
    if falls or got != [float(i) for i in range(count)]:
      return [f"{stamps} by {time} gave {got}"]
    return []

  def _has_episodes(self, path: str) -> bool:
    try:
      return len(store.EpisodeStore(path)) > 0
    except errors.SpecError:
      return False


class DeviceAttack(Attack):
  """Writes outputs to links, FIFOs and devices, which stay and get the bytes."""

  kind = "devices"

  def _attack(self, rng: random.Random) -> list[str]:
    folder = os.path.join(self._folder, "outputs")
    os.makedirs(folder)
    try:
      return self._write(rng, folder)
    finally:
      shutil.rmtree(folder)

  def _write(self, rng: random.Random, folder: str) -> list[str]:
    data, found = os.path.join(folder, "store"), os.path.join(folder, "found")
    spec = {"x": specs.ExtendedTensorSpec((), tf.float32, is_sequence=True)}
    with store.EpisodeStore.create(data, spec) as writer:
      writer.append_episode({"x": np.float32([rng.random(), rng.random()])})
    statistics.compute_statistics(data, found)
    made, path = statistics.load_statistics(found), os.path.join(folder, "out")
    kind = rng.choice(
      ["file", "link", "dangling", "fifo", "device", "folder", "socket"]
    )
    target, received = os.path.join(folder, "target"), []
    reader = listener = None
    if kind in ("file", "link"):
      shutil.copy(found, path if kind == "file" else target)
    if kind in ("link", "dangling"):
      os.symlink(target, path)
    if kind == "fifo":
      os.mkfifo(path)
      reader = threading.Thread(target=lambda: received.append(_read(path)))
      reader.start()
    if kind == "device":
      try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
      except PermissionError:
        self.counts["no devices here"] += 1
        return []
    if kind == "folder":
      os.mkdir(path)
    if kind == "socket":
      listener = socket.socket(socket.AF_UNIX)
      listener.bind(path)
    before = stat.S_IFMT(os.lstat(path).st_mode)
    is_refused = False
    try:
      made.save(path)
    except OSError:
      is_refused = True
    if reader is not None:
      reader.join()
    if listener is not None:
      listener.close()
    self.counts["refused" if is_refused else "written"] += 1
    wrong = []
    if stat.S_IFMT(os.lstat(path).st_mode) != before:
      wrong.append(f"{kind}: it was replaced")
    if is_refused != (kind in ("folder", "socket")):
      wrong.append(f"{kind}: refused is {is_refused}")
    if kind in ("file", "link", "dangling"):
      received.append(_read(path))
    if received and received != [_read(found)]:
      wrong.append(f"{kind}: got {received[0][:80]!r}")
    return wrong


def _read(path: str) -> str:
  with open(path) as file:
    return file.read()
