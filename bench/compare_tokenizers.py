#!/usr/bin/env python3
"""Ids of `megalith data build` beside those of the library that made the vocabulary.
    compare_tokenizers.py MEGALITH TOKENIZER VOCAB_DIR [--strings 1000000] [--seed 1] [--input F.jsonl...]
TOKENIZER: gpt2, bert-uncased, bert-cased (with tokenizers of PyPI, 0.23.3) or sentencepiece (with its own package, of the
version that megalith was built with: 0.1.97 in Debian 12). Encodes the texts of the inputs, then random strings of
characters of all Unicode planes, and prints how many ids were compared and the first texts whose ids differ. Returns 1
where some differ."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

from compare_trainers import read_documents
from data_peers import read_texts

# Where rules about characters lie: white space, punctuation, marks, letters with cases, scripts, emoji, controls.
RANGES = [(0x20, 0x7F), (0x20, 0x7F), (0x20, 0x7F), (0x00, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530),
          (0x590, 0x700), (0x900, 0xE80), (0x10A0, 0x1200), (0x1E00, 0x2070), (0x2000, 0x2070), (0x3000, 0x3100),
          (0x4E00, 0xA000), (0xAC00, 0xD7B0), (0xE000, 0xE100), (0xFB00, 0x10000), (0x1D400, 0x1D800),
          (0x1F300, 0x1FB00), (0x20000, 0x2A6E0), (0xE0000, 0xE01F0), (0x0, 0x110000)]


def random_string(chance):
    """With an `a` in it, so that no document is empty."""
    characters = ["a"]
    for _ in range(chance.randint(1, 24)):
        low, high = chance.choice(RANGES)
        code = chance.randrange(low, high)
        if 0xD800 <= code < 0xE000:
            code -= 0x800
        characters.append(chr(code))
    chance.shuffle(characters)
    return "".join(characters)


def encoder_of(tokenizer, vocab_dir):
    """A function from a list of texts to their ids."""
    if tokenizer == "sentencepiece":
        from sentencepiece import SentencePieceProcessor

        model = next(name for name in os.listdir(vocab_dir) if name.endswith(".model"))
        return SentencePieceProcessor(model_file=os.path.join(vocab_dir, model)).encode
    from tokenizers import ByteLevelBPETokenizer, BertWordPieceTokenizer

    def path(*names):
        return next(p for p in (os.path.join(vocab_dir, name) for name in names) if os.path.exists(p))

    if tokenizer == "gpt2":
        library = ByteLevelBPETokenizer(path("encoder.json", "vocab.json"), path("vocab.bpe", "merges.txt"))
    else:
        library = BertWordPieceTokenizer(path(tokenizer + "-vocab.txt", "vocab.txt"), lowercase=tokenizer == "bert-uncased")
        library._tokenizer.encode_special_tokens = True  # text is text
    return lambda texts: [e.ids for e in library.encode_batch(texts, add_special_tokens=False)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megalith")
    parser.add_argument("tokenizer", choices=("gpt2", "bert-uncased", "bert-cased", "sentencepiece"))
    parser.add_argument("vocab_dir")
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", nargs="*", default=[])
    options = parser.parse_args()
    chance = random.Random(options.seed)
    texts = [text for file in options.input for text in read_texts(file, -1)]
    texts += [random_string(chance) for _ in range(options.strings)]
    with tempfile.TemporaryDirectory() as folder:
        lines, prefix = os.path.join(folder, "texts.jsonl"), os.path.join(folder, "ids")
        with open(lines, "w", encoding="utf8") as out:
            for text in texts:
                out.write(json.dumps({"text": text}) + "\n")
        subprocess.run([options.megalith, "data", "build", "--tokenizer", options.tokenizer, "--vocab-dir",
                        options.vocab_dir, "--input", lines, "--output", prefix], check=True, capture_output=True)
        documents = read_documents(prefix)
    if len(documents) != len(texts):
        sys.exit(f"{len(texts)} texts gave {len(documents)} documents")
    encode, ids, differ = encoder_of(options.tokenizer, options.vocab_dir), 0, []
    for begin in range(0, len(texts), 1000):
        for text, ours, theirs in zip(texts[begin:], documents[begin:], encode(texts[begin : begin + 1000])):
            ids += len(theirs)
            if ours[:-1] != theirs:  # without the end of the document
                differ.append((text, ours[:-1], theirs))
    for text, ours, theirs in differ[:10]:
        print(json.dumps(text[:200]), ours[:40], theirs[:40])
    print(f"{options.tokenizer}: {len(texts)} texts, {ids} ids, {len(differ)} texts differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
