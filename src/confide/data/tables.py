"""Tables on disk, read in pieces: CSV and Parquet. A refusal names the file, the line and the column.

Values of a CSV file are text as it stands there; those of a Parquet file have the types that the file says, and one
that Python has no value for (a date after the year 9999) is None.

What a file is refused for is its structure alone: lines with more or fewer values than the header, bytes that are no
text, quotation marks that stay open or stand within a value that begins with none (such a mark would end what another
record opened, and the lines between would be lost), Parquet that cannot be read. That is for the records' own sake, as
nobody could say which values are whose; guarantees are about files without such faults.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confide import validation
from confide.validation import Refused

PIECE = 20_000  # records read at once
PARQUET = (".parquet", ".pq")
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
STATEFUL = ("iso2022", "hz", "utf-7")  # where bytes of one record say how those of the next are read
csv.field_size_limit(2**31 - 1)


class Piece(NamedTuple):
    """Some records: the values of each column, and where each record stands in the file."""

    columns: dict[str, list[Any]]
    lines: list[int]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table on disk that has a header.

    `place` is what a record's number counts: lines of a CSV file, rows of a Parquet file.
    """

    path: Path
    header: tuple[str, ...]
    delimiter: str = ","
    encoding: str = "utf-8-sig"

    @property
    def place(self) -> str:
        return "row" if self.path.suffix.lower() in PARQUET else "line"

    def at(self, number: int) -> str:
        return f"{self.path}, {self.place} {number}"

    def pieces(self, size: int = PIECE) -> Iterator[Piece]:
        """The records, in the order of the file; no piece is empty."""
        return self._parquet_pieces(size) if self.place == "row" else self._csv_pieces(size)

    def _csv_pieces(self, size: int) -> Iterator[Piece]:
        with _open(self.path, self.encoding) as file:
            reader = csv.reader(
                _lines(file, self.delimiter), delimiter=self.delimiter, skipinitialspace=True, strict=True
            )
            rows: list[list[str]] = []
            lines: list[int] = []
            started = False
            for row, line in _rows(reader, self):
                if not row:  # an empty line
                    continue
                if not started:  # the header
                    started = True
                    continue
                if len(row) != len(self.header):
                    raise Refused(
                        f"{self.at(line)}: {len(row)} values where the header has {len(self.header)} columns: "
                        "quote values that hold the delimiter, or repair the line"
                    )
                rows.append(row)
                lines.append(line)
                if len(rows) == size:
                    yield Piece(self._columns(rows), lines)
                    rows, lines = [], []
            if rows:
                yield Piece(self._columns(rows), lines)

    def _columns(self, rows: list[list[str]]) -> dict[str, list[Any]]:
        return dict(zip(self.header, map(list, zip(*rows, strict=True)), strict=True))

    def _parquet_pieces(self, size: int) -> Iterator[Piece]:
        first = 1
        try:
            for batch in _parquet(self.path).iter_batches(batch_size=size):
                columns = {name: _values(batch.column(name)) for name in self.header}
                if batch.num_rows:
                    yield Piece(columns, list(range(first, first + batch.num_rows)))
                first += batch.num_rows
        except (OSError, ValueError) as error:
            raise Refused(f"{self.path} cannot be read as Parquet: {_first(error)}") from None


def is_table(path: Path) -> bool:
    """Whether data are read as a table, and not as images."""
    return not path.is_dir() and path.suffix.lower() != ".npz"


def open_table(
    path: str | os.PathLike[str], delimiter: str | None = None, encoding: str | None = None, *, empty: bool = False
) -> Table:
    """The table in a file, after a look at its header; `delimiter` and `encoding` are for CSV files.

    A table without records is refused unless it may be `empty`.
    """
    validation.instance(str | os.PathLike, path=path)
    path = Path(path)
    if str(path) == "-":
        raise Refused("standard input cannot be read twice, as a table is: give a file")
    if path.is_dir() or not path.exists():
        raise Refused(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: give a CSV or a Parquet file")
    _refuse_other_formats(path, encoding)
    if path.suffix.lower() in PARQUET:
        header = tuple(_parquet(path).schema_arrow.names)
        if not empty and not _parquet(path).metadata.num_rows:
            raise Refused(f"{path} holds no records: give a file with at least one")
        return Table(path=path, header=_check_header(header, f"{path}"))
    delimiter = "," if delimiter is None else "\t" if delimiter in ("\\t", "tab") else delimiter
    if len(delimiter) != 1:
        raise Refused(f"delimiter = {delimiter!r} is not one character: give one, such as ';'")
    table = Table(path=path, header=(), delimiter=delimiter, encoding=encoding or "utf-8-sig")
    with _open(path, table.encoding) as file:
        reader = csv.reader(_lines(file, delimiter), delimiter=delimiter, skipinitialspace=True, strict=True)
        rows = (pair for pair in _rows(reader, table) if pair[0])
        found, line = next(rows, (None, 0))
        if found is None:
            raise Refused(f"{path} is empty: give a file with a header and at least one record")
        header = _check_header(tuple(name.strip() for name in found), table.at(line))
        if len(header) == 1:
            other = next((mark for mark in DELIMITERS if mark != delimiter and mark in header[0]), None)
            if other:
                raise Refused(
                    f"{table.at(line)}: the header is one column, {header[0][:40]!r}: "
                    f"the delimiter seems to be {DELIMITERS[other]}; give --delimiter '{_show(other)}'"
                )
        if not empty and next(rows, None) is None:
            raise Refused(f"{path} holds a header and no records: give a file with at least one")
    return Table(path=path, header=header, delimiter=delimiter, encoding=table.encoding)


MAGIC = {
    b"\x1f\x8b": "is compressed: unpack it first",
    b"PK\x03\x04": "is a workbook or a zip file: export or unpack it to CSV first",
    b"\xff\xfe": "seems to be UTF-16: give --encoding utf-16",
    b"\xfe\xff": "seems to be UTF-16: give --encoding utf-16",
}


def _refuse_other_formats(path: Path, encoding: str | None) -> None:
    """Refuse what is something else than its name says."""
    try:
        with path.open("rb") as file:
            first = file.read(4)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    found = next((what for magic, what in MAGIC.items() if first.startswith(magic)), None)
    if found and not (encoding and "UTF-16" in found):
        raise Refused(f"{path} {found}")


def _check_header(header: tuple[str, ...], where: str) -> tuple[str, ...]:
    if "" in header:
        last = header.index("") == len(header) - 1
        remedy = "remove the delimiter at the end of the lines, or give it one" if last else "give it one"
        raise Refused(f"{where}: column {header.index('') + 1} has no name: {remedy}")
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise Refused(f"{where}: column {twice!r} is there twice: rename one")
    return header


def _show(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else delimiter


def _open(path: Path, encoding: str) -> Any:
    try:
        if codecs.lookup(encoding).name.startswith(STATEFUL):
            raise Refused(
                f"encoding = {encoding!r} is not taken, as one record could change how others are read: "
                "convert the file to UTF-8"
            )
        return path.open(newline="", encoding=encoding)
    except LookupError:
        raise Refused(f"encoding = {encoding!r} is unknown: give one such as utf-8 or latin-1") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def _lines(file: Any, delimiter: str) -> Iterator[str]:
    """The lines as they are; csv.Error for a quotation mark within a value that begins with none."""
    quoted = False
    for line in file:
        if '"' in line:
            quoted = _is_quoted(line, delimiter, quoted)
        yield line


WITHIN = re.compile(r'[^"]*(?:""[^"]*)*')


def _is_quoted(line: str, delimiter: str, quoted: bool) -> bool:
    """Whether a quotation mark is open at the end of a line, by whether one is at its beginning."""
    place = 0
    while True:
        if not quoted:
            while line.startswith(" ", place):
                place += 1
            quoted = line.startswith('"', place)
            place += quoted
        if quoted:
            closed = WITHIN.match(line, place).end()  # type: ignore[union-attr]
            if closed == len(line):
                return True
            quoted, place = False, closed + 1
        end = line.find(delimiter, place)
        if '"' in (line[place:] if end < 0 else line[place:end]):
            raise csv.Error("a quotation mark stands within a value that begins with none, and must be doubled there")
        if end < 0:
            return False
        place = end + 1


def _rows(reader: Any, table: Table) -> Iterator[tuple[list[str], int]]:
    """Every row with the line that it begins on."""
    begins = 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except UnicodeDecodeError as error:
            raise Refused(_undecodable_line(table, error)) from None
        except csv.Error as error:
            raise Refused(
                f"{table.at(begins)}: {error}: quote the value, close the quotation mark, or give a CSV file"
            ) from None
        except OSError as error:
            raise Refused(f"{table.path} cannot be read: {error.strerror}") from None
        yield row, begins
        begins = reader.line_num + 1


def _undecodable_line(table: Table, error: UnicodeDecodeError) -> str:
    """The line of the first byte that the encoding does not know."""
    number, wrong = 1, error.object[error.start]
    with table.path.open("rb") as file:
        for line in file:
            try:
                line.decode(table.encoding)
            except UnicodeDecodeError as found:
                wrong = line[found.start]
                break
            number += 1
    name = "UTF-8" if table.encoding == "utf-8-sig" else table.encoding
    return f"{table.at(number)}: byte 0x{wrong:02x} is not {name} text: give the right --encoding, such as latin-1"


def _values(column: Any) -> list[Any]:
    """The values in Python; one that cannot be had is None, whatever the others are."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(value) for value in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return None


def _parquet(path: Path) -> Any:
    from pyarrow import ArrowException, parquet

    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError, ArrowException) as error:
        raise Refused(f"{path} cannot be read as Parquet: {_first(error)}") from None


def booleans(table: Table) -> set[str]:
    """The columns that are truth values by the types of the file, of which CSV has none."""
    if table.place == "line":
        return set()
    schema = _parquet(table.path).schema_arrow
    return {name for name in table.header if str(schema.field(name).type) == "bool"}


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120].rstrip(".")
