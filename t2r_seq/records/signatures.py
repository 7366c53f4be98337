"""What a file is, by its first bytes, for errors about files of a wrong type."""

from __future__ import annotations

_SIGNATURES = (
  (b"PK\x03\x04", "a zip archive (or an npz file)"),
  (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
  (b"\x1f\x8b", "a gzip file"),
  (b"\x93NUMPY", "a numpy .npy file"),
  (b"\x83\xaf\x70\xd1", "a Riegeli or ArrayRecord file"),
  (b"PAR1", "a Parquet file"),
  (b"ARROW1", "an Arrow file"),
  (b"SQLite format 3", "an SQLite database"),
  (b"\x89PNG", "a PNG image"),
  (b"\xff\xd8\xff", "a JPEG image"),
  (b"GIF8", "a GIF image"),
  (b"BZh", "a bzip2 file"),
  (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
  (b"\xfd7zXZ", "an xz file"),
  (b"\x80\x04\x95", "a Python pickle"),
  (b"version https://git-lfs", "a Git LFS pointer; fetch the file with git lfs pull"),
  (b"SSTABLE", "an SSTable"),
  (b"T2RI", "the index of a TFRecord file; name the file without .t2ri"),
)
# At the end of the tables of LevelDB, which SSTables and TF checkpoint indices are.
_TABLE_FOOTER = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"


def looks_like(start: bytes, end: bytes = b"") -> str:
  """Guesses what a file is.

  Args:
    start: its first bytes; 64 are enough.
    end: its last bytes; 8 are enough.
  Returns:
    A phrase such as 'an HDF5 file'.
  """
  for signature, phrase in _SIGNATURES:
    if start.startswith(signature):
      return phrase
  if end.endswith(_TABLE_FOOTER):
    return "an SSTable (LevelDB table, or the index of a TensorFlow checkpoint)"
  if len(start) > 1 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:
    return "a zlib stream"
  # A character may be cut at the end of the sample, hence 'ignore' is for that only.
  text = start.decode("utf-8", errors="ignore")
  is_whole = len(text.encode()) > len(start) - 4
  if is_whole and text and all(c.isprintable() or c in "\r\n\t" for c in text):
    return f"text ({text[:24]!r})"
  return f"unknown data (it starts with {start[:8].hex(' ')})"
