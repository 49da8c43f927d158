"""The 256 printable characters in which byte-level BPE vocabularies spell raw bytes (GPT-2's alphabet)."""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))

BYTE_TO_CHARACTER: dict[int, str] = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + rank) for rank, byte in enumerate(_OTHERS)
}
CHARACTER_TO_BYTE: dict[str, int] = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}


def text_to_bytes(spelling: str) -> bytes:
    """The bytes that a vocabulary entry spells; an entry outside the alphabet stands for itself."""
    try:
        return bytes([CHARACTER_TO_BYTE[character] for character in spelling])
    except KeyError:
        return spelling.encode()


def bytes_to_text(raw: bytes) -> str:
    """The spelling of raw bytes."""
    return "".join(BYTE_TO_CHARACTER[byte] for byte in raw)


def is_spelled(text: str) -> bool:
    """True when every character belongs to the alphabet."""
    return all(character in CHARACTER_TO_BYTE for character in text)
