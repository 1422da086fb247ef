#!/usr/bin/env python3
"""Whether AutoTokenizer of the transformers library gives the ids of `megalith tokenize` on exported folders.

    check_hf_tokenizers.py FOLDER IDS.jsonl [FOLDER IDS.jsonl ...]

IDS.jsonl is what `megalith tokenize` printed with the vocabulary of FOLDER: {"text": ..., "ids": ...} per line. Per
folder it compares
- the ids of every text, special tokens in it taken as text (split_special_tokens=True), and of the texts one after the
  other with the end of document's name between two: there its id must be the one that config.json names,
- for byte-level vocabularies, the text that the ids are decoded to.
Prints a line per folder and the first differences. Returns 1 where something differs. Run by tests/apps where python3
has transformers 5 (and protobuf and sentencepiece, for a sentencepiece model)."""
import json
import os
import sys

import transformers

KEEPS_TEXT = ("vocab.json", "tokenizer.json")  # files of vocabularies that are byte-level, unless there is a vocab.txt


def differences(folder, ids_file):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    end_id = config["eos_token_id"]
    with open(ids_file, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []

    def compare(what, got, wanted):
        if got != wanted:
            found.append(f"  {what}: {got!r:.300} is not {wanted!r:.300}")

    def ids_of(text, **options):
        return tokenizer(text, add_special_tokens=False, **options)["input_ids"]

    names = os.listdir(folder)
    is_byte_level = "vocab.txt" not in names and any(name in names for name in KEEPS_TEXT)
    for line in lines:
        compare(f"ids of {line['text']!r}", ids_of(line["text"], split_special_tokens=True), line["ids"])
        if is_byte_level:
            compare(f"text of {line['ids']!r:.80}", tokenizer.decode(line["ids"]), line["text"])
    for role in ("bos_token_id", "pad_token_id"):
        if getattr(tokenizer, role) is not None:
            compare(role, getattr(tokenizer, role), config[role])
    end = tokenizer.eos_token or tokenizer.sep_token
    if end:
        compare(f"id of {end}", tokenizer.convert_tokens_to_ids(end), end_id)
        plain = [line for line in lines if not any(name in line["text"] for name in tokenizer.added_tokens_encoder)]
        wanted = [one for line in plain for one in line["ids"] + [end_id]]
        compare(f"ids of texts that end with {end}", ids_of("".join(line["text"] + end for line in plain)), wanted)
    print(f"{folder}: {type(tokenizer).__name__}, {len(lines)} texts, {len(found)} differences")
    return found


def main():
    print(f"transformers {transformers.__version__}")
    arguments, found = sys.argv[1:], []
    if not arguments or len(arguments) % 2 != 0:
        sys.exit(__doc__)
    for folder, ids_file in zip(arguments[::2], arguments[1::2]):
        found += differences(folder, ids_file)
    for line in found[:20]:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
