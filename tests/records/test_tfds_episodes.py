"""RLDS episodes by way of TFDS, which the extra `tfds` installs."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from tests.records import rlds_data


def test_without_tfds_the_error_names_the_extra(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(ImportError, match=r"pip install 't2r_seq\[tfds\]'"):
    records.TfdsEpisodes(rlds_data.FOLDER)


def test_the_same_episodes_as_without_tfds() -> None:
  pytest.importorskip("tensorflow_datasets")
  found = records.TfdsEpisodes(rlds_data.FOLDER)
  assert found.num_episodes == 2
  assert list(found.spec) == sorted(rlds_data.SPEC)
  episodes = list(found.dataset())
  for number, episode in zip(rlds_data.EPISODES, episodes, strict=True):
    for path, want in rlds_data.values(number).items():
      value = episode[path].numpy()
      if path in ("observation/image", "observation/exact"):
        np.testing.assert_allclose(value, want, atol=3)
      else:
        np.testing.assert_array_equal(value, want, err_msg=path)


def test_its_windows() -> None:
  pytest.importorskip("tensorflow_datasets")
  episodes = records.TfdsEpisodes(rlds_data.FOLDER).dataset()
  spec = specs.TensorSpecStruct(
    state=specs.ExtendedTensorSpec((2, 3), tf.float32, time_offsets=(-1, 0))
  )
  states = episodes.map(
    lambda episode: specs.TensorSpecStruct(state=episode["observation/state"])
  )
  found = list(windows.windows(states, spec, padding="drop"))
  assert len(found) == 6
  assert found[0]["state"].shape == (2, 3)


REFUSED = {
  "no dataset": (
    "no_such_dataset",
    "train",
    "expected the name of a dataset, or the f",
  ),
  "no split": (rlds_data.FOLDER, "test", "expected a split that is prepared, got 'te"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there(name: str) -> None:
  pytest.importorskip("tensorflow_datasets")
  source, split, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    records.TfdsEpisodes(source, split)
