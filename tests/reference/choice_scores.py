#!/usr/bin/env python3
"""Multiple-choice questions, and what lm-evaluation-harness computes for them.

    choice_scores.py FOLDER    writes into FOLDER (tests/data/choice): model/, a random GPT-2 with a tokenizer; made-up
                               questions in the form of each data set; expected.json

expected.json has for each task and number of shots the harness's acc, acc_norm, their standard errors where it prints
them, and for each question the log-likelihoods of its choices in float32. The tasks are the harness's own definitions;
only their data are read from files here, turned into the columns that its data sets have. Run by hand, in an
environment with lm_eval and transformers."""
import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import lm_eval
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

HERE = os.path.dirname(os.path.abspath(__file__))
WINDOW = 160

CHOICE = [
    ("The sky on a clear day is", ["blue", "made of wood and very old glass", "a number"], 0),
    ("Two and two are", ["three", "four"], 1),
    ("A question with a space at its end: ", ["yes", "no, never", "caf\u00e9 \u00e9t\u00e9"], 2),
    ("", ["An answer without a question", "Another one"], 1),
    ("Line one\nline two\n\n", ["a", "bb", "ccc", "dddd", "eeeee"], 4),
    ("In \u6f22\u5b57 one writes", ["\u4e2d\u6587\u4e2d\u6587", "Chinese", "Xx#q"], 0),
]
HELLASWAG = [
    dict(activity_label="Roof work", ctx_a="A man stands on a roof.", ctx_b="he",
         endings=["takes a tile and puts it down.", "sings [loudly] to birds.", "is  under water.", "ends"], label=0),
    dict(activity_label="Home and Garden", ctx_a="[header] How to dry herbs [title] Pick them early. [step] Dew goes.",
         ctx_b="", endings=["Wash them [substeps] in cold water.", " [title] Wait a year.", "Eat a stone. [step] Rest.",
                            "Dry them in the shade."], label="3"),
    dict(activity_label="Cooking", ctx_a="A pan is hot .", ctx_b="\u00dfoup AND Oil ARE PUT IN",
         endings=["The cook stirs.", "The pan flies [away\nand] back.", "Nothing  is  there.", "It smells \u00e9legant."],
         label=2),
    dict(activity_label="Ends in brackets", ctx_a="One waits [step]", ctx_b="\u03a3\u039f\u03a6\u039f\u03a3 [title]",
         endings=["and waits.", "and goes [header].", "or sleeps\u00a0", "at once"], label=1),
]
ARC = [
    ("Which tool measures warmth?", [("A", "a ruler"), ("B", "a thermometer"), ("C", "a scale"), ("D", "a clock")], "A"),
    ("What do plants need?\nChoose one.", [("1", "light"), ("2", "sand"), ("3", "music")], "2"),
    ("Which is a planet?", [("A", "the Moon"), ("B", "Mars"), ("C", "the Sun"), ("D", "Sirius"), ("E", "Vega")], "D"),
]
PIQA = [
    ("To open a jar,", "turn its lid to the left.", "put it into the oven for an hour.", 0),
    ("How to keep bread fresh?", "Leave it in the rain", "Put it into a box", 1),
    ("When boiling butter, when it's ready, you can", "Pour it onto a plate", "Pour it into a jar", 1),
]
MMLU = [
    ("Which bone is in the arm?", "Femur", "Humerus", "Tibia", "Skull", "B"),
    ("  A \"quoted\" question, with commas,\nand a second line  ", "one, two", "\"three\"", " four", "", "C"),
    ("The heart has how many chambers?", "1", "2", "3", "4", "D"),
    ("A long question: " + "and so it goes on, " * 30 + "which letter?", "the first", "the second", "the third",
     "the last", "A"),
]
MMLU_DEV = [
    ("How many lungs has a man?", "1", "2", "3", "4", "B"),
    ("What is red?", "Blood", "Bone", "Air", "Skin, often", "A"),
    ("Not used", "a", "b", "c", "d", "C"),
]
ARC_TRAIN = [
    ("What is hot?", [("A", "ice"), ("B", "fire")], "B"),
    ("What is wet?", [("1", "water"), ("2", "dust")], "1"),
]


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def arc_line(number, row):
    question, choices, key = row
    return {"id": f"q{number}", "question": {"stem": question,
                                             "choices": [dict(text=text, label=label) for label, text in choices]},
            "answerKey": key}


def write_files(folder):
    write_lines(f"{folder}/choice.jsonl", [dict(question=q, choices=c, answer=a) for q, c, a in CHOICE])
    write_lines(f"{folder}/hellaswag_val.jsonl", [dict(ind=i, **row) for i, row in enumerate(HELLASWAG)])
    write_lines(f"{folder}/arc.jsonl", [arc_line(i, row) for i, row in enumerate(ARC)])
    write_lines(f"{folder}/arc_train.jsonl", [arc_line(i, row) for i, row in enumerate(ARC_TRAIN)])
    write_lines(f"{folder}/piqa_valid.jsonl", [dict(goal=g, sol1=a, sol2=b) for g, a, b, _ in PIQA])
    with open(f"{folder}/piqa_valid-labels.lst", "w") as file:
        file.writelines(f"{label}\n" for *_, label in PIQA)
    for name, rows in (("anatomy_test", MMLU), ("anatomy_dev", MMLU_DEV)):
        with open(f"{folder}/{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def columns_of_arc(path):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [dict(question=row["question"]["stem"], answerKey=row["answerKey"],
                 choices=dict(text=[c["text"] for c in row["question"]["choices"]],
                              label=[c["label"] for c in row["question"]["choices"]])) for row in rows]


def columns_of_mmlu(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [dict(question=row[0], choices=row[1:5], answer="ABCD".index(row[5])) for row in csv.reader(file)]


def write_columns(folder, to):
    """The files as the harness's data sets have them; the path of each split."""
    def lines(name):
        with open(f"{folder}/{name}", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    with open(f"{folder}/piqa_valid-labels.lst") as file:
        labels = [int(line) for line in file]
    splits = {
        "choice": lines("choice.jsonl"),
        "hellaswag": [{**row, "label": str(row["label"])} for row in lines("hellaswag_val.jsonl")],
        "arc": columns_of_arc(f"{folder}/arc.jsonl"), "arc_train": columns_of_arc(f"{folder}/arc_train.jsonl"),
        "piqa": [dict(row, label=label) for row, label in zip(lines("piqa_valid.jsonl"), labels)],
        "mmlu": columns_of_mmlu(f"{folder}/anatomy_test.csv"), "mmlu_dev": columns_of_mmlu(f"{folder}/anatomy_dev.csv"),
    }
    for name, rows in splits.items():
        write_lines(f"{to}/{name}.jsonl", rows)
    return {name: f"{to}/{name}.jsonl" for name in splits}


def make_model(folder):
    torch.manual_seed(47)
    os.makedirs(folder, exist_ok=True)
    source = os.path.join(HERE, "../data/chat/tokenizer")
    shutil.copy(f"{source}/tokenizer.json", folder)
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|endoftext|>",
                       eos_token="<|endoftext|>"), file, indent=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    eos = tokenizer.eos_token_id
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=WINDOW, n_embd=16, n_layer=2, n_head=2,
                                     bos_token_id=eos, eos_token_id=eos)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(0.3 * torch.randn_like(value) + (1.0 if "ln_" in name and "weight" in name else 0.0))
    model.save_pretrained(folder)
    os.remove(f"{folder}/generation_config.json")
    return model, tokenizer


METRICS = ("acc", "acc_norm", "acc_bytes")
NAMES = {"hellaswag": "hellaswag/hellaswag", "arc": "arc/arc_easy", "piqa": "piqa/piqa",
         "mmlu": "mmlu/default/mmlu_anatomy"}


def definition(task, splits, shots):
    """The harness's own definition of a task, with other data, and all metrics."""
    if task in NAMES:
        config = load_yaml(Path(lm_eval.__file__).parent / f"tasks/{NAMES[task]}.yaml", resolve_func=True)
    else:
        config = dict(output_type="multiple_choice", doc_to_text="{{question}}", doc_to_choice="{{choices}}",
                      doc_to_target="{{answer}}")
    data = dict(test=splits[task])
    if shots:
        data["shots"] = splits[f"{task}_dev" if task == "mmlu" else f"{task}_train"]
        config.update(fewshot_split="shots", fewshot_config=dict(sampler="first_n"))
    else:
        config.pop("fewshot_split", None), config.pop("fewshot_config", None)
    config.update(task=f"own_{task}_{shots}", dataset_path="json", dataset_name=None, training_split=None,
                  validation_split=None, test_split="test", dataset_kwargs=dict(data_files=data),
                  metric_list=[dict(metric=m, aggregation="mean", higher_is_better=True) for m in METRICS])
    config.pop("tag", None)
    return config


def expected(lm, config, shots):
    found = lm_eval.simple_evaluate(model=lm, tasks=[config], num_fewshot=shots, log_samples=True, bootstrap_iters=10,
                                   task_manager=TaskManager(include_defaults=False))
    name = config["task"]
    results = {key.removesuffix(",none"): value for key, value in found["results"][name].items()
               if key.split(",")[0] in (*METRICS, "acc_stderr", "acc_norm_stderr") and value != "N/A"}
    samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
    return dict(results=results, log_probabilities=[[float(one[0][0]) if isinstance(one[0], (list, tuple)) else
                                                     float(one[0]) for one in sample["resps"]] for sample in samples])


def main(folder):
    os.makedirs(folder, exist_ok=True)
    write_files(folder)
    model, tokenizer = make_model(f"{folder}/model")
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu")
    assert lm.max_length == WINDOW, lm.max_length
    with tempfile.TemporaryDirectory() as to:
        splits = write_columns(folder, to)
        cases = [(task, 0) for task in ("choice", *NAMES)] + [("mmlu", 2), ("arc", 1)]
        all_of_them = [dict(task=task, shots=shots, **expected(lm, definition(task, splits, shots), shots))
                       for task, shots in cases]
    with open(f"{folder}/expected.json", "w") as file:
        json.dump(all_of_them, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
