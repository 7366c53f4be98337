"""File patterns, record datasets and files of a wrong type."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import zipfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, tfdata
from t2r_seq.records import files
from t2r_seq.records.files import get_data_format_and_filenames

NUMBER = {"x": specs.ExtendedTensorSpec((), tf.int64, "n")}


@pytest.fixture(name="folder")
def _folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
  """A current folder with a0, a1 and a2 of 3 records each, and b0 compressed."""
  monkeypatch.chdir(tmp_path)
  for i in range(3):
    numbers = [{"x": 10 * i + k} for k in range(3)]
    records.write_records(f"a{i}.tfrecord", NUMBER, numbers)
  records.write_records("b0.tfrecord.gz", NUMBER, [{"x": 90}, {"x": 91}])
  (tmp_path / "folder").mkdir()
  (tmp_path / ".hidden").write_bytes(b"")
  (tmp_path / "statistics.json").write_text("{}")
  return tmp_path


def values(dataset: tf.data.Dataset) -> list[int]:
  parsed = records.serialized_to_parsed(dataset, NUMBER)
  return [int(element["x"]) for element in parsed.as_numpy_iterator()]


A = ["a0.tfrecord", "a1.tfrecord", "a2.tfrecord"]
B = ["b0.tfrecord.gz"]

PATTERNS = {
  "one file": ("a1.tfrecord", [A[1:2]]),
  "glob": ("a*.tfrecord", [A]),
  "comma list": ("b0*,a0.tfrecord , ", [B, A[:1]]),
  "prefix": ("tfrecord:a*,tfrecord:b*", [A, B]),
  "python list": (["a0.tfrecord", "a*,b*"], [A[:1], A, B]),
  "path": (pathlib.Path("a0.tfrecord"), [A[:1]]),
  "folders and hidden files": ("*", [A + B]),
  "hidden on request": (".h*", [[".hidden"]]),
  "statistics on request": ("*statistics.json", [["statistics.json"]]),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", PATTERNS)
def test_file_patterns(case: str) -> None:
  patterns, want = PATTERNS[case]
  data_format, found = tfdata.get_data_format_and_filenames_list(patterns)
  assert data_format == "tfrecord"
  assert [[os.path.basename(name) for name in names] for names in found] == want
  data_format, flat = get_data_format_and_filenames(patterns)
  # A file that two patterns match is read once.
  once = dict.fromkeys(itertools.chain(*want))
  assert [os.path.basename(name) for name in flat] == list(once)


@pytest.mark.usefixtures("folder")
def test_repeated_file_is_read_once_with_a_warning(caplog) -> None:
  _, (name, *_) = get_data_format_and_filenames("*")
  assert "more than once" not in caplog.text
  assert get_data_format_and_filenames([name, f"./{name}"])[1] == [name]
  assert f"1 files are named more than once and read once, such as {name}" in (
    caplog.text
  )
  assert "WeightedRecordInputGenerator" in caplog.text


ODD_NAMES = ["run[1].tfrecord", "a,b.tfrecord", "what?.tfrecord", "all*.tfrecord"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ODD_NAMES)
def test_file_of_exactly_that_name_comes_first(name: str) -> None:
  for odd in (*ODD_NAMES, "whatX.tfrecord", "all1.tfrecord"):
    records.write_records(odd, NUMBER, [{"x": len(odd)}])
  for patterns in (name, [name], f"tfrecord:{name}", pathlib.Path(name)):
    assert get_data_format_and_filenames(patterns)[1] == [name]
  assert get_data_format_and_filenames([name, "a0.tfrecord"])[1][0] == name
  assert values(records.record_dataset([name])) == [len(name)]


DATASETS = {
  "a string": ("a1.tfrecord", [10, 11, 12]),
  "a path": (pathlib.Path("a1.tfrecord"), [10, 11, 12]),
  "a comma list": ("b0.tfrecord.gz,a0.tfrecord", [90, 91, 0, 1, 2]),
  "a glob": ("tfrecord:a[02].tfrecord", [0, 1, 2, 20, 21, 22]),
  "a list of globs": (["b*", "a0*", "a[01]*"], [90, 91, 0, 1, 2, 10, 11, 12]),
  "the same name twice": (["b0.tfrecord.gz"] * 2, [90, 91, 90, 91]),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", DATASETS)
def test_record_dataset_takes_patterns(case: str) -> None:
  patterns, want = DATASETS[case]
  assert values(records.record_dataset(patterns)) == want


@pytest.mark.usefixtures("folder")
def test_record_dataset_names_a_pattern_without_files() -> None:
  with pytest.raises(errors.SpecError, match=r"c\*: expected at least one file, got"):
    records.record_dataset("c*")


@pytest.mark.usefixtures("folder")
def test_bookkeeping_of_a_conversion_is_no_data() -> None:
  os.makedirs("c.tfrecord.conversion")
  with pytest.raises(errors.SpecError, match=r"c\.tf\S*\*: expected at .*, got none"):
    get_data_format_and_filenames("c.tfrecord*")
  records.write_records("c.tfrecord", NUMBER, [{"x": 1}])
  for pattern in ("c.tfrecord*", "c*"):
    _, found = get_data_format_and_filenames(pattern)
    assert [os.path.basename(name) for name in found] == ["c.tfrecord"]
  pathlib.Path("c.tfrecord.conversion/episodes.jsonl").touch()
  _, found = get_data_format_and_filenames("c.tfrecord.conversion/*.jsonl")
  assert [os.path.basename(name) for name in found] == ["episodes.jsonl"]


BAD_PATTERNS = {
  "none": ("a0.tfrecord,c*", r"c\*: expected at least one file, got none"),
  "empty": (" , ", "expected at least one pattern, got ' , '"),
  "empty list": ([], r"expected at least one pattern, got \[\]"),
  "folder": ("folder", r"folder: expected TFRecord files, got a folder\. It has none"),
  "format": ("sstable:a*", "sstable:a.: expected the prefix 'tfrecord:' or none"),
  "nothing": (
    None,
    r"file patterns: expected a pattern, .*, got None\. Name the files",
  ),
  "a number": (5, "file patterns: expected a pattern, .* or a list of them, got 5"),
  "bytes": (b"a*", r"file patterns: expected a pattern, .*, got b'a\*'"),
  "a map": ({"a": "a*"}, "file patterns: expected a pattern, .*, got {'a': 'a.'}"),
  "a number in a list": (
    ["a*", 5],
    r"patterns\[1\]: expected a pattern or a path, got 5",
  ),
  "a list in a list": ([["a*"]], r"\[0\]: expected a pattern or a path, got \['a\*'\]"),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", BAD_PATTERNS)
def test_bad_patterns(case: str) -> None:
  patterns, message = BAD_PATTERNS[case]
  with pytest.raises(errors.SpecError, match=message):
    get_data_format_and_filenames(patterns)


@pytest.mark.parametrize("patterns", [None, 5, [5], b"x", [b"x"]])
def test_record_dataset_refuses_what_is_no_pattern(patterns: Any) -> None:
  with pytest.raises(errors.SpecError, match=r"expected a pattern.*, got .*(5|None|x)"):
    records.record_dataset(patterns)


def test_infer_data_format() -> None:
  assert tfdata.infer_data_format("tfrecord:a,/b*") == "tfrecord"
  assert tfdata.infer_data_format("gs://bucket/a") == "tfrecord"
  with pytest.raises(errors.SpecError, match="got 'recordio:'"):
    tfdata.infer_data_format(["a", "recordio:b"])


@pytest.mark.usefixtures("folder")
def test_get_dataset_metadata() -> None:
  assert tfdata.get_dataset_metadata("a*") == ("tfrecord", 3, 3)
  assert tfdata.get_dataset_metadata("b*,a*") == ("tfrecord", 4, 2)


@pytest.mark.parametrize(
  ("params", "want"), [(None, 8), ({}, 8), ({"batch_size": 4}, 4), ({"other": 1}, 8)]
)
def test_get_batch_size(params: Any, want: int) -> None:
  assert tfdata.get_batch_size(params, 8) == want


@pytest.mark.usefixtures("folder")
def test_record_datasets_of_mixed_compression() -> None:
  assert values(records.record_dataset(["b0.tfrecord.gz", *A[:1]])) == [90, 91, 0, 1, 2]
  assert values(records.record_dataset(A)) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


@pytest.mark.usefixtures("folder")
def test_parallel_reads_interleave_in_a_fixed_order() -> None:
  want = [0, 10, 20, 1, 11, 21, 2, 12, 22]
  for _ in range(3):
    assert values(records.record_dataset(A, num_parallel_reads=3)) == want
  assert values(records.record_dataset(A, num_parallel_reads=9)) == want


@pytest.mark.usefixtures("folder")
def test_files_are_shuffled_by_seed_and_epoch() -> None:
  datasets = [records.record_dataset(A, shuffle_files=True, seed=7) for _ in range(2)]
  epochs = [[values(dataset) for _ in range(4)] for dataset in datasets]
  assert epochs[0] == epochs[1]
  assert len({tuple(epoch) for epoch in epochs[0]}) > 1
  assert all(sorted(epoch) == sorted(values(datasets[0])) for epoch in epochs[0])


@pytest.mark.usefixtures("folder")
def test_parallel_read_interleaves_by_epoch() -> None:
  orders = [
    values(tfdata.parallel_read("a*", num_epochs=8, seed=seed)) for seed in (3, 3, 4)
  ]
  assert orders[0] == orders[1] != orders[2]
  epochs = [orders[0][i : i + 9] for i in range(0, 72, 9)]
  assert all(sorted(epoch) == [0, 1, 2, 10, 11, 12, 20, 21, 22] for epoch in epochs)
  # One record of each file, then the next of each.
  turns = [[number % 10 for number in epoch] for epoch in epochs]
  assert turns == [[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 8
  assert len({tuple(epoch[:3]) for epoch in epochs}) > 1


READERS = {
  "all files": ({}, 3),
  "num_readers": ({"num_readers": 2}, 2),
  "one reader": ({"num_readers": 1}, 1),
  "num_shards": ({"num_shards": 2}, 2),
  "more readers than files": ({"num_readers": 9}, 3),
  "num_readers wins": ({"num_shards": 1, "num_readers": 2}, 2),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", READERS)
def test_how_many_files_parallel_read_reads_at_a_time(case: str) -> None:
  arguments, want = READERS[case]
  order = values(tfdata.parallel_read("a*", num_epochs=1, **arguments))
  assert len(order) == 9
  assert len({number // 10 for number in order[: min(want + 1, 3)]}) == want


@pytest.mark.usefixtures("folder")
def test_parallel_read_repeats_for_ever_by_default() -> None:
  assert len(values(tfdata.parallel_read("b*").take(7))) == 7
  with pytest.raises(errors.SpecError, match=r"c\*: expected at least one file, got"):
    tfdata.parallel_read("c*")


def test_no_files_are_an_error() -> None:
  with pytest.raises(errors.SpecError, match="expected at least one file, got none"):
    records.record_dataset([])


def write_zip(path: pathlib.Path) -> None:
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("a", "b")


def write_checkpoint(path: pathlib.Path) -> None:
  tf.train.Checkpoint(x=tf.Variable(1)).write(str(path.parent / "model"))
  os.replace(path.parent / "model.index", path)


WRONG_TYPES = {
  "zip": (write_zip, "a zip archive"),
  "npy": (lambda path: np.save(path.open("wb"), np.zeros(9)), "a numpy .npy file"),
  "hdf5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), "an HDF5"),
  "text": (lambda path: path.write_text("time,x\n0,é\n" * 9), r"text \('time,x"),
  "json": (lambda path: path.write_text('{"a": 1}'), "text"),
  "lfs": (
    lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
    "a Git LFS pointer",
  ),
  "gzip": (
    lambda path: records.write_records(path, NUMBER, [{"x": 1}], compression="GZIP"),
    "a gzip file",
  ),
  "zlib": (
    lambda path: records.write_records(path, NUMBER, [{"x": 1}], compression="ZLIB"),
    "a zlib stream",
  ),
  "checkpoint": (write_checkpoint, "an SSTable"),
  "riegeli": (lambda path: path.write_bytes(b"\x83\xaf\x70\xd1" + bytes(60)), "Riegel"),
  "noise": (
    lambda path: path.write_bytes(bytes(range(128, 192))),
    r"unknown.*80 81 82",
  ),
  "cut": (lambda path: path.write_bytes(bytes([9, 0, 0])), r"unknown data .*09 00 00"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_files_of_a_wrong_type(tmp_path: pathlib.Path, case: str) -> None:
  write, message = WRONG_TYPES[case]
  path = tmp_path / "a.tfrecord"
  write(path)
  want = (
    r"a\.tfrecord: expected a TFRecord file, uncompressed as its name says, got a "
    rf"wrong file type: it looks like .*{message}"
  )
  with pytest.raises(errors.RecordError, match=want):
    records.record_dataset([str(path)])
  records.record_dataset([str(path)], check=False)


@pytest.mark.parametrize("suffix", ["gz", "zz"])
def test_uncompressed_file_with_the_suffix_of_a_compressed(
  tmp_path: pathlib.Path, suffix: str
) -> None:
  path = tmp_path / f"a.{suffix}"
  records.write_records(path, NUMBER, [{"x": 1}], compression="")
  want = (
    "-compressed as its name says, got a wrong .* like an uncompressed TFRecord file"
  )
  with pytest.raises(errors.RecordError, match=want):
    records.record_dataset([str(path)])
  assert values(records.record_dataset([str(path)], compression="")) == [1]


def test_empty_and_absent_files(tmp_path: pathlib.Path) -> None:
  (tmp_path / "a").write_bytes(b"")
  assert values(records.record_dataset([str(tmp_path / "a")])) == []
  with pytest.raises(
    errors.RecordError, match=r"expected a TFRecord file, got .*No such"
  ):
    records.record_dataset([str(tmp_path / "b")])


@pytest.mark.parametrize("pattern", ["s3://bucket/x*", "nowhere://x/y*"])
def test_remote_files_of_a_system_that_is_not_there(pattern):
  want = f"file patterns: {re.escape(pattern)}: expected files that TensorFlow can list"
  with pytest.raises(errors.SpecError, match=want):
    get_data_format_and_filenames(pattern)


def test_no_number_of_files_is_waited_for(tmp_path, monkeypatch):
  names = [str(tmp_path / f"{number:03d}.tfrecord") for number in range(130)]
  for name in names:
    pathlib.Path(name).write_bytes(b"")
  looked_at = []
  look = files._check_file_type
  monkeypatch.setattr(
    files, "_check_file_type", lambda *file: looked_at.append(file) or look(*file)
  )
  files.check_file_types(names)
  assert len(looked_at) == 130
  looked_at.clear()
  monkeypatch.setattr(files, "_MAX_CHECK_SECS", -1)  # As if it took longer.
  files.check_file_types(names)
  assert len(looked_at) == 100
