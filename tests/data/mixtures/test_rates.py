"""The rates of the sources of a mixture."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, specs, store

SPEC = {"obs": specs.ExtendedTensorSpec((2,), tf.float32, "obs", is_sequence=True)}
RATES = {
  "one rate": ((10, 10), 0.1, False),
  "two rates": ((10, 20), None, True),
  "an unknown one": ((10, None), None, False),
}


@pytest.mark.parametrize("name", RATES)
def test_sources_of_other_rates_are_warned_of(name, tmp_path, caplog):
  rates, want, warns = RATES[name]
  sources = {}
  for number, fps in enumerate(rates):
    path = tmp_path / f"source_{number}"
    metadata = {} if fps is None else {"lerobot": {"fps": fps}}
    with store.EpisodeStore.create(path, SPEC, metadata) as writer:
      writer.append_episode({"obs": np.zeros((3, 2), np.float32)})
    sources[f"source_{number}"] = data.StoreInputGenerator(path, batch_size=2)
  assert data.MixtureInputGenerator(sources).control_period == want
  is_warned = (
    "sources have other steps a second: source_0 10, source_1 20" in caplog.text
  )
  assert is_warned == warns
