"""Where checkpoints and stores are: what is no path, and where none can be."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs

X = {"x": specs.ExtendedTensorSpec((), tf.int64, time_offsets=0)}
NO_PATHS = (5, b"x", "", "a\0b", "gs://bucket/x", ["x"], None)
CALLS = {
  "restore": (
    lambda path: replay.ReplayBuffer(X, 10).restore(path),
    "path",
    "Name a checkpoint, or a folder of them.",
  ),
  "to_store": (
    lambda path: replay.ReplayBuffer(X, 10).to_store(path),
    "path",
    "Name a new folder, or an empty one.",
  ),
  "from_store": (
    lambda path: replay.ReplayBuffer.from_store(path, X, capacity_steps=10),
    "path",
    "Name an EpisodeStore.",
  ),
  "ReplayBuffer": (
    lambda path: replay.ReplayBuffer(X, 10, checkpoint_dir=path),
    "checkpoint_dir",
    "Name a folder; None keeps no checkpoints.",
  ),
}


@pytest.mark.parametrize("operation", CALLS)
def test_checkpoints_reject_invalid_paths(operation, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  call, name, hint = CALLS[operation]
  for path in NO_PATHS[:-1] if name == "checkpoint_dir" else NO_PATHS:
    with pytest.raises(errors.SpecError) as caught:
      call(path)
    want = f"{operation}: {name}: expected a path on this machine, got {path!r}. {hint}"
    assert str(caught.value).startswith(want)
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize("is_text", [False, True])
def test_paths(is_text, tmp_path):
  as_given = str if is_text else lambda path: path
  folder, store = tmp_path / "a" / "b", as_given(tmp_path / "s")
  buffer = replay.ReplayBuffer(X, 10, checkpoint_dir=as_given(folder))
  assert not os.listdir(tmp_path)
  with buffer.writer() as writer:
    writer.append({"x": 7})
  path = buffer.checkpoint()
  assert path == str(folder / "checkpoint-00000001")
  again = replay.ReplayBuffer(X, 10)
  assert again.restore(as_given(folder)) == path
  again.to_store(store)
  loaded = replay.ReplayBuffer.from_store(store, X, capacity_steps=10)
  assert loaded.sample(1)["x"].tolist() == [7]


# Below a folder with the file 'f', and a link to nowhere, 'l'.
NO_FOLDERS = {
  "a file": ("f", "f"),
  "below a file": ("f/a/b", "f"),
  "a link to nowhere": ("l", "l"),
}


@pytest.mark.parametrize("name", NO_FOLDERS)
def test_checkpoints_reject_paths_that_cannot_be_folders(name, tmp_path):
  (tmp_path / "f").touch()
  (tmp_path / "l").symlink_to("nowhere")
  path, place = (f"{tmp_path}/{name}" for name in NO_FOLDERS[name])
  with pytest.raises(errors.SpecError) as caught:
    replay.ReplayBuffer(X, 10, checkpoint_dir=path)
  assert str(caught.value).startswith(
    "ReplayBuffer: checkpoint_dir: expected a folder that it may write to, or a place "
    f"for a new one, got {path!r}. {place} is not a folder: name another place."
  )
  assert sorted(os.listdir(tmp_path)) == ["f", "l"]


def test_checkpoints_reject_read_only_folders(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "access", lambda place, mode: place != str(tmp_path))
  path = str(tmp_path / "a" / "b")
  with pytest.raises(errors.ReplayError) as caught:
    replay.ReplayBuffer(X, 10, checkpoint_dir=path)
  assert str(caught.value).startswith(
    "ReplayBuffer: checkpoint_dir: expected a folder that it may write to, or a place "
    f"for a new one, got {path!r}. {tmp_path} may not be written to: name another"
  )
  assert not os.listdir(tmp_path)
