"""Ask a service by the client of Triton. Executed by tests/serve/test_protocol.py.

pip install 'tritonclient[http]'
python examples/serve/triton_client.py photo.png
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tritonclient.http
from numpy.typing import NDArray

ADDRESS = "127.0.0.1:8000"


def probabilities(address: str, images: NDArray[np.float32]) -> Any:
    """Return the probabilities (N, classes) of images (N, 3, height, width) in [0, 1]."""
    client = tritonclient.http.InferenceServerClient(address)
    tensor = tritonclient.http.InferInput("images", list(images.shape), "FP32")
    tensor.set_data_from_numpy(np.ascontiguousarray(images))
    return client.infer("cretta", [tensor]).as_numpy("probabilities")


if __name__ == "__main__":
    from PIL import Image

    described = tritonclient.http.InferenceServerClient(ADDRESS).get_model_metadata("cretta")
    _, _, height, width = described["inputs"][0]["shape"]
    with Image.open(sys.argv[1]) as opened:
        pixels = np.asarray(opened.convert("RGB").resize((width, height)), np.float32)
    print(probabilities(ADDRESS, pixels.transpose(2, 0, 1)[None] / np.float32(255)))
