"""One hash per episode: equal content has equal hashes, wherever it is stored."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from t2r_seq.conversions.episodes import Values
from t2r_seq.store import files

_DIGEST_SIZE = 16


def episode_digest(values: Values) -> str:
  """Hashes an episode's paths, dtypes, shapes and bytes with BLAKE2b.

  The bytes are little-endian and in C order, so the hash doesn't depend on how a
  format keeps them. Byte strings are hashed with their lengths.

  Args:
    values: by path; byte strings as arrays of bytes objects.
  Returns:
    32 hexadecimal digits.
  """
  digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
  for path in sorted(values):
    array = values[path]
    is_bytes = array.dtype == object
    name = "bytes" if is_bytes else array.dtype.newbyteorder("=").name
    header = json.dumps([path, name, list(array.shape)]).encode()
    digest.update(len(header).to_bytes(8, "little") + header)
    if is_bytes:
      items = array.ravel().tolist()
      lengths = np.fromiter(map(len, items), np.int64, len(items))
      digest.update(files.as_bytes(lengths).data)
      for item in items:
        digest.update(item)
    else:
      digest.update(files.as_bytes(array).data)
  return digest.hexdigest()
