# SPDX-License-Identifier: BSD-3-Clause
"""What ``language_model.py`` has measured so far: kept in its JSON, from which a run goes on."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from few_bits import FewBits
from lm_deployment import Deployed
from lm_generation import Decoded
from lm_gradients import Cosines
from lm_report import Run
from lm_training import Training

FREE = ("seeds",)  # settings that may differ between a result and the run that goes on from it


@dataclass
class Results:
    """All that is not computed from the rest.

    Attributes:
        done: The seeds that are complete.
        runs: Of training.
        deployed: Models as they are served.
        speeds: By scheme: tokens per second of validation, and the ratio to the float model.
        decoded: How fast text is written.
        few_bits: Models of few bits, by each method.
        mixture: What sensitivity measured and chose with the first seed; None if not asked.
        cosines: Of gradients.
        sample: Text that a model wrote.
        seconds: That all of it took.
    """

    done: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    deployed: list[Deployed] = field(default_factory=list)
    speeds: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    decoded: list[Decoded] = field(default_factory=list)
    few_bits: list[FewBits] = field(default_factory=list)
    mixture: dict[str, Any] | None = None
    cosines: list[Cosines] = field(default_factory=list)
    sample: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def resumed(path: Path, about: dict[str, Any]) -> Results:
    """Return the results of an earlier run.

    Args:
        path: Its JSON.
        about: The settings, text, machine and versions of this run, as the JSON has them.

    Raises:
        SystemExit: The earlier run had others.
    """
    report = json.loads(path.read_text())
    given, wanted = _conditions(report), _conditions(about)
    differ = sorted(name for name in given | wanted if given.get(name) != wanted.get(name))
    if differ:
        raise SystemExit(f"error: {path.name} is of a run with other settings: {', '.join(differ)}")
    found = {name: report[name] for name in Results.__dataclass_fields__}
    found["runs"] = [
        Run(**run | {"training": Training(**run["training"])}) for run in found["runs"]
    ]
    found["deployed"] = [Deployed(**one) for one in found["deployed"]]
    found["speeds"] = {name: tuple(pair) for name, pair in found["speeds"].items()}
    found["decoded"] = [Decoded(**one) for one in found["decoded"]]
    found["few_bits"] = [FewBits(**one) for one in found["few_bits"]]
    found["cosines"] = [Cosines(**one) for one in found["cosines"]]
    return Results(**found)


def _conditions(report: dict[str, Any]) -> dict[str, Any]:
    """Return what has to be the same, by its name."""
    return {
        **{name: value for name, value in report["settings"].items() if name not in FREE},
        "text": report["text"]["sha256"],
        "device": report["machine"]["device"],
        **report["versions"],
    }
