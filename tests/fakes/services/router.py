"""Joins workers and answers by script, over HTTP and gRPC."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc

from baton.v1 import common_pb2, directory_pb2, directory_pb2_grpc, router_pb2_grpc
from tests.fakes.scripted.router import WORDS, ScriptedRouter

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": len(WORDS),
    "prompt_tokens_details": {"cached_tokens": 5},
}


class Directory(directory_pb2_grpc.DirectoryServicer):
    """Remembers who joined."""

    def __init__(self) -> None:
        self.records: list[directory_pb2.WorkerRecord] = []

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.records.append(request.record)
        return directory_pb2.RegisterResponse()

    async def ListWorkers(self, request: Any, context: Any) -> Any:  # noqa: N802
        workers = [directory_pb2.WorkerStatus(record=record) for record in self.records]
        return directory_pb2.ListWorkersResponse(workers=workers)

    def lacks(self) -> list[str]:
        """What a router says on /ready."""
        has_decode = any(record.role == common_pb2.ROLE_DECODE for record in self.records)
        return [] if has_decode else ["no decode worker"]


class SharedPort(ThreadingHTTPServer):
    """Others may listen on the same port."""

    allow_reuse_port = True


def http_server(port: int, directory: Directory) -> ThreadingHTTPServer:
    """/ready and whole completions."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reasons = directory.lacks()
            self._send(503 if reasons else 200, json.dumps({"reasons": reasons}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            choice = {"index": 0, "text": f"{body['prompt']}!"}
            self._send(200, json.dumps({"choices": [choice], "usage": USAGE}))

        def _send(self, status: int, body: str) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    return SharedPort(("127.0.0.1", port), Handler)


async def main(options: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    directory = Directory()
    server = grpc.aio.server()
    directory_pb2_grpc.add_DirectoryServicer_to_server(directory, server)
    router_pb2_grpc.add_RouterServicer_to_server(ScriptedRouter(), server)
    for port in filter(None, (options.grpc_port, options.own_grpc_port)):
        server.add_insecure_port(f"{options.host}:{port}")
    await server.start()
    doors = [http_server(p, directory) for p in filter(None, (options.port, options.own_port))]
    for http in doors:
        Thread(target=http.serve_forever, daemon=True).start()
    await stopping.wait()
    for http in doors:
        http.shutdown()
    await server.stop(None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--grpc-port", type=int)
    parser.add_argument("--own-port", type=int)
    parser.add_argument("--own-grpc-port", type=int)
    asyncio.run(main(parser.parse_known_args()[0]))
