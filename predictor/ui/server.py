"""The server of the page: loopback alone, hosts and origins checked, sizes limited, nothing written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from predictor import __version__
from predictor.errors import RequestError
from predictor.files.commands import check_working_folder
from predictor.hardware.gpu import all_names
from predictor.hardware.what_if import PARAMETERS
from predictor.models.built.load import aliases, catalogue
from predictor.report.pages import TEMPLATES as REPORT_TEMPLATES
from predictor.report.pages import environment
from predictor.ui.desk import Desk
from predictor.ui.fields import Field
from predictor.ui.searches import Kind, Searches

#: Bytes of a request: a pasted config.json and six pasted boards. Chosen by hand, not from data.
LARGEST_BODY = 1_000_000
#: Characters of a path: that of a search has 27. Chosen by hand, not from data.
LONGEST_PATH = 200
#: What a browser may load for the page: what this server serves, and nothing from anywhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Connections that the system holds until they are taken: more than its usual limit. Chosen by hand, not from data.
BACKLOG = 4_096
#: What the page asks, beside searches.
_ASKED = ("answer", "details", "json")
_HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}  # fmt: skip
TEMPLATES = Path(__file__).parent / "templates"
#: What the page opens with, where the link says nothing.
MODEL, BOARDS = "llama-3.1-8b", ("h100", "a100")


class OnlyHere:
    """Refuses requests of other hosts and other origins: a page elsewhere must not ask, nor a name that was rebound."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self.hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":  # its start and end are no request
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get("host", ""), headers.get("origin")
            if not _is_path(scope["raw_path"]):
                refused = PlainTextResponse("the path: expected UTF-8 without NUL, at most 200 characters\n", 400)
                await refused(scope, receive, send)
                return
            if host.lower() not in self.hosts:
                refused = PlainTextResponse(
                    f"host {host[:80]!r}: expected one of {', '.join(sorted(self.hosts))}\n", 421
                )
                await refused(scope, receive, send)
                return
            if origin is not None and origin.lower() not in {f"http://{name}" for name in self.hosts}:
                refused = PlainTextResponse(f"origin {origin[:80]!r}: this page answers itself alone\n", 403)
                await refused(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _is_path(raw: bytes) -> bool:
    """Whether the path of a request is a text."""
    try:
        return len(raw) <= LONGEST_PATH and "\0" not in unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return False


def hosts_of(port: int) -> tuple[str, ...]:
    """What the loopback address is called."""
    return (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}")


def application(
    port: int,
    fields: Sequence[Field],
    kinds: Sequence[Kind] = (),
    artifacts: str | None = None,
    desk: Desk | None = None,
) -> ASGIApp:
    """The application: the page, its answers, its searches. ``artifacts``: a set of estimators (None: the shipped);
    ``desk``: who answers (None: processes)."""
    searches, at = Searches(kinds, artifacts), desk or Desk(fields, kinds, artifacts)
    page = document(fields, kinds)

    def served(text: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_: Request) -> Response:
            return Response(text, media_type=kind, headers=_HEADERS)

        return answer

    def asked(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                said = await at.ask(name, await _body(request))
            except _NoStateError as error:
                return PlainTextResponse(f"{error}\n", error.status)
            text = said.text
            if said.state is not None:
                text = json.dumps(searches.start(name, said.state))
            return Response(text, said.status, media_type="application/json", headers=_HEADERS)

        return answer

    async def search(request: Request) -> Response:
        key = request.path_params["key"]
        status = searches.cancel(key) if request.method == "DELETE" else searches.status(key)
        return JSONResponse(status, 200 if status else 404, headers=_HEADERS)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        at.open()
        yield
        searches.close()
        at.close()

    css = (REPORT_TEMPLATES / "page.css").read_text(encoding="utf-8") + (TEMPLATES / "ui.css").read_text(
        encoding="utf-8"
    )
    script = (REPORT_TEMPLATES / "page.js").read_text(encoding="utf-8") + (TEMPLATES / "ui.js").read_text(
        encoding="utf-8"
    )
    routes = [
        Route("/", served(page, "text/html")),
        Route("/ui.css", served(css, "text/css")),
        Route("/ui.js", served(script, "text/javascript")),
        *(Route(f"/api/{name}", asked(name), methods=["POST"]) for name in (*_ASKED, *(kind.name for kind in kinds))),
        Route("/api/search/{key}", search, methods=["GET", "DELETE"]),
    ]
    return OnlyHere(Starlette(routes=routes, lifespan=life), hosts_of(port))


class _NoStateError(RequestError):
    """A body that is no state, with the status that says so."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


async def _body(request: Request) -> bytes:
    """The body of a request, which says that it is JSON."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise _NoStateError(415, "expected Content-Type: application/json")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise _NoStateError(413, f"more than {LARGEST_BODY:,} bytes; expected at most that")
    except ClientDisconnect:
        raise _NoStateError(400, "the body ends before its end") from None
    return bytes(body)


def serve(port: int, fields: Sequence[Field], kinds: Sequence[Kind] = (), artifacts: str | None = None) -> int:
    """Serves until Ctrl-C; ``port`` 0 is any that is free. Raises RequestError where the port is taken."""
    import socket

    import uvicorn

    from predictor.ui.connections import Guarded, most_connections

    check_working_folder()
    # By its protocol's name: asyncio sends at once, without Nagle's wait of 40 ms, on sockets that say it alone.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)  # whoever reads the address may ask at once
    except OSError as error:
        raise RequestError(f"--port {port}: {error.strerror}; expected a free port, or 0 for any") from None
    taken = listener.getsockname()[1]
    app = application(taken, fields, kinds, artifacts)
    Guarded.most = most_connections()
    config = uvicorn.Config(
        app, http=Guarded, ws="none", log_level="error", access_log=False, backlog=BACKLOG, timeout_graceful_shutdown=2
    )
    print(f"http://127.0.0.1:{taken}/  (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
    return 0


def document(fields: Sequence[Field], kinds: Sequence[Kind]) -> str:
    """The whole page."""
    return environment(TEMPLATES).get_template("ui.html").render(
        version=__version__, model=MODEL, boards=BOARDS, kinds=kinds, parameters=PARAMETERS,
        first=[field for field in fields if field.common],
        rest=[field for field in fields if not field.common],
        lists=(("models", sorted({*catalogue(), *aliases()})), ("gpus", all_names())),
    ).lstrip()  # fmt: skip
