"""The bodies of requests and responses, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cretta.serve.decode import MULTIPART


class Error(BaseModel):
    """Why a request was not served."""

    error: str


class PredictedImage(BaseModel):
    """The prediction of one image."""

    class_: int = Field(alias="class", description="The number of the predicted class.")
    label: str = Field(description="Its name, or its number.")
    probability: float = Field(description="Of the predicted class.")
    energy: float
    sequence: int = Field(description="The position among all images that this process accepted.")
    batch: int = Field(description="The batch that the image was predicted in.")
    step: int = Field(description="Updates of the model before this prediction.")
    probabilities: list[float] | None = Field(None, description="Of all classes, if requested.")


class Predicted(BaseModel):
    """The predictions of a request, in the order of its images."""

    model: str
    run: str = Field(description="Names the process: sequence numbers start at 0 in each.")
    predictions: list[PredictedImage]


class State(BaseModel):
    """What the service is doing."""

    model: str
    run: str
    method: str
    guard: str
    statistics: str
    status: str
    batches: int
    step: int
    waiting: int
    accepted: int
    labels: list[str]
    reference: dict[str, float]
    snapshots: list[str]
    snapshot_error: str
    last: dict[str, Any] | None


class Rollback(BaseModel):
    """Where to roll back to."""

    model_config = ConfigDict(extra="forbid")
    snapshot: str | None = Field(None, description="The name of a snapshot in the state; the newest if left out.")


class Server(BaseModel):
    """The server, in the Open Inference Protocol."""

    name: str
    version: str
    extensions: list[str]


class Tensor(BaseModel):
    """The description of an input or output, in the Open Inference Protocol."""

    name: str
    datatype: str
    shape: list[int]


class Model(BaseModel):
    """The model, in the Open Inference Protocol."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]


class Inferred(BaseModel):
    """The response of an inference; outputs sent as binary data follow the JSON."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[dict[str, Any]]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of responses with an error, those of every route included."""
    return {status: {"model": Error} for status in sorted({401, 403, 429, *statuses})}


PREDICT_ERRORS = errors(400, 408, 413, 415, 422, 500, 503, 504)
INFERRED_BYTES: dict[str, Any] = {
    "description": "The outputs; those requested as binary data follow the JSON, whose length is in a header.",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
_FILE = {"type": "string", "format": "binary"}
PREDICT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/jpeg": {"schema": _FILE},
            "image/png": {"schema": _FILE},
            "application/x-npy": {"schema": _FILE},
            MULTIPART: {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": _FILE, "minItems": 1}},
                    "required": ["images"],
                    "additionalProperties": False,
                },
                "encoding": {"images": {"contentType": "image/jpeg, image/png, application/x-npy"}},
            },
        },
    }
}


def infer_body(height: int, width: int) -> dict[str, Any]:
    """Return the documentation of the body of an inference."""
    flags = {"type": "object", "properties": {"adapt": {"type": "boolean"}, "binary_data_output": {"type": "boolean"}}}
    count = 3 * height * width
    tensor = {
        "type": "object",
        "properties": {
            "name": {"const": "images"},
            "datatype": {"enum": ["FP32"]},
            "shape": {"const": [1, 3, height, width]},
            "data": {
                "type": "array",
                "items": {"type": "number", "minimum": 0, "maximum": 1},
                "minItems": count,
                "maxItems": count,
            },
        },
        "required": ["name", "datatype", "shape", "data"],
    }
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": flags,
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
        },
        "required": ["inputs"],
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
