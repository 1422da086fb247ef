"""A saved model: tokens, log-probabilities, texts."""
import ctypes
import json
import os
import queue
import threading
from types import TracebackType
from typing import Any, Iterator, List, Optional, Sequence, Type, Union, overload

from . import _library
from ._library import Generation, Ids, MegalithError, Options, TakeToken, call

Path = Union[str, "os.PathLike[str]"]


def _encoded(text: Optional[Path]) -> Optional[bytes]:
    return None if text is None else os.fsencode(text)


def _id_array(ids: Sequence[int]) -> Any:
    if len(ids) > 0 and (min(ids) < 0 or max(ids) >= 2**31):  # ctypes would cut them
        raise MegalithError(65, f"an id of {min(ids)} to {max(ids)}: must be from 0 to 2147483647")
    return (ctypes.c_int32 * max(len(ids), 1))(*ids)


class Model:
    """A model from load(). Any thread may use it; computations wait for each other. close() it, or use `with`.

    checkpoint, parameters, vocab_size, seq_len, tokenizer, end_of_document, precision and device describe it."""

    checkpoint: str
    parameters: int
    vocab_size: int
    seq_len: int
    tokenizer: str
    end_of_document: int
    precision: str
    device: str

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle: Optional[ctypes.c_void_p] = handle
        text = ctypes.c_void_p()
        call("megalith_describe", handle, ctypes.byref(text))
        self.__dict__.update(json.loads(self._taken(text)))

    def _taken(self, text: ctypes.c_void_p, size: int = -1) -> bytes:
        """The bytes of a text of the library, which is freed."""
        try:
            return ctypes.string_at(text, size)
        finally:
            _library.library().megalith_free(text)

    @property
    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError("the model is closed")
        return self._handle

    def encode(self, text: str) -> List[int]:
        """The ids of a text. No id is added before or after them."""
        ids, count = Ids(), ctypes.c_size_t()
        data = text.encode()
        call("megalith_encode", self._open, data, len(data), ctypes.byref(ids), ctypes.byref(count))
        try:
            return ids[:count.value]
        finally:
            _library.library().megalith_free(ids)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of ids, which may end inside a character."""
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("megalith_decode", self._open, _id_array(ids), len(ids), ctypes.byref(text), ctypes.byref(size))
        return self._taken(text, size.value)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no character become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    @overload
    def log_probabilities(self, ids: Sequence[int]) -> List[float]: ...
    @overload
    def log_probabilities(self, ids: Sequence[Sequence[int]]) -> List[List[float]]: ...

    def log_probabilities(self, ids: Any) -> Any:
        """ln p of each id given those before it, NaN for the first. Of one list of 1 to seq_len ids or, which is faster
        than one after another, of several. Their logits are never kept."""
        if len(ids) == 0:
            return []
        if hasattr(ids[0], "__index__"):
            return self.log_probabilities([ids])[0]
        lengths = [len(one) for one in ids]
        flat = [token for one in ids for token in one]
        found = (ctypes.c_double * max(len(flat), 1))()
        call("megalith_log_probabilities", self._open, _id_array(flat), (ctypes.c_size_t * len(lengths))(*lengths),
             len(lengths), found)
        result, begin = [], 0
        for length in lengths:
            result.append(found[begin:begin + length])
            begin += length
        return result

    def log_probability(self, context: str, continuation: str) -> float:
        """ln p of a continuation after a context, both encoded apart. Without a context the token that ends documents
        stands before it."""
        before = self.encode(context) or [self.end_of_document]
        after = self.encode(continuation)
        return sum(self.log_probabilities(before + after)[len(before):])

    def generate_ids(self, prompt: Union[str, Sequence[int]], *, max_tokens: int = 100, temperature: float = 1.0,
                     top_k: int = 0, top_p: float = 1.0, seed: int = 0, sample: int = 0, slide: int = 1,
                     stop_token: Optional[int] = -2) -> Iterator[int]:
        """The new ids of a text, one by one as they are drawn, without the token that ends it. prompt: a text or ids;
        "" begins a new document. temperature 0: the likeliest token. top_k, top_p: draw among the likeliest. seed, sample:
        the same give the same text. slide: ids that a full window loses at its beginning. stop_token: an id; -2 the one
        that ends documents; None: none. Leaving the loop ends the text."""
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        options = Generation(ctypes.sizeof(Generation), max_tokens, temperature, top_k, top_p, seed, sample, slide,
                             -1 if stop_token is None else stop_token)
        stops_at = self.end_of_document if stop_token == -2 else options.stop_token
        return self._drawn(ids or [self.end_of_document], options, stops_at)

    def _drawn(self, ids: Sequence[int], options: Generation, stops_at: int) -> Iterator[int]:
        drawn: "queue.Queue[Union[int, None, MegalithError]]" = queue.Queue()
        is_left = threading.Event()
        handle = self._open

        @TakeToken
        def take(token: int, _user: Any) -> int:
            drawn.put(token)
            return 1 if is_left.is_set() else 0

        def run() -> None:
            try:
                call("megalith_generate", handle, _id_array(ids), len(ids), ctypes.byref(options), take, None)
                drawn.put(None)
            except MegalithError as error:
                drawn.put(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            while (token := drawn.get()) is not None:
                if isinstance(token, MegalithError):
                    raise token
                if token != stops_at:
                    yield token
        finally:
            is_left.set()
            thread.join()

    def generate(self, prompt: Union[str, Sequence[int]], **options: Any) -> str:
        """The text that continues a prompt; options as of generate_ids()."""
        return self.decode(list(self.generate_ids(prompt, **options)))

    def close(self) -> None:
        """Frees the model. No other thread may be using it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _library.library().megalith_close(handle)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __repr__(self) -> str:
        return f"<megalith.Model {self.checkpoint}, {self.parameters} parameters, {self.precision} on {self.device}>"


def load(checkpoint: Path, *, device: Optional[str] = None, precision: Optional[str] = None,
         vocab_dir: Optional[Path] = None, batch: int = 0, threads: int = 0) -> Model:
    """Opens a checkpoint: a step folder, a folder of steps, the OUT of a run, or a Hugging Face folder.

    device: "cpu" or "cuda"; precision: "fp64", "fp32" or "bf16"; vocab_dir: the folder of the tokenizer's files; batch:
    lists of ids in a pass; threads: of the CPU. The defaults are those of `megalith score`. Raises MegalithError."""
    options = Options(ctypes.sizeof(Options), _encoded(device), _encoded(precision), _encoded(vocab_dir), batch,
                      threads)
    handle = ctypes.c_void_p()
    call("megalith_open", os.fsencode(checkpoint), ctypes.byref(options), ctypes.byref(handle))
    return Model(handle)
