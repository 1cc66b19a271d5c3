"""Protobuf's base-128 varints, which string contents and signatures are written with."""


def encode(n):
    """The bytes of an int, taken modulo 2**64."""
    n &= (1 << 64) - 1
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)
