"""Reads what is spelled: addresses, telephone keys, numbers of phones and cards, codes."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.numbers import NumberWords, Rule

_DOMAIN = (
    r"(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|co|uk|de|fr|info|biz|eu|ai|app|dev|es|it|pt|br|mx|ar|ch|at|us|ca|tv|me|cn)"
)
WEB_ADDRESS = rf"\b(?:https?|ftp)://[!-~]+|\bwww\.[!-~]+|(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.[\w-]+)+|(?<![\w.@-]){_DOMAIN}\b(?![\w-])(?:[/?][\w/.?=&#%~-]*)?"
"""A web or e-mail address."""


_PLACES = (
    "apt|apartment|unit|suite|ste|room|seat|gate|flat|row|building|bldg|platform|terminal|aisle|exit|section|line|zone|form|"
    "sitz|platz|gleis|zimmer|raum|tor|haus|halle|asiento|puerta|sala|fila|habitación|andén|vía|place|siège|porte|salle|"
    "chambre|voie|quai|posto|camera|stanza|uscita|binario|assento|portão|quarto|plataforma|apto|poltrona"
)
"""Words for places that have numbers and letters."""


class Codes(NumberWords):
    """The rules for what is spelled."""

    def addresses_and_keys(self) -> list[Rule]:
        """Return the rules that come before all others: addresses hold anything."""
        g, flags = self._g, re.I
        return [
            (re.compile(r"\b(?:https?|ftp)://\S+|\bwww\.\S+", flags), self._address),
            (re.compile(r"(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.[\w-]+)+"), self._address),
            (re.compile(rf"(?<![\w.@-]){_DOMAIN}\b(?![\w-])(?:[/?][\w/.?=&#%~-]*)?"), self._address),
            (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.]\w)"), self._octets),
            (
                re.compile(
                    r"(?<![\w*#])(?!\*{3})[*#][*#\d]*\d[*#\d]*#(?!\w)|(?<![\w*#])\d+#(?!\w)|(?<![\w*#])(?!\*{3})\*[*#\d]*\d[*#\d]*(?!\w)"
                ),
                self._keys,
            ),
            (re.compile(r"\b0x(?P<hex>[\dA-Fa-f]{2,16})\b"), lambda m: f"{g.digits[0]} X {self._characters(m['hex'])}"),
            (re.compile(rf"\b(?:{g.key_words})\b(?:[^.!?]|\.(?! ))*", flags), self._key),
        ]

    def phones(self) -> list[Rule]:
        """Return the rules for numbers of phones, cards and accounts."""
        return [
            (
                re.compile(
                    r"\b(?P<before>(?:Nr\.?|No\.|n\.|N\.|número|numéro|numero|Nummer|number) )(?P<code>\d+(?:-\d+)+)(?![\w%-]|[.,]\d)",
                    re.I,
                ),
                self._code,
            ),
            (re.compile(r"(?<=\w )#(?=\d+-\d|[A-Z]+-?\d)"), lambda _: f"{self._g.number_sign} "),
            # A card number: groups of four.
            (re.compile(r"(?<![\w.,])\d{4}(?:[ -]\d{4}){2,4}(?![\w%])"), self._groups),
            *([(re.compile(r"(?<![\w.,-])8\d\d[ .-]\d{3}[ .-]\d{3,4}(?![\w%]|[.,-]\d)"), self._groups)] if self._g.tag != "en" else []),
            *([(re.compile(r"(?<![\w.,])(?:\+?1[ .-])?\(?(?:8\d\d)\)?[ .-](?:\d{3}[ .-]\d{4}|[A-Z\d]+(?:-[A-Z\d]+)*)(?!\w)"), self._toll_free)] if self._g.tag == "en" else []),
            (re.compile(r"(?<![\w.,])(?:\+|00)\d[\d ()./-]{5,}\d(?:[ ,]*(?:x|ext\.?|extension) ?(?P<ext>\d{1,6}))?(?![\w%])", re.I), self._groups),
            (re.compile(r"(?<![\w.,])\(\d{2,5}\) ?-?\d[\d .-]{3,}\d(?:[ ,]*(?:x|ext\.?|extension) ?(?P<ext>\d{1,6}))?(?![\w%])", re.I), self._groups),
            (re.compile(r"(?<![\w.,-])(?:1[ .-])?\d{3}([ .-])\d{3}\1\d{4}(?:[ ,]*(?:x|ext\.?|extension) ?(?P<ext>\d{1,6}))?(?![\w%]|[.,-]\d)", re.I), self._groups),
            (re.compile(r"(?<![\w.,-])\d+(?:-\d+){2,}(?![\w%-]|[.,]\d)"), self._groups),
            (re.compile(r"(?<![\w.,-])0\d(?:[ .]\d{2}){4}(?![\w%]|[.,-]\d)"), self._pairs),
            (re.compile(r"(?<![\w.,-])[6-9]\d{2}(?: \d{3}){2}(?![\w%]|[.,-]\d| ?[€$£])"), self._long),
            (re.compile(r"(?<![\w.,-])(?<!\d )(?!\d{4}-\d{2}-\d{2}\b)0\d{1,4}[ /-]\d{3,8}(?:[ -]\d{2,5})*(?![\w%]|[.,-]\d)"), self._groups),
            (re.compile(r"(?<![\w.,-])(?!\d{4}[-–]\d{4}(?!\d))(?!\d{1,3}(?: \d{3})+(?![\d-]))\d{2,5}(?:[ -]\d{2,5})*[ -]\d{3,5}(?![\w%]|[.,-]\d)"), self._long),
        ]  # fmt: skip

    def places(self) -> list[Rule]:
        """Return the rule for a number with one letter after the word for a place: "seat 23A"."""
        return [
            (
                re.compile(rf"\b(?P<word>(?i:{_PLACES})\.?) (?P<n>\d{{1,4}}) ?(?P<letter>[A-Z])(?!\w|[.'’]\w)"),
                lambda m: f"{m['word']} {self._int(m['n'])} {m['letter']}",
            )
        ]

    def codes(self) -> list[Rule]:
        """Return the rules for codes, and for letters and digits in one word."""
        g, flags = self._g, re.I
        return [
            (
                re.compile(
                    rf"\b(?P<before>(?:{g.code_words})\b(?:['’]s)?(?:[ :#]|\b(?:number|no|num|code|is|are|es|est|è|é|ist|lautet|lauten|sont|son|sono|são|número|numéro|numero|de|di|do|da)\b\.?|\b(?:de|di|do|da|du|del|della) (?:la |su )?[^\W\d_]+(?= ?(?:es|est|è|é|:|\d))){{0,4}}\s*)(?P<code>\d{{3,}}(?:[ -]\d{{2,}})*)(?!\w|[.,:/%]\d|%|\s(?:(?!(?:is|was|has|as|expires|ends|arrives|ships|leaves|departs|needs|works|opens|closes|lands|belongs|costs|shows|contains|matches|starts|begins|allows|gets|dans|des|les|nous|vous|pas|plus|das|des|los|las|dos|nos|vence|ihres|tras|mas|más|es|vous)\b)[a-zà-ÿ]+s|people|men|women|children)\b)",
                    flags,
                ),
                self._code,
            ),
            (re.compile(r"(?:[*xX•]{2,}[ -]?)+(?P<code>\d{3,4})(?!\w)"), lambda m: self._code_digits(m["code"])),
            (
                re.compile(r"(?<![\w@.])(?=[A-Za-z-]*\d)(?=[\d-]*[A-Za-z])[A-Za-z\d]+(?:-[A-Za-z\d]+)*(?![\w@]|\.\w)"),
                self._mixed,
            ),
        ]

    def rows(self) -> list[Rule]:
        """Return the rules for rows of digits that no other rule has read."""
        return [
            (re.compile(r"(?<![\w.,:/+-])(?:\d{5,}|0\d+)(?![\w%]|[.,:]\d)"), self._row),
        ]

    def _address(self, match: re.Match[str]) -> str:
        address = re.sub(r"^(?:https?|ftp)://(?:www\.)?", "", match.group(), flags=re.I)
        tail = ""
        while address and address[-1] in ".,;:!?)":
            address, tail = address[:-1], address[-1] + tail
        pieces = re.findall(r"\d+|[^\W\d_]+|.", address.rstrip("/"))
        spoken = [
            self._spell(piece) if piece.isdigit() else self._g.address.get(piece, piece) if len(piece) == 1 else piece
            for piece in pieces
        ]
        return " ".join(spoken) + tail

    def _characters(self, text: str) -> str:
        """Read digits and letters one by one."""
        return " ".join(g if not g.isdigit() else self._g.digits[int(g)] for g in text.upper())

    def _octets(self, match: re.Match[str]) -> str:
        dot = self._g.address["."]
        host, _, port = match.group().partition(":")
        spoken = f" {dot} ".join(self._spell(octet) for octet in host.split("."))
        return spoken + (f" {self._g.address[':']} {self._spell(port)}" if port else "")

    def _keys(self, match: re.Match[str]) -> str:
        names = {"*": self._g.star, "#": self._g.pound}
        return " ".join(names.get(char) or self._g.digits[int(char)] for char in match.group())

    def _key(self, match: re.Match[str]) -> str:
        """Name the keys in a sentence that says "press" or the like."""
        return re.sub(
            r"(?<![\w*#])([*#])(?![\w*#])(?! \d+ ?=)",
            lambda m: self._g.star if m[1] == "*" else self._g.pound,
            match.group(),
        )

    def _groups(self, match: re.Match[str]) -> str:
        text = match.group()
        ext = match["ext"] if "ext" in match.re.groupindex else None
        if ext:
            text = text[: match.start("ext") - match.start()]
        groups = [self._spell(group) for group in re.findall(r"\d+", text)]
        if len(groups) == 1:
            groups = [self._code_digits(re.sub(r"\D", "", text))]
        plus = f"{self._g.plus} " if text.startswith("+") else ""
        if self._g.tag == "fr" and all(len(group) == 2 for group in re.findall(r"\d+", text)[2:]):
            groups = [self._two(group) if len(group) == 2 else self._spell(group) for group in re.findall(r"\d+", text)]
        return (
            plus
            + ", ".join(groups)
            + (f", {self._g.symbols.get('ext', 'extension')} {self._spell(ext)}" if ext else "")
        )

    def _toll_free(self, match: re.Match[str]) -> str:
        """``1-800-555-0199``: English says "eight hundred", and reads letters as words."""
        groups = re.findall(r"\d+|[A-Z]+", match.group())
        said = [self._int(g) if g in ("800", "900") else self._spell(g) if g.isdigit() else g for g in groups]
        return (f"{self._g.plus} " if match.group().startswith("+") else "") + ", ".join(said)

    def _long(self, match: re.Match[str]) -> str:
        """Read groups of digits as one number of a phone or an account. With fewer than seven digits they are separate
        numbers."""
        return self._groups(match) if sum(map(str.isdigit, match.group())) >= 7 else match.group()

    def _pairs(self, match: re.Match[str]) -> str:
        if self._g.tag != "fr":
            return self._groups(match)
        pairs = re.findall(r"\d\d", match.group())
        return ", ".join(self._two(pair) for pair in pairs)

    def _code(self, match: re.Match[str]) -> str:
        groups = re.findall(r"\d+", match["code"])
        before = re.sub(r"\b[Nn]o\. *$", "number", match["before"])
        return re.sub(r" ?[#=]", "", before).rstrip() + " " + ", ".join(map(self._code_digits, groups))

    def _row(self, match: re.Match[str]) -> str:
        """Read a row of five digits or more: as a quantity if it is round, else as a code."""
        digits = match.group()
        if digits[0] != "0" and digits.endswith("00") and 5 <= len(digits) <= 9:
            return self._int(digits)
        return self._code_digits(digits)

    def _mixed(self, match: re.Match[str]) -> str:
        """Read letters and digits in one word: ``B12``, ``X7K9QZ``, ``COVID-19``."""
        text = match.group()
        if re.fullmatch(r"\d+(?:st|nd|rd|th)", text):
            return text
        pieces = re.findall(r"\d+|[A-Za-z]+", text)
        spelled = len(pieces) > 2 or sum(map(str.isdigit, text)) > 2
        longest = 3 if len(pieces) < 6 else 9
        said = []
        for piece in pieces:
            if piece.isdigit():
                said.append(self._int(piece) if len(piece) <= 2 and piece[0] != "0" else self._code_digits(piece))
            else:
                said.append(" ".join(piece) if spelled and piece.isupper() and len(piece) <= longest else piece)
        return " ".join(said)
