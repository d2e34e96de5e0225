"""The files of a manifest: golden headers; a header that is torn, foreign or of another format, or
that does not fit its file, is refused."""

from __future__ import annotations

import pytest

from cachefs.core.errors import BadConfig
from cachefs.core.manifest_format import (
    INO_HEADER_BYTES,
    NAME_HEADER_BYTES,
    InoTableHeader,
    NameTableHeader,
    ino_table_bytes,
)

INOS = InoTableHeader(3, bytes(range(16)), 77, 0x1122334455667788)
NAMES = NameTableHeader(3, 2, 15, 4, 0x1122334455667788)
GOLDEN_INOS = (
    "434653494e4f5300" "01000000" "40000000" "0300000000000000"
    "000102030405060708090a0b0c0d0e0f" "4d00000000000000" "8877665544332211"
)  # fmt: skip
GOLDEN_NAMES = (
    "4346534e414d4553" "01000000" "40000000" "0300000000000000" "0200000000000000"
    "0f00000000000000" "0400000000000000" "8877665544332211"
)  # fmt: skip
GOLDEN_SUMS = ("747562be693c005e", "f9c42cb8537fb2e2")


def test_golden_headers() -> None:
    inos, names = INOS.encode(), NAMES.encode()
    assert inos[:-8].hex() == GOLDEN_INOS
    assert names[:-8].hex() == GOLDEN_NAMES
    assert (len(inos), len(names)) == (INO_HEADER_BYTES, NAME_HEADER_BYTES) == (64, 64)
    assert (inos[-8:].hex(), names[-8:].hex()) == GOLDEN_SUMS


def test_a_header_is_read_as_it_was_written() -> None:
    assert InoTableHeader.decode(INOS.encode(), ino_table_bytes(3)) == INOS
    assert ino_table_bytes(3) == 88
    assert NameTableHeader.decode(NAMES.encode(), NAMES.sections()[-1]) == NAMES
    assert NAMES.sections() == (64, 88, 112, 128, 144, 160, 175, 179)


def test_a_file_of_another_size_is_refused() -> None:
    for wrong in (0, 87, 89, 96):
        with pytest.raises(BadConfig, match="instead of 88"):
            InoTableHeader.decode(INOS.encode(), wrong)
    with pytest.raises(BadConfig, match="instead of 179"):
        NameTableHeader.decode(NAMES.encode(), 178)


def test_every_changed_byte_is_noticed() -> None:
    data = INOS.encode()
    for at in range(len(data)):
        torn = bytearray(data)
        torn[at] ^= 1
        with pytest.raises(BadConfig):
            InoTableHeader.decode(bytes(torn), ino_table_bytes(3))
    with pytest.raises(BadConfig, match="not a manifest's ino table"):
        InoTableHeader.decode(data[:63], 88)
    with pytest.raises(BadConfig, match="not a manifest's name table"):
        NameTableHeader.decode(data, 88)


def test_another_format_is_named() -> None:
    later = bytearray(INOS.encode())
    later[8] = 2
    with pytest.raises(BadConfig, match="format 2, this version reads format 1"):
        InoTableHeader.decode(bytes(later), 88)
