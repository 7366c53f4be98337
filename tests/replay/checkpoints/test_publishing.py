"""Checkpoints appear whole or not at all, whatever fails and whenever."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, files, replay, specs

SPEC = {"x": specs.ExtendedTensorSpec((), tf.int64, time_offsets=0)}


def save(folder, number: int, keep: int = 2) -> str:
  """Saves a buffer of as many steps, each of which is the number."""
  buffer = replay.ReplayBuffer(
    SPEC, 10, checkpoint_dir=folder, keep_checkpoints=keep, seed=0
  )
  with buffer.writer() as writer:
    for _ in range(number):
      writer.append({"x": number})
  return buffer.checkpoint()


def number_in(path) -> int:
  """Reads it, from the state and from the episodes."""
  buffer = replay.ReplayBuffer(SPEC, 10)
  buffer.restore(path)
  (number,) = np.unique(buffer.sample(50)["x"]).tolist()
  assert buffer.counters.num_steps == number
  return number


def names_in(folder) -> list[str]:
  return sorted(name for name in os.listdir(folder) if name != ".lock")


@pytest.mark.parametrize("keep", [1, 3])
def test_keeps_the_newest(keep, tmp_path):
  folder = str(tmp_path / "new" / "folder")
  for number in range(1, 6):
    path = save(folder, number, keep)
    assert path == f"{folder}/checkpoint-{number:08d}"
    assert number_in(folder) == number_in(path) == number
    want = [f"checkpoint-{n:08d}" for n in range(max(1, number - keep + 1), number + 1)]
    assert names_in(folder) == want


# Whatever changes files goes through these.
CALLS = ("mkdir", "fsync", "replace", "rename", "rmdir", "unlink")


@pytest.mark.parametrize("name", CALLS)
def test_disk_fails_at_each_call(name, tmp_path, monkeypatch):
  """The newest checkpoint that can be found is the former one or the new one, whole."""
  original, template = getattr(os, name), tmp_path / "template"
  for number in (1, 2):
    save(template, number)
  for moment in range(100):
    folder = tmp_path / str(moment)
    shutil.copytree(template, folder)
    calls = iter(range(moment))

    def fail(*args, calls=calls, **kwargs):
      if next(calls, None) is not None:
        return original(*args, **kwargs)
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failed = False
    with monkeypatch.context() as patched:
      patched.setattr(os, name, fail)
      try:
        save(folder, 3)
      except OSError as error:
        failed = True
        assert error.errno == errno.ENOSPC
        want = "No space left on device. The former checkpoint, checkpoint-0000000"
        assert want in str(error)
    assert number_in(folder) in ((2, 3) if failed else (3,))
    assert number_in(save(folder, 4)) == 4
    assert len(names_in(folder)) == 2
    if not failed:
      assert moment
      return
  raise AssertionError("all of them failed")


def test_no_room_for_the_first(tmp_path, monkeypatch):
  def fail(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, "fsync", fail)
  want = (
    rf"checkpoint: {tmp_path}: expected a folder that it may write to, with room on "
    r"the disk, got: No space left on device\. There is no former checkpoint\. Make"
  )
  with pytest.raises(OSError, match=want):
    save(tmp_path, 1)
  assert not names_in(tmp_path)


def test_somebody_else_writes(tmp_path):
  lock = files.FileLock(str(tmp_path / ".lock"), RuntimeError)
  want = rf"no other process to write .* got process {os.getpid()} on .*another"
  with pytest.raises(errors.ReplayError, match=want):
    save(tmp_path, 1)
  lock.release()
  assert number_in(save(tmp_path, 1)) == 1


def test_other_files_stay(tmp_path):
  for name in ("notes.txt", "checkpoint-x", ".checkpoint-00000007.tmp.txt"):
    (tmp_path / name).write_text("mine")
  save(tmp_path, 1, 1)
  save(tmp_path, 2, 1)
  assert len(names_in(tmp_path)) == 4


FOREIGN = {
  "nothing": (lambda path: None, "got nothing"),
  "a file": (lambda path: path.write_text("x"), "got a file"),
  "another folder": (lambda path: (path / "saved_model").mkdir(parents=True), "saved_"),
  "an unfinished one": (
    lambda path: (path / ".checkpoint-00000001.x.tmp").mkdir(parents=True),
    r"got \[\.checkpoint-00000001\.x\.tmp\]\. An unfinished one does not count",
  ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_restore_rejects_other_folders(name, tmp_path):
  make, want = FOREIGN[name]
  make(tmp_path / "x")
  with pytest.raises(errors.ReplayError, match=f"expected a checkpoint.*{want}"):
    replay.ReplayBuffer(SPEC, 10).restore(tmp_path / "x")
