"""Converts the alphabets of SSML's ``phoneme`` to IPA. Pure."""

from __future__ import annotations

import re

_ARPABET = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "aʊ", "AX": "ə", "AXR": "ɚ", "AY": "aɪ", "B": "b", "CH": "tʃ",
    "D": "d", "DH": "ð", "DX": "ɾ", "EH": "ɛ", "EL": "əl", "EM": "əm", "EN": "ən", "ER": "ɝ", "EY": "eɪ", "F": "f",
    "G": "ɡ", "HH": "h", "H": "h", "IH": "ɪ", "IX": "ɨ", "IY": "i", "JH": "dʒ", "K": "k", "L": "l", "M": "m", "N": "n",
    "NG": "ŋ", "NX": "ɾ", "OW": "oʊ", "OY": "ɔɪ", "P": "p", "Q": "ʔ", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t",
    "TH": "θ", "UH": "ʊ", "UW": "u", "UX": "u", "V": "v", "W": "w", "WH": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
"""CMU's ARPAbet -> IPA. A digit after a vowel is its stress: 1 primary, 2 secondary, 0 none."""
_STRESS = {"1": "ˈ", "2": "ˌ"}

_X_SAMPA = {
    "_~": "\u0303", "~": "\u0303", "_j": "ʲ", "_h": "ʰ", "_w": "ʷ", "_}": "\u031a", "_0": "\u0325", "_d": "\u032a",
    "_=": "\u0329", "=": "\u0329", "_^": "\u032f", "_": "",
    "b_<": "ɓ", "d`": "ɖ", "d_<": "ɗ", "g_<": "ɠ", "h\\": "ɦ", "j\\": "ʝ", "l`": "ɭ", "l\\": "ɺ", "n`": "ɳ", "p\\": "ɸ",
    "r`": "ɽ", "r\\": "ɹ", "r\\`": "ɻ", "s`": "ʂ", "s\\": "ɕ", "t`": "ʈ", "v\\": "ʋ", "x\\": "ɧ", "z`": "ʐ", "z\\": "ʑ",
    "A": "ɑ", "B": "β", "B\\": "ʙ", "C": "ç", "D": "ð", "E": "ɛ", "F": "ɱ", "G": "ɣ", "G\\": "ɢ", "H": "ɥ", "H\\": "ʜ",
    "I": "ɪ", "I\\": "ɪ", "J": "ɲ", "J\\": "ɟ", "K": "ɬ", "K\\": "ɮ", "L": "ʎ", "L\\": "ʟ", "M": "ɯ", "M\\": "ɰ",
    "N": "ŋ", "N\\": "ɴ", "O": "ɔ", "O\\": "ʘ", "P": "ʋ", "Q": "ɒ", "R": "ʁ", "R\\": "ʀ", "S": "ʃ", "T": "θ", "U": "ʊ",
    "V": "ʌ", "W": "ʍ", "X": "χ", "X\\": "ħ", "Y": "ʏ", "Z": "ʒ", "g": "ɡ", '"': "ˈ", "%": "ˌ", ":": "ː", ":\\": "ˑ",
    "@": "ə", "@`": "ɚ", "@\\": "ɘ", "{": "æ", "}": "ʉ", "1": "ɨ", "2": "ø", "3": "ɜ", "3`": "ɝ", "3\\": "ɞ", "4": "ɾ",
    "5": "ɫ", "6": "ɐ", "7": "ɤ", "8": "ɵ", "9": "œ", "&": "ɶ", "?": "ʔ", "?\\": "ʕ", "<\\": "ʢ", ">\\": "ʡ",
    "'": "ʲ", "-": "", "|": "", "||": "", "$": ".",
}  # fmt: skip
_X_SAMPA_TOKEN = re.compile("|".join(map(re.escape, sorted(_X_SAMPA, key=len, reverse=True))))


def to_ipa(alphabet: str, phonemes: str) -> str:
    """Return the phonemes in IPA.

    Args:
        alphabet: ``ipa`` (also the default of an empty one), ``x-sampa`` or ``cmu-arpabet``, in any case.

    Returns:
        Empty: the alphabet is another, or the phonemes are not of it.
    """
    match alphabet.lower():
        case "" | "ipa":
            return phonemes.strip()
        case "x-sampa" | "sampa":
            return _X_SAMPA_TOKEN.sub(lambda m: _X_SAMPA[m[0]], phonemes.strip())
        case "cmu-arpabet" | "cmu" | "arpabet":
            return _from_arpabet(phonemes)
    return ""


def _from_arpabet(phonemes: str) -> str:
    ipa = ""
    for token in phonemes.upper().replace("-", " ").split():
        name, stress = (token[:-1], token[-1]) if token[-1].isdigit() else (token, "")
        if name not in _ARPABET:
            return ""
        sound = "ə" if token == "AH0" else "ɚ" if token == "ER0" else _ARPABET[name]
        ipa += _STRESS.get(stress, "") + sound
    return ipa
