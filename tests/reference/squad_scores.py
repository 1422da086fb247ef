#!/usr/bin/env python3
"""Scores of SQuAD predictions, written from the definitions of the two official scripts, and made-up predictions.

    python3 tests/reference/squad_scores.py score 1|2 DATA PREDICTIONS [NO_ANSWER_SCORES]    prints the scores as JSON
    python3 tests/reference/squad_scores.py make 1|2 DATA SEED OUT    writes OUT.pred.json, OUT.na.json (2), OUT.scores.json
    python3 tests/reference/squad_scores.py cut DATA COUNT OUT    writes the first paragraph of COUNT articles
DATA may be packed with xz. A made-up prediction is an answer that is kept, cut, joined, decorated (articles, punctuation,
white space, capitals, characters outside ASCII), empty, or of another question. Run by hand with Python 3.11.
"""
import collections
import json
import lzma
import random
import re
import string
import sys


def load(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as f:
        return json.load(f)


def questions(data):
    return [qa for article in data["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]


def normal(text):
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def f1(version, gold, given):
    gold, given = normal(gold).split(), normal(given).split()
    if version == 2 and not (gold and given):
        return float(gold == given)
    same = sum((collections.Counter(gold) & collections.Counter(given)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(given), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def golds_of(version, qa):
    texts = [answer["text"] for answer in qa["answers"]]
    if version == 2:
        texts = [text for text in texts if normal(text)] or [""]
    return texts


def score(version, data, predictions, scores=None):
    rows = []
    for qa in questions(data):
        given = predictions[qa["id"]]
        golds = golds_of(version, qa)
        rows.append({"id": qa["id"], "has": bool(qa["answers"]), "given": given,
                     "exact": float(any(normal(gold) == normal(given) for gold in golds)),
                     "f1": max(f1(version, gold, given) for gold in golds)})
    result = {}
    if scores is not None:
        by_id = {row["id"]: row for row in rows}
        for figure in ("exact", "f1"):
            now = best = sum(not row["has"] for row in rows)
            at = 0.0
            for key in sorted(scores, key=lambda k: scores[k]):
                row = by_id.get(key)
                if row is None:
                    continue
                now += row[figure] if row["has"] else -bool(row["given"])
                if now > best:
                    best, at = now, scores[key]
            result[f"best_{figure}"] = 100.0 * best / len(rows)
            result[f"best_{figure}_thresh"] = at
        for row in rows:
            if scores[row["id"]] > 1.0:
                row["exact"] = row["f1"] = float(not row["has"])
    parts = {"": rows}
    if version == 2:
        parts |= {"HasAns_": [r for r in rows if r["has"]], "NoAns_": [r for r in rows if not r["has"]]}
    for prefix, part in parts.items():
        if part:
            for figure in ("exact", "f1"):
                total = 0.0
                for row in part:
                    total += row[figure]
                result[prefix + figure] = 100.0 * total / len(part)
            result[prefix + "total"] = len(part)
    return result


def decorate(text, rng):
    for _ in range(rng.randrange(4)):
        text = rng.choice([
            lambda t: "the " + t, lambda t: "An " + t, lambda t: t + ".", lambda t: f"\u201c{t}\u201d", str.upper,
            lambda t: t.replace(" ", "\u00a0 ", 1), lambda t: t.replace(" ", "-"), lambda t: t + " \u03a3\u0391\u03a3",
            lambda t: t.replace("e", "\u00e9", 1), lambda t: f"a-{t}_the", lambda t: t + "\u0301 a\u0301 the",
            lambda t: f"({t})", lambda t: t + " \u4e2d\u6587 \u2460 \u0130", lambda t: f"  {t}\t\n",
            lambda t: t.replace("'s", "\u2019s"), lambda t: "\u200bthe\u200b " + t, lambda t: t + "\x1cA\u2028THE\x85an"])(text)
    return text


def make(version, data, seed):
    rng = random.Random(seed)
    all_questions = questions(data)
    predictions, scores = {}, {}
    for qa in all_questions:
        answers = qa["answers"] or rng.choice(all_questions)["answers"] or [{"text": "An answer, the 3rd"}]
        text = rng.choice(answers)["text"]
        words = text.split()
        kind = rng.randrange(8)
        if kind == 0:
            text = ""
        elif kind == 1:
            text = " ".join(words[:rng.randrange(len(words)) + 1])
        elif kind == 2:
            text = " ".join(words + words[:rng.randrange(len(words)) + 1])
        elif kind == 3:
            text = rng.choice(["the", " ", "...", "A. An? The!", "\u3000"])
        elif kind == 4:
            rng.shuffle(words)
            text = " ".join(words)
        predictions[qa["id"]] = decorate(text, rng) if kind != 0 else ""
        sign = -1 if qa["answers"] else 1
        scores[qa["id"]] = rng.choice([sign * rng.choice([0.25, 0.5, 1.5]), sign * rng.choice([0.25, 0.5, 1.5]), 0.0, 1.0,
                                       rng.uniform(-1, 2), rng.gauss(0, 1)])
    keys = list(predictions)
    rng.shuffle(keys)
    return predictions, {key: scores[key] for key in keys} if version == 2 else None


def write(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=0)
        f.write("\n")


def main(command, *rest):
    if command == "cut":
        data, count, out = load(rest[0]), int(rest[1]), rest[2]
        for article in data["data"]:
            article["paragraphs"] = article["paragraphs"][:1]
        data["data"] = data["data"][:count]
        return write(out, data)
    version, data = int(rest[0]), load(rest[1])
    if command == "score":
        scores = load(rest[3]) if len(rest) > 3 else None
        return print(json.dumps(score(version, data, load(rest[2]), scores), indent=1))
    predictions, scores = make(version, data, int(rest[2]))
    write(rest[3] + ".pred.json", predictions)
    if scores is not None:
        write(rest[3] + ".na.json", scores)
    write(rest[3] + ".scores.json", score(version, data, predictions, scores))


if __name__ == "__main__":
    main(*sys.argv[1:])
