"""What a file holds that is not UTF-8 text, by its first bytes, and what to do about it."""

import codecs
import re
import shlex
import unicodedata
import zlib
from pathlib import Path

import charset_normalizer


EXPORT = "write its text to a .csv or .jsonl file"
OTHER = "leave it out"

# Where the mark of a format stands in a file, the mark, what the file is, and what to do: {file} stands for its name,
# {new} for that of a new one.
SIGNATURES = [
    (0, b"PK\x03\x04", "a zip archive, or a document in one, such as .docx, .xlsx or .epub", "unpack it with unzip {file}, or export its text"),
    (0, b"BZh", "compressed with bzip2", "decompress it with bzip2 -dc {file} > {new}"),
    (0, b"\xfd7zXZ\x00", "compressed with xz", "decompress it with xz -dc {file} > {new}"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it with zstd -dc {file} > {new}"),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4", "decompress it with lz4 -dc {file} > {new}"),
    (0, b"\x1f\x9d", "compressed with compress", "decompress it with gzip -dc {file} > {new}"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it with 7z x {file}"),
    (0, b"Rar!\x1a\x07", "a rar archive", "unpack it with unrar x {file}"),
    (257, b"ustar", "a tar archive", "unpack it with tar -xf {file}"),
    (0, b"%PDF-", "a PDF", "extract its text with pdftotext {file} {new}"),
    (0, b"{\\rtf", "a rich text document", "save it as plain text"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", "save it as plain text or .csv"),
    (0, b"version https://git-lfs.github.com/spec/", "a Git LFS pointer", "fetch the file with git lfs pull"),
    (0, b"PAR1", "a parquet file", "rename it to end in .parquet"),
    (0, b"ARROW1", "an Arrow file", "write its table to a .parquet file"),
    (0, b"\xff\xff\xff\xff", "an Arrow stream", "give the directory that save_to_disk wrote as dataset_name"),
    (0, b"ORC", "an ORC file", "write its table to a .parquet file"),
    (0, b"Obj\x01", "an Avro file", "write its table to a .parquet file"),
    (0, b"SQLite format 3\x00", "an SQLite database", EXPORT),
    (0, b"\x89HDF\r\n", "an HDF5 file", EXPORT),
    (0, b"\x93NUMPY", "a NumPy array", EXPORT),
    (0, b"GGUF", "a model", OTHER),
    *[(0, mark, "a program", OTHER) for mark in (b"\x7fELF", b"MZ", b"\x00asm", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe")],
    *[(0, mark, "an image", OTHER) for mark in (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"II*\x00", b"MM\x00*")],
    *[(0, mark, "audio or video", OTHER) for mark in (b"RIFF", b"ID3", b"OggS", b"fLaC", b"\x1a\x45\xdf\xa3")],
    (4, b"ftyp", "audio or video", OTHER),
]  # fmt: skip
TEXTUAL = (b"%PDF-", b"{\\rtf", b"version https://git-lfs")  # of files that may be valid UTF-8
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
PICKLES = tuple(bytes([0x80, version]) for version in range(2, 6))
GZIP = b"\x1f\x8b"


def complaint(file: Path, head: bytes, ending: str, gzipped: bool) -> str | None:
    """The message for a file whose content begins with `head`, if that is not text in UTF-8 or in single bytes.

    `ending` is that of a text file to write instead; `gzipped` tells that `head` was decompressed.
    """
    found = _describe(head, gzipped)
    if found is None:
        return None
    (kind, remedy), name, is_kind = found, file, f"is {found[0]}"
    if gzipped:
        name, is_kind = file.with_suffix(""), f"is compressed, and its content is {kind}"
        remedy = remedy if remedy == OTHER else f"gunzip it, then {remedy}"
    remedy = remedy.format(file=shlex.quote(str(name)), new=f"new{ending}")
    return f"{file} {is_kind}, not plain UTF-8 text: {remedy}."


def _describe(head: bytes, gzipped: bool) -> tuple[str, str] | None:
    """What a file that begins with `head` is, and what to do."""
    is_text = _is_text(head)
    for start, magic, kind, remedy in SIGNATURES:
        # Words of text in single bytes begin like some marks.
        is_word = magic.isalnum() and len(magic) <= 4 and not _CONTROL.search(head)
        if head.startswith(magic, start) and (magic.startswith(TEXTUAL) or not (is_text or is_word)):
            return kind, remedy
    if head.startswith(GZIP):
        if not gzipped and zlib.decompressobj(31).decompress(head)[257:262] == b"ustar":
            return "a compressed tar archive", "unpack it with tar -xzf {file}"
        return "compressed with gzip", "rename it to {file}.gz"
    if head.startswith(PICKLES):
        return "pickled Python data, which could run code and is not opened", EXPORT
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 27:
        return "a model's weights", OTHER
    if encoding := wide_encoding(head):
        return f"{encoding.upper()} text", f"convert it with iconv -f {encoding} -t utf-8 {{file}} > {{new}}"
    if b"\0" in head and (head.count(0) > len(head) / 10 or not _is_text(head.replace(b"\0", b""))):
        return "binary data", OTHER
    return None


def _is_text(head: bytes) -> bool:
    """Whether `head` is UTF-8; its last character may be cut off."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False


def wide_encoding(head: bytes) -> str | None:
    """The encoding of UTF-16 or UTF-32 text that begins with `head`, with or without a byte-order mark."""
    marks = {
        codecs.BOM_UTF32_LE: "utf-32",
        codecs.BOM_UTF32_BE: "utf-32",
        codecs.BOM_UTF16_LE: "utf-16",
        codecs.BOM_UTF16_BE: "utf-16",
    }
    for mark, encoding in marks.items():  # the first begins as the third
        if head.startswith(mark):
            return encoding
    spaces: dict[str, int] = {}
    for encoding in ("utf-32le", "utf-32be", "utf-16le", "utf-16be") if b"\0" in head else ():
        text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
        if all(character in "\t\n\r\f" or unicodedata.category(character)[0] in "LMNPSZ" for character in text):
            spaces[encoding] = sum(map(text.count, " \n\r、。"))
    best = max(spaces, key=spaces.__getitem__, default=None)
    return best if best and spaces[best] else None


def narrow_encoding(text: bytes) -> str:
    """The probable encoding of text that is not UTF-8: a guess."""
    if sum(byte >= 0x80 for byte in text) < 0.2 * len(text):  # mostly ASCII, as in Western European languages
        return "cp1252" if any(0x80 <= byte < 0xA0 for byte in text) else "latin1"
    guess = charset_normalizer.from_bytes(text).best()
    return guess.encoding.replace("_", "-") if guess else "latin1"
