"""A configuration as another process reads it: what that may do instead of telling it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headworks.cli import configured
from headworks.config.problem import ConfigError

ONE = "ledger: {url: 'memory:'}\npools: {llama: {replicas: [{url: 'http://127.0.0.1:9', engine: vllm}]}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "headworks.yaml"
    path.write_text(ONE)
    return path


def test_J11_it_is_read_by_another_process(file: Path) -> None:
    found = configured.configured(configured.Asked(str(file)), 7)
    assert (found.policy.number, found.settings.ledger_url, found.notes) == (7, "memory:", ())


def test_J11_what_is_wrong_with_it_is_told(file: Path) -> None:
    file.write_text(ONE + "nothing: 1\n")
    with pytest.raises(ConfigError) as caught:
        configured.configured(configured.Asked(str(file)), 7)
    assert [(one.file, one.line) for one in caught.value.problems] == [(str(file), 3)]


def test_J11_a_file_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configured, "READ_S_MAX", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"pipe: the configuration has not been read within 0\.2 s"):
        configured.configured(configured.Asked(str(tmp_path / "pipe")), 7)


def test_J11_objects_of_another_version_are_not_taken(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configured, "__version__", "0.0.1")
    with pytest.raises(ConfigError, match=r"has been installed meanwhile; restart this one, 0\.0\.1"):
        configured.configured(configured.Asked(str(file)), 7)
