"""The loader with real torch: its state, its processes, whole batches, errors, ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Node
from tests.torch.conftest import TorchHost, home_of

HERE = "tests.torch.loading"


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_the_state_counts_what_was_yielded(
    workers: int, torch_host: TorchHost, node: Node, mounted: Path
) -> None:
    torch_host.ok(
        f"{HERE}.the_state_counts_what_was_yielded",
        path=str(mounted),
        home=home_of(node),
        workers=workers,
    )


@pytest.mark.parametrize(
    "function",
    [
        "loader_processes_may_be_spawned",
        "loader_processes_may_stay",
        "loader_processes_share_what_garbage_collections_look_at",
        "a_plain_loader_of_torch_reads_whole_batches",
        "wrong_options_are_refused",
        "an_index_out_of_range_is_an_error_and_loses_nothing",
        "two_samplers_of_one_name_lose_nothing",
        "the_snippets_of_the_page",
        "the_snippet_of_the_readme",
    ],
)
def test_a_loader(function: str, torch_host: TorchHost, node: Node, mounted: Path) -> None:
    torch_host.ok(f"{HERE}.{function}", path=str(mounted), home=home_of(node))


def test_errors_name_the_file(torch_host: TorchHost, numbers: Path, tmp_path: Path) -> None:
    gone = str(numbers / "class1" / "001.txt")
    home = str(tmp_path / "no-mount")
    torch_host.ok(f"{HERE}.errors_name_the_file", path=str(numbers), home=home, gone=gone)


def test_errors_of_decoding_name_the_file(
    torch_host: TorchHost, numbers: Path, tmp_path: Path
) -> None:
    function = f"{HERE}.errors_of_decoding_name_the_file"
    torch_host.ok(function, path=str(numbers), home=str(tmp_path / "no-mount"))


def test_ranks_exchange_their_machines(
    torch_host: TorchHost, node: Node, mounted: Path, tmp_path: Path
) -> None:
    arguments = {"path": str(mounted), "home": home_of(node), "rendezvous": str(tmp_path / "meet")}
    calls = [(f"{HERE}.ranks", {**arguments, "rank": rank}) for rank in range(3)]
    assert torch_host.run(*calls) == [0, 0, 0], torch_host.log()
