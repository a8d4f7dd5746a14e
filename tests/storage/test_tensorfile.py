from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from cretta.errors import StateError
from cretta.storage import tensorfile

TENSORS = {
    "float": torch.tensor([[1.5, -0.0], [float("inf"), 1e-45]]),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
    "half": torch.tensor([0.1, 3e38], dtype=torch.bfloat16),
    "bytes": torch.arange(256, dtype=torch.uint8),
    "whole": torch.tensor(-(2**62)),
    "truth": torch.tensor([True, False]),
    "nothing": torch.zeros(0, 3),
}
FACTS: dict[str, Any] = {"kind": "thing", "number": 0.1, "text": "γ and β", "list": [1, None, True], "more": {"a": {}}}


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    tensorfile.write(path, TENSORS, FACTS)
    tensors, facts = tensorfile.read(path, "thing")
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(tensors[name]) == bits(tensor)


def test_views_and_transposes_are_written_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 2, 2)
    looks = {
        "transposed": base.transpose(0, 1),
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(4),
        "slice": base[:, 1:, ::2],
        "same": base,
        "learning": torch.ones(2, requires_grad=True),
    }
    tensorfile.write(tmp_path / "file", looks, FACTS)
    tensors, _ = tensorfile.read(tmp_path / "file", "thing")
    assert all(torch.equal(tensors[name], look) for name, look in looks.items())


def test_text_paths_will_do(tmp_path: Path) -> None:
    tensorfile.write(str(tmp_path / "file"), TENSORS, FACTS)
    assert tensorfile.read(str(tmp_path / "file"), "thing")[1] == FACTS


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    tensorfile.write(path, TENSORS, FACTS)
    old = path.read_bytes()

    def torn(tensors: object, filename: str, metadata: object) -> None:
        Path(filename).write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(tensorfile, "save_file", torn)
    with pytest.raises(StateError, match=r"cannot write .*no space left on device.*is unchanged"):
        tensorfile.write(path, {}, FACTS)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_facts_that_are_not_json_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        tensorfile.write(tmp_path / "file", TENSORS, {"kind": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"none.* does not exist; make it first"):
        tensorfile.write(tmp_path / "none" / "file", TENSORS, FACTS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"file: no such file; expected a thing saved by cretta"):
        tensorfile.read(tmp_path / "file", "thing")
    with pytest.raises(StateError, match="is a folder; expected a thing"):
        tensorfile.read(tmp_path, "thing")


def test_another_kind_is_named(tmp_path: Path) -> None:
    tensorfile.write(tmp_path / "file", TENSORS, FACTS)
    with pytest.raises(StateError, match="holds 'thing', not a state"):
        tensorfile.read(tmp_path / "file", "state")
    save_file({"a": torch.zeros(1)}, tmp_path / "file")
    with pytest.raises(StateError, match="not saved by cretta"):
        tensorfile.read(tmp_path / "file", "state")


@pytest.mark.parametrize("content", [b"", b"<html></html>" * 9, b"\xff" * 64, b"\x10" + b"\0" * 7 + b"{" * 16])
def test_what_is_not_a_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(StateError, match=r"not a readable thing \(.*damaged"):
        tensorfile.read(tmp_path / "file", "thing")


@pytest.mark.parametrize("facts", ["{", "[]", "3", "null", '"kind"'])
def test_facts_that_are_none(tmp_path: Path, facts: str) -> None:
    """Broken JSON, and JSON that is not an object."""
    save_file({"a": torch.zeros(1)}, tmp_path / "file", metadata={"cretta": facts})
    with pytest.raises(StateError):
        tensorfile.read(tmp_path / "file", "thing")


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """Whatever is read back is what was written: a flip is an error, or touches nothing that counts."""
    path = tmp_path / "file"
    tensorfile.write(path, TENSORS, FACTS)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 0x01
        path.write_bytes(flipped)
        try:
            tensors, facts = tensorfile.read(path, "thing")
        except StateError:
            continue
        assert facts == FACTS
        assert {n: bits(t) for n, t in tensors.items()} == {n: bits(t) for n, t in TENSORS.items()}


def test_unverified_reading_is_for_those_who_ask(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensorfile.write(path, {"a": torch.zeros(4)}, FACTS)
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x01
    path.write_bytes(content)
    assert tensorfile.read(path, "thing", verify=False)[1] == FACTS
    with pytest.raises(StateError, match="checksum"):
        tensorfile.read(path, "thing")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="is a folder"):
        tensorfile.write(tmp_path, TENSORS, FACTS)
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensorfile.write(path, TENSORS, FACTS)
    content = path.read_bytes()
    for length in range(0, len(content), 13):
        path.write_bytes(content[:length])
        with pytest.raises(StateError):
            tensorfile.read(path, "thing")


# Fingerprints.


def test_a_fingerprint_is_sha_256_and_stays() -> None:
    one, other = tensorfile.fingerprint(TENSORS.values()), tensorfile.fingerprint([t.clone() for t in TENSORS.values()])
    assert one == other
    assert len(one) == 64
    assert int(one, 16) >= 0


def test_a_fingerprint_does_not_depend_on_memory_layout() -> None:
    x = torch.arange(48.0).reshape(2, 3, 2, 4)
    assert tensorfile.fingerprint([x]) == tensorfile.fingerprint([x.contiguous(memory_format=torch.channels_last)])
    assert tensorfile.fingerprint([x]) == tensorfile.fingerprint([x.clone().requires_grad_()])


def test_whatever_differs_gives_another_fingerprint() -> None:
    x = torch.arange(6.0)
    changed = x.clone()
    changed[5] = torch.nextafter(changed[5], torch.tensor(9.0))
    different: list[list[Tensor | str]] = [
        [],
        [x],
        [changed],
        [x.reshape(2, 3)],
        [x.reshape(3, 2)],
        [x.double()],
        [x, x],
        [x, torch.zeros(0)],
        [torch.zeros(2)],
        [-torch.zeros(2)],
        [torch.zeros(2, dtype=torch.int32)],
        ["a", x],
        [x, "a"],
        ["a"],
        ["b"],
        ["a", ""],
        ["ab", "c"],
        ["a", "bc"],
        ["abc"],
    ]
    fingerprints = [tensorfile.fingerprint(items) for items in different]
    for i, one in enumerate(fingerprints):
        for j, other in enumerate(fingerprints[:i]):
            assert one != other, f"{different[i]} and {different[j]}"


def test_facts_are_readable_by_others(tmp_path: Path) -> None:
    """They stand as JSON in the header of a plain safetensors file."""
    tensorfile.write(tmp_path / "file", {"a": torch.zeros(1)}, FACTS)
    content = (tmp_path / "file").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["cretta"])["facts"] == FACTS


def test_equal_content_makes_equal_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        tensorfile.write(tmp_path / name, {n: t.clone() for n, t in TENSORS.items()}, dict(FACTS))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
