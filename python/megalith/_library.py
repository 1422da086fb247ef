"""libmegalith.so by ctypes: the functions of include/megalith.h with their types, and errors as exceptions."""
import ctypes
import functools
import os
import shutil
from pathlib import Path
from typing import Any, Optional

_NAME = "libmegalith.so"


class MegalithError(Exception):
    """An error of megalith. `code` is the exit code that the program has for it (docs/errors.md), and the text names
    what was wrong and how to mend it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Options(ctypes.Structure):
    """megalith_options"""
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("precision", ctypes.c_char_p),
                ("vocab_dir", ctypes.c_char_p), ("batch", ctypes.c_int64), ("threads", ctypes.c_int64)]


class Generation(ctypes.Structure):
    """megalith_generation"""
    _fields_ = [("size", ctypes.c_size_t), ("max_tokens", ctypes.c_int64), ("temperature", ctypes.c_double),
                ("top_k", ctypes.c_int64), ("top_p", ctypes.c_double), ("seed", ctypes.c_uint64),
                ("sample", ctypes.c_int64), ("slide", ctypes.c_int64), ("stop_token", ctypes.c_int32)]


Ids = ctypes.POINTER(ctypes.c_int32)
TakeToken = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
_Model = ctypes.c_void_p
_Size = ctypes.c_size_t
_FUNCTIONS = {
    "megalith_version": (ctypes.c_char_p, []),
    "megalith_error": (ctypes.c_char_p, []),
    "megalith_free": (None, [ctypes.c_void_p]),
    "megalith_open": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(_Model)]),
    "megalith_close": (None, [_Model]),
    "megalith_describe": (ctypes.c_int, [_Model, ctypes.POINTER(ctypes.c_void_p)]),
    "megalith_encode": (ctypes.c_int, [_Model, ctypes.c_char_p, _Size, ctypes.POINTER(Ids), ctypes.POINTER(_Size)]),
    "megalith_decode": (ctypes.c_int, [_Model, Ids, _Size, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Size)]),
    "megalith_log_probabilities": (ctypes.c_int, [_Model, Ids, ctypes.POINTER(_Size), _Size,
                                                  ctypes.POINTER(ctypes.c_double)]),
    "megalith_generation_defaults": (None, [ctypes.POINTER(Generation)]),
    "megalith_generate": (ctypes.c_int, [_Model, Ids, _Size, ctypes.POINTER(Generation), TakeToken, ctypes.c_void_p]),
}


def _built(kind: str, name: str) -> Optional[Path]:
    """A file of the newest build in a checkout that this package is used from: build/PRESET/lib/libmegalith.so."""
    found = sorted(Path(__file__).resolve().parents[2].glob(f"build/*/{kind}/{name}"),
                   key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def program_path() -> Path:
    """The program: what MEGALITH_PROGRAM names, else `megalith` in PATH, else that of a build in this checkout. Raises
    MegalithError where there is none."""
    named = os.environ.get("MEGALITH_PROGRAM") or shutil.which("megalith")
    found = Path(named) if named else _built("bin", "megalith")
    if found is None or not found.exists():
        raise MegalithError(64, "there is no program megalith in PATH or in build/*/bin: install it, or name it with "
                                "the environment variable MEGALITH_PROGRAM")
    return found


def library_path() -> Path:
    """The library: what MEGALITH_LIBRARY names, else lib/libmegalith.so beside the bin/ of the program. Raises
    MegalithError where there is none."""
    named = os.environ.get("MEGALITH_LIBRARY")
    if named:
        candidates = [Path(named)]
    else:
        program = os.environ.get("MEGALITH_PROGRAM") or shutil.which("megalith")
        candidates = [Path(program).resolve().parents[1] / "lib" / _NAME] if program else []
        built = _built("lib", _NAME)
        candidates += [built] if built else []
    for path in candidates:
        if path.exists():
            return path
    looked = ", ".join(str(path) for path in candidates) or "no place: there is no program megalith in PATH"
    raise MegalithError(64, f"there is no {_NAME} (looked at {looked}): build megalith with -DMEGALITH_LIBRARY=ON, as "
                            "`scripts/build cpu-release` does, or name the file with the environment variable "
                            "MEGALITH_LIBRARY")


@functools.lru_cache(maxsize=None)
def library() -> Any:
    loaded = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns an exit code. Raises MegalithError."""
    code = getattr(library(), name)(*arguments)
    if code != 0:
        raise MegalithError(code, library().megalith_error().decode("utf-8", "replace"))


def version() -> str:
    """The version of the library."""
    return str(library().megalith_version().decode())
