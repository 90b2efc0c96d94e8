#!/usr/bin/env python3
"""Prints what Hugging Face's tokenizer takes for a token of a prompt, on one core of this machine.

usage: benchmarks/tokenizer_time.py [--tokens N] [--megabytes M]

A byte-level BPE, split as Llama 3's and Qwen's are, is trained on Python's standard library and this project's docs.
Prompts of Python's manual (pydoc_data/topics.py) are then tokenized once each, as by a server that sees them for the
first time; CPU time. Needs the extra `trace` (transformers).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sysconfig
import time
from pathlib import Path
from pydoc_data import topics

ROOT = Path(__file__).resolve().parents[1]
#: How text is cut before pairs are merged. Source: tokenizer.json of Qwen3 and Llama 3 (recalled, unverified here).
CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|[^\S\r\n]?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(megabytes: float) -> list[str]:
    """The docs, then modules of the standard library, up to so many million characters."""
    found, left = [], megabytes * 1e6
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in (*sorted((ROOT / "docs").rglob("*.md")), *sorted(library.glob("*.py"))):
        text = path.read_text(encoding="utf-8", errors="ignore")
        found.append(text)
        left -= len(text)
        if left < 0:
            break
    return found


def main() -> None:
    """Train, tokenize, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--megabytes", type=float, default=8.0, help="text to train on")
    asked = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CUTS), "isolated"), bytes_alone])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=60_000, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator(texts(asked.megabytes), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    text = "\n".join(topics.topics.values())
    few = text[: 10**5]
    width = int(asked.tokens * len(few) / len(tokenizer(few)["input_ids"]))
    each = []
    for first in range(len(few), len(text) - width, width):
        begun = time.process_time()
        tokens = len(tokenizer(text[first : first + width])["input_ids"])
        each.append((time.process_time() - begun) / tokens)
    print(
        f"{len(each)} prompts of {width:,} characters: {statistics.median(each) * 1e6:.1f} us a token (median),"
        f" {min(each) * 1e6:.1f} to {max(each) * 1e6:.1f}"
    )


if __name__ == "__main__":
    main()
