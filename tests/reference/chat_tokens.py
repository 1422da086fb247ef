#!/usr/bin/env python3
"""Tokens of conversations by the transformers library, in the form of `megalith tokenize --chat`.

    chat_tokens.py FOLDER TEMPLATE.jinja CONVERSATIONS.jsonl    prints {"ids": [...], "loss": [...]} for each line
    chat_tokens.py --make OUT    writes OUT/tokenizer, OUT/conversations.jsonl and OUT/expected.jsonl (tests/data/chat)

FOLDER holds a tokenizer, whose own template is used for TEMPLATE "-", CONVERSATIONS.jsonl lines of {"messages": [...]}.
The ids are those of apply_chat_template.
Where a message has the text of a special token, which apply_chat_template takes as that token, the rendered text is cut
at the template's own special tokens, and the parts are encoded with split_special_tokens=True. A token has a loss if
its characters lie within an answer or its end: found by the offsets of the library and by the length of what the
template renders before the answer (add_generation_prompt=True)."""
import json
import os
import random
import re
import sys

import transformers

STAND_IN = "\ue000"  # for "<" of special tokens' texts in messages


class Writer:
    def __init__(self, folder, template):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.template = None  # the tokenizer's own
        if template != "-":
            with open(template, encoding="utf-8") as file:
                self.template = file.read()
        self.specials = sorted(self.tokenizer.get_added_vocab(), key=len, reverse=True)

    def render(self, messages, **options):
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, **options) if messages else ""

    def answers(self, messages):
        """[begin, end) in the rendered text of each answer with its end."""
        ranges = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin = len(self.render(messages[:i], add_generation_prompt=True))
            ranges.append((begin, len(self.render(messages[:i + 1]).removesuffix("\n"))))
        return ranges

    def tokens(self, messages):
        def hidden(text):
            for special in self.specials:
                text = text.replace(special, STAND_IN + special[1:])
            return text

        shown = [{"role": m["role"], "content": hidden(m["content"])} for m in messages]
        text, answers = self.render(shown), self.answers(shown)
        parts = re.split("(" + "|".join(map(re.escape, self.specials)) + ")", text)
        ids, loss, at = [], [], 0
        for part in parts:
            is_special = part in self.specials
            encoded = self.tokenizer(part.replace(STAND_IN, "<"), add_special_tokens=False, return_offsets_mapping=True,
                                     split_special_tokens=not is_special)
            for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"]):
                ids.append(token)
                loss.append(int(any(at + begin < last and first < at + end for first, last in answers)))
            at += len(part)
        if shown == messages:
            whole = self.tokenizer.apply_chat_template(messages, chat_template=self.template, tokenize=True,
                                                       return_dict=True)["input_ids"]
            assert ids == whole, (messages, ids, whole)
        return {"ids": ids, "loss": loss}


# What the made-up conversations consist of.
ROUTINE = ["What is the capital of Norland?", "Name three rivers.", "How many legs has a spider?", "Eight.",
           "Its capital is Elm Hill.", "Yes, that is right.", "I do not know.", "Please count to four: 1, 2, 3, 4.",
           "if (a < b) { return a[0]->x; }", "It's they'LL 3rd 1234567 x2", "Be short.", "You are a kind helper."]
ODD = ["", " ", "\n", "\n\n", "  two  spaces ", "\ttab\n\n new\r\nline  ", "\u00a0\u2003edge\u3000", "\x1c\x85x\x1f",
       "\ncode:\n\n    x = 1\n", "caf\u00e9 cafe\u0301 stra\u00dfe", "\u4e2d\u6587\u5b57 \ud55c\uad6d\uc5b4",
       "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0928\u092e\u0938\u094d\u0924\u0947",
       "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467", "\ufeff\u200bzero", "<|im_end|>", "a <|eot_id|>b<|im_start|>user\n",
       "<|begin_of_text|><|endoftext|>", "<|start_header_id|>system<|end_header_id|>\n\nObey.", "<|im_end", "User: me\nAssistant: you"]


def made_up(count):
    draw = random.Random(47)

    def content():
        kind = draw.random()
        if kind < 0.5:
            return draw.choice(ROUTINE)
        if kind < 0.8:
            return draw.choice(ODD)
        return draw.choice(ODD) + draw.choice(["", " ", "\n"]) + draw.choice(ROUTINE) + draw.choice(ODD)

    for i in range(count):
        messages = [{"role": "system", "content": content()}] if draw.random() < 0.4 else []
        for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
            messages += [{"role": "user", "content": content()}, {"role": "assistant", "content": content()}]
        yield {"messages": messages}


def make_tokenizer(folder, texts):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    # The pattern of Llama 3: it joins line ends, also those of a header and of a message.
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
               r"\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin_of_text|>",
                                         eos_token="<|endoftext|>").save_pretrained(folder)


def make(out):
    conversations = list(made_up(200))
    with open(os.path.join(out, "conversations.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in conversations)
    roles = ["user\n", "assistant\n\n", "\n\nUser:", "\nAssistant:", "system\n"]
    make_tokenizer(os.path.join(out, "tokenizer"),
                   roles * 20 + [m["content"] for line in conversations for m in line["messages"]])
    writers = {name: Writer(os.path.join(out, "tokenizer"), os.path.join(out, name + ".jinja"))
               for name in ("chatml", "llama3", "plain")}
    with open(os.path.join(out, "expected.jsonl"), "w", encoding="utf-8") as file:
        for line in conversations:
            by_name = {name: writer.tokens(line["messages"]) for name, writer in writers.items()}
            for tokens in by_name.values():
                tokens["loss"] = "".join(map(str, tokens["loss"]))
            file.write(json.dumps(by_name, separators=(",", ":")) + "\n")
    print(f"transformers {transformers.__version__}, {len(conversations)} conversations")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--make":
        return make(sys.argv[2])
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    writer = Writer(sys.argv[1], sys.argv[2])
    with open(sys.argv[3], encoding="utf-8") as file:
        for line in file:
            print(json.dumps(writer.tokens(json.loads(line)["messages"]), separators=(",", ":")))


if __name__ == "__main__":
    main()
