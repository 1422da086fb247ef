#!/usr/bin/env python3
"""Writes the made-up corpora of docs/measurements/corpora.md.
    data_corpora.py BOOKS.jsonl FOLDER
shuffled4.jsonl: the documents four times, three times with their words in another order, so that none is a copy.
times8.jsonl: the file eight times. million.jsonl: 1,000,000 documents of 500 bytes, 50,000 of them copies."""

import json
import random
import sys


def main():
    books, folder = sys.argv[1:]
    with open(books, encoding="utf8") as file:
        texts = [json.loads(line)["text"] for line in file]
    with open(f"{folder}/shuffled4.jsonl", "w", encoding="utf8") as out:
        for time in range(4):
            for text in texts:
                if time > 0:
                    words = text.split(" ")
                    random.Random(time * 100003 + len(words)).shuffle(words)
                    text = " ".join(words)
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    with open(books, "rb") as file, open(f"{folder}/times8.jsonl", "wb") as out:
        out.write(file.read() * 8)
    words = [f"w{i}" for i in range(20000)]
    chance, originals = random.Random(1), []
    with open(f"{folder}/million.jsonl", "w", encoding="utf8") as out:
        for i in range(1_000_000):
            if i % 20 == 19:
                text = chance.choice(originals)
            else:
                text = " ".join(chance.choices(words, k=85))[:500]
                if i % 10 == 0:
                    originals.append(text)
            out.write('{"text": "%s"}\n' % text)


if __name__ == "__main__":
    sys.exit(main())
