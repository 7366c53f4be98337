"""The registry: a format is one module, and everything takes its data sets."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import t2r_seq
from t2r_seq import convert, data, episodes, errors, specs, store
from t2r_seq.cli import main
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes, register_format
from t2r_seq.episodes.episodes import EpisodeWriter, Values
from t2r_seq.episodes.registry import find_format, formats

Spec = specs.ExtendedTensorSpec


class ToyWriter(EpisodeWriter):
  """Writes one text file, a line per episode."""

  def __init__(self, path: str, source: episodes.Episodes, digits: int = 3) -> None:
    self._path, self._digits = pathlib.Path(path), digits
    (self._name,) = source.spec
    if source.spec[self._name].dtype != tf.float32:
      raise errors.SpecError(f"toy: {self._name}: expected float32.")
    self._lines = [self._name]

  def append(self, values: Values) -> None:
    steps = values[self._name]
    self._lines.append(" ".join(f"{x:.{self._digits}f}" for x in np.ravel(steps)))

  def finish(self) -> None:
    self._path.write_text("\n".join(self._lines))

  def close(self) -> None:
    pass


@register_format("toy", suffixes=(".toy",), writer=ToyWriter)
class ToyEpisodes(episodes.Episodes):
  """Reads such a file."""

  def __init__(self, path: str, scale: float = 1.0) -> None:
    self._name, *lines = pathlib.Path(path).read_text().splitlines()
    self._steps = [scale * np.asarray(line.split(), np.float32) for line in lines]
    self.spec = specs.TensorSpecStruct(
      {self._name: Spec((), tf.float32, self._name, is_sequence=True)}
    )
    self.lengths = np.asarray([len(steps) for steps in self._steps])

  def read(self, episode, paths=None, start=0, stop=None, out=None) -> Values:
    return {self._name: self._steps[episode][start:stop]}


@pytest.fixture(autouse=True)
def fixture_file(tmp_path, monkeypatch):
  """A file of three episodes, and the current folder."""
  monkeypatch.chdir(tmp_path)
  pathlib.Path("a.toy").write_text("speed\n1 2 3\n4\n5 6")


def test_registered_format_is_recognised_and_read():
  assert find_format("a.toy").name == "toy"
  opened = t2r_seq.open_episodes("a.toy")
  assert (opened.format, opened.num_episodes) == ("toy", 3)
  assert opened.read(2)["speed"].tolist() == [5, 6]
  selected = opened.select([0, 2]).rename({"speed": "arm/speed"})
  assert [e.values["arm/speed"].tolist() for e in selected] == [[1, 2, 3], [5, 6]]
  assert open_episodes("a.toy", scale=2.0).read(1)["speed"].tolist() == [8]


def test_registered_format_trains_in_place():
  spec = {"speed": Spec((2,), tf.float32, time_offsets=(0, 1))}
  (batch,) = data.windows_of("a.toy", spec, mode="eval", batch_size=9)
  np.testing.assert_array_equal(batch["speed"][:4], [[1, 2], [2, 3], [3, 3], [4, 4]])
  assert len(batch["speed"]) == 6


@pytest.mark.parametrize("destination", ["s", "x.hdf5", "x.zarr", "x.tfrecord"])
def test_registered_format_is_converted_and_back(destination):
  report = convert.convert("a.toy", destination)
  assert (report.source_format, report.num_episodes, report.num_steps) == ("toy", 3, 6)
  verify_conversion("a.toy", destination)
  convert.convert(destination, "back.toy", digits=0)
  assert pathlib.Path("back.toy").read_text() == "speed\n1 2 3\n4\n5 6"


def test_writer_checks_specs_first():
  with store.EpisodeStore.create("s", {"x": Spec((), tf.int64, is_sequence=True)}) as w:
    w.append_episode({"x": np.arange(3)})
  with pytest.raises(errors.SpecError, match="toy: x: expected float32"):
    convert.convert("s", "x.toy")
  assert sorted(path.name for path in pathlib.Path().iterdir()) == ["a.toy", "s"]
  episodes.write_episodes(open_episodes("s").cast({"x": "float32"}), "x.toy")
  assert pathlib.Path("x.toy").read_text() == "x\n0.000 1.000 2.000"


def test_registered_format_is_viewed(capsys):
  assert main(["view", "a.toy", "-o", "page.html"]) == 0
  assert "3 episodes" in capsys.readouterr().out
  assert "speed" in pathlib.Path("page.html").read_text()


FAILURES = {
  "nothing there": (("b.toy",), {}, "expected .* got nothing there. .*a.toy"),
  "an unknown format": (("a.toy", "zar"), {}, "'zar'.*zarr"),
  "an unknown option": (
    ("a.toy",),
    {"scal": 2},
    "scal: expected an option of toy .*scale.*, got 'scal'",
  ),
  "a path to drop": (
    ("a.toy",),
    {"drop": ["sped"]},
    "open_episodes: a.toy: sped: expected one of the paths .*speed",
  ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
  arguments, options, message = FAILURES[name]
  with pytest.raises(errors.SpecError, match=f"(?s){message}"):
    open_episodes(*arguments, **options)


def test_name_is_registered_once():
  with pytest.raises(errors.SpecError, match="zarr: expected a new name"):
    register_format("zarr")(ToyEpisodes)
  assert "zarr" in formats()
