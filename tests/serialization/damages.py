# SPDX-License-Identifier: BSD-3-Clause
"""Random damages to saved files, most of them with the checksum that the damaged file would have.

The checksum finds a flipped bit, so what lies behind it is only reached by a file that is signed
anew: `Contents` takes a file apart, and writes it with any lie in it and a right checksum. This is
written here once more, without the functions that it tests.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8,
}  # fmt: skip
# As struct writes the numbers of a dtype.
CODES = {"F16": "e", "F32": "f", "F64": "d", "I8": "b", "I16": "h", "I32": "i", "I64": "q"}
OTHER_DTYPES = ("F8_E4M3", "F8_E5M2", "C64", "F4", "f32", "", "F32 ")


def split(raw: bytes) -> tuple[bytes, bytes]:
    """Return the text of a file's header, and its data."""
    (length,) = struct.unpack("<Q", raw[:8])
    return raw[8 : 8 + length], raw[8 + length :]


def joined(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


@dataclass
class Tensor:
    """A tensor of a file; `lies` replace members of its entry in the header."""

    dtype: Any
    shape: Any
    data: bytes
    lies: dict[str, Any] = field(default_factory=dict)

    def equals(self, saved: Tensor) -> bool:
        """Whether it is the same; zero points may be of any integers, one number of any shape."""
        is_one = math.prod(self.shape) == math.prod(saved.shape) == 1
        if self.shape != saved.shape and not is_one:
            return False
        if self.dtype == saved.dtype:
            return self.data == saved.data
        return saved.dtype == "I32" and self.integers() == saved.integers()

    def integers(self) -> list[int]:
        size, is_signed = SIZES[self.dtype], self.dtype[0] == "I"
        return [
            int.from_bytes(self.data[place : place + size], "little", signed=is_signed)
            for place in range(0, len(self.data), size)
        ]

    def store_as(self, dtype: str) -> None:
        count = len(self.data) // SIZES[self.dtype]
        numbers = struct.unpack(f"<{count}{CODES[self.dtype]}", self.data)
        self.dtype, self.data = dtype, struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers)


def taken_apart(raw: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata of a safetensors file, and its tensors."""
    text, data = split(raw)
    header = json.loads(text)
    metadata = header.pop("__metadata__", {})
    tensors = {
        name: Tensor(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    return metadata, tensors


@dataclass
class Contents:
    """What a file holds, without the checksum; any part of it may be replaced by nonsense."""

    tensors: dict[str, Tensor]
    config: Any
    metadata: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(raw: bytes) -> Contents:
        metadata, tensors = taken_apart(raw)
        config = json.loads(metadata.pop("baraquant"))
        del config["sha256"]
        return Contents(tensors, config, metadata)

    @staticmethod
    def read(path: Path) -> Contents:
        return Contents.of(path.read_bytes())

    def tie(self, alias: str, name: str) -> None:
        """Leave a tensor out, and say that it is another one."""
        del self.tensors[alias]
        self.config["shared_tensors"][alias] = name

    def header(self) -> tuple[dict[str, Any], bytes]:
        """Return the entries of the header, and the data."""
        entries, data = {}, b""
        for name, tensor in self.tensors.items():
            place = [len(data), len(data) + len(tensor.data)]
            data += tensor.data
            entry = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": place}
            entries[name] = entry | tensor.lies
        return entries, data

    def file(
        self,
        change: Callable[[str], str] = lambda text: text,
        change_header: Callable[[str], str] = lambda text: text,
        checksum: str | None = None,
    ) -> bytes:
        """Return the bytes; `change` alters the configuration before it gets its checksum."""
        entries, data = self.header()
        text = change(json.dumps(self.config, sort_keys=True, ensure_ascii=False))
        if isinstance(self.config, dict):
            text = text.removesuffix("}")
            text += f', "sha256": "{checksum or signature(text, entries, data)}"}}'
        header = {"__metadata__": self.metadata | {"baraquant": text}, **entries}
        return joined(change_header(json.dumps(header)).encode("utf-8", "surrogatepass"), data)

    def is_kept_by(self, saved: Contents) -> bool:
        """Whether a save of the loaded model says the same.

        A save has its own writer, names the last dimension, and knows more fused modules if the
        model has them. It leaves out constants that the model lacks, and has the model's own of
        those with another shape, and the zeros that stand for a zero point that the file leaves
        out. What rounds an input has tensors of its own.
        """
        said = {"writer": "", "constants": {}, "shared_tensors": {}, "fused": []}
        own, other = (c.config | said for c in (self, saved))
        for module in self.config["modules"].values():
            rounder = module["options"].get("input_fake_quant") or {}
            if rounder.get("granularity") == "per_group" and rounder["axis"] is None:
                rounder["axis"] = -1
        constants = set(self.config["constants"].values())
        unused = constants - set(saved.config["constants"].values())
        unused |= {n for n in constants - unused if self.tensors[n].shape != saved.tensors[n].shape}
        (wanted, ties), (got, other_ties) = self.shared(), saved.shared()
        return (
            own == other
            and set(self.config["fused"]) <= set(saved.config["fused"])
            and ties == other_ties
            and not any(any(got[name].data) for name in got.keys() - wanted.keys())
            and all(
                name in got and tensor.equals(got[name])
                for name, tensor in wanted.items()
                if name not in unused
            )
        )

    def shared(self) -> tuple[dict[str, Tensor], set[frozenset[str]]]:
        """Return each name's tensor, and the names of each that has more; any may be its own."""
        ties: dict[str, set[str]] = {}
        for alias, name in self.config["shared_tensors"].items():
            if ".input_fake_quant." not in alias:
                ties.setdefault(name, {name}).add(alias)
        others = {alias: self.tensors[n] for alias, n in self.config["shared_tensors"].items()}
        return self.tensors | others, {frozenset(names) for names in ties.values()}


def signature(text: str, entries: dict[str, Any], data: bytes) -> str:
    """Return the checksum that a reader would compute, where the entries make any sense."""
    total = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name, entry in sorted(entries.items()):
        shape, place = entry.get("shape"), entry.get("data_offsets")
        sizes = shape if isinstance(shape, list) else []
        for part in (name, entry.get("dtype"), *sizes):
            total.update(f"{part}\0".encode("utf-8", "surrogatepass"))
        if isinstance(place, list) and len(place) == 2 and all(type(p) is int for p in place):
            total.update(data[slice(*place)])
    return total.hexdigest()


# --- values ---------------------------------------------------------------------------------------

NUMBERS = (
    *(0, 1, -1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 64, 127, 128, 255, -128, 1.0, 8.0, 0.5, 1e300, -0.0),
    *(2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 2**70),
    *(math.nan, math.inf, -math.inf, True, False, None),
)
CLASSES = (
    *("QuantizedLinear", "StaticQuantizedLinear", "WeightOnlyLinear", "WeightOnlyInt4Linear"),
    *("QuantizedInt4Linear", "StaticQuantizedInt4Linear", "QuantizedEmbedding"),
    *("QuantizedConv1d", "QuantizedConv2d", "QuantizedConv3d", "Linear", "Module", "os.system"),
)
TEXTS = (
    *("", "x", "0", "int8", "float16", "bfloat16", "float32", "float64", "None", "same", "valid"),
    *("per_tensor", "per_channel", "per_token", "per_group", "fixed", "dynamic", "observed"),
    *("zeros", "reflect", "replicate", "circular", "weight", "qweight", "packed", "__class__"),
    *("../../etc", "a.b.c", "größe😀", "\0", "\ud83d", "\udc00x", "\u2028", "x\n", "." * 40),
    *("a" * 3000, "." * 20_000, "é" * 70),
)
NESTED: tuple[Any, ...] = (
    *([], {}, [0], [1], [-1], [8, 8], [2**62, 2**62], [0, 2**62, 2**62], [1] * 70, [1] * 3000),
    *([[1]], [None], ["x"], {"a": 1}, {"qweight": [8, 8]}, {"packed": [8, 8]}, {"": []}),
)
# What JSON's readers have to take apart themselves, in place of any value.
TEXTS_OF_JSON: tuple[Callable[[int], str], ...] = (
    *(lambda n: "[" * n, lambda n: "[" * n + "]" * n, lambda n: '{"a":' * n + "1" + "}" * n),
    *(lambda n: "8" * n, lambda n: "0." + "1" * n, lambda n: "1e" + "9" * n, lambda n: "-" * n),
    *(lambda n: "[" + "0," * n + "0]", lambda n: "[" + "{}," * n + "0]", lambda n: " " * n + "1"),
    lambda n: "{" + ",".join(f'"{i}":0' for i in range(n)) + ',"0":0}',
    lambda n: '"' + "\\u00e9" * n + '"',
    lambda n: '"' + "x" * n,
    *(
        (lambda n, text=text: text)
        for text in (
            *("NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "-", "1e", "0x10", "1E2"),
            *("-0", "1e2", "8.0", "truE", "nul", "'x'", '"\\x"', '"\\u12"', '"\\ud83d"', '"\n"'),
            *('"\\ud83d\\ude00"', '"\\udc00"', "[1,]", "[,]", '{"a":1,}', '{"a" 1}', "{1:1}", ""),
            *('{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "\ufeff1", "1 2", "1]", "1}", "//", "/**/1"),
        )
    ),
)
LENGTHS = (1, 2, 30, 99, 101, 900, 5000, 60_000)


def near(random: Random, value: Any, depth: int = 9) -> Any:
    """Return a value that differs a little, in a list of lists not too deep within."""
    if type(value) is bool:
        return not value
    if isinstance(value, (int, float)):
        return random.choice((value + 1, value - 1, value * 2, -value, value * 1.0, str(value)))
    if isinstance(value, str) and value:
        place = random.randrange(len(value))
        return random.choice((value[:place] + value[place + 1 :], value + "_", value.upper()))
    if isinstance(value, list) and value and depth > 0:
        place, changed = random.randrange(len(value)), list(value)
        changed[place] = near(random, changed[place], depth - 1)
        longer = [*value[: place + 1], *value[place:]]
        return random.choice((changed, changed, value[::-1], longer, value[:-1], [value]))
    return value


def any_value(random: Random, value: Any) -> Any:
    """Return another value for one."""
    if random.random() < 0.45:
        return near(random, value)
    if isinstance(value, str) and random.random() < 0.5:
        return random.choice((*TEXTS[: -3 if random.random() < 0.9 else None], *CLASSES))
    pool = random.choice((NUMBERS, NUMBERS, TEXTS, NESTED))
    return copy.deepcopy(random.choice(pool))


# --- damages to the contents ----------------------------------------------------------------------


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a JSON value and each of its keys; it may be of any depth."""
    values = [value]
    for holder in values:
        if isinstance(holder, (dict, list)):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                values.append(holder[key])


def some_name(random: Random, contents: Contents) -> str:
    """Return a name that may be known."""
    if random.random() < 0.1:
        return random.choice(TEXTS)
    modules = contents.config.get("modules") if isinstance(contents.config, dict) else None
    paths = [str(path) for path in modules] if isinstance(modules, dict) else []
    name = random.choice([*contents.tensors, *paths, "x", "__metadata__"])
    return random.choice((name, name, name, name + ".x", name.rpartition(".")[2], "." + name))


def other_option(random: Random, contents: Contents) -> None:
    """Replace a value somewhere in a module's description, most often an option."""
    module = random.choice(list(contents.config["modules"].values()))
    within = module["options"] if random.random() < 0.8 else module
    holder, key = random.choice(list(places_in(within)) or [(module, "packed")])
    holder[key] = any_value(random, holder[key])


def other_member(random: Random, contents: Contents) -> None:
    """Replace, delete, rename or add a member anywhere in the configuration."""
    holder, key = random.choice(list(places_in(contents.config)))
    how = random.randrange(4)
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = any_value(random, holder[key])
    elif isinstance(holder, list):
        holder.insert(key, any_value(random, holder[key]))
    elif how == 2:
        holder[some_name(random, contents)] = holder.pop(key)
    else:
        holder[random.choice(TEXTS)] = copy.deepcopy(holder[key])


def other_class(random: Random, contents: Contents) -> None:
    """Give a module the class, and at times the options, of another."""
    modules = contents.config["modules"]
    module, other = random.choices(list(modules.values()), k=2)
    module["class"] = random.choice((*CLASSES, other["class"]))
    if random.random() < 0.3:
        module["options"] = copy.deepcopy(other["options"])


def change_names(random: Random, contents: Contents, named: dict[str, Any]) -> None:
    first, second = random.choices(list(named), k=2)
    how = random.randrange(4)
    if how == 0:
        named[some_name(random, contents)] = copy.deepcopy(named[first])
    elif how == 1:
        named[some_name(random, contents)] = named.pop(first)
    elif how == 2:
        del named[first]
    else:
        named[first], named[second] = named[second], named[first]


def other_module(random: Random, contents: Contents) -> None:
    """Copy, move, delete or swap whole modules."""
    change_names(random, contents, contents.config["modules"])


def other_packing(random: Random, contents: Contents) -> None:
    """Lie about the shape of integers that are a string of bits."""
    module = random.choice(list(contents.config["modules"].values()))
    names = [*module["packed"], "qweight", "packed", "weight_scale", "bias", "x"]
    shapes = [any_value(random, shape) for shape in module["packed"].values()]
    shapes += [[8, 8], [64], [8, 8, 1], [0, 2**62], [2**32, 2**32], [0], [1, 10**6]]
    if random.random() < 0.2:
        module["packed"] = {}
    else:
        module["packed"][random.choice(names)] = random.choice(shapes)


def other_sharing(random: Random, contents: Contents) -> None:
    """Say that tensors, modules or paths are something else."""
    keys = ("shared_tensors", "shared_modules", "constants", "unpacked", "fused", "channels_last")
    value = contents.config[random.choice(keys)]
    if isinstance(value, list):
        value.append(some_name(random, contents))
    elif value and random.random() < 0.3:
        del value[random.choice(list(value))]
    else:
        value[some_name(random, contents)] = some_name(random, contents)


def other_tensors(random: Random, contents: Contents) -> None:
    """Rename, swap, copy or leave out a tensor, with its data."""
    if random.random() < 0.8:
        change_names(random, contents, contents.tensors)
    else:
        shape = random.choice(([0], [0, 2**62, 2**62]))  # the second is none that a tensor can have
        contents.tensors[random.choice(TEXTS)] = Tensor("F32", shape, b"")


def other_shape(random: Random, contents: Contents) -> None:
    """Give a tensor another shape or dtype that its bytes have, or other bytes with it."""
    tensor = random.choice(list(contents.tensors.values()))
    size = SIZES.get(tensor.dtype, 1)
    how = random.randrange(4)
    if how == 0:
        tensor.dtype = random.choice([d for d, bytes_ in SIZES.items() if bytes_ == size])
    elif how == 1:
        count = len(tensor.data) // size
        rows = random.choice((1, 2, 3, 4, 8, 16, count))
        tensor.shape = random.choice(([count], [1, count], [rows, count // max(rows, 1)], [1] * 5))
    else:
        tensor.dtype = random.choice(list(SIZES)) if how == 2 else tensor.dtype
        tensor.shape = [max(int(n) + random.choice((-1, 0, 0, 1)), 0) for n in tensor.shape]
        if random.random() < 0.1:
            tensor.shape = random.choice(([], [0], [0, 2**62, 2**62], [2, 3, 4, 5], [1] * 65))
        wanted = math.prod(tensor.shape) * SIZES.get(tensor.dtype, 1)
        tensor.data = (tensor.data + random.randbytes(min(wanted, 4096)))[:wanted]


def other_entry(random: Random, contents: Contents) -> None:
    """Lie in an entry of the header about where a tensor is and what."""
    name = random.choice(list(contents.tensors))
    tensor = contents.tensors[name]
    entry = contents.header()[0][name]
    key = random.choice(("dtype", "shape", "data_offsets", "data_offsets", "more"))
    others = [entry["data_offsets"] for entry in contents.header()[0].values()]
    lies: dict[str, Any] = {
        "dtype": random.choice((*SIZES, *OTHER_DTYPES)),
        "shape": any_value(random, tensor.shape),
        "data_offsets": random.choice((*others, any_value(random, entry["data_offsets"]))),
        "more": 1,
    }
    tensor.lies[key] = lies[key] if random.random() < 0.8 else any_value(random, lies[key])


ODD_FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 5e-324, 1e-45, 3e38, 65504.0)


def other_numbers(random: Random, contents: Contents) -> None:
    """Change the numbers of a tensor: one to a special one, or all of its bytes."""
    tensor = random.choice(list(contents.tensors.values()))
    size = SIZES.get(tensor.dtype, 1)
    count = len(tensor.data) // size
    if count == 0:
        return
    if random.random() < 0.2:
        byte = random.choice((0, 0x7F, 0x80, 0xFF, None))
        length = len(tensor.data)
        tensor.data = random.randbytes(length) if byte is None else bytes([byte]) * length
        return
    one = random.randbytes(size)
    if size > 1 and tensor.dtype in CODES and random.random() < 0.8:
        number: Any = random.choice(ODD_FLOATS)
        if tensor.dtype[0] == "I":
            end = 2 ** (8 * size - 1)
            number = random.choice((-end, end - 1, -9, 8, 16, 300))
        try:
            one = struct.pack(f"<{CODES[tensor.dtype]}", number)
        except (OverflowError, struct.error):  # too large for the dtype
            one = b"\xff" * size
    place = random.randrange(count) * size
    tensor.data = tensor.data[:place] + one + tensor.data[place + size :]


def other_precision(random: Random, contents: Contents) -> None:
    tensor = random.choice(list(contents.tensors.values()))
    tensor.store_as(random.choice([dtype for dtype in CODES if dtype[0] == tensor.dtype[0]]))


def other_tie(random: Random, contents: Contents) -> None:
    """Say that a tensor is another one, of its shape and dtype, and leave it out."""
    alias = random.choice(list(contents.tensors))
    own = contents.tensors[alias]
    others = {name: tensor for name, tensor in contents.tensors.items() if name != alias}
    kind = own.shape, own.dtype
    contents.tie(alias, random.choice([n for n, t in others.items() if (t.shape, t.dtype) == kind]))


def other_rounder(random: Random, contents: Contents) -> None:
    """Round an input otherwise, by options that each are some rounder's."""
    modules = contents.config["modules"].values()
    module = random.choice([m for m in modules if m["options"].get("input_fake_quant")])
    values = {
        "mode": ("fixed", "dynamic"),
        "granularity": ("per_tensor", "per_token", "per_channel", "per_group"),
        "group_size": (None, 1, 3, 4, 8, 2**31 - 1, 2**40),
        "axis": (None, -1, 0, 1, 7, 2**40),
        "quant_min": (-8, -128, 0, -(2**24), -(2**63)),
        "quant_max": (7, 127, 1, 2**24, 2**63 - 1),
        "symmetric": (True, False),
    }
    for name in random.sample(list(values), k=random.choice((1, 2, 3))):
        module["options"]["input_fake_quant"][name] = random.choice(values[name])


def other_metadata(random: Random, contents: Contents) -> None:
    """Add to the metadata, or put it in the place of the configuration."""
    if random.random() < 0.5:
        contents.metadata[random.choice(TEXTS)] = random.choice((*TEXTS, *NUMBERS, *NESTED))
    else:
        contents.config = any_value(random, contents.config)


DAMAGES: dict[Callable[[Random, Contents], None], int] = {
    other_option: 5,
    other_member: 4,
    other_class: 1,
    other_module: 1,
    other_packing: 2,
    other_sharing: 2,
    other_tensors: 2,
    other_shape: 3,
    other_entry: 3,
    other_numbers: 3,
    other_metadata: 1,
    other_precision: 2,
    other_tie: 2,
    other_rounder: 2,
}

# --- damages to texts and bytes -------------------------------------------------------------------


def other_text(random: Random, text: str) -> str:
    how = random.randrange(6)
    if how == 0:  # a key that stands there twice, at times by an escape
        places = list(re.finditer(r'[{,] ?"(\w)([^"\\]*)":', text))
        if places:
            at = random.choice(places)
            key = random.choice((at[1], f"\\u{ord(at[1]):04x}")) + at[2]
            return f'{text[: at.start() + 1]}"{key}": 0, {text[at.start() + 1 :]}'
    values = list(re.finditer(r'"[^"\\]*"(?=[,}\]])|-?\d+|true|false|null|\[\]|\{\}', text))
    if how < 4 and values:  # any text in place of a value
        at = random.choice(values)
        length = random.choice(LENGTHS[: None if random.random() < 0.1 else 5])
        return text[: at.start()] + random.choice(TEXTS_OF_JSON)(length) + text[at.end() :]
    place = random.randrange(len(text) + 1)
    more = random.choice((" ", "\n", "\t", ",", ":", '"', "{", "}", "[", "]", "\\", "\0", "0", "é"))
    return text[:place] + more + text[place + (how == 4) :]


BAD_UTF8 = (b"\xff", b"\xc0\x80", b"\xe0\x80\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3")
MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"GGUF", b"\x89HDF\r\n\x1a\n", b"\x1f\x8b\x08")


def other_bytes(random: Random, raw: bytes) -> bytes:
    """Damage a file without a thought for what its bytes mean."""
    whole = len(raw) - len(split(raw)[1])
    place = random.randrange(random.choice((8, whole, len(raw))))
    run = random.randrange(1, random.choice((2, 9, 200)))
    length = struct.unpack("<Q", raw[:8])[0]
    lengths = (0, 1, 8, len(raw) - 8, len(raw), 2**31, 10**8, 10**8 + 1, 2**63, 2**64 - 1)
    other = random.choice((*lengths, length + 1, max(length - 1, 0), length + 8))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: raw[:place],
        lambda: raw[:place] + raw[place + run :],
        lambda: raw[:place] + random.randbytes(run) + raw[place:],
        lambda: raw[: place + run] + raw[place:],
        lambda: raw + random.randbytes(run),
        lambda: raw[:place] + random.choice(BAD_UTF8) + raw[place + 1 :],
        lambda: struct.pack("<Q", other) + raw[8:],
        lambda: random.choice(MAGIC) + raw,
        lambda: bytes(len(raw)),
    )
    return random.choice(kinds)()


def other_bits(random: Random, raw: bytes, count: int) -> bytes:
    """Flip some bits, more often in the header."""
    flipped = bytearray(raw)
    whole = len(raw) - len(split(raw)[1])
    for _ in range(count):
        flipped[random.randrange(random.choice((8, whole, len(raw))))] ^= 1 << random.randrange(8)
    return bytes(flipped)


# An earlier damage may have taken away what one needs.
TAKEN_AWAY = (LookupError, TypeError, AttributeError, ValueError, OverflowError, struct.error)


def damaged(random: Random, contents: Contents) -> tuple[bytes, str]:
    """Return a damaged copy of a file, and what was done to it, a word for each damage."""
    contents, names = copy.deepcopy(contents), []
    level = random.random()
    if level < 0.7:
        for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
            (damage,) = random.choices(list(DAMAGES), list(DAMAGES.values()))
            names.append(damage.__name__)
            with suppress(*TAKEN_AWAY):
                damage(random, contents)
        checksum = None if random.random() < 0.95 else "0" * 64
        return contents.file(checksum=checksum), " ".join(names)
    if level < 0.78:
        return contents.file(change=partial(other_text, random)), "configuration"
    if level < 0.86:
        return contents.file(change_header=partial(other_text, random)), "header"
    if level < 0.93:
        return other_bytes(random, contents.file()), "bytes"
    count = random.choice((1, 1, 1, 2, 8))
    return other_bits(random, contents.file(), count), " ".join(["bit"] * count)
