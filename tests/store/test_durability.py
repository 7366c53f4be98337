"""What is promised to be on the disk is there before the commit says so."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, store
from t2r_seq.store import files

Spec = specs.ExtendedTensorSpec
SPEC = {"x": Spec((1000,), tf.float32, is_sequence=True), "task": Spec((), tf.string)}


def make_episode(index, num_steps=3):
  return {"x": np.full((num_steps, 1000), index, np.float32), "task": f"t{index}"}


@pytest.fixture
def disk(monkeypatch):
  """Lengths that have been synced, by file; checks each commit against them."""
  synced, commits = {}, []
  originals = {name: getattr(os, name) for name in ("fsync", "replace")}

  def fsync(descriptor):
    originals["fsync"](descriptor)
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    synced[name] = os.fstat(descriptor).st_size

  def replace(source, target):
    assert synced[source] == os.path.getsize(source)
    if os.path.basename(target) == "commit.json":
      with open(source) as file:
        sizes = json.load(file)["sizes"]
      folder = os.path.dirname(target)
      for name, size in sizes.items():
        assert synced[os.path.join(folder, name)] >= size, name
      assert folder in synced and os.path.dirname(folder) in synced
      commits.append(target)
      synced.pop(folder)
    originals["replace"](source, target)

  monkeypatch.setattr(os, "fsync", fsync)
  monkeypatch.setattr(os, "replace", replace)
  yield synced, commits


def test_data_is_synced_before_the_commit_and_the_folder_after(tmp_path, disk):
  synced, commits = disk
  folder = str(tmp_path / "s")
  with store.EpisodeStore.create(folder, SPEC, commit_every=2) as writer:
    for index in range(5):
      writer.append_episode(make_episode(index, 300))
      assert not commits or f"{folder}/segments/main" in synced
  with store.EpisodeStore.append(folder, "other") as writer:
    writer.append_episode(make_episode(5))
  assert len(commits) == 6  # Each segment begins with an empty one.
  assert store.EpisodeStore.merge(folder) == 6
  assert len(commits) == 8
  assert folder in synced and str(tmp_path) in synced


def test_every_folder_that_was_made_is_synced(tmp_path, disk):
  synced, _ = disk
  folder = tmp_path / "a" / "b" / "c" / "s"
  store.EpisodeStore.create(folder, SPEC).close()
  made = [folder / "segments" / "main", *folder.parents[:4], folder]
  assert {*map(str, made)} <= {*synced}


class FullDisk:
  """Takes so many bytes more, and then none, like `os.pwrite` on a full disk."""

  def __init__(self, room):
    self.room = room
    self._pwrite = os.pwrite

  def __call__(self, descriptor, data, offset):
    if not self.room:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    count = self._pwrite(descriptor, memoryview(data)[: self.room], offset)
    self.room -= count
    return count


# Room for none, for a part of a column, for a part of the commit's buffered files.
@pytest.mark.parametrize("room", [0, 1, 5_000, 36_000, 1_200_100, 1_236_010])
@pytest.mark.parametrize("commit_every", [1, 100])
def test_full_disk(room, commit_every, tmp_path, monkeypatch):
  folder = tmp_path / "s"
  with store.EpisodeStore.create(folder, SPEC) as writer:
    for index in range(2):
      writer.append_episode(make_episode(index))
  writer = store.EpisodeStore.append(folder, commit_every=commit_every)
  disk = FullDisk(room)
  monkeypatch.setattr(files.os, "pwrite", disk)
  want = r"No space left on device\. The [2-4] committed episodes of segment 'main' are"
  with pytest.raises(OSError, match=want) as caught:
    writer.append_episode(make_episode(2))
    writer.append_episode(make_episode(3, 300))
    writer.append_episode(make_episode(4, 300))
    writer.flush()
    writer.append_episode(make_episode(5, 3000))
  assert caught.value.errno == errno.ENOSPC
  assert len(store.EpisodeStore(folder)) == writer.num_committed >= 2
  disk.room = 1 << 40
  kept = writer.num_episodes
  writer.append_episode(make_episode(9))
  writer.close()
  opened = store.EpisodeStore(folder)
  assert len(opened) == kept + 1
  for index in range(kept):
    assert (opened.episode(index)["x"] == index).all()
  assert (opened.episode(kept)["x"] == 9).all()
  assert opened.episode(kept)["task"][()] == b"t9"
  assert store.verify_store(folder).is_good


def test_steps_on_a_full_disk(tmp_path, monkeypatch):
  writer = store.EpisodeStore.create(tmp_path / "s", SPEC)
  disk = FullDisk(1000)
  monkeypatch.setattr(files.os, "pwrite", disk)
  with pytest.raises(OSError, match=r"No space left on device\. The 0 committed"):
    for _ in range(1000):
      writer.append_step({"x": np.zeros(1000, np.float32)})
  with pytest.raises(errors.SpecError, match="expected steps, got none"):
    writer.end_episode({"task": "gone"})
  disk.room = 1 << 40
  writer.append_step({"x": np.ones(1000, np.float32)})
  writer.end_episode({"task": "next"})
  writer.close()
  opened = store.EpisodeStore(tmp_path / "s")
  assert opened.episode_lengths.tolist() == [1]
  assert store.verify_store(tmp_path / "s").is_good


@pytest.mark.parametrize("name", ["fsync", "replace", "write"])
def test_commit_that_fails_halfway(name, tmp_path, monkeypatch):
  """Each call of a commit fails in turn: the disk decides what counts."""
  original = getattr(os, name)
  for moment in range(20):
    folder = tmp_path / str(moment)
    writer = store.EpisodeStore.create(folder, SPEC, commit_every=100)
    writer.append_episode(make_episode(0))
    writer.flush()
    calls = iter(range(moment))

    def fail(*args, calls=calls):
      if next(calls, None) is not None:
        return original(*args)
      raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer.append_episode(make_episode(1))
    with monkeypatch.context() as patched:
      patched.setattr(os, name, fail)
      try:
        writer.flush()
      except OSError as error:
        assert "committed episodes of segment 'main' are safe" in str(error)
        failed = True
      else:
        failed = False
    assert (
      writer.num_episodes == writer.num_committed == len(store.EpisodeStore(folder))
    )
    count = writer.num_committed
    writer.append_episode(make_episode(count))
    writer.close()
    opened = store.EpisodeStore(folder)
    values = [opened.episode(index)["x"][0, 0] for index in range(len(opened))]
    assert values == list(range(count + 1))
    assert store.verify_store(folder).is_good
    if not failed:
      assert moment
      return
  raise AssertionError("every commit failed")


def test_small_rows_are_written_together(tmp_path, monkeypatch):
  writes = []
  original = os.pwrite

  def pwrite(descriptor, data, offset):
    writes.append(len(data))
    return original(descriptor, data, offset)

  monkeypatch.setattr(files.os, "pwrite", pwrite)
  spec = {"x": Spec((), tf.float32, is_sequence=True)}
  with store.EpisodeStore.create(tmp_path / "s", spec) as writer:
    writes.clear()
    for _ in range(10_000):
      writer.append_step({"x": np.float32(1)})
    assert not writes
    writer.end_episode()
  assert 40_000 in writes and len(writes) == 3


@pytest.mark.parametrize("name", ["x.data", "lock"])
def test_no_link_is_followed_on_writing(name, tmp_path):
  folder, target = tmp_path / "s", tmp_path / "somebody's"
  store.EpisodeStore.create(folder, SPEC).close()
  target.write_text("theirs")
  place = folder / "segments" / "main" / name
  place.unlink()
  place.symlink_to(target)
  with pytest.raises(OSError, match="got a link, which is not followed"):
    store.EpisodeStore.append(folder)
  assert target.read_text() == "theirs"
