# SPDX-License-Identifier: BSD-3-Clause
"""Files whose bytes were damaged after ``save``, and what ``load_`` says to each."""

import json
import pickle
import re
import struct

import torch

from baraquant.workflow.serialization.manifest import write_manifest


def header_length(path):
    return struct.unpack("<Q", path.read_bytes()[:8])[0]


def parts(path):
    """Return a file's header, its configuration, and its data."""
    raw = path.read_bytes()
    length = header_length(path)
    header = json.loads(raw[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["baraquant"]), raw[8 + length :]


def write(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


DTYPES = {"F32": torch.float32, "I8": torch.int8, "U8": torch.uint8, "I32": torch.int32,
          "I64": torch.int64, "F64": torch.float64}  # fmt: skip


def signed(header, manifest, data):
    """Put in a configuration with the checksum that it and the data would have: a liar's file."""
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[begin:end]) or bytearray(1), dtype=torch.uint8)
            raw = raw[: end - begin]
            tensors[name] = raw.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    plain = {key: value for key, value in manifest.items() if key != "sha256"}
    header["__metadata__"] = {"baraquant": write_manifest(plain, tensors)}
    return header


def cut(at):
    return lambda raw: raw[: at if at >= 0 else len(raw) + at]


def header_text(replace):
    """Change the text of the header, its length with it."""

    def change(raw):
        length = struct.unpack("<Q", raw[:8])[0]
        text = replace(raw[8 : 8 + length])
        return struct.pack("<Q", len(text)) + text + raw[8 + length :]

    return change


def entry(name, **values):
    """Change the entry of a tensor."""

    def replace(text):
        header = json.loads(text)
        header[name].update(values)
        return json.dumps(header).encode()

    return header_text(replace)


def configuration(replace):
    """Change the text of the configuration."""

    def change(text):
        header = json.loads(text)
        header["__metadata__"]["baraquant"] = replace(header["__metadata__"]["baraquant"])
        return json.dumps(header).encode()

    return header_text(change)


def flip(place):
    """Flip one bit, counted from the end."""
    return lambda raw: raw[:-place] + bytes([raw[-place] ^ 1]) + raw[len(raw) - place + 1 :]


def length(value):
    return lambda raw: struct.pack("<Q", value) + raw[8:]


def without(name):
    def replace(text):
        header = json.loads(text)
        del header[name]
        return json.dumps(header).encode()

    return header_text(replace)


MANY_DIGITS = rb"\1[%s]" % (b"8" * 5000)

CORRUPTIONS = {
    "empty": (cut(0), "expected at least 8 bytes, but it has 0: it is cut off"),
    "seven bytes": (cut(7), "expected at least 8 bytes"),
    "no header": (cut(8), "bytes for the header, but it has 8: it is cut off"),
    "half a header": (cut(400), "bytes for the header, but it has 400: it is cut off"),
    "no data": (
        lambda raw: raw[: 8 + struct.unpack("<Q", raw[:8])[0]],
        "bytes of data, but it has 0",
    ),
    "a byte short": (cut(-1), "bytes of data, but it has .*: it is cut off"),
    "a byte more": (lambda raw: raw + b"x", "bytes of data, but it has .*: the rest has no name"),
    "a long header": (length(2**63), "expected a header of at most 100000000 bytes"),
    "a header of all": (length(90_000_000), "expected 90000008 bytes for the header"),
    "an empty header": (length(0), "expected its header to be JSON"),
    "a short header": (length(100), "expected its header to be JSON"),
    "zip": (lambda raw: b"PK\x03\x04" + raw, "it is a zip archive, as torch.save writes it"),
    "pickle": (lambda raw: pickle.dumps({"a": raw}), "it is a pickle"),
    "gguf": (lambda raw: b"GGUF" + raw, "it is a GGUF file"),
    "hdf5": (lambda raw: b"\x89HDF\r\n\x1a\n" + raw, "it is an HDF5 file"),
    "text": (lambda raw: b"hello world, this is text", "expected a header of at most"),
    "zeros": (lambda raw: bytes(len(raw)), "expected its header to be JSON"),
    "no utf-8": (header_text(lambda text: text.replace(b"F32", b"\xff32", 1)), "utf-8"),
    "no json": (header_text(lambda text: text.replace(b":", b";", 1)), "to be JSON"),
    "a list": (header_text(lambda text: b"[1, 2]"), "expected its header to be an object"),
    "NaN": (header_text(lambda text: text.replace(b"[7,8]", b"[NaN,8]", 1)), "NaN is no JSON"),
    "twice": (
        header_text(lambda text: b'{"norm.weight": 1,' + text.lstrip()[1:]),
        "the key 'norm.weight' stands there twice",
    ),
    "nested": (header_text(lambda text: b"[" * 100_000), "to be JSON"),
    "nested by a hundred": (header_text(lambda text: b"[" * 101 + b"]" * 101), "too deeply"),
    "an entry of text": (
        header_text(lambda text: b'{"a": "b"}'),
        "a: expected an entry with dtype, shape",
    ),
    "a fourth field": (entry("norm.weight", more=1), "norm.weight: expected an entry with"),
    "an unknown dtype": (entry("norm.weight", dtype="F7"), "norm.weight: expected a dtype of"),
    "a dtype of a list": (entry("norm.weight", dtype=["F32"]), "norm.weight: expected a dtype of"),
    "another dtype": (entry("norm.weight", dtype="F64"), "norm.weight: expected 64 bytes"),
    "a negative size": (entry("norm.weight", shape=[-8]), "norm.weight: expected a shape of whole"),
    "half a size": (entry("norm.weight", shape=[8.0]), "norm.weight: expected a shape of whole"),
    "true": (entry("norm.weight", shape=[True]), "norm.weight: expected a shape of whole sizes"),
    "a huge size": (entry("norm.weight", shape=[2**63]), "norm.weight: expected a shape of whole"),
    "a number of many digits": (
        header_text(lambda text: re.sub(rb'(norm.weight":{[^}]*)\[8\]', MANY_DIGITS, text)),
        "norm.weight: expected a shape of whole",
    ),
    "a product beyond": (
        entry("norm.weight", shape=[2**62, 2**62]),
        "norm.weight: expected .* bytes",
    ),
    "another size": (entry("norm.weight", shape=[9]), "norm.weight: expected 36 bytes"),
    "offsets reversed": (
        entry("norm.weight", data_offsets=[32, 0]),
        "norm.weight: expected a begin and an end",
    ),
    "three offsets": (
        entry("norm.weight", data_offsets=[0, 32, 64]),
        "norm.weight: expected a begin and an end",
    ),
    "an overlap": (
        entry("norm.weight", data_offsets=[0, 32]),
        "norm.weight: expected its data to begin at",
    ),
    "beyond the end": (
        entry("norm.weight", data_offsets=[2**40, 2**40 + 32]),
        "expected its data to begin at",
    ),
    "a tensor less": (without("norm.weight"), "expected its data to begin at"),
    "no metadata": (without("__metadata__"), "it is a safetensors file without its configuration"),
    "metadata of numbers": (
        entry("__metadata__", baraquant=3),
        "expected __metadata__ to hold texts",
    ),
    "metadata of a list": (
        header_text(lambda text: b'{"__metadata__": []}'),
        "expected __metadata__ to hold texts",
    ),
    "another's metadata": (
        header_text(lambda text: text.replace(b'"baraquant":', b'"format":', 1)),
        "without its configuration",
    ),
    "configuration cut": (entry("__metadata__", baraquant="{"), "expected its configuration to be"),
    "configuration empty": (
        entry("__metadata__", baraquant="{}"),
        "expected format 1, but got None",
    ),
    "configuration of a list": (
        entry("__metadata__", baraquant="[]"),
        "expected format 1, but got None",
    ),
    "configuration laid out anew": (
        configuration(lambda text: json.dumps(json.loads(text), indent=1)),
        "its checksum differs: damaged",
    ),
    "configuration with a space more": (
        configuration(lambda text: text + " "),
        "its checksum differs: damaged",
    ),
    "another checksum": (
        configuration(lambda text: f"{text[:-3]}{'1' if text[-3] == '0' else '0'}{text[-2:]}"),
        "its checksum differs: damaged",
    ),
    "the checksum elsewhere": (
        configuration(lambda text: json.dumps(json.loads(text), sort_keys=True)),
        "its checksum differs: damaged",
    ),
    "half a surrogate pair": (
        configuration(lambda text: text.replace('"dynamic"', '"\\ud83d"', 1)),
        "expected its configuration to be JSON, but .* surrogates not allowed",
    ),
    "half a surrogate pair as a name": (
        header_text(lambda text: text.replace(b'"norm.weight"', b'"\\udc00"', 1)),
        "expected its header to be JSON, but .* surrogates not allowed",
    ),
    "a number that begins with 0": (
        header_text(lambda text: text.replace(b"[8]", b"[08]", 1)),
        "expected its header to be JSON",
    ),
    "a comma at the end": (
        header_text(lambda text: text.replace(b"[8]", b"[8,]", 1)),
        "expected its header to be JSON",
    ),
    "a line break in a text": (
        header_text(lambda text: text.replace(b'"F32"', b'"F\n32"', 1)),
        "expected its header to be JSON",
    ),
    "an unknown escape": (
        header_text(lambda text: text.replace(b'"F32"', b'"\\x32"', 1)),
        "expected its header to be JSON",
    ),
    "three digits of an escape": (
        header_text(lambda text: text.replace(b'"F32"', b'"\\u032"', 1)),
        "expected its header to be JSON",
    ),
    "a character of too many bytes": (
        header_text(lambda text: text.replace(b'"F32"', b'"\xe0\x80\xbf"', 1)),
        "expected its header to be JSON",
    ),
    "a surrogate in UTF-8": (
        header_text(lambda text: text.replace(b'"F32"', b'"\xed\xa0\x80"', 1)),
        "expected its header to be JSON",
    ),
    "a character beyond Unicode": (
        header_text(lambda text: text.replace(b'"F32"', b'"\xf4\x90\x80\x80"', 1)),
        "expected its header to be JSON",
    ),
    "more than its JSON": (
        header_text(lambda text: text + b"{}"),
        "expected its header to be JSON",
    ),
    "a bit of the last tensor": (flip(1), "its checksum differs: damaged"),
    "a bit in the middle": (flip(200), "its checksum differs: damaged"),
    "two names swapped": (
        header_text(
            lambda text: (
                text.replace(b'"norm.weight"', b'"?"')
                .replace(b'"norm.bias"', b'"norm.weight"')
                .replace(b'"?"', b'"norm.bias"')
            )
        ),
        "its checksum differs: damaged",
    ),
}
