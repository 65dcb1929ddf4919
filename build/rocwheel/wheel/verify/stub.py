"""Shared objects that define names and do nothing, in the place of ROCm's libraries.

Written here and not by a linker: it needs no program on the machine, takes a millisecond, and can
give each name the symbol version by which a wheel wants it. Every function returns 100, HIP's "no
device"; a name of C++ data is 64 zero bytes. Format: System V gABI, chapter 5; symbol versions of
the LSB.
"""

import struct
from collections.abc import Mapping
from typing import Final

PAGE: Final = 4096
_CODE: Final = bytes.fromhex("b864000000c3")  # mov eax, 100; ret
_DATA: Final = ("_ZTI", "_ZTS", "_ZTV", "_ZTT")  # type information and tables of C++


def sysv_hash(name: bytes) -> int:
    """Return the hash of the System V gABI, by which names and versions are found."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def shared_object(soname: str, symbols: Mapping[str, str]) -> bytes:
    """Return an x86-64 library that defines names; `symbols` has the version of each, or ""."""
    strings = bytearray(b"\0")
    places: dict[str, int] = {}

    def string(text: str) -> int:
        if text not in places:
            places[text] = len(strings)
            strings.extend(text.encode() + b"\0")
        return places[text]

    versions = [soname, *sorted({*symbols.values()} - {""})] if any(symbols.values()) else []
    definitions = b""
    for number, version in enumerate(versions, 1):
        step = 28 if number < len(versions) else 0
        head = (1, number == 1, number, 1, sysv_hash(version.encode()), 20, step)
        definitions += struct.pack("<HHHHIIIII", *head, string(version), 0)
    names = sorted(symbols)
    chosen = [0, *(versions.index(symbols[name]) + 1 if symbols[name] else 1 for name in names)]
    count = len(names) + 1
    table = struct.pack("<2I", 1, count)  # DT_HASH with one bucket: a chain of all
    table += struct.pack(f"<{1 + count}I", count - 1, 0, *range(count - 1))
    layout = {"symbols": 24 * count, "hash": len(table), "versym": 2 * count}
    layout |= {"verdef": len(definitions)}
    string(soname)
    for name in names:
        string(name)
    layout |= {"strings": len(strings), "code": len(_CODE)}
    at, starts = 64 + 4 * 56, {}
    for part, size in layout.items():
        starts[part] = at = -(-at // 16) * 16
        at += size
    text_end = at
    data = -(-at // PAGE) * PAGE
    dynamic = [(14, string(soname)), (4, starts["hash"]), (5, starts["strings"])]
    dynamic += [(6, starts["symbols"]), (10, len(strings)), (11, 24)]
    if versions:
        dynamic += [(0x6FFFFFFC, starts["verdef"]), (0x6FFFFFFD, len(versions))]
        dynamic += [(0x6FFFFFF0, starts["versym"])]
    written = b"".join(struct.pack("<qQ", *each) for each in [*dynamic, (0, 0)])
    total = data + len(written) + 64
    entries = bytes(24)
    for name in names:
        is_data = name.startswith(_DATA)
        value = data + len(written) if is_data else starts["code"]
        kind, size = (0x11, 64) if is_data else (0x12, len(_CODE))
        entries += struct.pack("<IBBHQQ", string(name), kind, 0, 1, value, size)
    segments = ((1, 5, 0, text_end), (1, 6, data, total - data), (2, 6, data, len(written)))
    image = bytearray(total)
    for start, content in (
        (0, struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 3, 62, 1, 0, 64, 0,
                        0, 64, 56, 4, 64, 0, 0)),
        (64, b"".join(struct.pack("<IIQQQQQQ", kind, flags, place, place, place, size, size, PAGE)
                      for kind, flags, place, size in segments)),
        (64 + 3 * 56, struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)),  # stacks
        (starts["symbols"], entries),
        (starts["hash"], table),
        (starts["versym"], struct.pack(f"<{count}H", *chosen)),
        (starts["verdef"], definitions),
        (starts["strings"], strings),
        (starts["code"], _CODE),
        (data, written),
    ):  # fmt: skip
        image[start : start + len(content)] = content
    return bytes(image)
