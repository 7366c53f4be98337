"""A headless Chromium that tells what a page logs and asks for."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import urllib.request

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# What a page's own work is counted by; the rest is waiting where others work, too.
WORK = ("Script", "Layout", "RecalcStyle")


class Page:
  """One page, over Chromium's DevTools protocol."""

  def __init__(self, socket):
    self._socket = socket
    self._number = 0
    self.events = []
    for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
      self.call(f"{domain}.enable")

  def call(self, method, **parameters):
    self._number += 1
    message = {"id": self._number, "method": method, "params": parameters}
    self._socket.send(json.dumps(message))
    while True:
      answer = json.loads(self._socket.recv(timeout=120))
      if answer.get("id") == self._number:
        assert "error" not in answer, answer
        return answer["result"]
      self.events.append(answer)

  def open(self, path):
    self.call("Page.navigate", url=f"file://{path}")
    while not any(event["method"] == "Page.loadEventFired" for event in self.events):
      self.events.append(json.loads(self._socket.recv(timeout=120)))

  def ask(self, expression):
    """Returns the value of JavaScript; a promise is waited for."""
    found = self.call(
      "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
    )
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")

  def press(self, *keys):
    for key in keys:
      self.call("Input.dispatchKeyEvent", type="keyDown", key=key)

  def resize(self, width, height, is_dark=False):
    self.call(
      "Emulation.setDeviceMetricsOverride",
      width=width, height=height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
    self.call("Emulation.setEmulatedMedia", features=[scheme])

  def screenshot(self):
    self.ask("new Promise(done => setTimeout(done, 300))")
    return base64.b64decode(self.call("Page.captureScreenshot")["data"])

  def metrics(self):
    """What Chromium has counted: seconds of work, by what for, and more."""
    found = self.call("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found}

  def complaints(self):
    """What was logged, thrown, or asked for elsewhere."""
    found = []
    for event in self.events:
      method, what = event["method"], event["params"]
      if method in ("Runtime.exceptionThrown", "Log.entryAdded"):
        found.append(what)
      elif method == "Runtime.consoleAPICalled":
        found.append(what["args"])
      elif method == "Network.requestWillBeSent":
        url = what["request"]["url"]
        if not url.startswith(("file:", "data:", "blob:")):
          found.append(url)
    return found


@contextlib.contextmanager
def open_page():
  """Starts Chromium; ends it."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    process = subprocess.Popen(
      [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder}",
        "about:blank",
      ],
      stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
      line = next(line for line in process.stderr if "DevTools listening on" in line)
      place = line.split("ws://")[1].split("/")[0]
      with urllib.request.urlopen(f"http://{place}/json/list") as answer:
        targets = json.load(answer)
      url = next(t for t in targets if t["type"] == "page")["webSocketDebuggerUrl"]
      with connect(url, max_size=None) as socket:
        yield Page(socket)
    finally:
      process.terminate()
      process.wait(30)
      process.stderr.close()
