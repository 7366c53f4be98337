"""Arguments of `ReverbReplay` that Reverb would refuse in its own words, or later."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.reverb import ReverbReplay
from t2r_seq.specs import ExtendedTensorSpec as Spec

SPEC = {"x": Spec((), tf.int64, "x", time_offsets=0)}

BAD = {
  "no address": ({"address": None}, "address: expected 'host:port' .*, got None"),
  "no port": ({"address": "localhost"}, "address: expected 'host:port' .* 'localhost'"),
  "large port": (
    {"address": "localhost:65536"},
    "address: expected .* 'localhost:65536'",
  ),
  "word": (
    {"address": "localhost:a"},
    "address: expected 'host:port' .* 'localhost:a'",
  ),
  "initial_priority": ({"initial_priority": -1}, "initial_priority: .*, got -1"),
  "no priority": ({"initial_priority": "a"}, "initial_priority: .* number, got .* 'a'"),
  "items": ({"max_in_flight_items": -1}, "max_in_flight_items: .* least 0, got -1"),
  "samples": ({"max_in_flight_samples": 0}, "max_in_flight_samples: .* 1, got 0"),
  "a long wait": ({"timeout": 1e300}, r"timeout: .* seconds .*, got 1e\+300"),
  "no number of seconds": ({"server_timeout": "a"}, "server_timeout: .*, got 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
  arguments, message = BAD[name]
  with pytest.raises(errors.SpecError, match=f"^ReverbReplay: {message}"):
    ReverbReplay(SPEC, **{"address": "localhost:1", "server_timeout": 1, **arguments})


UPDATES = {
  "fractions": (
    [0.5],
    [1.0],
    r"keys: expected integers \[n\] of at least 0, got \(1,\) float64",
  ),
  "negative keys": (
    [-1],
    [1.0],
    r"keys: expected integers .* least 0, got .*: \[-1\]",
  ),
  "bools": (
    [True],
    [1.0],
    r"keys: expected integers .* least 0, got \(1,\) bool",
  ),
  "words": ([1], ["a"], r"priorities: expected numbers of shape \(1,\), got .*'a'"),
  "lengths": (
    [1, 2],
    [1.0],
    r"priorities: expected numbers of shape \(2,\), got list",
  ),
  "negative priorities": ([1], [-1.0], "priorities: expected finite numbers .* got -1"),
}


def test_bad_calls(serve):
  client = ReverbReplay(SPEC, serve(SPEC))
  for size in (0, -1, 1.5, None, "a", True):
    with pytest.raises(errors.SpecError) as caught:
      client.dataset(size)
    want = f"sample: batch_size: expected an integer of at least 1, got {size!r}."
    assert str(caught.value) == want
  for keys, priorities, message in UPDATES.values():
    with pytest.raises(errors.SpecError, match=f"^update_priorities: {message}"):
      client.update_priorities(keys, priorities)
  client.update_priorities([], [])
  client.update_priorities(np.uint64([2**63 + 1]), [1])
