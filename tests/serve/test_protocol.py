"""The Open Inference Protocol V2: JSON, binary data, errors, and NVIDIA's client against it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import textbook
from serving import adapter, listening, make, npy, pixels, run, running

SIDE = textbook.SIDE
ROOT = Path(__file__).parent.parent.parent


def tensor(images: Any) -> dict[str, Any]:
    floats = images.astype(np.float32).transpose(0, 3, 1, 2) / np.float32(255)
    return {"name": "images", "datatype": "FP32", "shape": list(floats.shape), "data": floats.ravel().tolist()}


def outputs(body: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: np.reshape(entry["data"], entry["shape"]) for entry in body["outputs"]}


def test_the_server_and_its_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            server = (await client.get("/v2")).json()
            assert server["name"] == "cretta"
            assert "binary_tensor_data" in server["extensions"]
            for path in ("health/live", "health/ready", "models/cretta/ready", "models/cretta/versions/1/ready"):
                assert (await client.get(f"/v2/{path}")).status_code == 200
            model = (await client.get("/v2/models/cretta")).json()
            assert model["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, SIDE, SIDE]}]
            assert {"name": "probabilities", "datatype": "FP32", "shape": [-1, textbook.CLASSES]} in model["outputs"]
            for path in ("models/other", "models/cretta/versions/2", "models/other/ready"):
                missing = await client.get(f"/v2/{path}")
                assert missing.status_code == 404
                assert "expected the model 'cretta'" in missing.json()["error"]

    run(scenario())


def test_json_in_and_out_is_what_predict_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        images = pixels(3)
        async with running(make(tmp_path, adapter("source"))) as client:
            request = {"id": "a-7", "inputs": [tensor(images)], "parameters": {"adapt": False}}
            body = (await client.post("/v2/models/cretta/infer", json=request)).json()
            direct = await client.post(
                "/predict?probabilities=1", content=npy(images), headers={"content-type": "application/x-npy"}
            )
            chosen = {**request, "outputs": [{"name": "class"}]}
            only = (await client.post("/v2/models/cretta/versions/1/infer", json=chosen)).json()
            unsigned = {**tensor(images), "datatype": "UINT8", "data": images.transpose(0, 3, 1, 2).ravel().tolist()}
            bytes_in = (await client.post("/v2/models/cretta/infer", json={"inputs": [unsigned]})).json()
        assert (body["id"], body["model_name"], body["model_version"]) == ("a-7", "cretta", "1")
        expected = direct.json()["predictions"]
        result = outputs(body)
        assert result["probabilities"].tolist() == [entry["probabilities"] for entry in expected]
        assert result["class"].tolist() == [entry["class"] for entry in expected]
        assert result["energy"] == pytest.approx([entry["energy"] for entry in expected])
        assert result["sequence"].tolist() == [0, 1, 2]
        assert list(outputs(only)) == ["class"]
        assert "id" not in bytes_in
        assert outputs(bytes_in)["probabilities"].tolist() == result["probabilities"].tolist()

    run(scenario())


def test_binary_data_in_and_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        images = pixels(2)
        floats = (images.astype("<f4").transpose(0, 3, 1, 2) / np.float32(255)).copy()
        entry = {
            "name": "images",
            "datatype": "FP32",
            "shape": list(floats.shape),
            "parameters": {"binary_data_size": floats.nbytes},
        }
        requested = [{"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "class"}]
        text = json.dumps({"inputs": [entry], "outputs": requested}).encode()
        headers = {"inference-header-content-length": str(len(text)), "content-type": "application/octet-stream"}
        async with running(make(tmp_path, adapter("source"))) as client:
            url = "/v2/models/cretta/infer"
            response = await client.post(url, content=text + floats.tobytes(), headers=headers)
            plain = outputs((await client.post(url, json={"inputs": [tensor(images)]})).json())
            short = await client.post(url, content=text + floats.tobytes()[:-1], headers=headers)
        length = int(response.headers["inference-header-content-length"])
        body = json.loads(response.content[:length])
        assert body["outputs"][0]["parameters"] == {"binary_data_size": 2 * textbook.CLASSES * 4}
        values = np.frombuffer(response.content[length:], "<f4").reshape(2, -1)
        assert values.tolist() == plain["probabilities"].astype(np.float32).tolist()
        assert body["outputs"][1]["data"] == plain["class"].tolist()
        assert short.status_code == 400

    run(scenario())


IMAGE = tensor(pixels(1))
MALFORMED: list[tuple[Any, int, str]] = [
    ("[", 400, "expected JSON"),
    ("[" * 100_000, 400, "expected JSON"),
    ([], 400, "expected the request to be an object, got list"),
    ({}, 400, "expected inputs to be a list, got NoneType"),
    ({"inputs": []}, 400, "expected one input, 'images', got 0"),
    ({"inputs": [3]}, 400, "expected an input to be an object"),
    ({"inputs": [{**IMAGE, "name": "x"}]}, 400, "expected the input 'images', got 'x'"),
    ({"inputs": [{**IMAGE, "datatype": "BYTES"}]}, 400, "expected the datatype FP32 or UINT8"),
    ({"inputs": [{**IMAGE, "shape": [1, 3, 8]}]}, 400, "expected 24 values for shape"),
    ({"inputs": [{**IMAGE, "shape": [-1, 3]}]}, 400, "expected shape to be a list of at most 8 integers"),
    ({"inputs": [{**IMAGE, "shape": [10**30, 0]}]}, 400, "expected 0 values"),
    ({"inputs": [{**IMAGE, "data": ["x"]}]}, 400, "expected data to be numbers"),
    ({"inputs": [{**IMAGE, "data": [[1], [1, 2]]}]}, 400, "expected data to be numbers"),
    ({"inputs": [{**IMAGE, "data": [2.0] * 192}]}, 422, "expected floats from 0 to 1"),
    ({"inputs": [{**IMAGE, "data": [10**400] * 192}]}, 400, "expected data to be numbers"),
    ({"inputs": [{**IMAGE, "datatype": "UINT8", "data": [0.5] * 192}]}, 422, "expected UINT8 data to be integers"),
    ({"inputs": [{**IMAGE, "shape": [1, 8, 8, 3]}]}, 422, "expected images of shape (3, 8, 8)"),
    ({"inputs": [{**IMAGE, "shape": [0, 3, 8, 8], "data": []}]}, 422, "expected at least one image"),
    ({"inputs": [IMAGE], "parameters": {"adapt": "no"}}, 400, "expected the parameter adapt to be true or false"),
    ({"inputs": [IMAGE], "outputs": [{"name": "logits"}]}, 400, "expected one of the outputs probabilities"),
    ({"inputs": [IMAGE], "id": 5}, 400, "expected id to be a string"),
    ('{"inputs": [{"name": "images", "datatype": "FP32", "shape": [1], "data": [NaN]}]}', 422, "expected images of"),
]


def test_malformed_requests_have_clear_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make(tmp_path)) as client:
            for request, status, message in MALFORMED:
                content = request if isinstance(request, str) else json.dumps(request)
                response = await client.post("/v2/models/cretta/infer", content=content)
                assert response.status_code == status, (content[:80], response.text)
                assert message in response.json()["error"]
                assert list(response.json()) == ["error"]
            for length in ("x", "-1", "99999999"):
                headers = {"inference-header-content-length": length}
                response = await client.post("/v2/models/cretta/infer", content="{}", headers=headers)
                assert response.status_code == 400

    run(scenario())


def test_the_client_of_triton(tmp_path: Path) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    images = pixels(4)
    floats = images.astype(np.float32).transpose(0, 3, 1, 2) / np.float32(255)
    with listening(make(tmp_path, adapter("source"))) as address:
        client = triton.InferenceServerClient(address.removeprefix("http://"))
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("cretta")
        assert client.get_model_repository_index() == [
            {"name": "cretta", "version": "1", "state": "READY", "reason": ""}
        ]
        described = client.get_model_metadata("cretta")
        assert [entry["name"] for entry in described["inputs"]] == ["images"]
        sent = triton.InferInput("images", list(floats.shape), "FP32")
        sent.set_data_from_numpy(np.ascontiguousarray(floats))
        with httpx.Client(base_url=address) as plain:
            kind = {"content-type": "application/x-npy"}
            direct = plain.post("/predict?probabilities=1", content=npy(images), headers=kind).json()["predictions"]
        for binary in (True, False):
            requested = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("probabilities", "class")]
            result = client.infer("cretta", [sent], outputs=requested, request_id="7")
            assert result.get_response()["id"] == "7"
            assert result.as_numpy("probabilities").tolist() == [entry["probabilities"] for entry in direct]
            assert result.as_numpy("class").tolist() == [entry["class"] for entry in direct]
        everything = client.infer("cretta", [sent])
        assert everything.as_numpy("sequence").tolist() == [12, 13, 14, 15]
        example = runpy.run_path(str(ROOT / "examples" / "serve" / "triton_client.py"))
        assert example["probabilities"](address.removeprefix("http://"), floats).tolist() == [
            entry["probabilities"] for entry in direct
        ]
        with pytest.raises(triton.InferenceServerException, match="expected the model 'cretta'"):
            client.get_model_metadata("other")
        client.close()
