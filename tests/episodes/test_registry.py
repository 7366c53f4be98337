"""The registry: a format is one module, and everything takes its data sets."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, specs
from t2r_seq.episodes import (
  Episodes,
  find_format,
  formats,
  open_episodes,
  register_format,
)

Spec = specs.ExtendedTensorSpec
ROWS = [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0]]]


@register_format("json_lines", suffixes=(".episodes.jsonl",), description="JSON lines")
class JsonLines(Episodes):
  """Reads a file with an episode a line, each a list of positions."""

  def __init__(self, path, dropped=None, scale=1.0):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    self.path = path
    self._rows = [scale * np.asarray(json.loads(line), np.float32) for line in lines]
    self.spec = specs.TensorSpecStruct(
      position=Spec((2,), tf.float32, "position", is_sequence=True)
    )
    self.lengths = np.asarray([len(rows) for rows in self._rows])

  def read(self, episode, paths=None, start=0, stop=None, out=None):
    return {"position": self._rows[episode][start:stop]}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = "\n".join(map(json.dumps, ROWS)) + "\n"
  pathlib.Path("own.episodes.jsonl").write_text(text)


def test_a_registered_format_is_recognised_and_read():
  assert find_format("own.episodes.jsonl").name == "json_lines"
  episodes = open_episodes("own.episodes.jsonl")
  assert episodes.format == "json_lines"
  assert [one.values["position"].tolist() for one in episodes] == ROWS
  assert episodes.select([1]).lengths.tolist() == [1]
  doubled = open_episodes("own.episodes.jsonl", scale=2.0)
  assert doubled.read(1)["position"].tolist() == [[12, 14]]


def test_a_registered_format_trains_in_place():
  spec = {"position": Spec((2, 2), tf.float32, time_offsets=(0, 1))}
  batches = data.windows_of("own.episodes.jsonl", spec, mode="eval", batch_size=9)
  (batch,) = batches
  np.testing.assert_array_equal(batch["position"][2], [[4, 5], [4, 5]])
  assert len(batch["position"]) == 4


FAILURES = {
  "nothing there": (
    ("own.jsonl",),
    {},
    "expected .* got nothing there. .*own.episodes",
  ),
  "an unknown format": (("own.episodes.jsonl", "zar"), {}, "'zar'.*zarr"),
  "an unknown option": (
    ("own.episodes.jsonl",),
    {"scal": 2},
    "scal: expected an option of json_lines, of .*scale.*, got 'scal'",
  ),
  "a path to drop": (
    ("own.episodes.jsonl",),
    {"drop": ["positon"]},
    "positon: expected a path to drop, of .*position",
  ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
  arguments, options, message = FAILURES[name]
  with pytest.raises(errors.SpecError, match=f"(?s){message}"):
    open_episodes(*arguments, **options)


def test_a_name_is_registered_once():
  with pytest.raises(errors.SpecError, match="zarr: expected a new name"):
    register_format("zarr")(JsonLines)
  assert "zarr" in formats()
