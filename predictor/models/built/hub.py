"""config.json files of a Hugging Face hub by name: fetched once by huggingface_hub (extra ``hub``), into its own cache.

Nothing but config.json, and ModelOpt's hf_quant_config.json beside it, is asked for; no weight, no code. HF_ENDPOINT,
HF_HOME, HF_HUB_OFFLINE and the token of ``hf auth login`` mean what they mean to huggingface_hub. A file in the cache
is read without a request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.errors import NoHubError, SpecError, one_line, printable
from predictor.files.read import LARGEST_TEXT

#: Seconds for all requests of one name: a config has a few kilobytes. Chosen by hand, not from data.
MOST_SECONDS = 20.0
CONFIG, MODELOPT = "config.json", "hf_quant_config.json"
#: "org/name", as the hub allows them; what ends as a file does is a path that is not there.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_FILE = re.compile(r"\.(?:json|yaml|yml|py|onnx|pt2|txt|csv)$")
#: A folder of the hub's cache: models--ORG--NAME/snapshots/COMMIT.
_CACHED = re.compile(r"models--(?:.+--)?(.+)")


def is_repository(text: str) -> bool:
    """Whether ``text`` can be the name of a repository on a hub: "org/name"."""
    return bool(_REPOSITORY.fullmatch(text)) and not _FILE.search(text) and ".." not in text and "--" not in text


def name_in_cache(folder: Path) -> str:
    """The name of the model whose snapshot ``folder`` is in a hub's cache; "" for any other folder."""
    matched = _CACHED.fullmatch(folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    return matched[1] if matched else ""


def fetch(repository: str) -> Path:
    """The config.json of ``repository`` in the cache of huggingface_hub, fetched where it is not there.

    SpecError, one line, where there is none: no such repository, a gated one, no answer in time, no config.
    """
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise NoHubError(
            f"model {printable(repository)!r} is neither in the catalogue (`tilecast models`) nor a path; pip install"
            " 'tilecast[hub]' fetches its config.json from the Hugging Face Hub"
        ) from None
    path = _cached(huggingface_hub, repository, CONFIG)
    if path is not None and _settled(huggingface_hub, repository):
        return path
    return _in_time(lambda: _download(huggingface_hub, repository), repository)


def _cached(hub: Any, repository: str, name: str) -> Path | None:
    """A file of the cache; None where it is not there."""
    path = hub.try_to_load_from_cache(repository, name)
    return Path(path) if isinstance(path, str) else None


def _settled(hub: Any, repository: str) -> bool:
    """Whether the cache knows if there is a file of ModelOpt, or nobody can be asked."""
    return hub.constants.HF_HUB_OFFLINE or hub.try_to_load_from_cache(repository, MODELOPT) is not None


def _download(hub: Any, repository: str) -> Path:
    """Both files into the cache; the path of the config. Raises what huggingface_hub raises, and SpecError."""
    if hub.constants.HF_HUB_OFFLINE:
        raise NoHubError(
            f"model {repository!r}: not in the cache of huggingface_hub, and HF_HUB_OFFLINE forbids to fetch it;"
            " expected a name of `tilecast models`, a path to a config.json, or a first run online"
        )
    endpoint = os.environ.get("HF_ENDPOINT") or None
    paths = []
    for name in (CONFIG, MODELOPT):
        try:
            # Asked once, without the retries of a download: a hub that is not there is said in a second.
            about = hub.get_hf_file_metadata(hub.hf_hub_url(repository, name, endpoint=endpoint), endpoint=endpoint)
            if about.size is not None and about.size > LARGEST_TEXT:
                raise SpecError(
                    f"model {repository!r}: its {name} has {about.size:,} bytes, at most {LARGEST_TEXT:,} are read"
                )
            paths.append(Path(hub.hf_hub_download(repository, name, endpoint=endpoint)))
        except hub.errors.EntryNotFoundError:
            if name == CONFIG:
                raise
            _note_absent(hub, repository, endpoint)
    return paths[0]


def _note_absent(hub: Any, repository: str, endpoint: str | None) -> None:
    """Lets huggingface_hub note in its cache that there is no file of ModelOpt, so that none is asked for later."""
    try:
        hub.hf_hub_download(repository, MODELOPT, endpoint=endpoint)
    except hub.errors.EntryNotFoundError:
        return


def _in_time(work: Callable[[], Path], repository: str) -> Path:
    """What ``work`` returns within `MOST_SECONDS`; SpecError, one line, for what it raises and where it takes longer.

    The time limits of an HTTP client are for each read: a server that sends a byte a second never meets them.
    """
    outcome: list[Path | BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    import threading  # a forecast of a model that is here starts without it

    thread = threading.Thread(target=run, daemon=True, name="tilecast-hub")
    with _quiet():
        thread.start()
        thread.join(MOST_SECONDS)
    if not outcome:
        raise NoHubError(
            f"model {repository!r}: {_endpoint()} did not send its config.json within {MOST_SECONDS:g} seconds;"
            " expected a path to a config.json, or a faster HF_ENDPOINT"
        )
    if isinstance(outcome[0], BaseException):
        raise _refused(outcome[0], repository) from None
    return outcome[0]


class _quiet:
    """No bars and no retry lines of huggingface_hub on the terminal."""

    def __enter__(self) -> None:
        import logging

        import huggingface_hub.utils as utils

        self._log = logging.getLogger("huggingface_hub")
        self._level, self._bars = self._log.level, utils.are_progress_bars_disabled()
        self._log.setLevel(logging.CRITICAL)
        if not self._bars:
            utils.disable_progress_bars()

    def __exit__(self, *_: object) -> None:
        import huggingface_hub.utils as utils

        self._log.setLevel(self._level)
        if not self._bars:
            utils.enable_progress_bars()


def _endpoint() -> str:
    return printable(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


def _refused(error: BaseException, repository: str) -> BaseException:
    """The one line for what huggingface_hub raised."""
    from huggingface_hub import errors

    if isinstance(error, (SpecError, KeyboardInterrupt)):
        return error
    named, where = f"model {repository!r}", f"{_endpoint()}/{repository}"
    if isinstance(error, errors.GatedRepoError):
        return SpecError(
            f"{named} is gated: accept its terms at {where}, then `hf auth login` (or set HF_TOKEN); or download its"
            " config.json and name the file"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return SpecError(
            f"{named}: no such name in the catalogue (`tilecast models`), no such path, and no such repository at"
            f" {_endpoint()} (a private one needs `hf auth login`)"
        )
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return SpecError(f"{named}: {where} has no config.json; expected a repository of transformers")
    reason = one_line(str(error)) or type(error).__name__
    return NoHubError(
        f"{named}: its config.json cannot be fetched from {_endpoint()} ({reason[:200]}); expected a name of `tilecast"
        " models`, a path to a config.json, or HF_ENDPOINT of a hub that answers"
    )
