# SPDX-License-Identifier: BSD-3-Clause
"""Whatever interrupts a writer, and however many write to one path: the old file or the new one."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.serialization import writers
from tests.serialization.writers import WRITERS, at_each_step, grow_old, names, prepared, reading
from tests.support.processes import MadeOnce, run_program

# The short run has all of `save`, and of the exporters what a reader sees.
REST = [name for name in WRITERS if name != "save"]
ALL = ["save", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in REST)]


@pytest.fixture(autouse=True)
def exported_once() -> Iterator[None]:
    with writers.cached_exporter():
        yield


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_reader_sees_before_each_step(name: str, tmp_path: Path) -> None:
    """This is what `kill -9` leaves there, too."""
    writer = WRITERS[name]
    path, models, found = prepared(writer, tmp_path)
    if writer.replaces:
        writer.write(models[0], path)
    clean, seen = names(path.parent), []
    with at_each_step(path.parent, lambda event: seen.append(reading(writer, path))):
        writer.write(models[1], path)
    seen.append(reading(writer, path))
    is_new = [one == found[1] for one in seen]
    before = found[0] if writer.replaces else None
    assert set(seen) == {before, found[1]} and is_new == sorted(is_new) and len(seen) > 5
    assert not writer.replaces or names(path.parent) == clean


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ALL)
def test_an_error_at_each_step(name: str, error: BaseException, tmp_path: Path) -> None:
    writer = WRITERS[name]
    path, models, found = prepared(writer, tmp_path)
    for step in itertools.count():
        path.parent.rename(tmp_path / f"before {step}")
        path.parent.mkdir()
        if writer.replaces:
            writer.write(models[0], path)
        clean, events = names(path.parent), []

        def act(event: str, events: list[str] = events, step: int = step) -> None:
            events.append(event)
            if len(events) == step + 1:
                raise error

        raised = True
        with at_each_step(path.parent, act), suppress(type(error)):
            writer.write(models[1], path)
            raised = False
        seen, before = reading(writer, path), found[0] if writer.replaces else None
        assert seen in (before, found[1]) and (raised or seen == found[1]), events
        if isinstance(error, OSError):
            assert raised == (seen == before), events
        if len(events) <= step:
            break  # it had no further step
        removes = events[step] in ("os.remove", "os.rmdir") or not isinstance(error, OSError)
        assert removes or not raised or names(path.parent) == clean, events
        grow_old(path.parent)
        if writer.replaces or seen is None:
            writer.write(models[1], path)
            assert reading(writer, path) == found[1]
            if writer.replaces and events[step] != "os.remove":
                assert names(path.parent) == clean, events
    assert step > 5


@pytest.mark.process
@pytest.mark.parametrize("what", ["killed", "crowded"])
@pytest.mark.parametrize("name", [pytest.param("save", marks=pytest.mark.smoke), *REST])
def test_a_reader_meanwhile(what: str, name: str, made_once: MadeOnce) -> None:
    """Writers die at each step, or many write at a time, in processes of their own.

    One program has all exporters, as importing what they need takes longer than their cases.
    """
    names = ["save"] if name == "save" else REST

    def make(folder: Path) -> None:
        run_program("tests.serialization.interrupted", None, folder, *names)

    folder = made_once(f"meanwhile {names[0]}", make)
    wrong = (folder / f"{what} {name}.txt").read_text()
    assert not wrong, wrong
