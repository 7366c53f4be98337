"""RLDS episodes into stores: from TFDS's TFRecords, and by way of TFDS."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, records, specs, store
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes import open_episodes
from t2r_seq.records import framing
from t2r_seq.records.files import get_data_format_and_filenames
from tests.records import rlds_data

SPEC = specs.TensorSpecStruct(sorted(rlds_data.SPEC.items()))
PLAIN = specs.TensorSpecStruct(
  (
    path,
    specs.ExtendedTensorSpec.from_spec(leaf, name=leaf.name.removeprefix("steps/")),
  )
  for path, leaf in SPEC.items()
)


def check_store(path: str, exact_dtype: type = np.float32) -> None:
  """Compares a store with what make.py wrote; but the pixels of lossy images."""
  episodes = store.EpisodeStore(path)
  assert len(episodes) == 2
  for row, number in enumerate(rlds_data.EPISODES):
    want = rlds_data.values(number)
    got = episodes.episode(row)
    assert sorted(got) == sorted(want)
    for name, array in want.items():
      if name == "observation/exact":
        got_exact = np.asarray(got[name])
        assert got_exact.dtype == exact_dtype
        np.testing.assert_allclose(got_exact, array, rtol=1e-6)
      elif not specs.is_encoded_image_spec(SPEC[name]):
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def without_layout(spec: Any) -> Any:
  return specs.ExtendedTensorSpec(**{**spec.fields(), "is_concatenated": False})


SOURCES = {
  "recognised": ({}, None),
  "told": ({"source_format": "rlds"}, None),
  "with specs": ({}, SPEC),
  "with specs that say nothing of RLDS": ({"source_format": "rlds"}, PLAIN),
}


@pytest.mark.parametrize("name", SOURCES)
def test_records_to_a_store(name: str, tmp_path: pathlib.Path) -> None:
  arguments, spec = SOURCES[name]
  path = str(tmp_path / "store")
  report = convert.convert(rlds_data.FILES, path, spec, **arguments)
  assert (report.num_episodes, report.num_steps) == (2, 8)
  check_store(path)
  opened = store.EpisodeStore(path)
  for leaf_path, leaf in opened.spec.items():
    assert leaf.is_identical_to(without_layout(SPEC[leaf_path])), leaf_path
  again = convert.convert(rlds_data.FILES, path, spec, **arguments)
  assert again.resumed_at == 2
  assert verify_conversion(rlds_data.FILES, path).num_episodes == 2


def test_array_records_to_a_store(tmp_path, monkeypatch):
  """The same episodes in TFDS's other container; one that was cut is named."""
  module = pytest.importorskip("array_record.python.array_record_module")
  name = tmp_path / "x-train.array_record-00000-of-00001"
  writer = module.ArrayRecordWriter(str(name), "group_size:1")
  for source in get_data_format_and_filenames(rlds_data.FILES)[1]:
    for record in framing.iterate_records(source):
      writer.write(record.data)
  writer.close()
  path = str(tmp_path / "store")
  convert.convert(f"{tmp_path}/x-*", path, SPEC, filter="train")
  check_store(path)
  with pytest.raises(errors.RecordError, match=r"or ArrayRecord file. .*t2r_seq conv"):
    records.record_dataset([str(name)])
  name.write_bytes(name.read_bytes()[:-200])
  with pytest.raises(errors.RecordError, match="expected an ArrayRecord file with rec"):
    records.inspect_records(str(name))
  monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
  with pytest.raises(ImportError, match=r"t2r_seq\[array_record\]"):
    records.inspect_records(str(name))


def test_and_back_to_sequence_examples(tmp_path: pathlib.Path) -> None:
  path, back = str(tmp_path / "store"), str(tmp_path / "a.tfrecord")
  convert.convert(rlds_data.FILES, path)
  convert.convert(path, back)
  summary = records.inspect_records(back)
  assert (summary.proto, summary.is_rlds) == ("tf.train.SequenceExample", False)


def test_rlds_destination_is_refused(tmp_path: pathlib.Path) -> None:
  with pytest.raises(errors.ConversionError, match=r"a format of .* got 'rlds'"):
    convert.convert(rlds_data.FILES, str(tmp_path / "a"), format="rlds")


@pytest.mark.parametrize("name", ["recognised", "told", "with specs"])
def test_episodes_that_share_a_record(name: str, tmp_path: pathlib.Path) -> None:
  """Flags cut them; taken for one episode they would be an error."""
  x = np.arange(6, dtype=np.float32)
  flags = np.asarray([1, 0, 0, 1, 0, 0])
  example = tf.train.Example()
  example.features.feature["steps/is_first"].int64_list.value.extend(flags)
  example.features.feature["steps/x"].float_list.value.extend(x)
  path = str(tmp_path / "x.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(example.SerializeToString())
  leaf = specs.ExtendedTensorSpec((), "float32", "x", is_sequence=True)
  spec = {"x": leaf} if name == "with specs" else None
  arguments = {} if name == "recognised" else {"source_format": "rlds"}
  if spec is None:
    with pytest.raises(errors.ConversionError, match=r"is_first.* got it in step 3"):
      convert.convert(path, str(tmp_path / "one"), spec, **arguments)
  options = dict(first_key="steps/is_first")
  convert.convert(path, str(tmp_path / "cut"), spec, **options, **arguments)
  episodes = store.EpisodeStore(str(tmp_path / "cut"))
  assert episodes.episode_lengths.tolist() == [3, 3]
  np.testing.assert_array_equal(np.ravel(episodes.episode(1)["x"]), x[3:])


def test_folder_of_tfds_is_opened_as_its_files(tmp_path: pathlib.Path) -> None:
  by_folder = open_episodes(rlds_data.FOLDER)
  assert by_folder.spec == open_episodes(rlds_data.FILES).spec
  assert len(list(open_episodes(rlds_data.FOLDER, split="train"))) == 2
  convert.convert(rlds_data.FOLDER, str(tmp_path / "a_store"))
  check_store(str(tmp_path / "a_store"))
  made = data.RldsInputGenerator(rlds_data.FOLDER, batch_size=2)
  spec = {"action": specs.ExtendedTensorSpec((2,), tf.float32, time_offsets=0)}
  made.set_feature_specifications(spec, spec)
  made.set_label_specifications({}, {})
  ((features, _), *_) = made.create_dataset("eval")
  assert features["action"].shape == (2, 2)


def test_folder_with_a_description_and_no_records(tmp_path: pathlib.Path) -> None:
  (tmp_path / "features.json").write_text("{}")
  with pytest.raises(
    errors.ConversionError, match=r"got a folder with \[features.json"
  ):
    open_episodes(tmp_path)
