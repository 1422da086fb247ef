#!/usr/bin/env python3
"""Fine-tunes a BERT of a Hugging Face folder with transformers' Trainer, as `megalith train` does with a [task] recipe.

    python3 tests/reference/finetune_by_trainer.py mnli|qqp|squad1 SEED FOLDER TRAIN DEV PREDICTIONS [--device cpu]

For the comparison in docs/finetuning.md, by hand: megalith needs neither library. TRAIN and DEV are JSON lines with
sentence1, sentence2 and label, or SQuAD's JSON; packed with xz or not. `megalith eval --task TASK --data DEV --score
PREDICTIONS` gives the score. Equal on both sides: sequences (128 tokens, of SQuAD windows of 384 that advance by 128),
labels, batch, epochs, AdamW (0.9, 0.999, 1e-8; decay 0.01, not of biases and norms), clipping at 1, the rate of every
step (warm-up over 6 % of the steps, then linear to 0), dropout of the folder, bf16 on a GPU. Not equal: the order of
samples, the seeds' random numbers. Prints a line of JSON: steps, mean loss, seconds.
"""
import argparse
import json
import lzma
import os
import time

os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

CLS, SEP, PAD = 101, 102, 0
LABELS = {"mnli": ["entailment", "neutral", "contradiction"], "qqp": ["0", "1"]}
MOST_QUERY, STRIDE, N_BEST, MOST_ANSWER = 128, 128, 20, 30


class Sequences(torch.utils.data.Dataset):
    """Dictionaries of lists, padded to `seq_len` where they become a batch."""

    def __init__(self, rows, seq_len):
        self.rows, self.seq_len = rows, seq_len

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def batch(self, rows):
        def filled(lists, by):
            return torch.tensor([values + [by] * (self.seq_len - len(values)) for values in lists])

        made = {"input_ids": filled([row["input_ids"] for row in rows], PAD),
                "token_type_ids": filled([row["token_type_ids"] for row in rows], 0),
                "attention_mask": filled([[1] * len(row["input_ids"]) for row in rows], 0)}
        for key in ("labels", "start_positions", "end_positions"):
            if key in rows[0]:
                made[key] = torch.tensor([row[key] for row in rows])
        return made


def open_text(path):
    return lzma.open(path, "rt", encoding="utf-8") if path.endswith(".xz") else open(path, encoding="utf-8")


def encode(tokenizer, texts):
    """[(ids, places of each token in its text)]"""
    return [(made.ids, made.offsets) for made in tokenizer.encode_batch(texts, add_special_tokens=False)]


def framed(a, b):
    return {"input_ids": [CLS, *a, SEP, *b, SEP], "token_type_ids": [0] * (len(a) + 2) + [1] * (len(b) + 1)}


def pairs(tokenizer, path, labels, seq_len):
    """Of a pair that is too long the longer sentence loses its end."""
    with open_text(path) as file:
        rows = [json.loads(line) for line in file]
    made = []
    for (a, _), (b, _), row in zip(encode(tokenizer, [row["sentence1"] for row in rows]),
                                   encode(tokenizer, [row["sentence2"] for row in rows]), rows):
        a, b = list(a), list(b)
        while len(a) + len(b) > seq_len - 3:
            (a if len(a) > len(b) else b).pop()
        made.append({**framed(a, b), "labels": labels.index(str(row["label"]))})
    return made


def answer_tokens(question, offsets):
    """First and last token of the answer whose place is known; None: it has no token."""
    answer = next(one for one in question["answers"] if not one.get("start_ambiguous"))
    begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > begin]
    return (inside[0], inside[-1]) if inside else None


def windows(tokenizer, path, seq_len, is_training):
    """(sequences, of each its question's id, context, first token, number of tokens, their place, offsets)"""
    with open_text(path) as file:
        paragraphs = [one for article in json.load(file)["data"] for one in article["paragraphs"]]
    made, places = [], []
    for paragraph in paragraphs:
        (ids, offsets), = encode(tokenizer, [paragraph["context"]])
        questions = paragraph["qas"]
        for question, (query, _) in zip(questions, encode(tokenizer, [one["question"] for one in questions])):
            if is_training and all(one.get("start_ambiguous") for one in question["answers"]):
                continue
            span = answer_tokens(question, offsets) if is_training else None
            query = query[:MOST_QUERY]
            at = len(query) + 2
            for first in range(0, len(ids), STRIDE):
                count = min(seq_len - 3 - len(query), len(ids) - first)
                sample = framed(query, ids[first:first + count])
                if is_training:
                    is_whole = span is not None and first <= span[0] and span[1] < first + count
                    sample["start_positions"], sample["end_positions"] = (
                        (span[0] + at - first, span[1] + at - first) if is_whole else (0, 0))
                made.append(sample)
                places.append((question["id"], paragraph["context"], first, count, at, offsets))
                if first + count == len(ids):
                    break
    return made, places


def best_answer(numbers, starts, ends, places):
    """The text of the best span in the windows of one question."""
    def around(window, token):
        first, count = places[window][2:4]
        return min(token - first, first + count - 1 - token) + 0.01 * count if first <= token < first + count else -1

    best, text = -np.inf, ""
    for window in numbers:
        _, context, first, count, at, offsets = places[window]
        start, end = starts[window][at:at + count], ends[window][at:at + count]
        lasts = np.argsort(-end, kind="stable")[:N_BEST]
        for i in np.argsort(-start, kind="stable")[:N_BEST]:
            if max(numbers, key=lambda other: (around(other, first + i), -other)) != window:
                continue
            for j in lasts:
                if i <= j < i + MOST_ANSWER and start[i] + end[j] > best:
                    best = start[i] + end[j]
                    text = context[offsets[first + i][0]:offsets[first + j][1]]
    return text


def write_answers(path, starts, ends, places):
    of_question = {}
    for window, place in enumerate(places):
        of_question.setdefault(place[0], []).append(window)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: best_answer(numbers, starts, ends, places) for name, numbers in of_question.items()}, file)


def write_classes(path, logits, labels):
    with open(path, "w", encoding="utf-8") as file:
        file.write("index\tprediction\n")
        file.writelines(f"{i}\t{labels[k]}\n" for i, k in enumerate(logits.argmax(-1)))


def optimizer_of(model, options, steps):
    decayed = [value for value in model.parameters() if value.dim() > 1]
    others = [value for value in model.parameters() if value.dim() <= 1]
    adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
                              lr=options.lr, betas=(0.9, 0.999), eps=1e-8)
    warmup = int(0.06 * steps)

    def rate(done):
        return (done + 1) / warmup if done < warmup else (steps - done - 1) / max(1, steps - warmup)

    return adamw, torch.optim.lr_scheduler.LambdaLR(adamw, rate)


def main():
    parser = argparse.ArgumentParser(description="Fine-tunes a BERT with transformers' Trainer")
    parser.add_argument("task", choices=["mnli", "qqp", "squad1"])
    parser.add_argument("seed", type=int)
    for name in ("folder", "train", "dev", "predictions"):
        parser.add_argument(name)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(options.folder + "/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    is_squad = options.task == "squad1"
    seq_len = 384 if is_squad else 128
    if is_squad:
        train, _ = windows(tokenizer, options.train, seq_len, True)
        dev, places = windows(tokenizer, options.dev, seq_len, False)
        model = transformers.BertForQuestionAnswering.from_pretrained(options.folder)
    else:
        labels = LABELS[options.task]
        train, dev = (pairs(tokenizer, path, labels, seq_len) for path in (options.train, options.dev))
        model = transformers.BertForSequenceClassification.from_pretrained(options.folder, num_labels=len(labels))
    steps = -(-len(train) // options.batch) * options.epochs
    is_gpu = options.device == "cuda"
    arguments = transformers.TrainingArguments(
        output_dir=options.predictions + ".trainer", per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=128, num_train_epochs=options.epochs, max_grad_norm=1.0, seed=options.seed,
        bf16=is_gpu, use_cpu=not is_gpu, save_strategy="no", report_to=[], logging_strategy="no", disable_tqdm=True,
        remove_unused_columns=False)
    data = Sequences(train, seq_len)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, data_collator=data.batch,
                                   optimizers=optimizer_of(model, options, steps))
    began = time.monotonic()
    loss = trainer.train().training_loss
    seconds = time.monotonic() - began
    found = trainer.predict(Sequences(dev, seq_len)).predictions
    if is_squad:
        write_answers(options.predictions, found[0], found[1], places)
    else:
        write_classes(options.predictions, found[0] if isinstance(found, tuple) else found, labels)
    print(json.dumps({"steps": trainer.state.global_step, "loss": loss, "train_s": round(seconds, 1)}))


main()
