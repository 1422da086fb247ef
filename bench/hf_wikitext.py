"""WikiText-103 perplexity of a Hugging Face GPT-2 with transformers, by the protocol of Shoeybi et al. 2019: the peer of
`megalith eval FOLDER --task wikitext --data wiki.test.tokens`. Prints JSON.

    python3 bench/hf_wikitext.py FOLDER wiki.test.tokens [fp32|bf16] [--window 1024] [--stride 32] [--batch 16]

Needs torch, transformers and a GPU. docs/evaluation.md has the protocol.
"""
import argparse
import json
import math
import re
import time

import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

# What WikiText's preparation did to the text, taken back in this order.
RULES = (
    [(re.escape("s '"), "s'"), (r"/' [0-9]/", r"/'[0-9]/")]
    + [(f" @{c}@ ".replace(".", r"\."), c) for c in "-,."]
    + [(re.escape(f" {c} "), c + " ") for c in ":;.!?,"]
    + [(rf"{re.escape(a)}\s*([^{re.escape(b)}]*?)\s*{re.escape(b)}", rf"{a}\1{b}")
       for a, b in ("()", "[]", "{}", '""', "''")]
    + [("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0")]
    + [(" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")]
)


def detokenised(text):
    for pattern, by in RULES:
        text = re.sub(pattern, lambda found, by=by: found.expand(by) if "\\1" in by else by, text)
    return text


def windows(targets, window, stride):
    """(first input, inputs, targets that are scored: the last ones), so that each target is scored once."""
    start = done = 0
    while done < targets:
        count = min(window, targets - start)
        yield start, count, start + count - done
        done = start + count
        start += stride


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder")
    arguments.add_argument("data")
    arguments.add_argument("precision", nargs="?", choices=("fp32", "bf16"), default="fp32")
    arguments.add_argument("--window", type=int, default=1024)
    arguments.add_argument("--stride", type=int, default=32)
    arguments.add_argument("--batch", type=int, default=16)
    options = arguments.parse_args()
    text = open(options.data, encoding="utf-8").read().strip()
    words = len(text.split(" "))
    ids = torch.tensor(AutoTokenizer.from_pretrained(options.folder)(detokenised(text))["input_ids"])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    model = GPT2LMHeadModel.from_pretrained(options.folder, dtype=dtype).cuda().eval()
    of_all = list(windows(len(ids) - 1, options.window, options.stride))
    loss, began = 0.0, time.time()
    with torch.no_grad():
        for first in range(0, len(of_all), options.batch):
            part = of_all[first:first + options.batch]
            inputs = torch.zeros(len(part), max(count for _, count, _ in part), dtype=torch.long)
            for row, (start, count, _) in enumerate(part):
                inputs[row, :count] = ids[start:start + count]
            hidden = model.transformer(inputs.cuda()).last_hidden_state
            for row, (start, count, scored) in enumerate(part):
                logits = model.lm_head(hidden[row, count - scored:count]).float()
                wanted = ids[start + count - scored + 1:start + count + 1].cuda()
                loss += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").double().item()
    print(json.dumps({"words": words, "tokens": len(ids), "windows": len(of_all), "targets": len(ids) - 1, "loss": loss,
                      "unadjusted_perplexity": math.exp(loss / (len(ids) - 1)),
                      "adjusted_perplexity": math.exp(loss / words), "seconds": time.time() - began}))


if __name__ == "__main__":
    main()
