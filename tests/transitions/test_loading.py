"""What a store says about its transitions is checked before anything is loaded."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, transitions, windows
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec


@pytest.fixture
def saved(tmp_path, make):
  path = tmp_path / "s"
  transitions.save_transitions(path, make([(3, "terminal"), (2, "truncated")]))
  return path


def edit(path, change):
  """Changes the metadata of a store, with the right checksum."""
  with open(path / "store.json", encoding="utf-8") as file:
    manifest = json.load(file)
  manifest.pop("crc32")
  change(manifest["metadata"])
  text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
  manifest["crc32"] = zlib.crc32(text.encode())
  with open(path / "store.json", "w", encoding="utf-8") as file:
    json.dump(manifest, file)


def setter(**values):
  return lambda metadata: metadata["transitions"].update(values)


# name: (what is done to the metadata, what the error says)
BROKEN = {
  "newer": (
    setter(format_version=3),
    "expected transitions of format version 1 or 2, got 3. A newer t2r_seq wrote them",
  ),
  "no version": (
    setter(format_version=None),
    "expected transitions of format version 1 or 2, got None. The store is damaged",
  ),
  "version is no number": (setter(format_version=True), "version 1 or 2, got True"),
  "no transitions": (
    lambda metadata: metadata.clear(),
    "expected transitions, got an EpisodeStore of episodes. Read it with EpisodeStore",
  ),
  "n_step of another form": (setter(n_step=[3, 0.9]), "The store is damaged"),
  "n_step that cannot be": (setter(n_step={"n": 0, "gamma": 1}), "at least 1, got 0"),
  "fields without a reward": (setter(rew="no"), "no: expected the reward, got nothing"),
  "fields that are no columns": (
    lambda metadata: metadata["transitions"]["fields"].append("extra"),
    re.escape("expected columns [act, done, extra, info,"),
  ),
  "a field is missing": (
    lambda metadata: metadata["transitions"].pop("fields"),
    "metadata: KeyError",
  ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_metadata(name, saved, monkeypatch):
  change, want = BROKEN[name]
  edit(saved, change)

  def touch(*_):
    raise AssertionError("columns were mapped")

  monkeypatch.setattr("t2r_seq.transitions.loading.StoreColumns", touch)
  with pytest.raises(errors.StoreError, match=want) as raised:
    transitions.load_transitions(saved)
  assert str(saved) in str(raised.value)
  assert isinstance(raised.value, ValueError)


# name: (n_step that was declared, that is expected, what the error says)
N_STEPS = {
  "unasked": (
    (3, 0.9),
    None,
    "expected one-step transitions, got 3-step transitions with gamma 0.9. Load them "
    "with n_step=(3, 0.9).",
  ),
  "not there": (
    None,
    (3, 0.9),
    "expected 3-step transitions with gamma 0.9, got one-step transitions. Load them "
    "with n_step=None.",
  ),
  "other n": ((3, 0.9), (5, 0.9), "expected 5-step transitions with gamma 0.9, got 3-"),
  "other gamma": ((3, 0.9), (3, 0.99), "gamma 0.99, got 3-step transitions with gamma"),
}


@pytest.mark.parametrize("name", N_STEPS)
def test_n_step_mismatches(name, tmp_path, make, monkeypatch):
  declared, expected, want = N_STEPS[name]
  transitions.save_transitions(tmp_path / "s", make([(2, "gap")]), n_step=declared)
  monkeypatch.delattr("t2r_seq.transitions.loading.StoreColumns")
  with pytest.raises(ValueError, match=re.escape(want)):
    transitions.load_transitions(tmp_path / "s", n_step=expected)


def test_n_step_as_declared(tmp_path, make, same):
  wanted = make([(2, "gap"), (2, "terminal")])
  transitions.save_transitions(tmp_path / "s", wanted, n_step=(3, 0.99))
  loaded = transitions.load_transitions(tmp_path / "s", n_step=(3, 0.99))
  assert loaded.saved_n_step == windows.NStep(3, 0.99)
  same(loaded.to_numpy(), wanted)


@pytest.mark.parametrize("n_step", [3, (3,), (3, 0.9, 1), "ab"])
def test_n_step_of_another_form(n_step, saved):
  with pytest.raises(errors.SpecError, match="n_step: "):
    transitions.load_transitions(saved, n_step=n_step)


def test_no_store(tmp_path):
  with pytest.raises(errors.StoreError, match=r"expected a folder with a store\.json"):
    transitions.load_transitions(tmp_path)


def test_single_rows_are_no_transitions(saved, same):
  """A replay that lets go of steps may have the last one of an episode alone."""
  want = transitions.load_transitions(saved).to_numpy()
  with EpisodeStore.append(saved) as writer:
    spec = EpisodeStore(saved).spec
    writer.append_episode(
      {
        path: np.zeros((1, *column.shape), column.dtype.as_numpy_dtype)
        for path, column in spec.items()
      }
    )
  same(transitions.load_transitions(saved).to_numpy(), want)


def test_several_segments(tmp_path, make, same):
  """Chains that another process appended come after the others."""
  first, second = make([(3, "terminal"), (2, "gap")]), make([(4, "truncated")])
  for name, wanted in (("s", first), ("other", second)):
    transitions.save_transitions(tmp_path / name, wanted)
  other = EpisodeStore(tmp_path / "other")
  with EpisodeStore.append(tmp_path / "s", segment="more") as writer:
    writer.append_episode(other.episode(0))
  loaded = transitions.load_transitions(tmp_path / "s")
  assert len(loaded.store.segments) == 2
  same(loaded.to_numpy(0, 5), first)
  same(loaded.to_numpy(5), second)
  got = loaded.n_step(3, 0.5).read(tf.constant([6, 1, 8, 4], tf.int64))
  assert got["num_steps"].numpy().tolist() == [3, 2, 1, 1]


def test_any_reader_of_stores_reads_them(saved):
  spec = {
    "obs": {"state": Spec((2, 2), tf.float32, time_offsets=(0, 1))},
    "rew": Spec((), tf.float32, time_offsets=0),
  }
  windows = EpisodeStore(saved).windows(spec, padding="drop")
  loaded = transitions.load_transitions(saved).to_numpy()
  assert windows.num_windows == len(loaded["rew"])
  got = windows.read(tf.range(5, dtype=tf.int64))
  np.testing.assert_array_equal(got["obs/state"][:, 0], loaded["obs/state"])
  np.testing.assert_array_equal(got["obs/state"][:, 1], loaded["next_obs/state"])
  np.testing.assert_array_equal(got["rew"], loaded["rew"])
