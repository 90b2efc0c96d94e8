"""The server's socket: what it sends goes out at once."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvicorn

from predictor.request.options import OPTIONS
from predictor.ui.fields import fields_of
from predictor.ui.server import serve


def test_an_answer_waits_for_no_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []

    async def served(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
        def taken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            at_once.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(taken, sock=sockets[0]):
            reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
            await reader.read()
            writer.close()

    monkeypatch.setattr(uvicorn.Server, "serve", served)
    assert serve(0, fields_of(OPTIONS.values())) == 0
    assert at_once[0] != 0
