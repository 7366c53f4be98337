"""Checkpoints appear whole or not at all, whatever fails and whenever."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from t2r_seq import errors
from t2r_seq.replay import checkpoints


def is_whole(path):
  return True


def write_number(number: int):
  """Returns what writes a checkpoint of two files that hold a number."""

  def write(folder: str) -> None:
    for name in ("a", "b"):
      with open(os.path.join(folder, name), "w") as file:
        file.write(str(number))
    checkpoints.write_state(folder, {"number": number}, {"x": np.arange(number)})

  return write


def number_in(path: str) -> int:
  """Reads it, from all places, which have to agree."""
  values, arrays = checkpoints.read_state(path)
  numbers = {values["number"], len(arrays["x"])}
  for name in ("a", "b"):
    with open(os.path.join(path, name)) as file:
      numbers.add(int(file.read()))
  (number,) = numbers
  return number


@pytest.mark.parametrize("keep", [1, 3])
def test_keeps_the_newest(keep, tmp_path):
  folder = str(tmp_path / "new" / "folder")
  for number in range(1, 6):
    path = checkpoints.publish(folder, write_number(number), keep, is_whole)
    assert path == f"{folder}/checkpoint-{number:08d}"
    assert checkpoints.find(folder)[0] == checkpoints.find(path)[0] == path
    assert number_in(path) == number
    want = [f"checkpoint-{n:08d}" for n in range(max(1, number - keep + 1), number + 1)]
    assert sorted(os.listdir(folder)) == want


# Whatever changes files goes through these.
CALLS = ("mkdir", "fsync", "rename", "rmdir", "unlink")


@pytest.mark.parametrize("name", CALLS)
def test_the_disk_fails_at_each_call(name, tmp_path, monkeypatch):
  """The newest checkpoint that can be found is the former one or the new one, whole."""
  original = getattr(os, name)
  for moment in range(100):
    folder = str(tmp_path / str(moment))
    for number in (1, 2):
      checkpoints.publish(folder, write_number(number), 2, is_whole)
    calls = iter(range(moment))

    def fail(*args, calls=calls, **kwargs):
      if next(calls, None) is not None:
        return original(*args, **kwargs)
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failed = False
    with monkeypatch.context() as patched:
      patched.setattr(os, name, fail)
      try:
        checkpoints.publish(folder, write_number(3), 2, is_whole)
      except OSError as error:
        failed = True
        assert error.errno == errno.ENOSPC
        want = "No space left on device. The former checkpoint, checkpoint-0000000"
        assert want in str(error)
    assert number_in(checkpoints.find(folder)[0]) in ((2, 3) if failed else (3,))
    path = checkpoints.publish(folder, write_number(4), 2, is_whole)
    assert number_in(path) == 4
    assert len(os.listdir(folder)) == 2
    if not failed:
      assert moment
      return
  raise AssertionError("all of them failed")


def test_the_writing_fails(tmp_path):
  folder = str(tmp_path)

  def fail(path):
    write_number(1)(path)
    raise ValueError("no")

  with pytest.raises(ValueError, match="no"):
    checkpoints.publish(folder, fail, 1, is_whole)
  assert not os.listdir(folder)


def test_no_room_for_the_first(tmp_path):
  def fail(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  want = (
    rf"checkpoint: {tmp_path}: expected a folder that it may write to, with room on "
    r"the disk, got: No space left on device\. There is no former checkpoint\. Make"
  )
  with pytest.raises(OSError, match=want):
    checkpoints.publish(str(tmp_path), fail, 1, is_whole)


def test_somebody_else_writes(tmp_path):
  folder = str(tmp_path)

  def write(path):
    with pytest.raises(errors.ReplayError, match="expected nobody else to write"):
      checkpoints.publish(folder, write_number(2), 1, is_whole)
    write_number(1)(path)

  assert number_in(checkpoints.publish(folder, write, 1, is_whole)) == 1


def test_other_files_stay(tmp_path):
  for name in ("notes.txt", "checkpoint-x", ".checkpoint-00000007.tmp.txt"):
    (tmp_path / name).write_text("mine")
  checkpoints.publish(str(tmp_path), write_number(1), 1, is_whole)
  checkpoints.publish(str(tmp_path), write_number(2), 1, is_whole)
  assert len(os.listdir(tmp_path)) == 4


FOREIGN = {
  "nothing": (lambda path: None, "got nothing"),
  "a file": (lambda path: path.write_text("x"), "got a file"),
  "another folder": (lambda path: (path / "saved_model").mkdir(parents=True), "saved_"),
  "an unfinished one": (
    lambda path: (path / ".checkpoint-00000001.tmp").mkdir(parents=True),
    r"got \[\.checkpoint-00000001\.tmp\]\. One that was not finished is none",
  ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_nothing_to_find(name, tmp_path):
  make, want = FOREIGN[name]
  make(tmp_path / "x")
  with pytest.raises(errors.ReplayError, match=f"expected a checkpoint.*{want}"):
    checkpoints.find(str(tmp_path / "x"))
