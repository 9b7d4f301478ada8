"""Look for bytes that harm a bookie, guided by which code they reach: `make fuzz SECONDS=60`.

An input is a list of pieces, each with a length of two bytes before it: what is sent is the piece under a length of
four bytes that fits, or the piece alone if the highest bit of its length is set. So a change in the middle of an input
keeps the frames behind it whole, and most of what is tried gets past the first check.

Atheris (libFuzzer for Python) chooses the inputs. What it keeps, because it reached new code, goes into `corpus` in the
folder given, and what did harm goes beside it as `crash-…`: give such a file as an argument to see it again.
"""

import argparse
import gc
import importlib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WATCHED = ("quire.codec.wire", "quire.bookie")
INPUT_BYTES_MAX = 4096
_RAW = 0x8000
_COLLECT_EVERY = 50


def pieces_of(data: bytes) -> list[bytes]:
    """What an input sends. Every input means something."""
    pieces, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        body = data[at + 2 : at + 2 + (size & ~_RAW)]
        pieces.append(body if size & _RAW else len(body).to_bytes(4, "big") + body)
        at += 2 + (size & ~_RAW)
    return pieces


def input_of(pieces: Sequence[bytes]) -> bytes:
    """The input that sends whole frames."""
    return b"".join((len(piece) - 4).to_bytes(2, "big") + piece[4:] for piece in pieces)


def seeds() -> list[bytes]:
    """Where to begin: each kind of request alone, behind an add, and all of them."""
    from tests.fuzz.attack import valid_frames  # Only now: what is imported after atheris is watched.

    valid = valid_frames()
    add = valid[15]
    return [input_of(valid), *(input_of([frame]) for frame in valid), *(input_of([add, frame]) for frame in valid)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for bytes that harm a bookie.")
    parser.add_argument("--seconds", type=int, default=60, help="how long to look")
    parser.add_argument("--seed", type=int, default=1, help="of the choices; 0 takes another one each time")
    parser.add_argument("--folder", type=Path, required=True, help="for the corpus and for what is found")
    parser.add_argument("inputs", nargs="*", type=Path, help="only run these")
    options = parser.parse_args()
    if options.inputs:
        from tests.fuzz.attack import attack

        for path in options.inputs:
            attack(pieces_of(path.read_bytes()))
            print(f"{path}: no harm done")
        return
    corpus: Path = options.folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(WATCHED)):
        from tests.fuzz.attack import attack
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)

    tried = itertools.count()

    def try_one(data: bytes) -> None:
        attack(pieces_of(data))
        if next(tried) % _COLLECT_EVERY == 0:
            gc.collect()  # Simulations end with most of their garbage uncollected.

    flags = {
        "max_total_time": options.seconds,
        "seed": options.seed,
        "max_len": INPUT_BYTES_MAX,
        "artifact_prefix": f"{options.folder}/",
        "timeout": 60,
        "rss_limit_mb": 2048,
        "print_final_stats": 1,
    }
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(corpus)], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
