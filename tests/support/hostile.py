"""Wheels that are refused: title -> the wheel's bytes, and what the refusal says (a pattern)."""

from __future__ import annotations

import struct
import zlib

from support import wheels
from support.wheels import Entry, File, Wheel, Zip, make_elf

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
GOOD = Wheel(files={"demo/__init__.py": File(b"x = 1\n" * 50), "demo/data": File(bytes(500))})


def good(**changes) -> list[Entry]:
    """The members of a sound wheel; `changes` are made to the first one."""
    members = wheels.entries(GOOD)
    for name, value in changes.items():
        setattr(members[0], name, value)
    return members


def plus(*extra: Entry) -> list[Entry]:
    """A sound wheel with more members before its dist-info, all of them in RECORD."""
    files = {entry.name.decode("latin-1"): File(entry.content) for entry in extra}
    members = wheels.entries(GOOD.but(files={**GOOD.files, **files}))
    kept = [entry for entry in members if entry.name.decode("latin-1") not in files]
    return [*kept[:2], *extra, *kept[2:]]


def without(name: str) -> list[Entry]:
    return [entry for entry in good() if not entry.name.endswith(name.encode())]


def content(name: str, data: bytes) -> list[Entry]:
    """A sound wheel with other content in one dist-info file; RECORD says so."""
    found = {
        "METADATA": GOOD.but(metadata=data),
        "WHEEL": GOOD.but(wheel=data),
        "RECORD": GOOD.but(record=data),
    }[name]
    return wheels.entries(found)


RECORD = GOOD.members()[f"{GOOD.dist_info}/RECORD"].content
ROWS = RECORD.splitlines(keepends=True)
SOUND = Zip(good()).to_bytes()
SOUND_STREAM = Zip(good(descriptor="plain")).to_bytes()
CRC = struct.pack("<I", zlib.crc32(b"x = 1\n" * 50))  # first in the descriptor, then listed
HUGE = 0xFFFFFFFF
_zip64 = struct.pack("<HHQ", 1, 8, 300)


def restated(size: int = 300, compressed: int = 0, more: bytes = b"") -> bytes:
    """The sizes of the first member once more in 64 bits; 0 is the true compressed one."""
    packed = compressed or len(wheels.deflated(b"x = 1\n" * 50))
    return struct.pack("<HHQQ", 1, 16 + len(more), size, packed) + more


def _asi(mode: int, target: bytes) -> bytes:
    """Info-ZIP's extra field 0x756e: mode, length of a link's target, owner, target; with a CRC."""
    body = struct.pack("<HIHH", mode, len(target), 0, 0) + target
    return struct.pack("<HHI", 0x756E, 4 + len(body), zlib.crc32(body)) + body


ARCHIVES = {
    "nothing at all": (b"", "not a zip archive"),
    "a text": (b"not a wheel\n" * 20, "not a zip archive"),
    "only zeros": (bytes(5000), "not a zip archive"),
    "cut in half": (SOUND[: len(SOUND) // 2], "not a zip archive"),
    "cut by one byte": (SOUND[:-1], "not a zip archive"),
    "a start that is missing": (SOUND[40:], "is not where"),
    "bytes in front": (b"#!/bin/sh\n" + SOUND, "is not where"),
    "bytes in front that offsets count": (
        Zip(good(), prefix=b"#!/bin/sh\n").to_bytes(),
        "before its first member",
    ),
    "bytes behind": (SOUND + b"junk", "bytes after its end record"),
    "two end records": (Zip(good(), end_twice=True).to_bytes(), "is not where"),
    "an end record in the comment": (
        Zip(good(), comment=SOUND[-22:]).to_bytes(),
        "is not where",
    ),
    "a comment that looks like an archive": (
        Zip(good(), comment=b"PK\1\2").to_bytes(),
        "looks like another archive",
    ),
    "a stored member with its sizes behind it": (
        Zip(good(method=0, descriptor="signed")).to_bytes(),
        "a stream does not show its end",
    ),
    "a link as a Mac writes it": (
        Zip(good(made_by=19, mode=0o120777)).to_bytes(),
        "a link or a special file",
    ),
    "a second disk": (Zip(good(), disk=1).to_bytes(), "several disks"),
    "a member on a second disk": (Zip(good(disk=1)).to_bytes(), "several disks"),
    "more members declared": (Zip(good(), count=9).to_bytes(), "9 members declared"),
    "fewer members declared": (Zip(good(), count=2).to_bytes(), "2 members declared"),
    "a directory of a wrong size": (Zip(good(), directory_size=50).to_bytes(), "is not where"),
    "a directory elsewhere": (Zip(good(), directory_offset=3).to_bytes(), "is not where"),
    "bytes before the directory": (Zip(good(), gap=b"hidden").to_bytes(), "belong to no member"),
    "bytes after the directory": (
        Zip(good(), after_directory=b"x" * 60).to_bytes(),
        "is not where",
    ),
    "bytes between members": (
        Zip(plus(Entry(b"demo/x", b"x", before=b"hidden"))).to_bytes(),
        "belong to no member",
    ),
    "two members in one place": (
        Zip(plus(Entry(b"demo/x", b"x = 1\n" * 50, offset=0))).to_bytes(),
        "overlap",
    ),
    "a member inside another": (
        Zip(plus(Entry(b"demo/x", b"x", offset=20))).to_bytes(),
        "overlaps the next member|no local header",
    ),
    "a zip64 end record": (Zip(good(), zip64=True).to_bytes(), "rocwheel reads smaller"),
    "more members than 16 bits count": (Zip(good(), count=0xFFFF).to_bytes(), "rocwheel reads smaller"),
    "a member of 4 GiB": (Zip(good(size=HUGE)).to_bytes(), "rocwheel reads smaller"),
    "zip64 sizes that are missing": (
        Zip(good(local_size=HUGE)).to_bytes(),
        "zip64 sizes are missing",
    ),
    "zip64 sizes that are cut": (
        Zip(good(local_size=HUGE, local_extra=struct.pack("<HHI", 1, 4, 9))).to_bytes(),
        "cut short",
    ),
    "zip64 sizes that nothing asks for, and another size": (
        Zip(good(local_extra=restated(size=301))).to_bytes(),
        "nothing asks for",
    ),
    "zip64 sizes that nothing asks for, and another compressed size": (
        Zip(good(local_extra=restated(compressed=9))).to_bytes(),
        "nothing asks for",
    ),
    "zip64 sizes that nothing asks for, and an offset": (
        Zip(good(local_extra=restated(more=bytes(8)))).to_bytes(),
        "nothing asks for",
    ),
    "zip64 sizes that nothing asks for, and a descriptor": (
        Zip(good(descriptor="plain", local_extra=struct.pack("<HHQQ", 1, 16, 0, 0))).to_bytes(),
        "nothing asks for",
    ),
    "zip64 sizes in the directory that nothing asks for": (
        Zip(good(extra=restated())).to_bytes(),
        "nothing asks for",
    ),
    "zip64 sizes given twice": (
        Zip(good(local_size=HUGE, local_extra=_zip64 + _zip64)).to_bytes(),
        "broken extra field",
    ),
    "an extra field that is too long": (
        Zip(good(extra=struct.pack("<HH", 9, 90))).to_bytes(),
        "broken extra field",
    ),
    "an extra field of two bytes": (Zip(good(extra=b"ab")).to_bytes(), "broken extra field"),
    "a second name in an extra field": (
        Zip(good(extra=struct.pack("<HH", 0x7075, 9) + b"\1....evil"[:9])).to_bytes(),
        "second name",
    ),
    "a link in an extra field as ASi writes it": (
        Zip(good(local_extra=_asi(0o120777, b"/etc/passwd"))).to_bytes(),
        "a file of another type in an extra field",
    ),
    "other rights in an extra field as ASi writes it": (
        Zip(good(extra=_asi(0o104755, b""))).to_bytes(),
        "a file of another type in an extra field",
    ),
    "a link in an extra field as PKWARE writes it": (
        Zip(good(extra=struct.pack("<HHIIHH", 0x000D, 23, 0, 0, 0, 0) + b"/etc/passwd")).to_bytes(),
        "a file of another type in an extra field",
    ),
    "a file that DOS takes for a folder": (Zip(good(dos=0x10)).to_bytes(), "not a plain file"),
    "a file that DOS takes for the disk's name": (
        Zip(good(dos=0x08)).to_bytes(),
        "not a plain file",
    ),
    "a file that Windows takes for a link": (Zip(good(dos=0x400)).to_bytes(), "not a plain file"),
    "another time in the local header": (
        Zip(good(local_stamp=(0, 0x5A21))).to_bytes(),
        "local header and the directory disagree",
    ),
    "a member's comment that looks like an archive": (
        Zip(good(member_comment=b"PK\5\6" + bytes(18))).to_bytes(),
        "looks like another archive",
    ),
    "encryption": (Zip(good(flags=1)).to_bytes(), "encrypted"),
    "strong encryption": (Zip(good(flags=0x41)).to_bytes(), "encrypted"),
    "zstd": (Zip(good(method=93)).to_bytes(), "compression method 93"),
    "lzma": (Zip(good(method=14)).to_bytes(), "compression method 14"),
    "another name in the local header": (
        Zip(good(local_name=b"demo/__init__.pi")).to_bytes(),
        "another name",
    ),
    "another method in the local header": (Zip(good(local_method=0)).to_bytes(), "disagree"),
    "other flags in the local header": (Zip(good(local_flags=2)).to_bytes(), "disagree"),
    "another size in the local header": (Zip(good(local_size=7)).to_bytes(), "disagree"),
    "a stored member with two sizes": (Zip(good(method=0, size=7)).to_bytes(), "two sizes differ"),
    "a wrong CRC": (Zip(good(crc=7)).to_bytes(), "CRC"),
    "a size that is too small": (Zip(good(size=299)).to_bytes(), "expands beyond"),
    "a size that is too large": (Zip(good(size=301)).to_bytes(), "holds 300 bytes"),
    "no deflate stream": (Zip(good(packed=b"\xff" * 30)).to_bytes(), "deflate stream"),
    "half a deflate stream": (
        Zip(good(packed=wheels.deflated(b"x = 1\n" * 50)[:-4])).to_bytes(),
        "deflate stream",
    ),
    "bytes behind a deflate stream": (
        Zip(good(packed=wheels.deflated(b"x = 1\n" * 50) + b"hidden")).to_bytes(),
        "does not end with its bytes",
    ),
    "a large deflate stream that is damaged": (
        Zip(good(packed=b"\xff" * 90_000)).to_bytes(),
        "deflate stream is damaged",
    ),
    "a large deflate stream with bytes behind": (
        Zip(plus(Entry(b"demo/x", bytes(90_000), packed=wheels.deflated(bytes(90_000)) + b"x" * 9)))
        .to_bytes(),
        "does not end with its bytes",
    ),
    "a bomb": (
        Zip(plus(Entry(b"demo/x", packed=wheels.deflated(bytes(32 << 20)), size=32 << 20)))
        .to_bytes(),
        "bytes that expand to",
    ),
    "a bomb of many members": (
        Zip(plus(*(Entry(f"demo/{n}".encode(), b"x", size=HUGE - 1) for n in range(5)))).to_bytes(),
        "expands to more than|expand to",
    ),
    "a descriptor that disagrees": (
        SOUND_STREAM.replace(CRC, bytes(4), 1),
        "belong to no member",
    ),
    "a descriptor that is none": (
        Zip(plus(Entry(b"demo/w", flags=8), Entry(b"demo/x", before=b"0123456789ab"))).to_bytes(),
        "belong to no member",
    ),
}  # fmt: skip

NAMES = {
    "a path that climbs": b"../evil",
    "a path that climbs inside": b"demo/../../evil",
    "an absolute path": b"/etc/cron.d/evil",
    "a drive": b"C:/evil",
    "backslashes": b"demo\\..\\evil",
    "an empty part": b"demo//evil",
    "a dot": b"./evil",
    "a dot at the end": b"demo/.",
    "no name": b"",
    "a folder without a name": b"/",
    "a NUL": b"demo/evil\0.txt",
    "a line break": b"demo/evil\n.txt",
    "an escape sequence": b"demo/\x1b[2Jevil",
}

COLLISIONS = {
    "a name given twice": (b"demo/data", b"demo/data"),
    "names that differ in case": (b"demo/Data2", b"demo/dATA2"),
    "a file and a folder": (b"demo/x", b"demo/x/"),
    "a file below a file": (b"demo/x", b"demo/x/y"),
    "a package below a file": (b"demo/data/x", b"demo/y"),
}

SPECIAL = {
    "a symbolic link": 0o120777,
    "a device": 0o060644,
    "a pipe": 0o010644,
    "a socket": 0o140644,
    "a folder that says it is a file": 0o040755,
}

TEXTS = {
    "no METADATA": (without("METADATA"), "METADATA is missing|not in the wheel"),
    "no WHEEL": (without("WHEEL"), "WHEEL is missing|not in the wheel"),
    "no RECORD": (without("RECORD"), "RECORD is missing"),
    "no dist-info": (good()[:2], "one dist-info folder"),
    "two dist-infos": (
        plus(Entry(b"other-1.0.dist-info/METADATA", b"Name: other\n")),
        "one dist-info folder",
    ),
    "RECORD without a row": (content("RECORD", b"".join(ROWS[1:])), "not listed in RECORD"),
    "RECORD with a row too many": (
        content("RECORD", RECORD + b"demo/ghost,sha256=abc,3\n"),
        "not in the wheel",
    ),
    "RECORD with a row twice": (content("RECORD", ROWS[0] + RECORD), "listed twice"),
    "RECORD with two columns": (content("RECORD", b"demo/__init__.py,\n" + RECORD), "2 columns"),
    "RECORD in Latin-1": (content("RECORD", b"d\xe9mo,,\n" + RECORD), "RECORD"),
    "RECORD with a loose quote": (content("RECORD", b'"demo/x,,\n' + RECORD), "RECORD|columns"),
    "RECORD with MD5": (
        content("RECORD", RECORD.replace(b"sha256=", b"md5=", 1)),
        "no SHA-256 in RECORD",
    ),
    "RECORD without a digest": (
        content("RECORD", b"demo/__init__.py,,\n" + b"".join(ROWS[1:])),
        "no SHA-256 in RECORD",
    ),
    "RECORD with its own digest": (
        content("RECORD", RECORD.replace(b"RECORD,,", b"RECORD,sha256=abc,3")),
        "must not have one",
    ),
    "METADATA in Latin-1": (content("METADATA", b"Name: d\xe9mo\n"), "METADATA: not UTF-8"),
    "METADATA with a loose line": (content("METADATA", b"Name: demo\nrubbish\n"), "line 2"),
    "WHEEL in UTF-16": (content("WHEEL", "Tag: x\n".encode("utf-16")), "WHEEL: not UTF-8"),
}

# What only reading all bytes shows; a retag copies them as they are.
DEEP = {
    "a wrong CRC", "a size that is too small", "a size that is too large", "no deflate stream",
    "half a deflate stream", "bytes behind a deflate stream",
    "a large deflate stream that is damaged", "a large deflate stream with bytes behind",
}  # fmt: skip


HEADER = (
    "ident", "type", "machine", "version", "entry", "phoff", "shoff", "flags", "ehsize",
    "phentsize", "phnum", "shentsize", "shnum", "shstrndx",
)  # fmt: skip
SEGMENT = ("type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align")


def elf_cases() -> dict[str, bytes]:
    sound = make_elf(
        needed=("libc.so.6",),
        versions={"libc.so.6": ("GLIBC_2.17",), "libm.so.6": ("GLIBC_2.27",)},
        exports=("PyInit_x",),
    )
    header = struct.Struct("<16sHHIQQQIHHHHHH")

    def with_header(**changes) -> bytes:
        values = dict(zip(HEADER, header.unpack_from(sound), strict=True))
        return header.pack(*{**values, **changes}.values()) + sound[64:]

    def with_segment(number: int, **changes) -> bytes:
        layout = struct.Struct("<IIQQQQQQ")
        at = 64 + number * 56
        values = dict(zip(SEGMENT, layout.unpack_from(sound, at), strict=True))
        return sound[:at] + layout.pack(*{**values, **changes}.values()) + sound[at + 56 :]

    dynamic_at = struct.unpack_from("<Q", sound, 64 + 56 + 8)[0]

    def with_dynamic(tag: int, value: int) -> bytes:
        for at in range(dynamic_at, len(sound), 16):
            if struct.unpack_from("<q", sound, at)[0] == tag:
                return sound[: at + 8] + struct.pack("<Q", value) + sound[at + 16 :]
        raise AssertionError(tag)

    needs_at = next(
        struct.unpack_from("<Q", sound, at + 8)[0]
        for at in range(dynamic_at, len(sound), 16)
        if struct.unpack_from("<q", sound, at)[0] == 0x6FFFFFFE
    )
    strings_at = sound.index(b"\0libc.so.6")
    ident = sound[:16]
    return {
        "a header cut short": sound[:50],
        "nothing but a magic": sound[:4],
        "a class that does not exist": with_header(ident=ident[:4] + b"\x07" + ident[5:]),
        "a byte order that does not exist": with_header(ident=ident[:5] + b"\x07" + ident[6:]),
        "a header of a wrong size": with_header(ehsize=7),
        "segments of a wrong size": with_header(phentsize=7),
        "sections of a wrong size": with_header(shentsize=7),
        "segments outside the file": with_header(phoff=1 << 40),
        "sections outside the file": with_header(shoff=1 << 62),
        "a section count of zero": with_header(shnum=0),
        "more sections than bytes": with_header(shnum=60_000),
        "a dynamic segment outside the file": with_segment(1, offset=1 << 40),
        "a dynamic segment of terabytes": with_segment(1, filesz=1 << 42),
        "two dynamic segments": with_segment(0, type=2),
        "strings outside every segment": with_dynamic(5, 1 << 33),
        "strings of terabytes": with_dynamic(10, 1 << 41),
        "a name outside its strings": with_dynamic(1, 1 << 20),
        "strings without an end": sound[:strings_at]
        + sound[strings_at:].replace(b"\0", b"x", 4).replace(b"PyInit_x\0", b"PyInit_xx"),
        "version needs outside every segment": with_dynamic(0x6FFFFFFE, 1 << 33),
        "version needs that no section describes": with_dynamic(0x6FFFFFFE, 3),
        "version needs in a circle": sound[: needs_at + 32 + 12]
        + struct.pack("<i", -32)
        + sound[needs_at + 48 :],
        "version needs that lead outside": sound[: needs_at + 12]
        + struct.pack("<I", 1 << 30)
        + sound[needs_at + 16 :],
        "version needs that end too late": sound[: needs_at + 2]
        + struct.pack("<H", 900)
        + sound[needs_at + 4 :],
    }


ELF = elf_cases()


def corpus() -> dict[str, tuple[bytes, str]]:
    found = dict(ARCHIVES)
    for title, name in NAMES.items():
        found[title] = (Zip([*good(), Entry(name)]).to_bytes(), "")
    for title, names in COLLISIONS.items():
        found[title] = (Zip([*good(), *map(Entry, names)]).to_bytes(), "one path|is a file")
    for title, mode in SPECIAL.items():
        extra = Entry(b"demo/x", b"target", mode=mode)
        found[title] = (Zip(plus(extra)).to_bytes(), "a link or a special file")
    found["a folder with content"] = (
        Zip([*good(), Entry(b"demo/x/", b"content", mode=0o40755)]).to_bytes(),
        "a folder with content",
    )
    found["a name that is not UTF-8"] = (
        Zip([*good(), Entry(b"demo/\xff\xfe", flags=0x800)]).to_bytes(),
        "neither ASCII nor marked UTF-8",
    )
    found["a name in Latin-1"] = (
        Zip([*good(), Entry("demo/é".encode("latin-1"))]).to_bytes(),
        "neither ASCII nor marked UTF-8",
    )
    found["a name that reads backwards"] = (
        Zip([*good(), Entry("demo/\u202egpj.py".encode(), flags=0x800)]).to_bytes(),
        "not a relative path",
    )
    composed, split = "demo/\u00e9".encode(), "demo/e\u0301".encode()
    found["names that are one after normalisation"] = (
        Zip([*good(), Entry(composed, flags=0x800), Entry(split, flags=0x800)]).to_bytes(),
        "one path",
    )
    for title, (members, message) in TEXTS.items():
        found[title] = (Zip(members).to_bytes(), message)
    for title, data in ELF.items():
        listed = GOOD.but(files={**GOOD.files, "demo/x.so": File(data, mode=0o755)})
        found[f"ELF: {title}"] = (
            Zip(wheels.entries(listed)).to_bytes(),
            "cannot be read as an ELF file",
        )
    return found


CORPUS = corpus()
