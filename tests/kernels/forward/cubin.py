"""What a CUBIN says of the registers and the stack of its kernel."""

import struct

_GLOBAL_INFO = ".nv.info"
_SVAL = 4  # attribute format: 16-bit size, then the value
_FRAME_SIZE, _REGISTERS = 0x11, 0x2F


def _sections(cubin):
    """Name -> bytes of an ELF file's sections."""
    table, entry, count, names = struct.unpack_from("<Q", cubin, 40) + struct.unpack_from(
        "<HHH", cubin, 58
    )
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry) for i in range(count)]
    base = headers[names][4]
    found = {}
    for name, _, _, _, offset, size in headers:
        start = base + name
        text = cubin[start : cubin.index(b"\0", start)].decode()
        found[text] = cubin[offset : offset + size]
    return found


def _attributes(info):
    """Attribute -> its value for the last symbol that has it."""
    found, at = {}, 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SVAL:
            found[attribute] = info[at : at + size]
            at += size
    return found


def resources(cubin):
    """(registers at launch, bytes of stack a thread): stack is where spills go."""
    found = _attributes(_sections(cubin)[_GLOBAL_INFO])
    values = (struct.unpack("<II", found[kind])[1] for kind in (_REGISTERS, _FRAME_SIZE))
    return tuple(values)
