"""Conversions as real processes that are killed again and again, and go on.

`python killed_processes.py SCENARIO FOLDER` imports the library once and forks a
process for every run, before TensorFlow has started a thread.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import sys

import conversion_data as data

sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, "store"))
import writing_processes as processes

from t2r_seq import convert, records, specs, store
from t2r_seq.episodes import writing
from t2r_seq.formats import records as records_lib
from t2r_seq.formats import store as stores

PATCHED = (
  (stores.StoreWriter, ("append", "commit", "finish")),
  (records_lib.RecordEpisodesWriter, ("append", "finish")),
)


STEP_SPEC = {
  "x": specs.ExtendedTensorSpec((2,), "float32", "x"),
  "id": specs.ExtendedTensorSpec((), "int64", "id"),
}


def kill_at(moment):
  """Kills this process at its n-th step: calls that change files, and ours."""
  counter = itertools.count()

  def patch(owner, name, is_written):
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args, **kwargs):
      if next(counter) == moment:
        if is_written and len(args[1]) > 1:
          part = memoryview(args[1])[: len(args[1]) // 2]
          original(args[0], part, *args[2:])
        os.kill(os.getpid(), signal.SIGKILL)
      return original(*args, **kwargs)

    setattr(owner, name, call)

  for name in processes.CALLS:
    patch(os, name, name in ("pwrite", "write"))
  for owner, names in PATCHED:
    for name in names:
      patch(owner, name, False)


def run(source, destination, options, kind=None, moment=None, spec=None):
  writing._COMMIT_EPISODES = 3
  if moment is not None:
    kill_at(moment)
  spec = data.ALL if spec is None and "tfrecord" in source else spec
  convert.convert(source, destination, spec, **options, format=kind)


def in_child(*args):
  return processes.in_child(run, *args)


def outputs(folder):
  """What a conversion left, but for what says when and where it ran."""
  found = data.file_hashes(folder)
  return {n: h for n, h in found.items() if not n.endswith("conversion.json")}


def kill(root, source, name, options, moments, kind=None):
  """A conversion is killed at some moment of each run; the last gives the same files.

  The moments are counted from where each run goes on, so they lie all over the work.
  """
  whole, killed = os.path.join(root, "whole"), os.path.join(root, "killed")
  for folder in (whole, killed):
    os.mkdir(folder)
  assert in_child(source, os.path.join(whole, name), options, kind) == 0
  destination = os.path.join(killed, name)
  for moment in moments:
    status = in_child(source, destination, options, kind, moment)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, moment
  assert in_child(source, destination, options, kind) == 0
  want, got = outputs(whole), outputs(killed)
  assert sorted(got) == sorted(want), sorted(set(got) ^ set(want))
  assert got == want, [name for name in want if got[name] != want[name]]
  print(f"killed {len(moments)} times")


def kill_everywhere(root, source, name, options, kind=None, every=1):
  """A conversion is killed at each (or every n-th) of its steps, and goes on."""
  whole = os.path.join(root, "whole")
  os.mkdir(whole)
  assert in_child(source, os.path.join(whole, name), options, kind) == 0
  want = outputs(whole)
  for moment in itertools.count(0, every):
    folder = os.path.join(root, str(moment))
    os.mkdir(folder)
    status = in_child(source, os.path.join(folder, name), options, kind, moment)
    if os.WIFEXITED(status):
      assert os.WEXITSTATUS(status) == 0
      break
    assert in_child(source, os.path.join(folder, name), options, kind) == 0, moment
    got = outputs(folder)
    assert got == want, (moment, set(got.items()) ^ set(want.items()))
    shutil.rmtree(folder)
  print(f"killed {moment // every} times")


def make(root, spec, count):
  path = os.path.join(root, "source")
  assert processes.in_child(data.make_store, path, count, spec, None) == 0
  return path


def store_to_store(root):
  kill_everywhere(root, make(root, data.NUMBERS, 4), "copy", dict(), "store", 3)


def store_to_records(root):
  options, source = dict(num_shards=4), make(root, data.ALL, 9)
  kill(root, source, "data.tfrecord.gz", options, (0, 3, 9, 12, 13))


def records_to_store(root):
  source, files = make(root, data.ALL, 9), os.path.join(root, "source.tfrecord")
  assert in_child(source, files, dict(num_shards=3)) == 0
  kill(root, files.replace(".tf", "-*.tf"), "copy", dict(), (2, 40, 60, 90))


def write_steps(path):
  """Writes the steps of 60 episodes, one a record."""
  with records.RecordWriter(path, STEP_SPEC) as writer:
    for index in range(60):
      for t in range(index % 5 + 1):
        writer.write({"x": [float(index), float(t)], "id": index // 2 * 2 + index})


def steps_killed_from_outside(root):
  """A conversion is killed whatever it is doing, after some episodes of each run."""
  files = os.path.join(root, "steps.tfrecord")
  assert processes.in_child(write_steps, files) == 0
  options, killed = dict(episode_key="id"), os.path.join(root, "killed", "copy")
  os.mkdir(os.path.dirname(killed))
  for wanted in (1, 7, 20):
    reader, end = os.pipe()
    child = os.fork()
    if not child:
      tell_episodes(end)
      run(files, killed, options, spec=STEP_SPEC)
    os.close(end)
    for _ in range(wanted):
      assert os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    os.close(reader)
  whole = os.path.join(root, "whole", "copy")
  os.mkdir(os.path.dirname(whole))
  for destination in (killed, whole):
    assert (
      processes.in_child(run, files, destination, options, None, None, STEP_SPEC) == 0
    )
  assert outputs(os.path.dirname(killed)) == outputs(os.path.dirname(whole))
  assert len(store.EpisodeStore(killed)) == 60
  print("killed 3 times")


def tell_episodes(end):
  """Writes a byte to a pipe with each episode that is appended."""
  original = stores.StoreWriter.append

  def append(self, values):
    original(self, values)
    os.write(end, b".")

  stores.StoreWriter.append = append


if __name__ == "__main__":
  globals()[sys.argv[1]](sys.argv[2])
