#!/usr/bin/env python3
"""Folders of small random BERTs as the transformers library writes them, and what it computes with them.

Writes a folder per case of CASES, or of the named ones, into the given folder. Each has config.json, model.safetensors
and expected.json: padded samples, and in float64 the last hidden states of their tokens, pooled rows, logits of masked
tokens and of the order, both losses, and the norm of the gradient of their sum; of fine-tuned models the logits of
classes, of sequences (of which one of several is chosen), or of each token as the first and last one of an answer. Run
by hand (neither PyTorch nor transformers is a dependency of the build or
of CI):
    python3 tests/reference/make_hf_bert.py tests/data/hf [CASE ...]
With --check FOLDER CASE_FOLDER it loads an exported folder, prints the greatest difference from the numbers of a case,
and returns 1 if the library misses a tensor, finds one that it does not know, or a number differs by over 1e-9.
"""
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers
from transformers import BertConfig, MegatronBertConfig

SHAPE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20,
             max_position_embeddings=16, vocab_size=37, type_vocab_size=2)
CASES = {
    "bert": dict(architecture="BertForPreTraining", hidden_act="gelu"),
    "bert_tanh": dict(architecture="BertForPreTraining", hidden_act="gelu_new", layer_norm_eps=0.1),
    "bert_masked_lm": dict(architecture="BertForMaskedLM", hidden_act="gelu"),
    "bert_model": dict(architecture="BertModel", hidden_act="gelu_new"),
    "megatron_bert": dict(architecture="MegatronBertForPreTraining", hidden_act="gelu", layer_norm_eps=1e-5),
    "megatron_bert_tanh": dict(architecture="MegatronBertForPreTraining", hidden_act="gelu_new", layer_norm_eps=0.1),
    "bert_classes": dict(architecture="BertForSequenceClassification",
                         id2label={0: "entailment", 1: "neutral", 2: "contradiction"}),
    "megatron_bert_classes": dict(architecture="MegatronBertForSequenceClassification", layer_norm_eps=1e-5,
                                  id2label={0: "not_duplicate", 1: "duplicate"}),
    "bert_choice": dict(architecture="BertForMultipleChoice", hidden_act="gelu_new", finetuning_task="race"),
    "megatron_bert_span": dict(architecture="MegatronBertForQuestionAnswering", hidden_act="gelu_new",
                               finetuning_task="squad2"),
}
NO_BIAS = ("classifier.bias", "qa_outputs.bias")  # of choices and spans: it changes no choice
OLDER, IN_BF16 = ("bert_tanh",), ("megatron_bert_tanh",)
LENGTHS = (16, 9, 12)
NO_TARGET = -100


def make_model(case, seed):
    torch.manual_seed(seed)
    options = {**SHAPE, **CASES[case]}
    architecture = options.pop("architecture")
    config = (MegatronBertConfig if architecture.startswith("Megatron") else BertConfig)(**options)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            is_norm = value.dim() == 1 and name.endswith(("LayerNorm.weight", "ln.weight"))
            value.copy_(0.4 * torch.randn_like(value) + (1.0 if is_norm else 0.0))
            if name in NO_BIAS and "classes" not in case:
                value.zero_()
    return model.bfloat16() if case in IN_BF16 else model


def write_older_names(folder):
    """As models converted from TensorFlow have them, with the buffer of positions and copies of tied tensors."""
    from safetensors.torch import load_file, save_file
    path = os.path.join(folder, "model.safetensors")
    tensors = {}
    for name, value in load_file(path).items():
        for now, before in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
            name = name.replace(now, before)
        tensors[name] = value
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors["bert.embeddings.position_ids"] = torch.arange(SHAPE["max_position_embeddings"]).unsqueeze(0)
    save_file(tensors, path, metadata={"format": "pt"})


def make_samples(generator):
    """Padded samples with two segments, targets of some tokens, and a label of the order."""
    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))
    samples = []
    for i, length in enumerate(LENGTHS):
        second = number(3, length - 2)
        places = sorted((1 + torch.randperm(length - 1, generator=generator)[:3]).tolist())  # the first is no word
        samples.append({"ids": [number(1, SHAPE["vocab_size"]) for _ in range(length)],
                        "types": [int(place >= second) for place in range(length)], "rows": places,
                        "targets": [number(0, SHAPE["vocab_size"]) for _ in places], "label": i % 2})
    return samples


def batch_of(samples):
    longest = max(len(one["ids"]) for one in samples)
    pad = lambda values, by: values + [by] * (longest - len(values))
    labels = torch.full((len(samples), longest), NO_TARGET)
    for i, one in enumerate(samples):
        labels[i, one["rows"]] = torch.tensor(one["targets"])
    inputs = {"input_ids": torch.tensor([pad(one["ids"], 0) for one in samples]),
              "token_type_ids": torch.tensor([pad(one["types"], 0) for one in samples]),
              "attention_mask": torch.tensor([pad([1] * len(one["ids"]), 0) for one in samples])}
    return inputs, labels, torch.tensor([one["label"] for one in samples])


def load(folder, architecture):
    model, info = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager",
                                                                      output_loading_info=True)
    return model.double().eval(), {key: sorted(map(str, value)) for key, value in info.items() if value}


def numbers_of(model, samples):
    """What the model computes of the samples, by name: what it has no head for is missing."""
    inputs, labels, order = batch_of(samples)
    got = {}
    kind = type(model).__name__
    if kind.endswith(("Classification", "MultipleChoice", "QuestionAnswering")):
        with torch.no_grad():
            if kind.endswith("Classification"):
                return {"class_logits": model(**inputs).logits.tolist()}
            if kind.endswith("MultipleChoice"):  # each sequence by itself
                return {"class_logits": model(**{name: value[:, None] for name, value in inputs.items()}).logits.tolist()}
            out = model(**inputs)
            both = torch.stack([out.start_logits, out.end_logits], -1)
            return {"row_logits": [row[:len(one["ids"])].tolist() for row, one in zip(both, samples)]}
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
        body = getattr(model, "bert", model)
        last = body(**inputs).last_hidden_state
        got["hidden"] = [row[:len(one["ids"])].tolist() for row, one in zip(last, samples)]
        pooled = body(**inputs).pooler_output
        if pooled is not None:
            got["pooled"] = pooled.tolist()
        logits = getattr(out, "prediction_logits", getattr(out, "logits", None))
        if logits is not None:
            got["logits"] = [row[one["rows"]].tolist() for row, one in zip(logits, samples)]
            got["mlm_loss"] = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_TARGET).item()
        if hasattr(out, "seq_relationship_logits"):
            got["order_logits"] = out.seq_relationship_logits.tolist()
            got["order_loss"] = F.cross_entropy(out.seq_relationship_logits, order).item()
            both = model(**inputs, labels=labels, next_sentence_label=order).loss.item()
            assert abs(both - got["mlm_loss"] - got["order_loss"]) < 1e-12, both
    if "order_loss" in got:
        model.zero_grad()
        model(**inputs, labels=labels, next_sentence_label=order).loss.backward()
        grads = [value.grad.norm() for value in model.parameters() if value.grad is not None]
        got["grad_norm"] = torch.stack(grads).norm().item()
    return got


def difference(got, wanted):
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        return max((difference(*pair) for pair in zip(got, wanted)), default=0.0)
    return abs(got - wanted)


def rounded(value):
    return [rounded(one) for one in value] if isinstance(value, list) else round(value, 12)


def check(folder, case_folder):
    """The export has the heads that the import made from the seed, too; the others' numbers are compared."""
    with open(os.path.join(case_folder, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        architecture = json.load(file)["architectures"][0]
    model, problems = load(folder, architecture)
    got = numbers_of(model, expected["samples"])
    worst = {name: difference(got[name], wanted) for name, wanted in expected["numbers"].items()}
    print(f"{folder}: {architecture}, " + ", ".join(f"{name} {value:.1e}" for name, value in worst.items()), problems)
    return 1 if problems or max(worst.values()) > 1e-9 else 0


def main():
    if sys.argv[1] == "--check":
        return check(*sys.argv[2:])
    for seed, case in enumerate(CASES):
        if len(sys.argv) > 2 and case not in sys.argv[2:]:
            continue
        folder = os.path.join(sys.argv[1], case)
        shutil.rmtree(folder, ignore_errors=True)
        make_model(case, seed).save_pretrained(folder)
        if case in OLDER:
            write_older_names(folder)
        if os.path.exists(os.path.join(folder, "generation_config.json")):
            os.remove(os.path.join(folder, "generation_config.json"))
        samples = make_samples(torch.Generator().manual_seed(100 + seed))
        model, problems = load(folder, CASES[case]["architecture"])
        assert not problems, problems
        numbers = {name: rounded(value) for name, value in numbers_of(model, samples).items()}
        with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "samples": samples,
                       "numbers": numbers}, file)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
