"""The Open Inference Protocol V2: its JSON, and its extension for binary data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cretta.serve.decode import ImageFormat
from cretta.serve.refusal import Refusal
from cretta.serve.requests import Image, Prediction

HEADER = "inference-header-content-length"
EXTENSIONS = ("binary_tensor_data", "model_repository")
INPUT = "images"
MAX_JSON = 4 * 1024 * 1024
"""Bytes: nothing else runs while Python parses JSON."""
DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}
OUTPUTS: dict[str, tuple[str, np.dtype[Any]]] = {
    "probabilities": ("FP32", np.dtype("<f4")),
    "class": ("INT64", np.dtype("<i8")),
    "energy": ("FP32", np.dtype("<f4")),
    "sequence": ("INT64", np.dtype("<i8")),
    "batch": ("INT64", np.dtype("<i8")),
    "step": ("INT64", np.dtype("<i8")),
}
"""Name, datatype and NumPy's type of the outputs; the last three say how to repeat a prediction."""


def metadata(name: str, images: ImageFormat, outputs: int) -> dict[str, Any]:
    """Return the description of the model."""
    return {
        "name": name,
        "versions": ["1"],
        "platform": "pytorch_cretta",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, 3, *images.size]}],
        "outputs": [
            {"name": output, "datatype": datatype, "shape": [-1, outputs] if output == "probabilities" else [-1]}
            for output, (datatype, _) in OUTPUTS.items()
        ],
    }


@dataclasses.dataclass(frozen=True)
class Inference:
    """A request that was understood."""

    images: list[Image]
    adapt: bool
    id: str | None
    outputs: dict[str, bool]
    """Names of the requested outputs, and whether each is sent as binary data."""


def parse(body: bytes, header: str | None, images: ImageFormat) -> Inference:
    """Return the request in a body, or raise :class:`Refusal`."""
    text, rest = _split(body, header)
    if len(text) > MAX_JSON:
        raise Refusal(413, f"expected at most {MAX_JSON} bytes of JSON; send images as binary data (binary_data_size).")
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"expected JSON, got something else ({error}).") from None
    request = _object(request, "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    inputs = _list(request.get("inputs"), "inputs")
    if len(inputs) != 1:
        raise _malformed(f"expected one input, {INPUT!r}, got {len(inputs)}.")
    array = _input(_object(inputs[0], "an input"), rest)
    identifier = request.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise _malformed("expected id to be a string.")
    return Inference(
        images.array(array, "NCHW"),
        _flag(parameters, "adapt", default=True),
        identifier,
        _requested(request.get("outputs"), default=_flag(parameters, "binary_data_output", default=False)),
    )


def _split(body: bytes, header: str | None) -> tuple[bytes, bytes]:
    """Return the JSON and the binary data after it."""
    if header is None:
        return body, b""
    if not header.isdecimal() or len(header) > 20 or int(header) > len(body):
        raise _malformed(f"expected Inference-Header-Content-Length to be the length of the JSON, got {header[:20]!r}.")
    return body[: int(header)], body[int(header) :]


def _input(entry: Mapping[str, Any], rest: bytes) -> NDArray[np.generic]:
    if entry.get("name") != INPUT:
        raise _malformed(f"expected the input {INPUT!r}, got {entry.get('name')!r}.")
    kind = DATATYPES.get(str(entry.get("datatype")))
    if kind is None:
        raise _malformed(f"expected the datatype FP32 or UINT8, got {entry.get('datatype')!r}.")
    shape = _list(entry.get("shape"), "shape")
    if len(shape) > 8 or not all(type(side) is int and side >= 0 for side in shape):
        raise _malformed("expected shape to be a list of at most 8 integers of at least 0.")
    parameters = _object(entry.get("parameters", {}), "parameters of the input")
    size = parameters.get("binary_data_size")
    if size is not None:
        if type(size) is not int or size != len(rest) or size != math.prod(shape) * kind.itemsize:
            raise _malformed(f"expected binary data of {math.prod(shape) * kind.itemsize} bytes, got {len(rest)}.")
        return np.frombuffer(rest, kind).reshape(shape)
    if rest:
        raise _malformed("got binary data that no input announces by binary_data_size.")
    try:
        flat = np.asarray(_list(entry.get("data"), "data"), np.float64).ravel()
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _malformed(f"expected data to be numbers ({error}).") from None
    if flat.size != math.prod(shape):
        raise _malformed(f"expected {math.prod(shape)} values for shape {shape}, got {flat.size}.")
    if kind.kind == "u" and not bool(((flat >= 0) & (flat <= 255) & (flat % 1 == 0)).all()):
        raise Refusal(422, "expected UINT8 data to be integers from 0 to 255.")
    with np.errstate(over="ignore"):
        return flat.astype(kind).reshape(shape)


def _requested(entries: Any, *, default: bool) -> dict[str, bool]:
    if entries is None:
        return dict.fromkeys(OUTPUTS, default)
    requested = {}
    for entry in _list(entries, "outputs"):
        entry = _object(entry, "an output")
        name = entry.get("name")
        if not isinstance(name, str) or name not in OUTPUTS:
            raise _malformed(f"expected one of the outputs {', '.join(OUTPUTS)}, got {name!r}.")
        parameters = _object(entry.get("parameters", {}), "parameters of an output")
        requested[name] = _flag(parameters, "binary_data", default=default)
    return requested or dict.fromkeys(OUTPUTS, default)


def response(name: str, request: Inference, predictions: Sequence[Prediction]) -> tuple[bytes, int | None]:
    """Return the body of the response, and the length of its JSON if binary data follow."""
    columns: dict[str, Any] = {
        "probabilities": [prediction.probabilities for prediction in predictions],
        "class": [prediction.index for prediction in predictions],
        "energy": [prediction.energy for prediction in predictions],
        "sequence": [prediction.sequence for prediction in predictions],
        "batch": [prediction.batch for prediction in predictions],
        "step": [prediction.step for prediction in predictions],
    }
    entries, binary = [], []
    for output, as_bytes in request.outputs.items():
        datatype, kind = OUTPUTS[output]
        array = np.asarray(columns[output], kind)
        entry: dict[str, Any] = {"name": output, "datatype": datatype, "shape": list(array.shape)}
        if as_bytes:
            binary.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = array.ravel().tolist()
        entries.append(entry)
    content: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": entries}
    if request.id is not None:
        content["id"] = request.id
    text = json.dumps(content).encode()
    return b"".join([text, *binary]), len(text) if binary else None


def _malformed(message: str) -> Refusal:
    return Refusal(400, message)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(f"expected {name} to be an object, got {type(value).__name__}.")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _malformed(f"expected {name} to be a list, got {type(value).__name__}.")
    return value


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise _malformed(f"expected the parameter {name} to be true or false, got {value!r}.")
    return value
