"""Pages in a headless Chromium, the fixture `browser` of conftest.py."""

from __future__ import annotations

from typing import Any

LIMIT_MS = 180_000  # of a step, on a machine that does much else
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


class Opened:
    """A page in a context of its own, with everything that it complained about and asked for."""

    def __init__(self, browser: Any, address: str, **words: Any) -> None:
        self.context = browser.new_context(**words)
        self.context.set_default_timeout(LIMIT_MS)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
