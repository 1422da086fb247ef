#!/usr/bin/env python3
"""The tasks of megalith's data tools in other programs, one thread: MB of text per second of CPU time (user + system).
    data_peers.py TASK CORPUS.jsonl [--documents N] [--data FOLDER] [--bands B --rows R]
Reads the member "text" of the first N documents into memory, then measures the task alone. docs/measurements/corpora.md
has the calls of its table. Needs, for the tasks asked, from PyPI:
    tokenizers==0.23.3 rustbpe==0.1.0 datasketch==2.0.0 rensa==0.5.0 text-dedup==0.4.0 datatrove==0.10.1"""

import argparse
import json
import os
import re
import resource
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

WORD = re.compile(r"\w+")
WORDPIECE_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def used():
    return resource.getrusage(resource.RUSAGE_SELF)


def cpu_seconds():
    return used().ru_utime + used().ru_stime


def read_texts(path, documents):
    texts = []
    with open(path, encoding="utf8") as lines:
        for line in lines:
            if len(texts) == documents:
                break
            texts.append(json.loads(line)["text"])
    return texts


def shingles(text):
    words = WORD.findall(text.lower())
    return [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))]


# Each task is prepared, then returns what is measured.


def encode_gpt2(texts, options):
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(f"{options.data}/gpt2/encoder.json", f"{options.data}/gpt2/vocab.bpe")
    return lambda: [tokenizer.encode(text).ids for text in texts]


def encode_bert(texts, options):
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(f"{options.data}/bert/bert-uncased-vocab.txt")
    return lambda: [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def bpe_trainer(vocab_size):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer, trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)


def wordpiece_trainer(vocab_size):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=WORDPIECE_SPECIALS, show_progress=False)


def train_bpe(texts, options):
    tokenizer, trainer = bpe_trainer(32000)
    return lambda: tokenizer.train_from_iterator(iter(texts), trainer)


def train_wordpiece(texts, options):
    tokenizer, trainer = wordpiece_trainer(30522)
    return lambda: tokenizer.train_from_iterator(iter(texts), trainer)


def train_rustbpe(texts, options):
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    return lambda: tokenizer.train_from_iterator(iter(texts), 31999)  # it counts no special token


def dedup_datasketch(texts, options):
    from datasketch import MinHash, MinHashLSH

    hashes = options.bands * options.rows
    index = MinHashLSH(params=(options.bands, options.rows), num_perm=hashes)

    def insert_all():
        for i, text in enumerate(texts):
            signature = MinHash(num_perm=hashes)
            signature.update_batch([shingle.encode() for shingle in set(shingles(text))])
            index.insert(i, signature)

    return insert_all


def dedup_rensa(texts, options):
    from rensa import RMinHash

    def sign_all():
        for text in texts:
            signature = RMinHash(num_perm=options.bands * options.rows, seed=1)
            signature.update(shingles(text))
            signature.digest()

    return sign_all


def dedup_datatrove(texts, options):
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
    from datatrove.utils.hashing import HashConfig

    config = MinhashConfig(n_grams=5, num_buckets=options.bands, hashes_per_bucket=options.rows,
                           hash_config=HashConfig(precision=64, hash_fc="xxhash"))
    stage = MinhashDedupSignature(output_folder=tempfile.mkdtemp(), config=config)
    return lambda: [stage.get_signature(stage.get_shingles(text)) for text in texts]


def dedup_text_dedup(texts, options):
    import numpy as np
    from text_dedup.minhash import embed_func
    from text_dedup.utils import sha1_hash

    # Its defaults: 64-bit hashes, modulo 2^61 - 1.
    hashes, prime, most = options.bands * options.rows, np.uint64((1 << 61) - 1), np.uint64((1 << 32) - 1)
    random = np.random.RandomState(42)
    permutations = (random.randint(1, prime, size=hashes, dtype=np.uint64),
                    random.randint(0, prime, size=hashes, dtype=np.uint64))
    ranges = [(band * options.rows, (band + 1) * options.rows) for band in range(options.bands)]
    return lambda: [
        embed_func(text, i, num_perm=hashes, ngram_size=5, min_length=5, hashranges=ranges, permutations=permutations,
                   hash_func=lambda data: sha1_hash(data, d=64), dtype=np.uint64, max_hash=most, modulo_prime=prime)
        for i, text in enumerate(texts)]


TASKS = {task.__name__.replace("_", "-"): task for task in (
    encode_gpt2, encode_bert, train_bpe, train_wordpiece, train_rustbpe, dedup_datasketch, dedup_rensa, dedup_datatrove,
    dedup_text_dedup)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("corpus")
    parser.add_argument("--documents", type=int, default=-1, help="the first so many (default: all)")
    parser.add_argument("--data", default=".", help="folder of gpt2/ and bert/, the published vocabularies")
    parser.add_argument("--bands", type=int, default=20)
    parser.add_argument("--rows", type=int, default=5)
    options = parser.parse_args()
    texts = read_texts(options.corpus, options.documents)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    resident = used().ru_maxrss / 1024
    work = TASKS[options.task](texts, options)
    start = cpu_seconds()
    work()
    rate = megabytes / (cpu_seconds() - start)
    print(f"{options.task}  {megabytes:.1f} MB  {rate:.2f} MB per CPU second  "
          f"resident {used().ru_maxrss / 1024:.0f} MiB, {resident:.0f} of them before")


if __name__ == "__main__":
    sys.exit(main())
