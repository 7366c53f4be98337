"""The state comes back as it was, or is refused."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pytest

from t2r_seq import errors
from t2r_seq.replay import checkpoints

ARRAYS = {
  "keys": np.arange(1000, dtype=np.uint64),
  "priorities": np.array([0.0, 1e-300, np.inf]),
  "none": np.zeros((0, 3), np.int32),
}
VALUES = {"counts": [1, 2], "rng": {"state": 2**127 + 1}, "ratio": 0.1}


def test_round_trip(tmp_path):
  assert not checkpoints.is_in(str(tmp_path))
  checkpoints.write_state(str(tmp_path), VALUES, ARRAYS)
  assert checkpoints.is_in(str(tmp_path))
  values, arrays = checkpoints.read_state(str(tmp_path))
  assert values == VALUES and list(arrays) == list(ARRAYS)
  for name, array in ARRAYS.items():
    assert arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(arrays[name], array)


def npz(**arrays) -> bytes:
  file = io.BytesIO()
  np.savez(file, **arrays)
  return file.getvalue()


def header(**values) -> np.ndarray:
  return np.frombuffer(json.dumps(values).encode(), np.uint8)


def pickled() -> bytes:
  return npz(header=np.array([print], dtype=object))


FOREIGN = {
  "empty": b"",
  "text": b"not a zip file at all",
  "another program's": npz(x=np.zeros(3)),
  "no JSON": npz(header=np.zeros(3, np.uint8)),
  "no values": npz(header=header(format="t2r_seq.replay.checkpoint", version=1)),
  "another format": npz(header=header(format="x", version=1, values={})),
  "a newer version": npz(
    header=header(format="t2r_seq.replay.checkpoint", version=2, values={})
  ),
  "an array is missing": npz(
    header=header(
      format="t2r_seq.replay.checkpoint", version=1, arrays=["keys"], values={}
    )
  ),
  "a pickle": pickled(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign(name, tmp_path):
  (tmp_path / "state.npz").write_bytes(FOREIGN[name])
  want = r"state\.npz: expected the state of a replay.*Restore a former checkpoint"
  with pytest.raises(errors.ReplayError, match=want):
    checkpoints.read_state(str(tmp_path))


def test_every_damage_is_found_or_harmless(tmp_path):
  checkpoints.write_state(str(tmp_path), VALUES, ARRAYS)
  place = os.path.join(tmp_path, "state.npz")
  with open(place, "rb") as file:
    whole = file.read()
  rng = np.random.default_rng(0)
  refused = 0
  for _ in range(300):
    damaged = bytearray(whole)
    damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
    if rng.random() < 0.2:
      del damaged[rng.integers(len(whole)) :]
    with open(place, "wb") as file:
      file.write(damaged)
    try:
      values, arrays = checkpoints.read_state(str(tmp_path))
    except errors.ReplayError:
      refused += 1
      continue
    assert values == VALUES
    for name, array in ARRAYS.items():
      np.testing.assert_array_equal(arrays[name], array)
  assert refused > 250
