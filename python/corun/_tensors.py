"""Weights as arrays: numpy, ml_dtypes, or anything with __dlpack__ on the CPU.

numpy's own from_dlpack refuses bfloat16, so the capsule is read here. Nothing is copied unless the
tensor is not contiguous.
"""
from __future__ import annotations

import ctypes as C
from typing import Any, Dict, Tuple

import numpy as np

from . import _abi

# The bits of bfloat16 may come as uint16: numpy has no type for them.
KINDS: Dict[str, int] = {"float32": _abi.DTYPE_F32, "float16": _abi.DTYPE_F16,
                         "bfloat16": _abi.DTYPE_BF16, "uint16": _abi.DTYPE_BF16}


class _Device(C.Structure):
    _fields_ = [("type", C.c_int32), ("id", C.c_int32)]


class _DType(C.Structure):
    _fields_ = [("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16)]


class _DLTensor(C.Structure):  # at the start of DLManagedTensor, which the capsule holds
    _fields_ = [("data", C.c_void_p), ("device", _Device), ("ndim", C.c_int32), ("dtype", _DType),
                ("shape", C.POINTER(C.c_int64)), ("strides", C.POINTER(C.c_int64)),
                ("byte_offset", C.c_uint64)]


_CPU, _PINNED = 1, 3  # kDLCPU, kDLCUDAHost
_DTYPES = {(2, 32): np.float32, (2, 16): np.float16, (4, 16): np.uint16, (1, 16): np.uint16}

_pointer = C.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]
_valid = C.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = C.c_int, [C.py_object, C.c_char_p]


def _from_dlpack(name: str, value: Any) -> Tuple["np.ndarray[Any, Any]", Any]:
    device = int(value.__dlpack_device__()[0])
    if device not in (_CPU, _PINNED):
        raise TypeError(f"{name}: the tensor is on device type {device} of DLPack; only tensors in "
                        "the CPU's memory are read (torch: t.cpu())")
    capsule = value.__dlpack__()
    if not _valid(capsule, b"dltensor"):
        raise TypeError(f"{name}: __dlpack__ gave no DLPack capsule that this package reads")
    t = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    kind = _DTYPES.get((t.dtype.code, t.dtype.bits))
    if kind is None or t.dtype.lanes != 1:
        raise TypeError(f"{name}: DLPack type code {t.dtype.code} with {t.dtype.bits} bits is none "
                        "of float32, float16, bfloat16, uint16")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    item = np.dtype(kind).itemsize
    if 0 in shape:
        return np.empty(shape, kind), capsule
    if t.data is None:
        raise TypeError(f"{name}: the tensor has no data")
    if t.strides:
        strides = tuple(t.strides[i] * item for i in range(t.ndim))
        if any(s < 0 for s in strides):
            raise TypeError(f"{name}: the tensor has a negative stride")
    else:
        strides = tuple(int(np.prod(shape[i + 1:], dtype=np.int64)) * item for i in range(t.ndim))
    room = item + sum((n - 1) * s for n, s in zip(shape, strides))
    raw = (C.c_char * room).from_address(t.data + t.byte_offset)
    # The capsule owns the memory and is released when it is collected.
    return np.ndarray(shape, kind, raw, 0, strides), (capsule, raw)


def as_array(name: str, value: Any) -> Tuple["np.ndarray[Any, Any]", Any]:
    """The tensor as a contiguous array of a type that refill takes, and what must stay alive."""
    keep: Any = value
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        a = np.asarray(value)
    else:
        a, keep = _from_dlpack(name, value)
    if a.dtype.name not in KINDS or not a.dtype.isnative:
        raise TypeError(f"{name}: {a.dtype} is none of float32, float16, bfloat16, uint16")
    return a if a.flags.c_contiguous else np.ascontiguousarray(a), keep
