"""Makes the files of this folder (pyarrow 17 or newer): one table in every form that is read, and in some that are not."""
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))
words = "the caf\u00e9 of \u65e5\u672c and 42 \U0001F600 dogs".split()
texts = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(i % 13)) + ("\n" if i % 3 else "") for i in range(60)]
texts += [texts[5]] * 20 + ["prefix shared by all %d" % i for i in range(20)]
with_nulls = [None if i % 7 == 3 else text for i, text in enumerate(texts)]

with open(os.path.join(here, "texts.jsonl"), "w") as out:
    for text in with_nulls:
        out.write(json.dumps({"text": text}) + "\n")


def write(name, values, required=False, **options):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string(), nullable=not required),
                        pa.field("tags", pa.list_(pa.string())), pa.field("score", pa.float64())])
    rows = len(values)
    table = pa.table([list(range(rows)), values, [["a", "b"]] * rows, [0.5] * rows], schema=schema)
    pq.write_table(table, os.path.join(here, name + ".parquet"), store_schema=False, **options)


for codec in ("none", "snappy", "gzip", "zstd"):
    for version in ("1.0", "2.0"):
        write(f"{codec}_v{version[0]}", with_nulls, compression=codec, data_page_version=version,
              write_page_checksum=codec == "gzip")
write("plain", with_nulls, use_dictionary=False, compression="zstd")
write("groups", with_nulls, row_group_size=6, use_dictionary=False, compression="snappy")
# Each row group has a dictionary of its own, whose first entries are other texts.
write("dictionary_groups", with_nulls, row_group_size=9, use_dictionary=True, compression="none")
write("pages", with_nulls, data_page_size=64, write_batch_size=8, compression="none", data_page_version="2.0")
write("required", texts, required=True)
for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
    write(encoding.lower(), with_nulls, use_dictionary=False, column_encoding={"text": encoding}, compression="none")
write("brotli", with_nulls[:3], compression="brotli")
