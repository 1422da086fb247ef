#!/usr/bin/env python3
"""Vocabularies of `megalith tokenizer train` beside those of the tokenizers library (PyPI, 0.23.3), of the same texts.
    compare_trainers.py MEGALITH HELD_OUT.jsonl TRAINING.jsonl... [--sizes 1000,8000,32000] [--type bpe] [--runs 1]
bpe: whether the merges are equal. wordpiece: tokens of the held-out text by both. Both: whether the library, given our
tokenizer.json, encodes the held-out text to the ids that `megalith data build` writes."""

import argparse
import array
import json
import os
import struct
import subprocess
import sys
import tempfile

from data_peers import bpe_trainer, read_texts, wordpiece_trainer


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def merges_of(text):
    return [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" "))
            for merge in json.loads(text)["model"]["merges"]]


def read_documents(prefix):
    """The ids of each document of a token file: a sequence each."""
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    with open(prefix + ".bin", "rb") as file:
        data = file.read()
    count = struct.unpack_from("<Q", index, 18)[0]
    lengths = array.array("i", index[34 : 34 + 4 * count])
    ids = array.array("H" if index[17] == 8 else "i", data)
    documents, at = [], 0
    for length in lengths:
        documents.append(list(ids[at : at + length]))
        at += length
    return documents


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megalith")
    parser.add_argument("held_out")
    parser.add_argument("training", nargs="+")
    parser.add_argument("--type", choices=("bpe", "wordpiece"), default="bpe")
    parser.add_argument("--sizes", default="1000,8000,32000")
    parser.add_argument("--runs", type=int, default=1, help="of the library's trainer: its WordPiece differs by run")
    options = parser.parse_args()
    from tokenizers import Tokenizer

    texts = [text for file in options.training for text in read_texts(file, -1)]
    held_out = read_texts(options.held_out, -1)
    is_bpe = options.type == "bpe"
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, options.sizes.split(",")):
            out = os.path.join(folder, str(size))
            run(options.megalith, "tokenizer", "train", "--type", options.type, "--vocab-size", size, "--input",
                *options.training, "--output", out, *([] if is_bpe else ["--lowercase"]))
            run(options.megalith, "data", "build", "--tokenizer", "bpe" if is_bpe else "bert-uncased", "--vocab-dir",
                out, "--input", options.held_out, "--output", out + "/tokens", "--no-append-eod")
            ours = Tokenizer.from_file(out + "/tokenizer.json")
            encoded = [ours.encode(text, add_special_tokens=False).ids for text in held_out]
            differing = sum(a != b for a, b in zip(encoded, read_documents(out + "/tokens"), strict=True))
            print(f"{options.type} {size}: by the library with our tokenizer.json {sum(map(len, encoded))} tokens, "
                  f"{differing} of {len(held_out)} texts with other ids than ours", flush=True)
            for _ in range(options.runs):
                theirs, trainer = (bpe_trainer if is_bpe else wordpiece_trainer)(size)
                theirs.train_from_iterator(iter(texts), trainer)
                if is_bpe:
                    with open(out + "/tokenizer.json", encoding="utf8") as file:
                        merges = merges_of(file.read())
                    print(f"  {len(merges)} merges, equal: {merges == merges_of(theirs.to_str())}", flush=True)
                else:
                    count = sum(len(theirs.encode(text, add_special_tokens=False).ids) for text in held_out)
                    print(f"  by its own vocabulary {count} tokens", flush=True)


if __name__ == "__main__":
    sys.exit(main())
