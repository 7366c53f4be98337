"""Files that cpprb wrote (see data/make_cpprb_files.py), and files that it did not."""

from __future__ import annotations

import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest

from t2r_seq import errors, transitions

DATA = pathlib.Path(__file__).parent / "data"


def episodes(order=None):
  """What make_cpprb_files.py fills its buffers with."""
  number, t = np.divmod(np.arange(15), 5)
  now = (100 * number + 10 * t)[:, None].astype(np.float32)
  done = ((t == 4) & (number != 1))[:, None].astype(np.float32)
  arrays = {
    "obs": now + np.arange(3, dtype=np.float32),
    "act": np.stack([t, -t], 1).astype(np.float32),
    "rew": (2.0**t)[:, None].astype(np.float32),
    "next_obs": now + 10 + np.arange(3, dtype=np.float32),
    "done": done,
  }
  order = slice(None) if order is None else order
  return {path: values[order] for path, values in arrays.items()}


# A full buffer of 12 has the newest 3 in the place of the oldest.
RING = [12, 13, 14, *range(3, 12)]
# name: (what is in the file, chains)
FILES = {
  "plain": (episodes(), 3),
  "next_of": (episodes(), 3),
  "ring": (episodes(RING), 4),
  "arrays": (episodes(), 3),
}


@pytest.mark.parametrize("name", FILES)
def test_genuine_files(name, tmp_path):
  want, num_chains = FILES[name]
  path = tmp_path / "s"
  assert transitions.import_cpprb(DATA / f"{name}.npz", path) == num_chains
  got = transitions.load_transitions(path).to_numpy()
  assert set(got) == set(want)
  for field, values in want.items():
    assert got[field].dtype == values.dtype
    np.testing.assert_array_equal(got[field], values, err_msg=field)


def test_n_step_returns_are_those_of_cpprb_where_it_has_any(tmp_path):
  transitions.import_cpprb(DATA / "plain.npz", tmp_path / "one")
  transitions.import_cpprb(DATA / "n_step.npz", tmp_path / "n", n_step=(3, 0.9))
  ours = transitions.load_transitions(tmp_path / "one").n_step(3, 0.9).to_numpy()
  cpprb = transitions.load_transitions(tmp_path / "n", n_step=(3, 0.9)).to_numpy()
  for field in ("obs", "act", "rew"):
    np.testing.assert_allclose(ours[field], cpprb[field], rtol=1e-6, err_msg=field)
  # At the last steps of an episode cpprb 11.0.0 leaves next observations of ones, also
  # where it was cut off and is to bootstrap from them.
  differs = (ours.next_obs != cpprb.next_obs).any(1)
  assert np.flatnonzero(differs).tolist() == [3, 4, 8, 9, 13, 14]
  assert (cpprb.next_obs[differs] == 1).all()
  assert ours.next_obs[[8, 9], 0].tolist() == [150, 150]
  # Where the terminal is the very last of the n steps, it misses it.
  assert ours.done[:, 0].tolist() == [0, 0, 1, 1, 1, *[0] * 5, 0, 0, 1, 1, 1]
  assert np.flatnonzero(ours.done != cpprb.done).tolist() == [2, 12]


def test_n_step_files_require_n_step(tmp_path):
  with pytest.raises(ValueError, match=r"expected n_step=\(n, gamma\), got None"):
    transitions.import_cpprb(DATA / "n_step.npz", tmp_path / "s")
  want = "expected 3-step transitions with gamma 0.9, got one-step transitions"
  with pytest.raises(ValueError, match=want):
    transitions.import_cpprb(DATA / "plain.npz", tmp_path / "s", n_step=(3, 0.9))


def test_rejects_unsafe_files(tmp_path):
  want = "written with safe=False: .* could run any code. In cpprb, load it into a buf"
  with pytest.raises(errors.SpecError, match=want):
    transitions.import_cpprb(DATA / "unsafe.npz", tmp_path / "s")
  assert not (tmp_path / "s").exists()


class Harmful:
  """Runs a command when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["data", "a field"])
def test_pickled_code_is_not_run(protocol, place, tmp_path):
  harm = Harmful(tmp_path / "harm")
  value = harm if place == "data" else {**episodes(), "obs": harm}
  write(tmp_path / "bad.npz", value, protocol)
  with pytest.raises(errors.SpecError, match="data: expected arrays of numbers, got"):
    transitions.import_cpprb(tmp_path / "bad.npz", tmp_path / "s")
  assert sorted(os.listdir(tmp_path)) == ["bad.npz"]
  pickle.loads(pickle.dumps(harm))
  assert (tmp_path / "harm").exists()


def write(path, value, protocol=4, **fields):
  """Writes a file as numpy does, with a pickle of any protocol."""
  header = {"descr": "|O", "fortran_order": False, "shape": ()}
  boxed = np.empty((), dtype=object)
  boxed[()] = value
  given = {"safe": True, "version": 1, "Nstep": False, **fields}
  np.savez(path, **{k: v for k, v in given.items() if v is not None})
  with zipfile.ZipFile(path, "a") as archive, archive.open("data.npy", "w") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(pickle.dumps(boxed, protocol))


@pytest.mark.parametrize("protocol", [3, 4])
def test_pickles_as_numpy_writes_them(protocol, tmp_path):
  write(tmp_path / "good.npz", episodes(), protocol)
  transitions.import_cpprb(tmp_path / "good.npz", tmp_path / "s")
  got = transitions.load_transitions(tmp_path / "s").to_numpy()
  np.testing.assert_array_equal(got.next_obs, episodes()["next_obs"])


# name: (what is written, what the error says)
BAD = {
  "newer": (
    lambda path: write(path, episodes(), version=2),
    "expected format version 1 of cpprb, got 2",
  ),
  "no flag": (
    lambda path: write(path, episodes(), safe=None),
    "safe: expected arrays of numbers, got .*no item named",
  ),
  "a flag of many": (
    lambda path: write(path, episodes(), Nstep=np.zeros(3)),
    "Nstep: expected one value, as cpprb writes it",
  ),
  "no dict": (
    lambda path: write(path, 3),
    "data: expected a dict of arrays, got int 3",
  ),
  "a list": (
    lambda path: write(path, [1, 2]),
    "data: expected arrays of numbers, got a value of type list, which is not an array",
  ),
  "no zip": (lambda path: path.write_bytes(b"hello"), "expected a .npz file of cpprb"),
  "something else": (
    lambda path: np.savez(path, a=np.zeros(3)),
    "save_transitions: 3 mismatches",
  ),
  "no next_obs": (
    lambda path: write(path, {k: v for k, v in episodes().items() if k[0] != "n"}),
    "the transitions: expected a field and its next one",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name, tmp_path):
  make, want = BAD[name]
  make(tmp_path / "bad.npz")
  with pytest.raises(errors.SpecError, match=want):
    transitions.import_cpprb(tmp_path / "bad.npz", tmp_path / "s")
  assert not (tmp_path / "s").exists()


def test_damaged_files(tmp_path):
  whole = (DATA / "plain.npz").read_bytes()
  for place in range(40, len(whole), 97):
    damaged = bytearray(whole)
    damaged[place] ^= 0xFF
    (tmp_path / "bad.npz").write_bytes(damaged)
    try:
      transitions.import_cpprb(tmp_path / "bad.npz", tmp_path / f"s{place}")
    except errors.SpecError as error:
      assert "bad.npz" in str(error)


def test_no_file(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"no\.npz"):
    transitions.import_cpprb(tmp_path / "no.npz", tmp_path / "s")


def nested(depth, width):
  value = [0] * width
  for _ in range(depth - 1):
    value = [value] * width
  return value


def itself():
  value = []
  value.append(value)
  return value


@pytest.mark.parametrize("data", [{"obs": nested(14, 10)}, {"obs": itself()}])
def test_rejects_expanding_archives(data, tmp_path):
  path = tmp_path / "a.npz"
  boxed = np.empty((), object)
  boxed[()] = data
  np.savez(path, data=boxed, version=1, safe=True, Nstep=False)
  want = (
    "data: expected arrays of numbers, got a value of type list, which is not an array"
  )
  with pytest.raises(errors.SpecError, match=want):
    transitions.import_cpprb(path, tmp_path / "s")
  assert not (tmp_path / "s").exists()


def test_rejects_a_huge_array(tmp_path):
  path = tmp_path / "a.npz"
  header = {"descr": "<f8", "fortran_order": False, "shape": (2**45,)}
  with zipfile.ZipFile(path, "w") as archive, archive.open("obs.npy", "w") as file:
    np.lib.format.write_array_header_1_0(file, header)
    file.write(bytes(80))
  with pytest.raises(errors.SpecError, match="obs: expected arrays of numbers, got "):
    transitions.import_cpprb(path, tmp_path / "s")
