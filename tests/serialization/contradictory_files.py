# SPDX-License-Identifier: BSD-3-Clause
"""Files with a right checksum that contradict themselves or the model."""

import torch

from tests.serialization.damaged_bytes import DTYPES, signed


def manifest(change):
    """Change the configuration, with a new checksum."""

    def lie(header, config, data):
        change(config)
        return signed(header, config, data), data

    return lie


def module(path, key, value):
    def change(config):
        config["modules"][path][key] = value

    return manifest(change)


def option(path, key, value):
    def change(config):
        config["modules"][path]["options"][key] = value

    return manifest(change)


def values(name, change):
    """Change the numbers of a tensor, with a new checksum."""

    def lie(header, config, data):
        entry = header[name]
        begin, end = entry["data_offsets"]
        tensor = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
        change(tensor)
        data = data[:begin] + tensor.view(torch.uint8).numpy().tobytes() + data[end:]
        return signed(header, config, data), data

    return lie


def renamed(old, new):
    def lie(header, config, data):
        header[new] = header.pop(old)
        return signed(header, config, data), data

    return lie


def reshaped(name, **changes):
    def lie(header, config, data):
        header[name].update(changes)
        return signed(header, config, data), data

    return lie


def put(place, value):
    return lambda tensor: tensor.__setitem__(place, value)


LIES = {
    "newer": (
        manifest(lambda c: c.update(format=2, writer="baraquant 9.0", more=[])),
        "expected format 1, but got 2, which 'baraquant 9.0' has written",
    ),
    "format 0": (manifest(lambda c: c.update(format=0)), "expected format 1, but got 0"),
    "format 1.0": (manifest(lambda c: c.update(format=1.0)), "expected format 1, but got 1.0"),
    "format true": (manifest(lambda c: c.update(format=True)), "expected format 1, but got True"),
    "a writer of numbers": (manifest(lambda c: c.update(writer=[3])), "expected writer to be a t"),
    "a key more": (manifest(lambda c: c.update(code="x")), "expected its configuration to have"),
    "a key less": (manifest(lambda c: c.pop("modules")), "expected its configuration to have"),
    "no modules": (manifest(lambda c: c.update(modules={})), "expected its configuration to name"),
    "modules a list": (manifest(lambda c: c.update(modules=[1])), "configuration to name modules"),
    "a class of PyTorch": (
        module("dynamic", "class", "Linear"),
        r"dynamic: expected a class of .*QuantizedLinear, .*, but got .Linear.; one of your own",
    ),
    "a path to code": (module("dynamic", "class", "os.system"), "dynamic: expected a class of"),
    "a class of a list": (module("dynamic", "class", []), "dynamic: expected a class of"),
    "another class": (
        module("dynamic", "class", "StaticQuantizedLinear"),
        "dynamic: expected the options",
    ),
    "no options": (module("dynamic", "options", None), "dynamic: expected the options"),
    "an option more": (option("dynamic", "eval", "1"), "dynamic: expected the options"),
    "9 bits": (option("dynamic", "weight_bits", 9), "dynamic: .*expected weight_bits to be an int"),
    "8.0 bits": (option("dynamic", "bits", 8.0), "dynamic: expected bits to be a whole number"),
    "true bits": (option("dynamic", "bits", True), "dynamic: expected bits to be a whole number"),
    "0 bits": (option("dynamic", "bits", 0), "dynamic: .*expected bits"),
    "huge bits": (option("dynamic", "bits", 2**70), "dynamic: expected bits to be a whole number"),
    "symmetric 1": (option("dynamic", "symmetric", 1), "dynamic: expected symmetric to be true or"),
    "per galaxy": (option("dynamic", "granularity", "x"), "dynamic: .*expected granularity to be"),
    "a list": (option("dynamic", "granularity", []), "dynamic: expected granularity to be a name"),
    "group of 3": (option("grouped", "group_size", 3), "grouped: .*weight_scale to have the shape"),
    "group of -1": (option("grouped", "group_size", -1), "grouped: .*expected group_size > 0"),
    "dtype of code": (option("embedding", "dtype", "int8"), "embedding: expected dtype to be one"),
    "other dtype": (
        option("embedding", "dtype", "float64"),
        "embedding: expected a model of torch.float64",
    ),
    "other padding": (
        option("embedding", "padding_idx", 3),
        "embedding: expected padding_idx to be 3, as in",
    ),
    "other stride": (option("conv1", "stride", [3]), "conv1: expected stride to be .*, as in"),
    "a stride of text": (
        option("conv1", "stride", "3"),
        "conv1: expected stride to be one to three",
    ),
    "padding of text": (option("conv2", "padding", "odd"), "conv2: .*[Ii]nvalid padding"),
    "groups of 0": (option("conv2", "groups", 0), "conv2: "),
    "rounding observed": (
        option("rounded", "input_fake_quant", {"mode": "observed"}),
        "rounded: expected input_fake_quant to be how the input is rounded",
    ),
    "no rounding": (option("rounded", "input_fake_quant", None), "rounded: expected the tensors"),
    "further code": (module("dynamic", "further", {"x": 1}), "dynamic: expected further to hold"),
    "further numbers": (module("dynamic", "further", [1]), "dynamic: expected further to hold nam"),
    "further modules": (
        module("dynamic", "further", ["adapter"]),
        r"dynamic: expected a module with \['adapter'\] beside the layer's own .* has \[\]",
    ),
    "further of its own": (
        module("dynamic", "further", ["qweight"]),
        "dynamic: expected a tensor qweight, but there is none",
    ),
    "no further": (
        manifest(lambda c: c["modules"]["dynamic"].pop("further")),
        "dynamic: expected class, further, options, packed, but got",
    ),
    "unpacked a number": (
        manifest(lambda c: c.update(unpacked=3)),
        "expected unpacked to hold paths, but got 3",
    ),
    "unpacked a layer": (
        manifest(lambda c: c.update(unpacked=["dynamic"])),
        "dynamic: expected a module of GRU, .*, RNNCell, but the model has Linear",
    ),
    "unpacked nothing": (
        manifest(lambda c: c.update(unpacked=["nowhere"])),
        "nowhere: expected a module of GRU, .*, but the model has no such module",
    ),
    "channels_last a linear layer": (
        manifest(lambda c: c.update(channels_last=["dynamic"])),
        "dynamic: expected a convolution, as it is in channels_last",
    ),
    "channels_last nothing": (
        manifest(lambda c: c.update(channels_last=["nowhere"])),
        "nowhere: expected a convolution, as it is in channels_last",
    ),
    "channels_last a path": (
        manifest(lambda c: c.update(channels_last="conv2")),
        "expected channels_last to hold paths",
    ),
    "packed code": (
        module("narrow", "packed", {"x": [1]}),
        "narrow: expected packed to hold shapes",
    ),
    "packed nothing": (
        module("narrow", "packed", {"bias": [8], "qweight": [8, 8]}),
        "narrow: expected a tensor bias, but there is none",
    ),
    "packed elsewhere": (
        module("narrow", "packed", {"qweight": [9, 9]}),
        "narrow.qweight: expected 41 bytes for packed integers of shape",
    ),
    "packed of 8 bits": (
        module("dynamic", "packed", {"qweight": [8, 8]}),
        "dynamic.qweight: expected a width of 2 to 7 bits",
    ),
    "packed of more bits": (
        option("narrow", "weight_bits", 5),
        r"narrow.qweight: expected 40 bytes for packed integers of shape \[8, 8\], but .* \[32\]",
    ),
    "packed of fewer bits": (
        option("narrow", "weight_bits", 3),
        "narrow.qweight: expected 24 bytes",
    ),
    "packed of -4 bits": (
        option("narrow", "weight_bits", -4),
        "narrow.qweight: expected a width of 2 to 7 bits",
    ),
    "packed of int8": (
        reshaped("narrow.qweight", dtype="I8"),
        r"narrow.qweight: expected 32 bytes .*, but got torch.int8 \[32\]",
    ),
    "packed in a matrix": (
        reshaped("narrow.qweight", shape=[4, 8]),
        r"narrow.qweight: expected 32 bytes .*, but got torch.uint8 \[4, 8\]",
    ),
    "packed in another shape": (
        module("narrow", "packed", {"qweight": [4, 16]}),
        "narrow: .*expected weight_scale to have 4 elements",
    ),
    "packed beyond 64 bits": (
        module("narrow", "packed", {"qweight": [2**32, 2**32]}),
        f"narrow.qweight: expected {2**63} bytes for packed integers",
    ),
    "packed of nothing": (
        module("narrow", "packed", {"qweight": [0, 2**62, 2**62]}),
        "narrow.qweight: expected 0 bytes for packed integers",
    ),
    "packed of less than nothing": (
        module("narrow", "packed", {"qweight": [-8, -8]}),
        "narrow: expected packed to hold shapes",
    ),
    "a scale that is packed": (
        module("narrow", "packed", {"weight_scale": [8], "qweight": [8, 8]}),
        "narrow.weight_scale: expected 4 bytes for packed integers of shape",
    ),
    "not packed": (module("narrow", "packed", {}), "narrow: .*expected qweight to be int8"),
    "shared with itself": (
        manifest(lambda c: c["shared_tensors"].update({"a": "a"})),
        "to name the first of all",
    ),
    "shared with none": (
        manifest(lambda c: c["shared_tensors"].update({"a": "b"})),
        "a: expected to be the same",
    ),
    "shared twice": (
        manifest(lambda c: c["shared_tensors"].update({"norm.bias": "norm.weight"})),
        "norm.bias: expected to be the same tensor as norm.weight, but the file has both",
    ),
    "a shared module": (
        manifest(lambda c: c["shared_modules"].update({"narrow": "dynamic"})),
        "dynamic: expected a module shared by",
    ),
    "a module of none": (
        manifest(lambda c: c["shared_modules"].update({"x": "y"})),
        "y: expected a module of the",
    ),
    "a module elsewhere": (
        manifest(lambda c: c["modules"].update(other=c["modules"]["dynamic"])),
        "other: expected a Linear for the QuantizedLinear of the file, but the model has no such",
    ),
    "a module forgotten": (
        manifest(lambda c: c["modules"].pop("dynamic")),
        "dynamic.smooth, dynamic.weight_scale are unknown|dynamic.qweight",
    ),
    "another name": (
        renamed("norm.weight", "norm.other"),
        r"norm.weight is missing in the file, and norm.other is unknown to the model",
    ),
    "a name outside": (renamed("norm.weight", "../../etc"), "is unknown to the model"),
    "a buffer less": (renamed("dynamic.smooth", "dynamic.rough"), "dynamic: expected the tensors"),
    "a weight less": (renamed("dynamic.qweight", "x"), "dynamic: expected a tensor qweight"),
    "another shape": (reshaped("norm.weight", shape=[2, 4]), "norm.weight: expected torch.float32"),
    "a flat weight": (reshaped("dynamic.qweight", shape=[64]), "dynamic: .*qweight to have 2 dim"),
    "another weight": (
        reshaped("dynamic.qweight", shape=[4, 16]),
        "dynamic: .*expected bias to have 4 elem",
    ),
    "unsigned": (reshaped("dynamic.qweight", dtype="U8"), "dynamic: .*expected qweight to be int8"),
    "an integer scale": (
        reshaped("dynamic.weight_scale", dtype="I32"),
        "dynamic: .*expected weight_scale to be float",
    ),
    "an integer bias": (reshaped("dynamic.bias", dtype="I32"), "dynamic: .*bias to be floating"),
    "an integer norm": (
        reshaped("norm.weight", dtype="I32"),
        "norm.weight: expected torch.float32",
    ),
    "a NaN scale": (
        values("dynamic.weight_scale", put(3, float("nan"))),
        "dynamic: weight_scale: expected finite numbers > 0",
    ),
    "a zero scale": (values("embedding.weight_scale", put(0, 0.0)), "embedding: weight_scale: exp"),
    "a negative scale": (
        values("static.act_scale", put(0, -1.0)),
        "static: act_scale: expected fin",
    ),
    "an infinite factor": (
        values("dynamic.smooth", put(0, float("inf"))),
        "dynamic: smooth: expected finite numbers",
    ),
    "a rounding of nothing": (
        values("rounded.input_fake_quant.scale", put(0, float("nan"))),
        "rounded: input_fake_quant.scale: expected finite",
    ),
    "a zero point beyond": (
        values("static.act_zero_point", put(0, 128)),
        r"static: act_zero_point: expected integers in \[-128, 127\], but got 128 to 128",
    ),
    "zero points beyond": (
        values("table.weight_zero_point", put(2, -5)),
        r"table: weight_zero_point: expected integers in \[-4, 3\]",
    ),
    "a zero point of the input": (
        values("rounded.input_fake_quant.zero_point", put(0, 16)),
        r"rounded: input_fake_quant.zero_point: expected integers in \[0, 15\]",
    ),
    "a narrower weight": (
        option("dynamic", "weight_bits", 4),
        r"dynamic: qweight: expected integers in \[-8, 7\]",
    ),
}
