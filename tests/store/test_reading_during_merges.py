"""Readers open and refresh while segments are merged away, at every moment."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs, store

SPEC = {"x": specs.ExtendedTensorSpec((), tf.int64, is_sequence=True)}


def add_segment(folder, name, first, count=2):
  with store.EpisodeStore.append(folder, name) as writer:
    for index in range(first, first + count):
      writer.append_episode({"x": np.full(index + 1, index)})


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
  """Six episodes in three segments."""
  folder = tmp_path / "three"
  store.EpisodeStore.create(folder, SPEC, segment="a").close()
  for number, name in enumerate("abc"):
    add_segment(folder, name, 2 * number)
  return folder


def check(opened, count):
  assert len(opened) >= count
  for index in range(count):
    assert (opened.episode(index)["x"] == np.full(index + 1, index)).all()


class At:
  """Calls a function once, before the n-th line that reading a store runs."""

  def __init__(self, moment, function):
    self.left, self.function = moment, function

  def __call__(self, frame, event, _):
    name = frame.f_code.co_filename
    if "t2r_seq/store" not in name and "genericpath" not in name:
      return None
    if event == "line" and self.function:
      self.left -= 1
      if self.left < 0:
        function, self.function = self.function, None
        sys.settrace(None)
        function()
        sys.settrace(self)
    return self


def merge(folder):
  store.EpisodeStore.merge(folder)


def merge_and_append(folder):
  """Gives a name that the merge has freed to another segment, with shorter files."""
  store.EpisodeStore.merge(folder)
  with store.EpisodeStore.append(folder, "b") as writer:
    writer.append_episode({"x": np.full(1, -1)})


@pytest.mark.parametrize("is_refresh", [False, True], ids=["open", "refresh"])
@pytest.mark.parametrize("change", [merge, merge_and_append])
def test_merge_at_any_line_of_a_reader(folder, tmp_path, is_refresh, change):
  traced = sys.gettrace()
  for moment in itertools.count(0, 13):
    copy = tmp_path / f"copy{moment}"
    shutil.copytree(folder, copy)
    opened = store.EpisodeStore(copy) if is_refresh else None
    at = At(moment, lambda copy=copy: change(copy))
    sys.settrace(at)
    try:
      opened = opened or store.EpisodeStore(copy)
      opened.refresh()
    finally:
      sys.settrace(traced)
    check(opened, 6)
    assert len(opened) <= 6 + (change is merge_and_append)
    if len(opened) > 6:
      assert opened.episode(6)["x"].tolist() == [-1]
    shutil.rmtree(copy)
    if at.function:
      assert moment > 100
      break


def test_readers_beside_a_thread_that_appends_and_merges(folder):
  done, failed = threading.Event(), []

  def read():
    opened, last = store.EpisodeStore(folder), 0
    while not done.is_set():
      try:
        opened.refresh()
        new = store.EpisodeStore(folder)
        assert last <= len(opened) <= len(new)
        last = len(opened)
        check(new, len(new))
      except Exception as error:
        failed.append(error)
        return

  readers = [threading.Thread(target=read) for _ in range(2)]
  for reader in readers:
    reader.start()
  try:
    store.EpisodeStore.merge(folder)
    for round_ in range(30):
      add_segment(folder, "b", 6 + 2 * round_)
      store.EpisodeStore.merge(folder)
  finally:
    done.set()
    for reader in readers:
      reader.join()
  assert failed == []
  check(store.EpisodeStore(folder), 66)
