#!/usr/bin/env python3
"""Reference values from PyTorch in float64: a whole small GPT-2 (loss, every gradient, five AdamW steps) and one block.

Writes tests/data/reference/gpt.json. Run by hand (PyTorch is no dependency of the build or of CI):
    python3 tests/reference/make_reference.py tests/data/reference/gpt.json
Weights are drawn here from a fixed numpy generator and stored in the file, under megalith's names and layouts.
"""
import json
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
SHAPE = dict(num_layers=2, hidden_size=12, num_heads=3, ffn_hidden_size=20, seq_len=7, vocab_size=11, batch=2)
ADAM = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=0.7)
STEPS = 5


def parameters(shape, rng):
    """Named weights in megalith's layout: [out, in]; the QKV rows are q, k, v of head 0, then of head 1, ..."""
    h, f = shape["hidden_size"], shape["ffn_hidden_size"]
    names = {"embedding.token.weight": (shape["vocab_size"], h), "embedding.position.weight": (shape["seq_len"], h)}
    for i in range(shape["num_layers"]):
        p = f"layers.{i}."
        names |= {p + "norm1.weight": (h,), p + "norm1.bias": (h,),
                  p + "attention.qkv.weight": (3 * h, h), p + "attention.qkv.bias": (3 * h,),
                  p + "attention.out.weight": (h, h), p + "attention.out.bias": (h,),
                  p + "norm2.weight": (h,), p + "norm2.bias": (h,),
                  p + "mlp.up.weight": (f, h), p + "mlp.up.bias": (f,),
                  p + "mlp.down.weight": (h, f), p + "mlp.down.bias": (h,)}
    names |= {"final_norm.weight": (h,), "final_norm.bias": (h,)}
    made = {}
    for name, size in names.items():
        value = 0.4 * rng.standard_normal(size)
        if "norm" in name and name.endswith("weight"):
            value += 1.0
        made[name] = torch.tensor(value, requires_grad=True)
    return made


def block(w, i, x, shape):
    """One pre-LN layer, written from the formulas."""
    p = f"layers.{i}."
    batch, seq, h = x.shape
    heads = shape["num_heads"]
    d = h // heads
    n = F.layer_norm(x, (h,), w[p + "norm1.weight"], w[p + "norm1.bias"], 1e-5)
    qkv = F.linear(n, w[p + "attention.qkv.weight"], w[p + "attention.qkv.bias"]).view(batch, seq, heads, 3, d)
    q, k, v = (qkv[:, :, :, j].transpose(1, 2) for j in range(3))
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    scores = scores.masked_fill(torch.triu(torch.ones(seq, seq, dtype=torch.bool), 1), -math.inf)
    attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, h)
    x = x + F.linear(attended, w[p + "attention.out.weight"], w[p + "attention.out.bias"])
    n = F.layer_norm(x, (h,), w[p + "norm2.weight"], w[p + "norm2.bias"], 1e-5)
    up = F.gelu(F.linear(n, w[p + "mlp.up.weight"], w[p + "mlp.up.bias"]), approximate="tanh")
    return x + F.linear(up, w[p + "mlp.down.weight"], w[p + "mlp.down.bias"])


def loss_of(w, tokens, targets, shape):
    h = shape["hidden_size"]
    x = F.embedding(tokens, w["embedding.token.weight"]) + w["embedding.position.weight"][: tokens.shape[1]]
    for i in range(shape["num_layers"]):
        x = block(w, i, x, shape)
    x = F.layer_norm(x, (h,), w["final_norm.weight"], w["final_norm.bias"], 1e-5)
    logits = F.linear(x, w["embedding.token.weight"])
    return F.cross_entropy(logits.view(-1, shape["vocab_size"]), targets.view(-1))


def listed(tensor):
    return tensor.detach().reshape(-1).tolist()


def main():
    rng = np.random.default_rng(20)
    w = parameters(SHAPE, rng)
    out = {"shape": SHAPE, "adam": ADAM, "torch": torch.__version__, "weights": {n: listed(v) for n, v in w.items()}}

    x = torch.tensor(rng.standard_normal((SHAPE["batch"], SHAPE["seq_len"], SHAPE["hidden_size"])), requires_grad=True)
    dy = torch.tensor(rng.standard_normal(x.shape))
    y = block(w, 0, x, SHAPE)
    y.backward(dy)
    out["block"] = {"x": listed(x), "y": listed(y), "dy": listed(dy), "dx": listed(x.grad),
                    "gradients": {n: listed(v.grad) for n, v in w.items() if v.grad is not None}}

    decayed = [v for n, v in w.items() if v.dim() > 1]
    plain = [v for n, v in w.items() if v.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": ADAM["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
                                  lr=ADAM["lr"], betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["eps"])
    out["steps"] = []
    for step in range(STEPS):
        tokens = torch.tensor(rng.integers(0, SHAPE["vocab_size"], (SHAPE["batch"], SHAPE["seq_len"])))
        targets = torch.tensor(rng.integers(0, SHAPE["vocab_size"], (SHAPE["batch"], SHAPE["seq_len"])))
        optimizer.zero_grad()
        loss = loss_of(w, tokens, targets, SHAPE)
        loss.backward()
        entry = {"tokens": tokens.view(-1).tolist(), "targets": targets.view(-1).tolist(), "loss": loss.item()}
        if step == 0:
            entry["gradients"] = {n: listed(v.grad) for n, v in w.items()}
        entry["grad_norm"] = torch.nn.utils.clip_grad_norm_(list(w.values()), ADAM["clip"]).item()
        optimizer.step()
        out["steps"].append(entry)
    out["final"] = {n: listed(v) for n, v in w.items()}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(out, file)


if __name__ == "__main__":
    main()
