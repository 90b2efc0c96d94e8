"""The launchers that a plan can be written for, by name, and those whose commands and files are read."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from predictor.engines.launch import Launch
from predictor.engines.launched import LaunchWords, after, environment_of, of_server, of_workers
from predictor.engines.megatron import launched as megatron_launched
from predictor.engines.megatron import launcher as megatron_launcher
from predictor.engines.serve_options import FOLDER, listed
from predictor.engines.torchtitan import launched as torchtitan_launched
from predictor.engines.torchtitan import launcher as torchtitan_launcher
from predictor.errors import RequestError, printable
from predictor.files.read import read_text
from predictor.files.yaml_reader import read_yaml_file

#: Name -> the text for it; it raises RequestError for what that launcher does not have.
LAUNCHERS: Mapping[str, Callable[[Launch], str]] = {
    "megatron": megatron_launcher.text,
    "torchtitan": torchtitan_launcher.text,
}

#: Each reads the words of a command, beside those that stand with it, or says None of another program's.
READERS: tuple[Callable[[Sequence[str], Mapping[str, str]], LaunchWords | None], ...] = (
    torchtitan_launched.of_command,
    megatron_launched.of_command,
)
#: The same of a file.
FILES: tuple[Callable[[Path, Mapping[str, str]], LaunchWords | None], ...] = (
    torchtitan_launched.of_file,
    megatron_launched.of_file,
)


def launched(text: str, given: Mapping[str, str]) -> LaunchWords:
    """What a command, or a file, says; ``given`` are the words that stand beside it (such as num_gpus).

    RequestError, one line, for what is no launch command that is known, and for a flag that nobody knows.
    """
    path = Path(text)
    if len(text) < 4096 and "\n" not in text and " " not in text.strip() and path.suffix:
        return _of_file(path, given)
    words = _split(text)
    for reader in READERS:
        read = reader(words, given)
        if read is not None:
            return read
    for name in listed():
        reads = read_yaml_file(FOLDER / f"{name}.yaml", "a list of launch options").get("reads", {})
        for program in reads.get("programs", ()):
            rest = after(words, program.split())
            if rest is not None:
                return of_server(name, program, reads, rest, environment_of(words))
    raise RequestError(
        f"--from {printable(text.strip()[:60])!r}: no launch command that is known; expected vllm serve,"
        " sglang.launch_server, trtllm-serve, torchtitan.train or pretrain_gpt.py with their flags, or a file"
    )


def _of_file(path: Path, given: Mapping[str, str]) -> LaunchWords:
    for reader in FILES:
        read = reader(path, given)
        if read is not None:
            return read
    if path.suffix in (".sh", ".txt"):
        return launched(" ".join(read_text(path, "a launch command").replace("\\\n", " ").split("\n")) + " ", given)
    if path.suffix in (".yaml", ".yml"):
        read = of_workers(read_yaml_file(path, "a launch file"), given)
        if read is not None:
            return read
    raise RequestError(
        f"--from {printable(str(path))}: no launch file that is known; expected torchtitan's TOML, or the YAML of"
        " Megatron-LM, Megatron-Bridge or NeMo's launcher; a server's options go with its command"
    )


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=False)
    except ValueError as error:
        raise RequestError(f"--from: the command cannot be read ({error}); expected quotes in pairs") from None
