"""The ways in which a text can be read, for rules that look for something in it."""
# ruff: noqa: RUF001 - letters that look like others are what this is about

from __future__ import annotations

import re
import unicodedata
from typing import Final

import regex

_UNSEEN: Final = regex.compile(r"(?V1)[[\p{Default_Ignorable_Code_Point}\p{Cf}\p{Cc}\p{Cs}\u2800]--[\n\t]]")
"""Characters that show nothing: zero-width and soft ones, marks of direction, tags, variation selectors, controls."""

_MARKS: Final = regex.compile(r"\p{M}+")

_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([nrtbf"\'/\\]))')
_MEANT: Final = {"n": "\n", "r": "\n", "t": "\t", "b": "", "f": "\n"}

_PAIRS: Final = (
    "аa еe оo рp сc уy хx іi јj ѕs ԁd ԛq ԝw һh ӏl кk мm тt гr вb нh ґr "
    "АA ВB ЕE КK МM НH ОO РP СC ТT УY ХX ІI ЈJ ЅS ԌG ԚQ ԜW ҺH ӀI "
    "οo αa ιi κk νv ρp τt υu χx γy ωw εe ηn ΑA ΒB ΕE ΖZ ΗH ΙI ΚK ΜM ΝN ΟO ΡP ΤT ΥY ΧX "
    "օo սu հh ոn ցg ıi ɡg ɑa ɩi øo łl đd ħh ŧt ØO ŁL ĐD ĦH ŦT "
    "ᴀa ʙb ᴄc ᴅd ᴇe ꜰf ɢg ʜh ɪi ᴊj ᴋk ʟl ᴍm ɴn ᴏo ᴘp ʀr ꜱs ᴛt ᴜu ᴠv ᴡw ʏy ᴢz"
)
"""Letters of other scripts that are taken for Latin ones, each with its Latin one."""

ALIKE: Final = {ord(pair[0]): pair[1] for pair in _PAIRS.split()}


def readings(text: str) -> tuple[str, ...]:
    """A text in all the ways in which somebody may read it, each once, as it stands first.

    The others: compatible forms made one (NFKC), without characters that show nothing; letters without their marks and
    look-alikes of other scripts as Latin letters; and all of that for what escapes such as `\\u0061` or `\\n` mean.
    """
    found = {text: None}
    for base in (text, _unescaped(text)):
        shown = _UNSEEN.sub("", unicodedata.normalize("NFKC", base))
        bare = _MARKS.sub("", unicodedata.normalize("NFKD", shown)).translate(ALIKE)
        found |= dict.fromkeys((base, shown, bare))
    return tuple(found)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _MEANT.get(m[2], m[2]), text)
