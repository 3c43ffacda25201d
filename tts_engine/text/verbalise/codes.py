"""Reads what is spelled: addresses, telephone keys, numbers of phones and cards, codes."""

from __future__ import annotations

import re

from tts_engine.text.verbalise.numbers import NumberWords, Rule

_DOMAIN = (
    r"(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|co|uk|de|fr|info|biz|eu|ai|app|dev|es|it|pt|br|mx|ar|ch|at|us|ca|tv|me|cn|"
    r"ly|gg|xyz|online|store|shop|site|tech|cloud|link|page|live|news|help|support|health|bank|travel|care|nl|dk|pl|jp|au|nz|ru|ie|sg|hk)"
)
WEB_ADDRESS = rf"\b(?:https?|ftp)://[!-~]+|\bwww\.[!-~]+|(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.[\w-]+)+|(?<![\w.@-]){_DOMAIN}\b(?![\w-])(?:[/?][\w/.?=&#%~-]*)?"
"""A web or e-mail address."""


_PLACES = (
    "apt|apartment|unit|suite|ste|room|rm|seats?|gate|flat|row|building|bldg|bus|route|train|car|coach|lane|option|plan|level|tier|appendix|question|exhibit|courtroom|classroom|hall|office|stage|bay|slot|dock|stall|booth|table|court|pier|lot|wing|ward|track|grade|platform|terminal|aisle|exit|section|line|zone|form|"
    "sitz|platz|gleis|zimmer|raum|tor|haus|halle|asiento|puerta|sala|fila|habitación|andén|vía|place|siège|porte|salle|"
    "chambre|voie|quai|posto|camera|stanza|uscita|binario|assento|portão|quarto|plataforma|apto|poltrona"
)
"""Words for places that have numbers and letters."""
_KEY_NAMES = "pound|hash|star|asterisk|almohadilla|numeral|gato|asterisco|estrella|dièse|étoile|cancelletto|jogo da velha|cerquilha|raute|stern"
_LETTERS = "A-Za-zÀ-ÖØ-öø-ÿ"
_COUNTED = re.compile(r"([1-9]\d{0,4})((?:-[^\W\d_]?[a-zß-ÿ]{2,})+)")
"""A quantity that is joined with words."""


class Codes(NumberWords):
    """The rules for what is spelled."""

    def addresses_and_keys(self) -> list[Rule]:
        """Return the rules that come before all others: addresses hold anything."""
        g, flags = self._g, re.I
        return [
            (re.compile(r"\b(?:https?|ftp)://\S+|\bwww\.\S+", flags), self._address, ":w"),
            (re.compile(r"(?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.[\w-]+)+"), self._address, "@"),
            (
                re.compile(
                    rf"(?<![\w.@-])(?!p\.ex?s?\b)(?:{_DOMAIN}|[A-Z0-9-]{{3,}}\.(?:COM|NET|ORG|GOV|EDU))\b(?![\w-])(?::[0-9]{{2,5}}\b)?(?:[/?][\w/.?=&#%~-]*)?"
                ),
                self._address,
                ".",
            ),
            (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?:[:/]\d+)?(?!\d|[\w.]\w)"), self._octets, "."),
            # Addresses of networks: of a card (MAC), of the sixth version, of this machine.
            (
                re.compile(r"(?<![\w:-])[\dA-F]{2}([:-])[\dA-F]{2}(?:\1[\dA-F]{2}){4}(?![\w:-])", flags),
                self._spelled_groups,
                ":-",
            ),
            (
                re.compile(
                    r"(?<![\w:.])(?=[\dA-F]*(?::[\dA-F]*)*(?:::|[A-F]))[\dA-F]{0,4}(?::[\dA-F]{0,4}){2,7}(?![\w:.])",
                    flags,
                ),
                self._colons,
                ":",
            ),
            (
                re.compile(r"(?<=\blocalhost):(?P<port>\d+)"),
                lambda m: f" {g.address[':']} {self._spell(m['port'])}",
                ":",
            ),
            # The number of an account (IBAN), in groups of four.
            (  # a bank (ISO 9362)
                re.compile(r"\b(?P<word>(?:SWIFT|BIC)\b[^.!?\d]{0,12}? )(?P<code>[A-Z]{6}[A-Z\d]{2}(?:[A-Z\d]{3})?)\b"),
                lambda m: m["word"] + self._characters(m["code"]),
            ),
            (re.compile(r"\b[A-Z]{2}[ -]?\d{3}[ -]?[A-Z]{2}\b"), self._spelled_groups),  # a car
            (  # "205/55 R16", a tyre
                re.compile(r"\b(?P<w>\d{3})/(?P<h>\d{2}) ?Z?R ?(?P<d>\d{2})\b"),
                lambda m: f"{self._int(m['w'])} {self._int(m['h'])} R {self._int(m['d'])}",
                "R",
            ),
            (re.compile(r"\b[A-Z]{2} ?\d{3} ?\d{3} ?\d{3} ?[A-Z]{2}\b"), self._spelled_groups),  # UPU standard S10
            (re.compile(r"\b[A-Z]{2}\d{2}(?: [A-Z\d]{4}){2,7}(?: [A-Z\d]{1,4})?(?!\w)"), self._spelled_groups),
            (
                re.compile(
                    r"(?<![\w*#])(?!\*{3})[*#][*#\d]*\d[*#\d]*#(?!\w)|(?<![\w*#])\d+#\d*(?!\w)|(?<![\w*#])(?!\*{3})\*[*#\d]*\d[*#\d]*(?!\w)"
                ),
                self._keys,
            ),
            (  # "the pound key (#)"
                re.compile(rf"(?P<name>\b(?:{_KEY_NAMES})\b[^.,;()]{{0,12}}) ?\([*#]\)", flags),
                lambda m: m["name"],
                "(",
            ),
            (
                re.compile(r"(?<![\w*#])(?P<key>[*#])(?=-(?:key|Taste)\b| (?:to|for|key|pour|para|per|zum|um|für)\b)"),
                lambda m: g.star if m["key"] == "*" else g.pound,
                "*#",
            ),
            (
                re.compile(r"\b0x(?P<hex>[\dA-Fa-f]{2,16})\b"),
                lambda m: f"{g.digits[0]} X {self._characters(m['hex'])}",
                "x",
            ),
            (re.compile(rf"\b(?:{g.key_words})\b(?:[^.!?]|\.(?! ))*", flags), self._key),
        ]

    def phones(self) -> list[Rule]:
        """Return the rules for numbers of phones, cards and accounts."""
        return [
            (re.compile(r"(?<![\w&*#])#(?=\d+-[A-Z\d]|\d+[A-Z]\b|[A-Z]+-?\d)"), lambda _: f"{self._g.number_sign} ", "#"),
            (
                re.compile(
                    r"\b(?P<before>(?:Nr\.?|No\.|n\.|N\.|número|numéro|numero|Nummer|number) )(?!\d{1,3}-\d{1,3}(?![\d-]))(?P<code>\d+(?:-\d+)+)(?![\w%-]|[.,]\d)",
                    re.I,
                ),
                self._code,
            ),
            # A card number: groups of four.
            (re.compile(r"(?<![\w.,])\d{4}(?:[ -]\d{4}){2,4}(?![\w%])"), self._groups),
            *([(re.compile(r"(?<![\w.,-])8\d\d[ .-]\d{3}[ .-]\d{3,4}(?![\w%]|[.,-]\d)"), self._groups)] if self._g.tag != "en" else []),
            *([(re.compile(r"(?<![\w.,+])(?:\+?1[ .-])?\(?(?:8\d\d)\)?[ .-](?:\d{3}[ .-]\d{4}|(?=[\d-]*[A-Z])[A-Z\d]+(?:-[A-Z\d]+)*)(?: ?x ?(?P<ext>\d{1,6}))?(?!\w)"), self._toll_free)] if self._g.tag == "en" else []),
            (re.compile(r"(?<![\w.,])(?:\+|00)\d[\d ()./-]{5,}\d(?:[ ,]*(?:x|ext\.?|extension) ?(?P<ext>\d{1,6}))?(?![\w%])", re.I), self._groups, "+0"),
            (re.compile(r"(?<![\w.,])\(\d{2,5}\) ?-?\d[\d .-]{3,}\d(?:[ ,]*(?:x|ext\.?|extension) ?(?P<ext>\d{1,6}))?(?![\w%])", re.I), self._groups, "("),
            (re.compile(r"(?<![\w.,-])(?:1[ .-])?\d{3}([ .-])\d{3}\1\d{4}(?:[ ,]*(?:x|ext\.?|extension) ?(?P<ext>\d{1,6}))?(?![\w%]|[.,-]\d)", re.I), self._groups),
            (re.compile(r"(?<![\w.,-])\d{3}-\d{4},? ?(?:x|ext\.?|extension) ?(?P<ext>\d{1,6})(?![\w%])", re.I), self._groups, "x"),
            (re.compile(r"(?<![\w.,-])\d+(?:-\d+){2,}(?![\w%-]|[.,]\d)"), self._groups),
            # Groups as in "600 12 34 56" and "91 123 45 67".
            (re.compile(r"(?<![\w.,-])(?<!\d )(?!\d{1,3}(?: \d{3})+(?![ \d]))(?:0 )?\d{2,4}(?: \d{2,4}){2,4}(?![\w%]|[.,-]\d| \d| ?[€$£])"), self._spaced),
            (re.compile(r"(?<![\w.,-])[1-9]\d{2}[ /]\d{6,8}(?![\w%]|[.,-]\d)"), self._groups),
            (re.compile(r"(?<![\w.,-])\d{1,4}-(?!\d*000\b)\d{6,}(?![\w%]|[.,-]\d)"), self._groups, "-"),
            (re.compile(r"(?<![\w.,-])0\d(?:[ .]\d{2}){4}(?![\w%]|[.,-]\d)"), self._pairs, "0"),
            (re.compile(r"(?<![\w.,-])[6-9]\d{2}(?: \d{3}){2}(?![\w%]|[.,-]\d| ?[€$£])"), self._long),
            (re.compile(r"(?<![\w.,-])(?<!\d )(?!\d{4}-\d{2}-\d{2}\b)0\d{1,4}(?: ?/ ?|[ -])\d{3,8}(?:[ -]\d{2,5})*(?:-\d{1,5})?(?![\w%]|[.,-]\d)"), self._groups, "0"),
            (re.compile(r"(?<![\w.,-])(?!\d{4}[-–]\d{4}(?!\d))(?!\d{1,3}(?: \d{3})+(?![\d-]))\d{2,5}(?:[ -]\d{2,5})*[ -]\d{3,5}(?![\w%]|[.,-]\d)"), self._long),
        ]  # fmt: skip

    def places(self) -> list[Rule]:
        """Return the rule for a number with one letter after the word for a place: "seat 23A"."""
        place = re.compile(rf"\b(?:{_PLACES})\.? $", re.I)

        def read(match: re.Match[str]) -> str:
            if place.search(match.string, max(0, match.start() - 20), match.start()) is None:
                return match.group()
            return f"{self._int(match['n'])} {match['letter']}"

        return [(re.compile(r"(?<= )(?P<n>\d{1,4}) ?(?P<letter>[A-Z])(?!\w|[.'’]\w)"), read)]

    def codes(self) -> list[Rule]:
        """Return the rules for codes, and for letters and digits in one word."""
        g, flags = self._g, re.I
        fillers = r"(?:[ :#.,]|\b(?:number|no|num|code|is|es|est|è|é|ist|lautet|número|numéro|numero|nummer)\b){1,6}"
        self._code_word = re.compile(
            rf"\b(?!(?:flight|vuelo|vol|volo|voo|flug)\b)(?:{g.code_words})\b{fillers}$", flags
        )
        part = r"(?:[A-Z]{0,4}\d[A-Z\d]*|[A-Z]{1,4})"
        return [
            (
                re.compile(rf"(?<![^\s:#])(?P<mark># ?)?(?P<code>{part}(?: {part})+)(?![\w%-]|[.,:/]\d)"),
                self._lettered_groups,
            ),
            (
                re.compile(r"(?<![\w@.$€£-])(?P<word>[A-Za-z]{1,6})(?P<version>\d+(?:\.\d+)+)(?![\w]|\.\w)"),
                self._named_version,
            ),
            (
                re.compile(
                    rf"\b(?P<before>(?:{g.code_words})\b(?:['’]s)?(?:[ :#.]|\b(?:on file|on record|number|no|num|code|is|are|es|est|è|é|ist|lautet|lauten|sont|son|sono|são|est le|es el|è il|é o|ist die|ist der|número|numéro|numero|de|di|do|da)\b\.?|\b(?:de|di|do|da|du|del|della) (?:la |su )?[^\W\d_]+(?= ?(?:es|est|è|é|:|\d))){{0,4}}\s*)(?P<code>\d{{3,}}(?:[ -]\d{{2,}})*|\d\d(?:[ -]\d\d)+|\d{{1,2}}(?: \d{{3}})+|\d{{1,2}}-\d{{3,}}(?:-\d+)*)(?!\w|-\w|[.,:/%]\d|%|\s(?:(?!(?:is|was|has|as|expires|ends|arrives|ships|leaves|departs|needs|works|opens|closes|lands|belongs|costs|shows|contains|matches|starts|begins|allows|gets|takes|goes|comes|uses|runs|includes|requires|covers|gives|makes|does|applies|boards|stops|dans|des|les|nous|vous|pas|plus|das|des|los|las|dos|nos|vence|ihres|tras|mas|más|es|vous)\b)[a-zà-ÿ]+s|people|men|women|children)\b)",
                    flags,
                ),
                self._code,
            ),
            (  # "2024/0091"
                re.compile(r"(?<![\w/.,-])(?P<n>\d{4})/(?P<n2>0\d{2,}|(?!(?:19|20)\d\d\b)\d{4,})(?![\w/]|[.,]\d)"),
                lambda m: (
                    f"{g.year(int(m['n'])) if self._is_year(m['n']) else self._spell(m['n'])} {g.address['/']} {self._code_digits(m['n2'])}"
                ),
                "/",
            ),
            (  # "14/B/2291-7"
                re.compile(r"(?<![\w/.,-])\d{1,4}/[A-Z]{1,3}/\d{2,}(?:-\d+)*(?![\w/]|[.,]\d)"),
                lambda m: f" {g.address['/']} ".join(
                    ", ".join(map(self._characters, part.split("-"))) for part in m[0].split("/")
                ),
                "/",
            ),
            (  # "INV/2024/001"
                re.compile(
                    r"(?<![\w/.])(?:[A-Z]{2,5}|[A-Z]-\d+)(?:[/-](?:\d+|[A-Z]{1,4}))*/\d+(?:/[A-Z\d]+)*(?![\w/-])"
                ),
                lambda m: re.sub(
                    r"\d+", lambda d: f" {self._code_digits(d[0])} ", m[0].replace("/", " ").replace("-", " ")
                ),
                "/",
            ),
            (re.compile(r"(?:[*xX•]{2,}[ -]?)+(?P<code>\d{3,4})(?!\w)"), lambda m: self._code_digits(m["code"])),
            (
                re.compile(
                    rf"(?<![\w@.])(?<!\d,)(?=[{_LETTERS}-]*\d)(?=[\d-]*[{_LETTERS}])[{_LETTERS}\d]+(?:-[{_LETTERS}\d]+)*(?![\w@]|\.\w)"
                ),
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
        host, mark, port = re.split("([:/]|$)", match.group(), maxsplit=1)
        spoken = f" {dot} ".join(self._spell(octet) for octet in host.split("."))
        if not port:
            return spoken
        return f"{spoken} {self._g.address[mark]} {self._spell(port) if mark == ':' else self._int(port)}"

    def _colons(self, match: re.Match[str]) -> str:
        colon = self._g.address[":"]
        return " ".join(
            colon if part == ":" else self._characters(part) for part in re.findall(r"\w+|:", match.group())
        )

    def _spelled_groups(self, match: re.Match[str]) -> str:
        return ", ".join(map(self._characters, re.findall(r"\w+", match.group())))

    def _lettered_groups(self, match: re.Match[str]) -> str:
        """Read groups of letters and digits after words such as "tracking number": ``1Z 999 AA1``, ``ABC 1234``."""
        groups = re.findall(r"\w+", match["code"])
        digits = [group for group in groups if any(map(str.isdigit, group))]
        if (
            len(digits) == len("".join(groups))
            or not any(map(str.isalpha, "".join(groups)))
            or len("".join(digits)) < 3
        ):
            return match.group()
        if groups[0] in self._g.currencies or any(map(str.isalpha, groups[-1])) and groups[-1] not in digits:
            return match.group()
        if self._code_word.search(match.string, max(0, match.start() - 60), match.start()) is None:
            return match.group()
        return ", ".join(map(self._characters, groups))

    def _named_version(self, match: re.Match[str]) -> str:
        return f"{match['word']} {self._dotted(match['version'])}"

    def _keys(self, match: re.Match[str]) -> str:
        names = {"*": self._g.star, "#": self._g.pound}
        if re.fullmatch(r"\*\d{4}", match.group()) and not re.search(
            rf"\b(?:{self._g.key_words}|dial|call)\b[^.!?]*$", match.string[: match.start()], re.I
        ):
            return self._spell(match.group())  # the end of a card number
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
        if match["ext"]:
            said[-1] = f"extension {said[-1]}"
        return (f"{self._g.plus} " if match.group().startswith("+") else "") + ", ".join(said)

    def _long(self, match: re.Match[str]) -> str:
        """Read groups of digits as one number of a phone or an account. With fewer than seven digits they are separate
        numbers, and "10000-15000" is a range."""
        ends = match.group().split("-")
        if len(ends) == 2 and all(end.strip().endswith("000") for end in ends):
            return match.group()
        return self._groups(match) if sum(map(str.isdigit, match.group())) >= 7 else match.group()

    def _spaced(self, match: re.Match[str]) -> str:
        digits = sum(map(str.isdigit, match.group()))
        return (
            self._pairs(match)
            if 8 <= digits <= 12 and len(set(map(len, match.group().split()))) <= 3
            else match.group()
        )

    def _pairs(self, match: re.Match[str]) -> str:
        if self._g.tag != "fr":
            return self._groups(match)
        groups = re.findall(r"\d+", match.group())
        return ", ".join(self._two(group) if len(group) == 2 else self._spell(group) for group in groups)

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
        if counted := _COUNTED.fullmatch(text):  # "a 500-page book", "ein 500-Euro-Schein"
            number = self._g.year(int(counted[1])) if self._is_year(counted[1]) else self._int(counted[1], noun=True)
            return number + counted[2].replace("-", " ")
        pieces = re.findall(r"\d+|[^\W\d_]+", text)
        spelled = len(pieces) > 2 or sum(map(str.isdigit, text)) > 2
        longest = 3 if len(pieces) < 6 else 9
        said = []
        for piece in pieces:
            if piece.isdigit():
                said.append(self._int(piece) if len(piece) <= 2 and piece[0] != "0" else self._code_digits(piece))
            else:
                said.append(" ".join(piece) if spelled and piece.isupper() and len(piece) <= longest else piece)
        return " ".join(said)
