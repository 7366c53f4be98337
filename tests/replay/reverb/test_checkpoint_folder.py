"""What a server keeps is on the disk before what it kept before is gone."""

from __future__ import annotations

import errno
import os
import shutil
import zlib

import pytest

from t2r_seq import errors
from t2r_seq.replay.reverb.server import CheckpointFolder

FILES = ("DONE", "chunks.tfrecord", "items.tfrecord", "tables.tfrecord")


def write(folder: CheckpointFolder, name: str) -> str:
  """Writes what Reverb does."""
  path = os.path.join(folder.incoming, name)
  os.mkdir(path)
  for file_name in FILES:
    with open(os.path.join(path, file_name), "wb") as file:
      file.write(zlib.compress(b"data"))
  return path


def test_checkpoint_is_synced_before_the_previous_one_is_deleted(tmp_path, monkeypatch):
  folder = CheckpointFolder(str(tmp_path))
  former = folder.take_in(write(folder, "1"))
  done: list[str] = []
  fsync, rmtree = os.fsync, shutil.rmtree

  def synced(descriptor):
    done.append("sync " + os.readlink(f"/proc/self/fd/{descriptor}"))
    fsync(descriptor)

  def removed(path, **kwargs):
    done.append("remove " + str(path))
    rmtree(path, **kwargs)

  monkeypatch.setattr(os, "fsync", synced)
  monkeypatch.setattr(shutil, "rmtree", removed)
  path = write(folder, "2")
  assert folder.take_in(path) == str(tmp_path / "2")
  files = [f"sync {path}/{name}" for name in FILES]
  assert sorted(done[:4]) == files
  assert done[4:] == [f"sync {path}", f"sync {tmp_path}", f"remove {former}"]


def test_disk_that_fails_leaves_the_former_checkpoint(tmp_path, monkeypatch):
  folder = CheckpointFolder(str(tmp_path))
  former = folder.take_in(write(folder, "1"))
  path = write(folder, "2")

  def fail(descriptor):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  monkeypatch.setattr(os, "fsync", fail)
  with pytest.raises(errors.ReplayError, match=r"Input/output error\. The former"):
    folder.take_in(path)
  assert folder.newest() == former
  assert sorted(os.listdir(tmp_path)) == ["1", "incoming"]
