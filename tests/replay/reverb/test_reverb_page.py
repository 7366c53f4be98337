"""The server and the client of docs/replay.md, as two processes."""

from __future__ import annotations

import re
import signal
import socket

import numpy as np

from tests import warm_python

SPEC = """
import tensorflow as tf
from t2r_seq import specs
x = specs.ExtendedTensorSpec((2,), tf.int64, "x", time_offsets=(-1, 0))
spec = specs.TensorSpecStruct(x=x)
"""


def test_client_of_the_pages_server(tmp_path):
  page = (warm_python.ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
  server_code, client_code = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
  with socket.socket() as picked:
    picked.bind(("localhost", 0))
    port = picked.getsockname()[1]
  assert "port=8000" in server_code
  assert 'listen="10.0.0.7"' in server_code
  server_code = server_code.replace("10.0.0.7", "localhost")
  assert "10.0.0.7:8000" in client_code
  code = SPEC + server_code.replace("8000", str(port))
  server = warm_python.start("-c", code, cwd=tmp_path)
  try:
    namespace = {}
    here = client_code.replace("10.0.0.7:8000", f"localhost:{port}")
    exec(SPEC + here, namespace)
    client = namespace["client"]
    with client.writer() as writer:
      for t in range(4):
        writer.append({"x": np.int64(t)})
      writer.end_episode()
    (batch,) = client.dataset(8).take(1)
    seen = {tuple(row) for row in batch["x"].numpy().tolist()}
    assert seen <= {(0, 0), (0, 1), (1, 2), (2, 3)}
    server.send_signal(signal.SIGTERM)
    server.wait(60)
    assert server.returncode == 0
  finally:
    server.kill()
    server.wait()
  assert any(path.name == "DONE" for path in (tmp_path / "replay").rglob("*"))
