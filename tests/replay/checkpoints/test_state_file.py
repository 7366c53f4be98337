"""The state beside the episodes is whole and of this program, or is refused."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs


def npz(**arrays) -> bytes:
  file = io.BytesIO()
  np.savez(file, **arrays)
  return file.getvalue()


def header(**values) -> np.ndarray:
  return np.frombuffer(json.dumps(values).encode(), np.uint8)


def pickled() -> bytes:
  return npz(header=np.array([print], dtype=object))


OURS = "t2r_seq.replay.checkpoint"
FOREIGN = {
  "empty": b"",
  "text": b"not a zip file at all",
  "another program's": npz(x=np.zeros(3)),
  "no JSON": npz(header=np.zeros(3, np.uint8)),
  "no values": npz(header=header(format=OURS, version=1)),
  "another format": npz(header=header(format="x", version=1, values={})),
  "a newer version": npz(header=header(format=OURS, version=2, values={})),
  "an array is missing": npz(
    header=header(format=OURS, version=1, arrays=["counts"], values={})
  ),
  "a pickle": pickled(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign(name, tmp_path):
  spec = {"x": specs.ExtendedTensorSpec((), tf.int64, time_offsets=0)}
  buffer = replay.ReplayBuffer(spec, 10, checkpoint_dir=tmp_path)
  with buffer.writer() as writer:
    writer.append({"x": 1})
  with open(os.path.join(buffer.checkpoint(), "state.npz"), "wb") as file:
    file.write(FOREIGN[name])
  want = r"state\.npz: expected the state of a replay.*Restore a former checkpoint"
  with pytest.raises(errors.ReplayError, match=want):
    replay.ReplayBuffer(spec, 10).restore(tmp_path)
