"""The server of `python -m lessons serve`: pages, and the one route that runs a reader's code.

A page of the course sends {} to /exercises to read the workbook, or the new code of one exercise:
{"name", "before", "code", "check"}. No other page or machine may. The server listens on this
machine only, refuses requests under another host name (Host) or from another page (Origin), and
requires the token, which stands only in the address that `serve` prints.
"""

import functools
import http.server
import json
import secrets
import threading
from http import HTTPStatus
from pathlib import Path

from lessons.kit import sandbox
from lessons.kit.workbook import Workbook
from numformer.errors import InputError

LONGEST = 200_000  # bytes of a request's body
TYPES = {"name": str, "before": str, "code": str, "check": bool}  # of the fields of a request


class CourseServer(http.server.ThreadingHTTPServer):
    """Serves the pages of a folder, and checks the exercises of a workbook."""

    def __init__(self, pages: Path, exercises: Path, port: int):
        handler = functools.partial(CourseHandler, directory=str(pages))
        super().__init__(("127.0.0.1", port), handler)
        self.origin = f"http://127.0.0.1:{self.server_port}".removesuffix(":80")
        self.token = secrets.token_urlsafe(32)
        self.workbook = Workbook(exercises)
        self.checking = threading.Lock()  # one check at a time
        sandbox.prepare()

    @property
    def address(self) -> str:
        """Where the course opens with its token, which the part after # keeps out of requests."""
        return f"{self.origin}/index.html#token={self.token}"


class Refusal(Exception):
    """Refuses a request; its arguments are the status and the message."""


class CourseHandler(http.server.SimpleHTTPRequestHandler):
    """Answers one request."""

    server: CourseServer
    timeout = 10  # seconds of waiting for a request

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""

    def parse_request(self) -> bool:
        """Refuse every request under another host name than this server's."""
        if not super().parse_request():
            return False
        if self.headers.get_all("Host") == [self.server.origin.removeprefix("http://")]:
            return True
        self.send_error(HTTPStatus.FORBIDDEN, "This server has another name")
        return False

    def end_headers(self) -> None:
        """Forbid pages of other sites to show this one in a frame and to collect clicks on it."""
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def do_POST(self) -> None:
        """Answer with JSON; {"error": words} if the request is refused."""
        status = HTTPStatus.OK
        try:
            reply = self._answer(self._body())
        except Refusal as refusal:
            status, reply = refusal.args[0], {"error": refusal.args[1]}
        except InputError as problem:
            status, reply = HTTPStatus.CONFLICT, {"error": str(problem)}
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> dict:
        """Return the fields of a request. Raises Refusal unless a page of the course sent it."""
        headers, length = self.headers, self.headers.get("Content-Length", "")
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path != "/exercises":
            raise Refusal(HTTPStatus.NOT_FOUND, "nothing is sent to this address")
        if headers.get_all("Origin") != [self.server.origin]:
            raise Refusal(HTTPStatus.FORBIDDEN, "a page of another site sends this")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise Refusal(HTTPStatus.FORBIDDEN, "the token is missing or that of another server")
        if not length.isdecimal():
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "the request does not say its length")
        if len(length) > len(str(LONGEST)) or int(length) > LONGEST:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {LONGEST} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refusal(HTTPStatus.BAD_REQUEST, "the request is no JSON") from None
        types = {name: type(value) for name, value in body.items()} if type(body) is dict else 0
        if types not in ({}, TYPES) or (
            body and body["name"] not in self.server.workbook.exercises
        ):
            raise Refusal(HTTPStatus.BAD_REQUEST, "the request names no exercise")
        return body

    def _answer(self, body: dict) -> dict:
        """Store the text of an exercise, and check it if the request says so."""
        workbook, reply = self.server.workbook, {}
        if not body:
            return workbook.contents()
        name, lesson = body["name"], workbook.exercises[body["name"]].lesson
        text = workbook.save(name, body["before"], body["code"])
        if body["check"]:
            with self.server.checking:
                reply = sandbox.check(workbook.file(lesson), text, lesson, name)
            workbook.note(name, body["code"], reply["right"])
        return reply | {"lines": workbook.lines(lesson)}
