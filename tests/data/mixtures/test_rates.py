"""The rates of the sources of a mixture."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, specs, store, zoo

SPEC = {"obs": specs.ExtendedTensorSpec((2,), tf.float32, "obs", is_sequence=True)}
PAST = specs.ExtendedTensorSpec(
  (2, 2), tf.float32, "obs", time_offsets=specs.Seconds((-0.1, 0.0))
)
STEPS = specs.ExtendedTensorSpec((2, 2), tf.float32, "obs", time_offsets=(-1, 0))
# name: (rates, the robots' periods, spec, period of the mixture, whether it warns)
RATES = {
  "one rate": ((10, 10), None, STEPS, 0.1, False),
  "two rates": ((10, 20), None, STEPS, None, True),
  "an unknown one": ((10, None), None, STEPS, None, False),
  "two rates, offsets in seconds": ((10, 20), None, PAST, None, False),
  "two rates that robots state": ((10, 20), (0.1, 0.05), STEPS, None, False),
  "two rates, one robot states it": ((10, 20), (0.1, None), STEPS, None, True),
}


@pytest.mark.parametrize("name", RATES)
def test_sources_of_other_rates_are_warned_of_once(name, tmp_path, caplog):
  rates, periods, spec, want, warns = RATES[name]
  sources, robots = {}, {}
  for number, fps in enumerate(rates):
    source = f"source_{number}"
    path = tmp_path / source
    metadata = {} if fps is None else {"lerobot": {"fps": fps}}
    with store.EpisodeStore.create(path, SPEC, metadata) as writer:
      writer.append_episode({"obs": np.zeros((3, 2), np.float32)})
    sources[source] = data.StoreInputGenerator(path, batch_size=2)
    if periods is not None:
      signature = zoo.signature.Signature("obs", 2)
      robots[source] = zoo.embodiments.Embodiment(
        source, number, signature, control_period=periods[number]
      )
  mixture = data.MixtureInputGenerator(sources, embodiments=robots)
  mixture.set_feature_specifications({"obs": spec})
  mixture.set_label_specifications({})
  assert mixture.control_period == mixture.control_period == want
  text = (
    "sources differ in steps a second: source_0 10, source_1 20. A time offset in "
    "steps is another time in each. Give time offsets in seconds, or each robot's"
  )
  assert caplog.text.count(text) == warns


def test_offsets_in_seconds_are_the_same_times_in_all_sources(tmp_path):
  sources = {}
  for fps in (10, 20):
    path = tmp_path / f"hz{fps}"
    with store.EpisodeStore.create(path, SPEC, {"fps": fps}) as writer:
      times = np.arange(1, 8, dtype=np.float32) / fps
      writer.append_episode({"obs": np.stack([times, np.full(7, fps, np.float32)], 1)})
    sources[f"hz{fps}"] = data.StoreInputGenerator(path, seed=1)
  mixture = data.MixtureInputGenerator(sources, batch_size=8)
  mixture.set_feature_specifications({"obs": PAST})
  mixture.set_label_specifications({})
  mixture.set_padding("drop")
  features, _ = next(iter(mixture.create_dataset("train")))
  obs = features["obs"].numpy()  # [batch, (0.1 s ago, now), (time, rate)]
  assert sorted(obs[:, 1, 1]) == [10] * 4 + [20] * 4
  np.testing.assert_allclose(obs[:, 1, 0] - obs[:, 0, 0], 0.1, atol=1e-6)
