# SPDX-License-Identifier: BSD-3-Clause
"""Figures and tables of the language model: trained, deployed, and measured layer by layer."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import results
from results import Row, table

CPUS, GPUS = ("cpu", "epyc"), ("h100", "h200")  # the newest result of any of them counts
FAMILY, GELU = "language_model", "language_model_gelu"
PLACES = ((CPUS, FAMILY), (GPUS, FAMILY), (GPUS, GELU))
KINDS = {"swiglu": "SwiGLU", "gelu": "GELU"}
MISSING = "–"
PASSED = "passed"  # as the program says it
TRAINED = {
    "float": "not quantized",
    "W8A8": "`W8A8()`",
    "W8A8-int8_input-nearest": '`W8A8(backward="int8_input", rounding="nearest")`',
    "W8A8-int8_input-stochastic": '`W8A8(backward="int8_input", rounding="stochastic")`',
    "W8A8-int8-nearest": '`W8A8(backward="int8", rounding="nearest")`',
    "W8A8-int8-stochastic": '`W8A8(backward="int8", rounding="stochastic")`',
    "W4A8": "`W4A8(None)`",
    "W4A8-groups": "`W4A8({group}, group_factors=False)`",
    "W4A8-factors": "`W4A8({group})`",
    "W4A16": "`W4A16({group})`",
}
DEPLOYED = {
    **{name: TRAINED[name] for name in ("float", "W8A8")},
    "W8A16": "`W8A16()`",
    "W4A16-max": '`W4A16({group}, scale_rule="max")`',
    "W4A16": "`W4A16({group})`",
    "W4A16-AWQ": "`AWQ(W4A16({group}))`",
    "W4A16-GPTQ": "`GPTQ(W4A16({group}))`",
    "W4A8": TRAINED["W4A8"],
    "W4A8-GPTQ": "`GPTQ(W4A8(None))`",
    "W4A8-groups": TRAINED["W4A8-groups"],
    "W4A8-groups-GPTQ": "`GPTQ(W4A8({group}, group_factors=False))`",
    "W4A8-factors": TRAINED["W4A8-factors"],
    "W4A8-factors-GPTQ": "`GPTQ(W4A8({group}))`",
    "mixed": "3, 4 and 8 bits, as `sensitivity` chooses",
}


def report(machines: tuple[str, ...] = CPUS, family: str = FAMILY) -> dict[str, Any]:
    """Everything of the newest result of some machines."""
    return results.report(machines, family)


def found(key: str) -> list[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """The results that have something under a key, with their machines and families."""
    every = [(*place, report(*place)) for place in PLACES]
    if not any(content.get(key) for *_, content in every):
        raise results.NotMeasuredError(f"no result of the language model has {key}")
    return [one for one in every if one[2].get(key)]


def about(machines: tuple[str, ...], family: str, *pictures: str) -> str:
    """The conditions of a result, with links to it and to its pictures."""
    content = report(machines, family)
    settings, machine = content["settings"], content["machine"]
    stem = results.stem(machines, family)
    folder = "../benchmarks/results"
    links = [f"[all figures]({folder}/{stem}.json)"]
    for name in pictures:
        file, _, text = name.partition(":")
        if (results.FOLDER / f"{stem}{file}.png").exists():
            links.append(f"[{text}]({folder}/{stem}{file}.png)")
    kind = KINDS[settings["mlp"]]
    seeds = len(content.get("done", range(settings["seeds"])))  # older results name no seeds
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    load = f"{machine['load']:.0f} on {machine['cores']} cores"
    cores = f", {threads} of {machine['cpu_isa']}, a load of {load}" if machines == CPUS else ""
    return (
        f"{machine['device'].removeprefix('NVIDIA ')}{cores}, {kind}, {content['parameters']:,} "
        f"parameters, {settings['steps']} steps of {settings['batch']} × {settings['context']} "
        f"bytes and {settings['tuning_steps']} from the checkpoint, {settings['dtype']}, "
        f"{seeds} seeds, torch {content['versions']['torch'].partition('+')[0]} "
        f"({', '.join(links)})"
    )


def _plus_minus(pair: list[float], form: str = ".4f") -> str:
    return f"{pair[0]:{form}} ± {pair[1]:{form.lstrip('+')}}"


# --- trained


def trained(machines: tuple[str, ...], family: str = FAMILY) -> str:
    """Losses, time and memory of every scheme that was trained on a machine."""
    content = report(machines, family)
    rows = {(row["mode"], row["scheme"]): row for row in content["rows"]}
    is_cpu = machines == CPUS
    lines = []
    for scheme, name in TRAINED.items():
        scratch, tuned = (rows.get((mode, scheme)) for mode in ("scratch", "checkpoint"))
        row = scratch or tuned
        if row is None:
            continue
        base = rows.get(("scratch", "W8A8"))
        change = base and scratch and scheme != "W8A8"
        seconds = row["cpu_seconds" if is_cpu else "step_seconds"]
        lines.append(
            [
                name.format(group=content["settings"].get("group")),
                _plus_minus(scratch["validation"]) if scratch else MISSING,
                f"{100 * scratch['change']:+.2f} %" if change and scratch else "",
                f"{tuned['before']:.4f}" if tuned else MISSING,
                _plus_minus(tuned["validation"]) if tuned else MISSING,
                f"{1e3 * seconds:.0f}",
                f"{row['peak_bytes'] / 2**20:,.1f}",
            ]
        )
    titles = ["from scratch", "against `W8A8()`", "checkpoint, not trained on"]
    titles += ["checkpoint, trained on", "CPU ms of a step" if is_cpu else "ms of a step"]
    return table(["", *titles, "MiB of a step"], lines)


def trained_gpu() -> str:
    """The same on a GPU, with each kind of feed-forward part, and what the program concludes."""
    parts = []
    for family in (FAMILY, GELU):
        parts += [f"{about(GPUS, family, ':loss curves')}:", trained(GPUS, family)]
    return "\n\n".join(parts)


def within(machines: tuple[str, ...], *families: str) -> str:
    """How many backward passes of integers are within 0.5 %, and how many within the deviation."""
    judged = [
        row["verdict"]
        for family in families
        for row in report(machines, family)["rows"]
        if row["verdict"] and not row["verdict"].startswith("not judged")
    ]
    near = sum("off" not in verdict for verdict in judged)
    passed = sum(verdict == PASSED for verdict in judged)
    return f"{near} of {len(judged)} are within 0.5 % of it, {passed} also within the deviation"


def change(mode: str, scheme: str) -> str:
    """By how many percent the loss of a scheme is above the float model's, on a CPU."""
    rows = {row["scheme"]: row for row in report()["rows"] if row["mode"] == mode}
    losses = [rows[name]["validation"][0] for name in (scheme, "float")]
    percent = round(100 * (losses[0] / losses[1] - 1), 2)
    return f"{percent:+.2f}" if percent else "0.00"


def same_bits() -> str:
    """How many of the converted models gave the logits of evaluation, on all machines."""
    checked = [
        row for place in PLACES for row in report(*place)["rows"] if row["same_bits"] is not None
    ]
    counts = [sum(row[name] for row in checked) for name in ("same_bits", "seeds")]
    return f"{counts[0]} of {counts[1]}"


def step_span() -> str:
    """The least and the greatest time of a step on a GPU, in milliseconds."""
    rows = [row for family in (FAMILY, GELU) for row in report(GPUS, family)["rows"]]
    return results.span((1e3 * row["step_seconds"] for row in rows), ".0f")


def least_cosine(scheme: str) -> str:
    """The least cosine of a layer's gradients in a whole step of the larger model."""
    for one in report(GPUS, "language_model_cosine")["cosines"]:
        if one["scheme"] == scheme:
            layers = one["least"]["step"].values()
            return f"{min(value for layer in layers for value in layer.values()):.4f}"
    raise LookupError(f"no cosines of {scheme}")


# --- deployed


def deployed() -> str:
    """Perplexity, size and speed of each deployed model, for each result that has them."""
    parts = []
    for machines, family, content in found("deployment_rows"):
        how = " and ".join(
            dict.fromkeys(one["how"].partition(",")[0] for one in content["decoded"])
        )
        where = about(machines, family, ".deployed:perplexity against bytes")
        parts += [f"{where}; text is written by {_by(how)}:", _deployed(content)]
    return "\n\n".join(parts)


def _by(how: str) -> str:
    return {"eager": "eager steps", "CUDA graph": "a CUDA graph of one step"}.get(how, how)


def _deployed(content: dict[str, Any]) -> str:
    rows = {(row["scheme"], row["tuned"]): row for row in content["deployment_rows"]}
    lines = []
    for scheme, name in DEPLOYED.items():
        row, tuned = rows.get((scheme, False)), rows.get((scheme, True))
        if row is None:
            continue
        cells = [f"{row['perplexity'][0]:.4f}", _change(row)]
        cells += [_tuned(tuned), _recovered(tuned)]
        cells += [f"{row['file_bytes'] / 1e6:,.2f}", *(_speed(row, batch) for batch in ("1", "32"))]
        lines.append([name.format(group=content["settings"]["group"]), *cells])
    titles = ["perplexity", "against float", "trained on", "of GPTQ's loss regained"]
    return table(["", *titles, "MB", "tokens/s, batch 1", "batch 32"], lines)


def _change(row: Row) -> str:
    if row["scheme"] == "float" or row["change"] is None:
        return ""
    mean, deviation = (100 * value for value in row["change"])
    return f"{_plus_minus([mean, deviation], '+.2f')} %"


def _tuned(row: Row | None) -> str:
    if row is None:
        return ""
    change = _change(row)
    return f"{row['perplexity'][0]:.4f}" + (f", {change}" if change else "")


def _recovered(row: Row | None) -> str:
    return "" if row is None or row["recovered"] is None else f"{100 * row['recovered']:.0f} %"


def _speed(row: Row, batch: str) -> str:
    if batch not in row["faster"]:
        return MISSING
    return f"{row['tokens_per_second'][batch]:,.0f} ({row['faster'][batch]:.2f} ×)"


def asked() -> str:
    """Whether training at four bits reached what is asked, for each result: a list."""
    lines = []
    for *_, content in found("deployment_rows"):
        kind = KINDS[content["settings"]["mlp"]]
        device = content["machine"]["device"].removeprefix("NVIDIA ")
        by_verdict: dict[str, list[str]] = {}
        for row in content["deployment_rows"]:
            if row["verdict"]:
                name = DEPLOYED[row["scheme"]].format(group=content["settings"]["group"])
                by_verdict.setdefault(_reached(row), []).append(name)
        said = (f"{', '.join(names)}: {verdict}" for verdict, names in by_verdict.items())
        lines.append(f"* {device}, {kind}: {'; '.join(said)}.")
    return "\n".join(lines) + "\n"


def _reached(row: Row) -> str:
    if row["verdict"] != PASSED:
        return str(row["verdict"]).removeprefix("failed: ")
    return "both" if row["recovered"] is not None else "within 1 %, and GPTQ loses too little"


# --- layer by layer


def sensitivity() -> str:
    """The errors of each kind of layer, and what was chosen, for each result that has them."""
    parts = []
    for machines, family, content in found("mixture"):
        mixture = content["mixture"]
        where = about(machines, family, ".sensitivity:plot")
        budget = (
            f"a budget of {mixture['budget']:,} bytes, {mixture['bits']:.2f} bits a weight chosen"
        )
        parts += [f"{where}, {budget}:", _sensitivity(mixture)]
    return "\n\n".join(parts)


def _sensitivity(mixture: dict[str, Any]) -> str:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for layer in mixture["report"]["layers"]:
        kinds.setdefault(layer["path"].split(".", 2)[2], []).append(layer)
    names = list(mixture["report"]["configs"])
    lines = []
    for kind, layers in kinds.items():
        chosen = [mixture["chosen"][layer["path"]] for layer in layers]
        counts = ", ".join(f"{chosen.count(name)} {name}" for name in names if name in chosen)
        means = [statistics.mean(layer["errors"][name] for layer in layers) for name in names]
        lines.append([f"`{kind}`", *(f"{mean:.2e}" for mean in means), counts])
    return table(["layer, mean of the blocks", *names, "chosen"], lines)


FIGURES: dict[str, Callable[[], str]] = {
    "table.language_model": lambda: trained(CPUS),
    "table.language_model.gpu": trained_gpu,
    "table.language_model.deployed": deployed,
    "table.language_model.sensitivity": sensitivity,
    "lm.asked": asked,
    "lm.about": lambda: about(CPUS, FAMILY, ":loss curves"),
    "lm.seconds": lambda: f"{report()['seconds'] / 60:.0f}",
    "lm.within": lambda: within(GPUS, FAMILY, GELU),
    "lm.steps": step_span,
    "lm.cosine.int8_input": lambda: least_cosine("W8A8-int8_input-nearest"),
    "lm.cosine.int8": lambda: least_cosine("W8A8-int8-nearest"),
    "lm.cosine.stochastic": lambda: least_cosine("W8A8-int8-stochastic"),
    "lm.same_bits": same_bits,
    "lm.scratch.change": lambda: change("scratch", "W8A8"),
    "lm.checkpoint.change": lambda: change("checkpoint", "W8A8"),
}
