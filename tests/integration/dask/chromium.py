"""A page in headless Chromium, asked by its own protocol: what scripts of the page would see."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-background-networking", "--disable-gpu", "--remote-debugging-port=0",
    "--window-size=1500,1700", "--no-first-run", "--disable-dev-shm-usage",
)  # fmt: skip


class Tab:
    """One page. `errors` are what its console said as errors."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = iter(range(1, 1 << 30))
        self.errors: list[str] = []

    async def open(self, url: str) -> None:
        """Go to a page."""
        found = json.loads((await AsyncHTTPClient().fetch(f"http://127.0.0.1:{self._port}/json")).body)
        page = next(one for one in found if one["type"] == "page")
        self._socket = await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=64 << 20)
        for domain in ("Runtime", "Log", "Page"):
            await self._ask(f"{domain}.enable")
        await self._ask("Page.navigate", url=url)

    async def close(self) -> None:
        """Let go of the page."""
        self._socket.close()
        # The connection is closed once the other side has said so.
        while await self._socket.read_message() is not None:
            pass

    async def value(self, script: str) -> Any:
        """Return what a script gives, as plain values."""
        answer = await self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            return None
        return answer["result"].get("value")

    async def until(self, script: str, timeout_s: float = 60.0) -> Any:
        """Return what a script gives as soon as that is true."""
        deadline = time.monotonic() + timeout_s
        while not (found := await self.value(script)):
            assert time.monotonic() < deadline, f"{script} was never true; console: {self.errors}"
            await asyncio.sleep(0.2)
        return found

    async def screenshot(self, path: Path) -> None:
        """Write what is seen."""
        import base64

        answer = await self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            text = await asyncio.wait_for(self._socket.read_message(), 60)
            assert text is not None, "the browser has ended"
            said = json.loads(text)
            self._note(said)
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    def _note(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        if said.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        if said.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))


@contextlib.contextmanager
def browser() -> Iterator[Tab]:
    """Yield an empty tab of a browser of its own, which ends with the block."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            port_file, deadline = Path(profile) / "DevToolsActivePort", time.monotonic() + 60
            while not port_file.exists() or not port_file.read_text().strip():
                assert time.monotonic() < deadline, "the browser does not come"
                time.sleep(0.1)
            yield Tab(int(port_file.read_text().split()[0]))
        finally:
            program.terminate()
            try:
                program.wait(15)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
