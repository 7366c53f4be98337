"""Stores that are changed at random: never a crash, never a wrong episode."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from t2r_seq import errors, store
from t2r_seq.store import EpisodeStore
from tests.attacks.stores import damage

LENGTHS = (5, 1, 8)


@pytest.mark.parametrize("seed", range(8))
def test_salvage_gives_what_was_written_or_nothing(
  seed, path, tmp_path, spec, episode, same
):
  rng = random.Random(seed)
  names = [
    os.path.relpath(os.path.join(place, name), path)
    for place, _, found in os.walk(path)
    for name in sorted(found)
    if name != "lock"
  ]
  for number in range(8):
    damaged, out = tmp_path / f"damaged{number}", tmp_path / f"out{number}"
    shutil.copytree(path, damaged)
    for name in rng.sample(names, rng.choice([1, 1, 2, 3])):
      damage(str(damaged / name), rng)
    try:
      report = store.salvage_store(damaged, out, rng.choice([None, spec]))
    except errors.StoreError:
      continue  # It says why.
    opened = EpisodeStore(out)
    for position, (_, index) in enumerate(report.kept):
      same(opened.episode(position), episode(index, LENGTHS[index]))
    assert len(opened) + len(report.left_out) <= len(LENGTHS)
    assert len(opened) == len(LENGTHS) or not report.source.is_whole
