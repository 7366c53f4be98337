"""Every transition comes back bit for bit, and each observation is on disk once."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, transitions
from t2r_seq.store import EpisodeStore, verify_store
from t2r_seq.store.writer import EpisodeWriter

CHAINS = [(4, "terminal"), (1, "truncated"), (1, "gap"), (6, "truncated"), (3, "gap")]
BFLOAT16 = tf.bfloat16.as_numpy_dtype


def save(tmp_path, *args, **kwargs):
  return transitions.save_transitions(tmp_path / "s", *args, **kwargs)


@pytest.mark.parametrize("column", [False, True])
def test_round_trip(column, tmp_path, make, same):
  wanted = make(CHAINS, column)
  assert save(tmp_path, wanted) == len(CHAINS)
  loaded = transitions.load_transitions(tmp_path / "s")
  assert len(loaded) == 15
  same(loaded.to_numpy(), wanted)
  assert verify_store(tmp_path / "s").is_good


def test_one_transition(tmp_path, make, same):
  wanted = make([(1, "gap")], truncated=False)
  assert save(tmp_path, wanted) == 1
  same(transitions.load_transitions(tmp_path / "s").to_numpy(), wanted)


ROWS = np.arange(6)
DTYPES = {
  "bool": np.eye(6, dtype=bool),
  "uint8": np.arange(12, dtype=np.uint8).reshape(6, 2),
  "int64": -(2**40) * ROWS,
  "uint64": 2**63 + ROWS.astype(np.uint64),
  "float16": (ROWS / 7).astype(np.float16),
  "bfloat16": (ROWS / 7).astype(BFLOAT16),
  "float64": ROWS / 7,
  "complex64": (ROWS + 1j / 7).astype(np.complex64),
  "big-endian": (ROWS / 7).astype(">f4"),
  "odd bytes": np.arange(18, dtype=np.uint8).reshape(6, 3),
  "no numbers": np.zeros((6, 0), np.float32),
  "bytes": np.array([b"", b"\0a\0", b"bb", b"c" * 99, b"d", b""], dtype=object),
  "NaN": np.array([[np.nan, 1.0], [2.0, -np.nan], [0.0, -0.0]] * 2),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name, tmp_path):
  values = DTYPES[name]
  given = {
    "obs": values[:-1],
    "next_obs": values[1:],
    "rew": np.zeros(5, np.float32),
    "done": np.zeros(5, bool),
  }
  assert save(tmp_path, given) == 1
  got = transitions.load_transitions(tmp_path / "s").to_numpy()
  for path in ("obs", "next_obs"):
    assert got[path].dtype == given[path].dtype.newbyteorder("=")
    native = given[path].astype(got[path].dtype)
    assert got[path].tolist() == native.tolist() or got[path].tobytes() == (
      native.tobytes()
    )


def test_next_observations_are_on_disk_once(tmp_path, make):
  wanted = make([(500, "terminal"), (500, "truncated")])
  save(tmp_path, wanted)
  store = EpisodeStore(tmp_path / "s")
  assert list(store.spec) == [
    *("obs/image", "obs/state", "act", "rew", "done", "info", "truncated")
  ]
  folder = tmp_path / "s/segments/main"
  sizes = {n: os.path.getsize(folder / n) for n in os.listdir(folder)}
  rows = 1000 + 2
  assert sizes["obs%2Fimage.data"] == rows * 6 * 2
  assert sizes["obs%2Fstate.data"] == rows * 2 * 4
  assert sum(sizes[n] for n in sizes if n.endswith(".data")) == rows * (
    12 + 8 + 2 + 4 + 4 + 24 + 1
  )
  assert sum(sizes.values()) < 1.05 * rows * 55


def test_last_row_of_a_chain_has_the_real_next_observation(tmp_path, make):
  wanted = make([(2, "truncated"), (1, "terminal")])
  wanted["next_obs"]["state"][1] = 77
  save(tmp_path, wanted)
  store = EpisodeStore(tmp_path / "s")
  assert store.episode_lengths.tolist() == [3, 2]
  first = store.episode(0)
  assert first["obs/state"][:, 0].tolist() == [0.25, 10.25, 77]
  assert first["rew"][2] == first["info"][2].any() == first["truncated"][2] == 0


def test_blocks(tmp_path, make, same, monkeypatch):
  monkeypatch.setattr("t2r_seq.transitions.saving._BLOCK_BYTES", 50)
  wanted = make([(17, "terminal"), (3, "gap"), (4, "truncated"), (1, "gap")])
  assert save(tmp_path, wanted) == 4
  loaded = transitions.load_transitions(tmp_path / "s")
  assert loaded.store.episode_lengths.tolist() == [18, 4, 5, 2]
  same(loaded.to_numpy(), wanted)


def test_memory_maps_are_read_in_blocks(tmp_path, monkeypatch):
  values = np.memmap(tmp_path / "obs", np.float32, "w+", shape=(1001, 64))
  values[:] = np.arange(1001 * 64).reshape(1001, 64)
  monkeypatch.setattr("t2r_seq.transitions.saving._BLOCK_BYTES", 1 << 14)
  blocks = []
  append_steps = EpisodeWriter.append_steps

  def note(writer, rows):
    blocks.append(rows["obs"].nbytes)
    append_steps(writer, rows)

  monkeypatch.setattr(EpisodeWriter, "append_steps", note)
  save(
    tmp_path,
    {
      "obs": values[:-1],
      "next_obs": values[1:],
      "rew": np.zeros(1000, np.float32),
      "done": np.zeros(1000, bool),
    },
  )
  assert len(blocks) == 17 and max(blocks) <= 1 << 14
  loaded = transitions.load_transitions(tmp_path / "s")
  np.testing.assert_array_equal(loaded.to_numpy().next_obs, values[1:])


def test_structures_and_tensors(tmp_path, make, same):
  wanted = make(CHAINS, truncated=False)
  flat = {"obs/state": tf.constant(wanted["obs"]["state"])}
  flat |= {"obs/image": wanted["obs"]["image"], "rew": tf.constant(wanted["rew"])}
  flat |= {"next_obs": wanted["next_obs"], "done": wanted["done"]}
  save(tmp_path, flat)
  got = transitions.load_transitions(tmp_path / "s").to_numpy()
  assert list(got) == [
    *("obs/state", "obs/image", "rew", "next_obs/image", "next_obs/state", "done")
  ]
  assert got["rew"].tobytes() == wanted["rew"].tobytes()
  assert got["obs/state"].tobytes() == wanted["obs"]["state"].tobytes()


def test_other_names_and_several_rewards(tmp_path):
  given = {
    "state": np.arange(4.0),
    "next_state": np.arange(1, 5.0),
    "reward": {"a": np.ones(4, np.float32), "b": np.ones((4, 2))},
    "terminal": np.array([0, 0, 0, 1]),
    "cut": np.array([0, 1, 0, 0], bool),
  }
  assert save(tmp_path, given, rew="reward", done="terminal", truncated="cut") == 2
  loaded = transitions.load_transitions(tmp_path / "s")
  got = loaded.n_step(2, 0.5).to_numpy()
  assert got["reward/a"].tolist() == [1.5, 1, 1.5, 1]
  assert got["reward/b"][:, 1].tolist() == [1.5, 1, 1.5, 1]
  assert got["reward/b"].dtype == np.float64
  assert got["cut"].tolist() == [True, True, False, False]
  assert got["terminal"].tolist() == [0, 0, 1, 1]


def test_metadata(tmp_path, make):
  save(tmp_path, make([(2, "gap")]), metadata={"robot": "arm"}, n_step=(3, 0.9))
  metadata = EpisodeStore(tmp_path / "s").metadata
  assert metadata["robot"] == "arm"
  about = metadata["transitions"]
  assert about["format_version"] == 1
  assert about["n_step"] == {"n": 3, "gamma": 0.9}


def good():
  return {
    "obs": {"image": np.zeros((3, 2), np.uint8), "state": np.zeros((3, 4))},
    "next_obs": {"image": np.zeros((3, 2), np.uint8), "state": np.zeros((3, 4))},
    "act": np.zeros((3, 1)),
    "rew": np.zeros(3),
    "done": np.zeros(3),
  }


def change(path, value=None):
  def changed():
    flat = good()
    *branch, leaf = path.split("/")
    node = flat
    for name in branch:
      node = node[name]
    if value is None:
      del node[leaf]
    else:
      node[leaf] = value
    return flat

  return changed


# name: (transitions, what the error says)
BAD = {
  "no next_obs": (
    lambda: {k: v for k, v in good().items() if k != "next_obs"},
    "the transitions: expected a field and its next one",
  ),
  "a next path is missing": (
    change("next_obs/state"),
    "next_obs/state: expected the next of obs/state, got nothing",
  ),
  "a path is missing": (
    change("obs/image"),
    "obs/image: expected the field that next_obs/image follows, got nothing",
  ),
  "a next path is misspelled": (
    lambda: {**change("next_obs/state")(), "next_obs/stat": np.zeros((3, 4))},
    "Did you mean 'next_obs/stat'?",
  ),
  "no reward": (change("rew"), "rew: expected the reward, got nothing"),
  "another name": (
    lambda: {**change("done")(), "Done": np.zeros(3)},
    "done: expected the flag of terminals, got nothing. Did you mean 'Done'?",
  ),
  "ragged": (
    change("act", np.zeros((2, 1))),
    "act: expected 3 transitions, as done has, got 2",
  ),
  "empty": (
    lambda: (
      {p: v[:0] for p, v in good().items() if not isinstance(v, dict)}
      | {"obs": np.zeros((0, 1)), "next_obs": np.zeros((0, 1))}
    ),
    "done: expected at least one transition, got none",
  ),
  "a scalar": (change("rew", np.float32(1)), r"rew: expected an array \[N, ...\]"),
  "dtypes differ": (
    change("next_obs/image", np.zeros((3, 2), np.float32)),
    r"next_obs/image: expected rows of \(2,\) uint8, as obs/image has, got rows of "
    r"\(2,\) float32",
  ),
  "shapes differ": (
    change("next_obs/image", np.zeros((3, 5), np.uint8)),
    r"next_obs/image: expected rows of \(2,\) uint8.*got rows of \(5,\) uint8",
  ),
  "dtype that cannot be stored": (
    change("act", np.zeros(3, "datetime64[s]")),
    "act: expected an array .* of numbers or bytes objects, got .*datetime64",
  ),
  "fixed strings": (change("act", np.array([b"a"] * 3)), r"astype\(object\)"),
  "objects": (
    change("act", np.array([b"a", 3, None], dtype=object)),
    "act: expected .*bytes objects, got objects, a int among them",
  ),
  "done is no flag": (
    change("done", np.array([0, 0.5, 1])),
    r"done: expected one 0 or 1 for each transition, got a .*0\.5",
  ),
  "done of many": (
    change("done", np.zeros((3, 2))),
    r"done: expected one 0 or 1 for each transition, got \(3, 2\) float64",
  ),
  "rewards of bytes": (
    change("rew", np.array([b""] * 3, dtype=object)),
    "rew: expected a reward of real numbers",
  ),
  "no arrays": (lambda: 3, "save_transitions: expected a structure of arrays"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_transitions(name, tmp_path):
  given, want = BAD[name]
  with pytest.raises(errors.SpecError, match=want) as raised:
    save(tmp_path, given())
  assert str(raised.value).startswith("save_transitions: ")
  assert isinstance(raised.value, ValueError)
  assert not (tmp_path / "s").exists()


def test_error_names_all_mismatches(tmp_path):
  given = change("rew")() | {"obs": {"image": good()["obs"]["image"]}}
  with pytest.raises(errors.SpecError, match=r"2 mismatches:\n.*obs/state.*\n.*rew"):
    save(tmp_path, given)


def test_rejects_an_existing_store(tmp_path):
  save(tmp_path, good())
  with pytest.raises(errors.StoreError, match="expected nothing there"):
    save(tmp_path, good())


def test_reserved_metadata_key(tmp_path):
  with pytest.raises(errors.SpecError, match="expected keys other than 'transitions'"):
    save(tmp_path, good(), metadata={"transitions": 1})


def test_rejects_an_incomplete_store(tmp_path, make, monkeypatch):
  writes = []
  append_steps = EpisodeWriter.append_steps

  def fail(writer, rows):
    writes.append(rows)
    if len(writes) == 3:
      raise OSError(28, "No space left on device")
    append_steps(writer, rows)

  monkeypatch.setattr(EpisodeWriter, "append_steps", fail)
  with pytest.raises(OSError, match="No space left"):
    save(tmp_path, make([(2, "gap"), (3, "gap"), (4, "gap")]))
  message = re.escape("expected 9 transitions, got 5. They were not saved to the end")
  with pytest.raises(errors.StoreError, match=message):
    transitions.load_transitions(tmp_path / "s")


NAN = np.float32(np.nan)
OTHER_NAN = np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]
# name: (a next observation, the following observation, chains)
PAIRS = {
  "equal": (1.5, 1.5, 1),
  "another": (1.5, 1.25, 2),
  "NaN": (NAN, NAN, 1),
  "another NaN": (NAN, OTHER_NAN, 2),
  "zeros": (0.0, -0.0, 2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_chains_continue_bit_for_bit(name, tmp_path):
  following, now, want = PAIRS[name]
  given = {
    "obs": np.array([0, now], np.float32),
    "next_obs": np.array([following, 3], np.float32),
    "rew": np.zeros(2),
    "done": np.zeros(2),
  }
  assert save(tmp_path, given) == want
