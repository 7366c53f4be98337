"""Processes that are killed while they save a replay.

`python killed_processes.py SCENARIO FOLDER` imports the library once and forks a
process for every kill.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import time
import traceback

import numpy as np
import tensorflow as tf

from t2r_seq import replay, specs

Spec = specs.ExtendedTensorSpec
SPEC = {
  "obs": Spec((2, 3), tf.float32, time_offsets=(-1, 0)),
  "text": Spec((), tf.string, time_offsets=0),
}
# Whatever changes files goes through these.
CALLS = (
  *("mkdir", "open", "ftruncate", "pwrite", "write", "fsync"),
  *("replace", "rename", "unlink", "rmdir"),
)


def make(folder: str) -> replay.ReplayBuffer:
  return replay.ReplayBuffer(SPEC, 50, checkpoint_dir=folder, keep_checkpoints=2)


def write_episode(buffer: replay.ReplayBuffer, number: int) -> None:
  with buffer.writer() as writer:
    for step in range(5 + number % 4):
      obs = np.full(3, number, np.float32)
      writer.append({"obs": obs, "text": f"{number}/{step}"})


def check_newest(folder: str) -> int:
  """Restores the newest checkpoint; returns the number of its newest episode."""
  buffer = make(folder)
  buffer.restore(folder)
  numbers = set()
  for _ in range(5):
    batch = buffer.sample(64)
    texts = [int(text.split(b"/")[0]) for text in batch["text"].tolist()]
    np.testing.assert_array_equal(batch["obs"][:, 1, 0], texts)
    np.testing.assert_array_equal(batch["obs"][:, 0], batch["obs"][:, 1])
    numbers.update(texts)
  return max(numbers)


def kill_at(moment: int) -> None:
  """Kills this process at its n-th call that changes a file, in the middle of it."""
  counter = itertools.count()

  def patch(name: str) -> None:
    original = getattr(os, name)

    def call(*args, **kwargs):
      if next(counter) == moment:
        if name in ("pwrite", "write") and len(args[1]) > 1:
          part = memoryview(args[1])[: len(args[1]) // 2]
          original(args[0], part, *args[2:])
        os.kill(os.getpid(), signal.SIGKILL)
      return original(*args, **kwargs)

    setattr(os, name, call)

  for name in CALLS:
    patch(name)


def fork(function, *args) -> int:
  """Starts a process that runs a function; returns its id."""
  child = os.fork()
  if child:
    return child
  status = 1
  try:
    function(*args)
    status = 0
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stderr.flush()
    os._exit(status)


def kill_points(root: str) -> None:
  """Killed at each call in turn, a process leaves the former checkpoint or the new."""

  def run(folder: str, moment: int) -> None:
    buffer = make(folder)
    buffer.restore(folder)
    write_episode(buffer, 3)
    kill_at(moment)
    buffer.checkpoint()

  template = os.path.join(root, "template")
  buffer = make(template)
  for number in (1, 2):
    write_episode(buffer, number)
    buffer.checkpoint()
  found = []
  for moment in itertools.count(step=2):
    folder = os.path.join(root, str(moment))
    shutil.copytree(template, folder)
    _, status = os.waitpid(fork(run, folder, moment), 0)
    found.append(check_newest(folder))
    if moment % 10 == 0:  # What is left over is no checkpoint; the next one removes it.
      again = make(folder)
      again.restore(folder)
      write_episode(again, 7)
      again.checkpoint()
      assert check_newest(folder) == 7
      assert len(os.listdir(folder)) == 3, os.listdir(folder)  # And the lock.
    shutil.rmtree(folder)
    if os.WIFEXITED(status):
      assert os.WEXITSTATUS(status) == 0
      break
    assert os.WTERMSIG(status) == signal.SIGKILL
  # First the former, from some moment on the new one.
  assert found == sorted(found) and {*found} == {2, 3}, found
  print(f"killed at {moment} calls")


def kill_random(root: str) -> None:
  """Killed from outside, whenever, a process has lost at most what came last."""

  def run(folder: str, pipe: int) -> None:
    buffer = make(folder)
    number = 0
    if os.path.isdir(folder) and check_newest(folder):
      number = check_newest(folder)
      buffer.restore(folder)
    while True:
      number += 1
      write_episode(buffer, number)
      buffer.checkpoint()
      os.write(pipe, number.to_bytes(4, "little"))

  rng, folder, newest = random.Random(3), os.path.join(root, "checkpoints"), 0
  for _ in range(10):
    reader, end = os.pipe()
    child = fork(run, folder, end)
    for _ in range(rng.randrange(1, 4)):
      newest = int.from_bytes(os.read(reader, 4), "little")
    time.sleep(rng.random() * 0.02)  # Anywhere in the next one.
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(end)
    while told := os.read(reader, 4):
      newest = int.from_bytes(told, "little")
    os.close(reader)
    assert check_newest(folder) in (newest, newest + 1)
  print(f"10 kills, {newest} episodes")


if __name__ == "__main__":
  globals()[sys.argv[1]](sys.argv[2])
