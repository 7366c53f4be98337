"""Writers as real processes that are killed, limited, and run at once.

`python writing_processes.py SCENARIO FOLDER` imports the library once and forks a
process for every writer, before TensorFlow has started a thread.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, store

Spec = specs.ExtendedTensorSpec
SPEC = {"x": Spec((3,), tf.float32, is_sequence=True), "note": Spec((), tf.string)}
# Whatever changes files goes through these.
CALLS = (
  *("mkdir", "open", "ftruncate", "pwrite", "write", "fsync"),
  *("replace", "rename", "unlink", "rmdir"),
)


def length(index):
  return index % 4 + 1


def make_episode(index):
  x = np.arange(length(index) * 3, dtype=np.float32).reshape(-1, 3) + 100 * index
  return {"x": x, "note": f"note {index}" * (index % 3)}


def check_episodes(folder, indices):
  """Checks that a store has exactly these episodes, whole."""
  opened = store.EpisodeStore(folder)
  assert len(opened) == len(indices), (len(opened), indices)
  for position, index in enumerate(indices):
    got, want = opened.episode(position), make_episode(index)
    np.testing.assert_array_equal(got["x"], want["x"])
    assert got["note"][()] == want["note"].encode()
  # After a kill there may be leavings, and nothing else.
  check_whole(folder)


def check_whole(folder):
  report = store.verify_store(folder)
  assert report.is_good, report


def in_child(function, *args):
  """Runs a function in a forked process; returns its wait status."""
  child = os.fork()
  if child:
    return os.waitpid(child, 0)[1]
  status = 1
  try:
    function(*args)
    status = 0
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stderr.flush()
    os._exit(status)


def kill_at(moment):
  """Kills this process at its n-th call that changes a file, in the middle of it."""
  counter = itertools.count()

  def patch(name):
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


def write_seven(folder, report):
  """Creates a store and writes seven episodes in both ways."""
  with store.EpisodeStore.create(folder, SPEC, commit_every=2) as writer:
    for index in range(5):
      writer.append_episode(make_episode(index))
      report(writer.num_committed)
    for index in (5, 6):
      episode = make_episode(index)
      for x in episode["x"]:
        writer.append_step({"x": x})
      writer.end_episode({"note": episode["note"]})
      report(writer.num_committed)
  report(7)


def kill_points(root):
  """A writer is killed at each of its calls in turn; nothing committed is lost."""

  def run(folder, moment, end):
    kill_at(moment)
    pipe = os.fdopen(end, "wb", buffering=0)
    write_seven(folder, lambda number: pipe.write(bytes([number])))

  for moment in itertools.count():
    folder = os.path.join(root, str(moment))
    reader, end = os.pipe()

    status = in_child(run, folder, moment, end)
    os.close(end)
    told = os.read(reader, 100)
    os.close(reader)
    committed = told[-1] if told else 0
    if not os.path.exists(os.path.join(folder, "store.json")):
      assert not committed
      store.EpisodeStore.create(folder, SPEC).close()
    count = len(store.EpisodeStore(folder))
    # The kill may fall between the commit and the moment it is told of.
    assert committed <= count <= min(committed + 2, 7), (moment, committed, count)
    check_episodes(folder, range(count))
    with store.EpisodeStore.append(folder, commit_every=4) as writer:
      assert writer.num_episodes == count
      for index in range(count, 9):
        writer.append_episode(make_episode(index))
    check_episodes(folder, range(9))
    shutil.rmtree(folder)
    if os.WIFEXITED(status):
      assert os.WEXITSTATUS(status) == 0 and count == 7
      print(f"killed at {moment} calls")
      return
    assert os.WTERMSIG(status) == signal.SIGKILL


def merge_points(root):
  """A merge is killed at each of its calls in turn; every episode stays, once."""
  template = os.path.join(root, "template")
  store.EpisodeStore.create(template, SPEC, segment="a").close()
  for segment, indices in {"a": (0, 1), "b": (2, 3, 4), "c": (5,)}.items():
    with store.EpisodeStore.append(template, segment) as writer:
      for index in indices:
        writer.append_episode(make_episode(index))

  def run(folder, moment):
    kill_at(moment)
    assert store.EpisodeStore.merge(folder) == 6

  for moment in itertools.count():
    folder = os.path.join(root, str(moment))
    shutil.copytree(template, folder)

    status = in_child(run, folder, moment)
    check_episodes(folder, range(6))
    if moment % 2:  # A writer of a segment that was merged away finishes the merge.
      with store.EpisodeStore.append(folder, "c") as writer:
        writer.append_episode(make_episode(6))
      check_episodes(folder, range(7))
    want = 6 + moment % 2
    assert store.EpisodeStore.merge(folder) == want
    check_episodes(folder, range(want))
    assert os.listdir(os.path.join(folder, "segments")) == ["a"]
    shutil.rmtree(folder)
    if os.WIFEXITED(status):
      assert os.WEXITSTATUS(status) == 0
      print(f"killed at {moment} calls")
      return


def many_writers(root):
  """Four processes write at once, while this one reads; a merge makes one segment."""
  folder = os.path.join(root, "store")
  store.EpisodeStore.create(folder, SPEC, segment="w0").close()
  children = []
  for worker in range(4):
    child = os.fork()
    if not child:
      with store.EpisodeStore.append(folder, f"w{worker}", commit_every=3) as writer:
        for index in range(20):
          writer.append_episode(make_episode(20 * worker + index))
      os._exit(0)
    children.append(child)
  opened = store.EpisodeStore(folder)
  while children:
    done, status = os.waitpid(-1, os.WNOHANG)
    if done:
      assert status == 0
      children.remove(done)
    before = len(opened)
    assert opened.refresh() >= 0 and len(opened) >= before
    for segment in opened.segments:
      first = 20 * int(segment.name[1:])
      last = segment.episode(len(segment) - 1)["x"]
      np.testing.assert_array_equal(last, make_episode(first + len(segment) - 1)["x"])
  check_episodes(folder, range(80))
  assert store.EpisodeStore.merge(folder) == 80
  check_episodes(folder, range(80))
  print("80 episodes")


def refused(kind, text, function):
  """Checks that a call raises an error of a kind that says something."""
  try:
    function()
  except kind as error:
    assert text in str(error), error
    return error
  raise AssertionError(f"no {kind}")


def other_writer(root):
  """A lock holds between processes, and dies with its holder."""
  folder = os.path.join(root, "store")
  with store.EpisodeStore.create(folder, SPEC) as writer:
    writer.append_episode(make_episode(0))
    text = f"expected no other writer, got process {os.getpid()} on "

    def second():
      refused(errors.StoreError, text, lambda: store.EpisodeStore.append(folder))
      refused(errors.StoreError, text, lambda: store.EpisodeStore.merge(folder))

    assert in_child(second) == 0
    reader, end = os.pipe()
    idle = os.fork()  # Has all of the writer's files open, and outlives it.
    if not idle:
      os.close(end)
      os.read(reader, 1)
      os._exit(0)
  with store.EpisodeStore.append(folder) as writer:
    writer.append_episode(make_episode(1))
  os.close(end)
  os.waitpid(idle, 0)
  check_episodes(folder, range(2))
  print("refused")


def full_disk(root):
  """Files may not grow: a clear error, and the committed episodes stay."""
  folder = os.path.join(root, "store")
  with store.EpisodeStore.create(folder, SPEC) as writer:
    for index in range(3):
      writer.append_episode(make_episode(index))

  def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    big = {"x": np.zeros((1 << 16, 3), np.float32), "note": "big"}
    writer = store.EpisodeStore.append(folder)
    text = "The 3 committed episodes of segment 'main' are safe"
    error = refused(OSError, text, lambda: writer.append_episode(big))
    assert error.errno == errno.EFBIG
    huge = {"x": np.zeros((1 << 20, 3), np.float32), "note": "huge"}
    refused(OSError, text, lambda: writer.append_episode(huge))
    assert writer.num_episodes == writer.num_committed == 3
    writer.append_episode(make_episode(3))  # What fits goes on.
    writer.close()

  assert in_child(limited) == 0
  check_episodes(folder, range(4))
  print("refused")


def read_only(root):
  """A folder that may not be written can be read, and says why it cannot be more."""
  del root
  # Under the system's own folder: its parents can be passed by every user.
  folder = tempfile.mkdtemp()
  try:
    path = os.path.join(folder, "store")
    with store.EpisodeStore.create(path, SPEC) as writer:
      writer.append_episode(make_episode(0))
    check_episodes(path, range(1))  # Imports what it needs, as long as it may.
    for place, _, names in os.walk(folder):
      os.chmod(place, 0o555)
      for name in names:
        os.chmod(os.path.join(place, name), 0o444)

    def unprivileged():
      if os.geteuid() == 0:
        os.seteuid(65534)  # Nothing is read-only to root.
      check_episodes(path, range(1))
      create, append = store.EpisodeStore.create, store.EpisodeStore.append
      new = os.path.join(folder, "new")
      refused(PermissionError, "folder that it may write", lambda: create(new, SPEC))
      refused(PermissionError, "folder that it may write", lambda: append(path))
      refused(PermissionError, "still there", lambda: store.EpisodeStore.merge(path))

    assert in_child(unprivileged) == 0
    check_episodes(path, range(1))
  finally:
    for place, _, _ in os.walk(folder):
      os.chmod(place, 0o755)
    shutil.rmtree(folder)
  print("refused")


if __name__ == "__main__":
  globals()[sys.argv[1]](sys.argv[2])
