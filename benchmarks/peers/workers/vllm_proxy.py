"""Puts a vLLM prefill and a vLLM decode server behind one address. Runs where aiohttp is.

The protocol of vLLM's NixlConnector: the prefill server computes the prompt and one token and
returns `kv_transfer_params`, which the decode server is given with the original request.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid

import aiohttp
from aiohttp import web

ASK_FOR_BLOCKS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Proxy:
    """Passes completions on, first to one server and then to the other."""

    def __init__(self, http: aiohttp.ClientSession, *, prefill: str, decode: str) -> None:
        self._http = http
        self._prefill = prefill
        self._decode = decode

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """One request, streamed or not."""
        body = await request.json()
        headers = {"X-Request-Id": uuid.uuid4().hex}
        first = body | {
            "stream": False,
            "max_tokens": 1,
            "kv_transfer_params": ASK_FOR_BLOCKS,
        }
        first.pop("stream_options", None)
        url = self._prefill + request.path
        async with self._http.post(url, json=first, headers=headers) as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, body=await answer.read())
            params = (await answer.json()).get("kv_transfer_params")
        if params:
            body["kv_transfer_params"] = params
        return await self._pass_on(request, body, headers)

    async def get(self, request: web.Request) -> web.Response:
        """Whatever else is asked, of the decode server."""
        async with self._http.get(self._decode + request.path) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )

    async def _pass_on(
        self, request: web.Request, body: object, headers: dict[str, str]
    ) -> web.StreamResponse:
        url = self._decode + request.path
        async with self._http.post(url, json=body, headers=headers) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    for name in ("port", "prefill", "decode"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    timeout = aiohttp.ClientTimeout(total=None)
    # A connection that was kept through a pause may be closed at the other end.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        proxy = Proxy(
            http,
            prefill=f"http://127.0.0.1:{options.prefill}",
            decode=f"http://127.0.0.1:{options.decode}",
        )
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/completions", proxy.complete)
        app.router.add_get("/{path:.*}", proxy.get)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", options.port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
