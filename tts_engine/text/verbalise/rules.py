"""Rewrites written numbers and signs as words, one kind after another.

The order of the kinds matters: what an earlier rule reads has no digits left for a later one. Each rule reads one whole
written form; what no rule knows stays as it is.
"""

from __future__ import annotations

import re

from tts_engine.text.verbalise import english_forms, local_forms
from tts_engine.text.verbalise.amounts import Amounts
from tts_engine.text.verbalise.codes import Codes
from tts_engine.text.verbalise.dates import Dates
from tts_engine.text.verbalise.grammar import Gender, Grammar
from tts_engine.text.verbalise.numbers import DASH, ROMAN_FORM, SIGN, VULGAR_FRACTIONS, NumberWords, Rule, any_of, roman

_SIGN = re.compile(
    r"[\d&+=@#*%~<>×÷±≤≥≈≠√∞§°№→^\\|_©®™$€£¥￥¢₹₩₽₺₪₫₱₦฿₴½⅓⅔¼¾⅕-⅞⅑⅒‰²³/\u2212]|\.[-–\w]|(?<!\w)\w\.|str\.|['’]n['’]"
)
"""Signs that a rule reads."""
_DASHED = re.compile(
    r"\b(?:M|Tu|T|W|Th|F|Sa|S|L)[-–](?:W|Th|F|Sa|Su|V|S|D|J|G)\b|\b(?:[A-DFO]|AB)[-−](?:[\s.,;!?)]|$)"
    r"|\b(?:Mon|Tues?|Wed|Thu|Thurs?|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[-–]"
    r"|(?<!\w)(?:lun|seg|Mo|Di|Mi|Do|Fr|ter|mar|sáb)\.?[-–]"
)
"""Days, months and grades with a dash."""
_THE_FIRST = re.compile(
    r"\b(?:War|Part|Chapter|Phase|Type|Stage|Level|Carlos|Juan|Pablo|Felipe|Napoléon|François|Umberto|Vittorio|Paolo|"
    r"Pedro|Wilhelm|Karl|Friedrich|Franz|Otto|Elisabeth|Elizabeth|Charles|James|Henri) I\b(?!['’])"
)
_WORDS = re.compile(r"[^\W\d_]+")
_BEFORE_STOP = re.compile(r"([^\W\d_]+)\.")
_SHORTENED = frozenset(
    "St Dr Ave Rd Ln Blvd Ct Pl Hwy Pkwy Cir Ter Sq str pl sq fl Fl Pg pg Art est Est Sec".split()
) | {
    "cap",
    "kap",
    "chap",
    "art",
    "vol",
    "bd",
    "sec",
    "séc",
}
"""Abbreviations that rules of their own read."""
_NUMERALS = frozenset(
    f"{tens}{ones}"
    for tens in ("", "X", "XX", "XXX", "XL", "L")
    for ones in ("", *"I II III IV V VI VII VIII IX".split())
) - {"", "I"}
_COMPARISONS = {">=": "≥", "<=": "≤", "!=": "≠", "==": "=", "=>": "→", "->": "→"}
_NOUN = re.compile(r" ([^\W\d_]{3,})")
_AFTER_PREPOSITION = re.compile(
    r"\b(am|vom|zum|im|beim|dem|den|bis|ab|seit|des|diesem|diesen|(?:in|an|auf|mit|von|zu|bei|nach|aus|seit|vor|hinter|über|unter|zwischen) der|zur)( (?:Montag|Dienstag|Mittwoch|Donnerstag|Freitag|Samstag|Sonntag),?)? ((?:\w*(?:erst|zweit|dritt|viert|fünft|sechst|siebt|acht|neunt|zehnt|elft|zwölft|zigst|ßigst)))(?:er|e)(?= )",
    re.I,
)
"""A German ordinal in the dative or accusative."""
_PART_OF = re.compile(r" (?:of|de|d['’]|del|della|des|du|do|da|di|der|mile|inch|second|acre|percent|pound)\b|-")
"""Words after a tenth of something. Without them, ``7/10`` is a rating."""
_MENU = re.compile(r"\b(?:go to|open|tap|select|click|choose|menu|settings|navigate)\b", re.I)
_I_VERB = re.compile(
    r" (?:like|love|want|need|hate|know|think|am|had|have|did|do|would|will|could|can|must|saw|said|mean|missed|bought|"
    r"ordered|got|use|used|took|read|wrote)\b"
)
"""A verb after the pronoun "I", which is no numeral then."""
_LAST_KEY = re.compile(r"(?<=[^\W\d_] )[*#](?=[.,;:!?]|$)")
_WITH_KEY = re.compile(r"\b(with|mit|con|com|avec|or|oder|ou|o) \*(?= [^\W\d_])")
_PRODUCT = re.compile(r"\b(?:multipl|equals|what(?:['’]s| is) \d)", re.I)
"""Words of a calculation, in which ``×`` is no mark between the sides of a thing."""
_RATIO = "ratios?|scale|odds|proporci[oó]n|escala|proportion|échelle|rapport|proporzione|scala|rapporto|proporção|verhältnis|maßstab|dilu\\w+"
"""Words before a ratio, which may look like a time: ``1:10``."""
_DIGITS = frozenset("0123456789")
_PRESSURE = re.compile(r"tensi[oó]n|pression|pressione|pressão|Blutdruck", re.I)
_TIMES = {
    "en": "second|minute|hour|day|night|week|month|year|person|page|item|unit|head",
    "es": "segundo|minuto|hora|día|noche|semana|mes|año|persona|unidad|página",
    "fr": "seconde|minute|heure|jour|nuit|semaine|mois|an|personne|unité|page",
    "it": "secondo|minuto|ora|giorno|notte|settimana|mese|anno|persona|pagina",
    "pt": "segundo|minuto|hora|dia|noite|semana|mês|ano|pessoa|unidade|página",
    "de": "Sekunde|Minute|Stunde|Tag|Nacht|Woche|Monat|Jahr|Person|Stück|Seite",
}
_PER = {
    tag: re.compile(rf"(?<=[^\W\d_])/(?=(?:{names})\b)(?<!\band/)(?<!\bor/)(?<!\by/)(?<!\bet/)(?<!\bou/)")
    for tag, names in _TIMES.items()
}
"""The slash of "3 times/day"."""


class ReadingRules(NumberWords):
    """The rules for one language. Immutable once made, so threads may share it."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        codes, dates, amounts = Codes(grammar), Dates(grammar), Amounts(grammar)
        own = english_forms.rules(grammar) if grammar.tag == "en" else local_forms.rules(grammar)
        self._rules: list[Rule] = [
            (
                re.compile(r"(?<![<>=!?&-])(?:[<>!=]=(?![=A-Za-z_])|[=-]>(?![=\w]))|\+/?[-−–](?= ?\d)"),
                lambda m: _COMPARISONS.get(m[0], "±"),
            ),
            *codes.addresses_and_keys(),
            (re.compile(r"(?<=\w)_(?=\w)"), lambda _: " "),
            *own,
            (re.compile(r"(?P<price>(?:R\$|[$€£¥]) ?\d[\d.,]*|\d ?(?:€|EUR))/(?=\d)"), self._price_per, "/"),
            (re.compile(r"(?<=\d)/(?:[mM]in|(?P<h>Std))\b\.?(?P<end>$)?"), self._per_time, "/"),
            (
                re.compile(
                    rf"(?<=\d)/(?=[^\W\d_]{{3,}}\b)(?!(?:{any_of([*grammar.month_short, *grammar.units])})\b)(?![A-Z])"
                    if grammar.tag != "de"
                    else r"(?<=\d)/(?=[A-Z][a-zäöüß]{2,}\b)"
                ),
                lambda _: f" {grammar.per} ",
            ),
            (
                re.compile(
                    r"(?<=\w) [x×] (?=(?:R\$|US\$|CHF|EUR|USD|GBP|[$€£¥]) ?\d|\d[\d.,]* ?(?:[€$£]|EUR\b|USD\b|CHF\b))"
                ),
                lambda _: f" {grammar.symbols['×']} ",
                "x×",
            ),
            (
                re.compile(
                    rf"(?P<before>\b(?:{_RATIO})\b[^.!?\d]{{0,20}})(?P<n>\d{{1,4}}):(?P<n2>\d{{1,5}})(?![\w:]|[.,]\d)",
                    re.I,
                ),
                lambda m: f"{m['before']}{self._ratio(m)}",
                ":",
            ),
            *dates.dates(),
            *dates.times(),
            *amounts.money(),
            (re.compile(r"(?<![\d.,/-])24/7(?![\d/])"), lambda _: f"{self._int('24')} {self._int('7')}"),
            *codes.phones(),
            *codes.places(),
            (
                re.compile(r"\b(?P<word>versión|version|versione|versão) (?P<v>\d+\.\d+)(?![\w.])", re.I),
                self._word_and_version,
                "vV",
            ),
            (
                re.compile(
                    rf"(?:(?<![\w.,])|(?<=\d[xX×]))(?P<n>{self._num})(?P<unit> ?(?:[cmk]?m|in|ft|px)\.?| ?[\"”″])? ?[xX×] ?(?=\d)"
                ),
                self._by,
            ),
            *amounts.measures(),
            *self._ordinals_and_fractions(),
            *codes.codes(),
            *self._apart(),
            *self._signs(),
            *codes.rows(),
            (re.compile(rf"{SIGN}(?P<n>{self._num})(?![\d])"), self._plain),
            (re.compile(r"(?<=[^\W\d_])\d+|\d+(?=[^\W\d_])"), lambda m: f" {self._int(m.group())} "),
            (re.compile(r"\d+"), lambda m: self._int(m.group())),
        ]
        always = {id(rule) for rule in own}
        self._searched = [
            (
                rule[0],
                rule[1],
                frozenset(rule[2] if len(rule) == 3 else ""),
                "\\d" in rule[0].pattern and "½" not in rule[0].pattern and id(rule) not in always,
            )
            for rule in self._rules
        ]
        """Each rule with its characters, and True if it needs a digit."""
        wordy = "".join(re.escape(sign) for sign in self._g.symbols if len(sign) == 1 and sign not in "*_/")
        self._symbol = re.compile(rf" ?([{wordy}]) ?")
        self._telling = _NUMERALS | {
            f"{numeral}{end}" for numeral in (*_NUMERALS, "I") for end in ("e", "er", "ère", "re")
        }
        self._telling |= {word for word in grammar.abbreviations if word.isalpha()} | {"PO", "Me", "Ste"}
        self._telling |= (
            {"Esc", "Ctrl", "Cmd", "Mon", "Tue", "Tues", "Wed", "Thu", "Thur", "Thurs", "Fri", "Sat", "Sun"}
            if grammar.tag == "en"
            else set()
        )
        self._shortened = {word for short in grammar.abbreviations for word in _BEFORE_STOP.findall(short)}
        self._shortened |= _SHORTENED
        self._endings = [(rule[0], rule[1]) for rule in local_forms.endings(grammar.tag)]
        self._feminine = re.compile(grammar.feminine) if grammar.feminine else None
        self._not_counted = re.compile(grammar.not_counted)
        self._tidy = re.compile(r" {2,}| (?=[,.;!?](?:\s|$))")

    def __call__(self, text: str) -> str:
        """Return the text with its numbers and signs in words. A text without any is returned as it is."""
        if not self._is_telling(text):
            return text
        text = self._read(text)
        if self._g.tag == "de":
            text = re.sub(
                r"\b(Uhr(?: \w+)?) Uhr\b", r"\1", _AFTER_PREPOSITION.sub(lambda m: f"{m[1]}{m[2] or ''} {m[3]}en", text)
            )
        path = "[>→]" if self._g.tag != "en" or text.count("→") > 1 or _MENU.search(text) else ">"
        text = re.sub(rf"(?<=[^\W\d_])\)? {path} (?=[A-ZÄÖÜÉ])", ", ", text)  # the path of a menu
        text = re.sub(r"(?<![^\s\"'(])/(?=[a-z]{2,})", f"{self._g.address['/']} ", text)
        text = _PER[self._g.tag].sub(f" {self._g.per} ", text)
        text = re.sub(r"(?<=\w)/(?=\w)", " ", text)  # in a choice it is "or", which voices read well as a pause
        text = _WITH_KEY.sub(rf"\1 {self._g.star}", text)
        text = re.sub(r"(?<=\S) \* (?=\S)", f" {self._g.symbols.get('*', ' ')} ", text)
        # A key at the end of a clause, without the word that names keys: "then #."
        text = _LAST_KEY.sub(lambda m: self._g.star if m[0] == "*" else self._g.pound, text)
        text = re.sub(r"[*_]", " ", text)
        text = self._symbol.sub(lambda m: f" {self._g.symbols[m[1]]} ", text)
        for pattern, read in self._endings:
            text = pattern.sub(read, text)
        return self._tidy.sub(lambda m: "" if m.end() < len(text) and m.group() == " " else " ", text).strip()

    def _is_telling(self, text: str) -> bool:
        """Return True if the text may have something to read: a digit, a sign, an abbreviation, a Roman numeral."""
        return (
            _SIGN.search(text) is not None
            or not self._telling.isdisjoint(_WORDS.findall(text))
            or "." in text
            and not self._shortened.isdisjoint(_BEFORE_STOP.findall(text))
            or ("-" in text or "–" in text or "−" in text)
            and _DASHED.search(text) is not None
            or " I" in text
            and _THE_FIRST.search(text) is not None
        )

    def _read(self, text: str) -> str:
        """Return the text after all rules."""
        characters = set(text)
        digits = not characters.isdisjoint(_DIGITS)
        for pattern, read, marks, needs_digit in self._searched:
            if needs_digit and not digits or marks and characters.isdisjoint(marks):
                continue
            changed = pattern.sub(read, text)
            if changed != text:
                text, characters = changed, set(changed)
                digits = not characters.isdisjoint(_DIGITS)
        return text

    def _ordinals_and_fractions(self) -> list[Rule]:
        g, flags = self._g, re.I
        grouped = r"(?!\d{1,3}(?:\.\d{3})+(?!\d|\.\d))" if g.decimal_mark == "," else ""
        return [
            *([(re.compile(rf"(?<![\w.,/]){g.ordinal_pattern}"), self._ordinal)] if g.ordinal_pattern else []),
            *(
                [
                    (
                        re.compile(
                            rf"\b(?P<before>{any_of(g.roman_before)})\.? (?P<roman>{ROMAN_FORM})\b(?![.'’](?!s\b)\w)",
                            flags,
                        ),
                        self._roman_numeral,
                        "IVXLC",
                    )
                ]
                if g.roman_before
                else []
            ),
            *(
                [
                    (
                        re.compile(rf"\b(?P<roman>{ROMAN_FORM})(?= (?:{g.roman_after})\b)"),
                        lambda m: (
                            g.ordinal(roman(m["roman"]), "f" if re.match(r" \w+[ae]\b", m.string[m.end() :]) else "m")
                            if m["roman"]
                            else ""
                        ),
                    )
                ]
                if g.roman_after
                else []
            ),
            (
                re.compile(rf"(?P<n>\d+)? ?(?P<vulgar>[{''.join(VULGAR_FRACTIONS)}])[ -]?"),
                self._vulgar,
                "".join(VULGAR_FRACTIONS),
            ),
            (
                re.compile(r"(?<![\w.,/])(?:(?P<whole>\d{1,3}) )?(?P<over>\d{1,3})⁄(?P<under>\d{1,4})(?!\w)"),
                self._slashed,
            ),
            (
                re.compile(
                    r"(?:(?<![\w.,)\]])(?P<sign>[-−]) ?|(?<![\w.,/]))(?P<whole>\d{1,3}) (?P<over>\d{1,2})/(?P<under>\d{1,2})(?![\w/])(?: (?P<noun>[^\W\d_]{4,}))?"
                ),
                self._mixed_fraction,
                "/",
            ),
            (
                re.compile(
                    r"(?<![\w./,-])(?P<over>\d{1,3})/(?P<under>\d{1,3})(?i:st|nd|rd|th)?(?![\w/]|[.,]\d)(?P<stars> (?:stars?|items|tasks|steps|questions|points|tests|payments|users|people|files|orders|packages|seats)\b)?"
                ),
                self._fraction,
                "/",
            ),
            (
                re.compile(
                    r"(?<![\w.,/])(?P<n>\d{1,2}[.,]\d{1,2})/(?P<n2>(?:4|5|6|10|20|100)(?:[.,]0)?)(?![\w/]|[.,]\d)"
                ),
                lambda m: f"{self._number(m['n'])} {g.out_of} {self._number(m['n2'])}",
                "/",
            ),
            (
                re.compile(r"\b[vV](?:ersion)?\.? ?(?P<version>\d+(?:\.\d+)+)(?=(?P<letter>[a-z])?(?!\w))"),
                self._version,
            ),
            (
                re.compile(r"(?<![\w.,])" + grouped + r"(?P<version>\d+(?:\.\d+){2,})(?![\w]|[.,]\d)"),
                self._version,
            ),
        ]

    def _apart(self) -> list[Rule]:
        """Return the rule for a number in groups of three digits with spaces between them."""
        if self._g.decimal_mark != ",":
            return [
                (
                    re.compile(rf"{SIGN}(?P<n>[1-9]\d{{0,2}}(?: \d{{3}}){{2,}})(?![\w]|[ .,/-]\d)"),
                    lambda m: self._signed(m, self._int(m["n"].replace(" ", ""))),
                )
            ]
        form = r"(?P<n>[1-9]\d{0,2}(?: \d{3})+(?:,\d+)?)(?![\w]|[ .,/-]\d)"
        return [(re.compile(rf"{SIGN}{form}"), self._plain)]

    def _signs(self) -> list[Rule]:
        g, num = self._g, self._num
        return [
            *(
                [(re.compile(rf"(?<![\w.&])(?!(?<=/)b/c)(?:{any_of(g.abbreviations)})(?!\w)"), self._abbreviation)]
                if g.abbreviations
                else []
            ),
            (
                re.compile(r"(?<![\w&])# ?(?P<n>\d{4,})(?![\w%]|[.,:/-]\d)"),
                lambda m: f"{g.number_sign} {self._code_digits(m['n'])}",
            ),
            (re.compile(r"(?<![\w&])[#№] ?(?=\d)"), lambda _: f"{g.number_sign} "),
            (
                re.compile(rf"(?<![\w.,-])(?P<n>{num})(?P<op> ?[+=*×÷<>] ?| ?[-−/] ?(?=[\d. ]+=))(?=[\d(])"),
                self._operation,
            ),
            (re.compile(rf"(?<![\w.,:/-])(?P<n>{num}){DASH}(?P<n2>{num})(?![\w%/]|[.,:-]\d|-)"), self._range),
            (
                re.compile(r"(?<![\w.,:])(?P<n>\d{1,3}(?:[.,]\d{1,2})?):(?P<n2>\d{1,3}(?:[.,]\d{1,2})?)(?![\w:])"),
                self._ratio,
            ),
        ]

    def _ordinal(self, match: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", match["number"])
        if len(digits) > 15:
            return match.group()
        words = self._g.ordinal(int(digits), "f" if match.groupdict().get("f") else "m")
        if self._g.tag == "fr" and digits == "2" and "nd" in match.group():
            words = "seconde" if "nde" in match.group() else "second"
        return words[:-1] if self._g.tag == "es" and match.group().endswith("er") else words

    def _roman_numeral(self, match: re.Match[str]) -> str:
        if not match["roman"] or match["roman"] != match["roman"].upper():
            return match.group()
        if match["roman"] == "I" and _I_VERB.match(match.string, match.end()):
            return match.group()  # "the part I like"
        value, before = roman(match["roman"]), match["before"]
        how = self._g.roman_before[before.lower()]
        if self._g.tag == "fr" and value == 1 and before[0].isupper() and before.lower() not in ("chapitre", "tome"):
            how = "ordinal"
        if value > 10 and self._g.tag in ("es", "pt"):
            how = "cardinal"
        if how == "cardinal":
            return f"{before} {self._g.cardinal(value, 'm', False)}"
        the = "the " if self._g.tag == "en" else ""
        return f"{before} {the}{self._g.ordinal(value, 'f' if how == 'feminine' else 'm')}"

    def _vulgar(self, match: re.Match[str]) -> str:
        over, under = VULGAR_FRACTIONS[match["vulgar"]]
        part = self._g.fractions(over, under) or ""
        if match["n"]:
            return f"{self._int(match['n'])} {self._joined_fraction(part)} "
        return f" {part} "

    def _mixed_fraction(self, match: re.Match[str]) -> str:
        part = self._g.fractions(int(match["over"]), int(match["under"]))
        if part is None or int(match["over"]) >= int(match["under"]):
            return match.group()
        whole, noun = match["whole"], match["noun"]
        if self._g.tag == "de" and whole == "1":
            words = f"ein {part}" if part != "ein halb" else "eineinhalb"
        else:
            words = f"{self._int(whole)} {self._joined_fraction(part)}"
        if noun and part in ("un demi", "un mezzo", "um meio", "un medio") and not self._not_counted.fullmatch(noun):
            # The half follows what is counted: "dos tazas y media".
            she = self._feminine is not None and self._feminine.fullmatch(noun) is not None
            half = self._joined_fraction(part)
            if she:
                half = f"{half}e" if self._g.tag == "fr" else half[:-1] + "a"
            one = noun[:-1] if whole == "1" and noun.endswith("s") else noun
            if self._g.tag == "it" and whole == "1":
                she, one = noun.endswith("e"), noun[:-1] + ("a" if noun.endswith("e") else "o")
                half = self._joined_fraction("mezza" if she else "mezzo")
            return self._signed(match, f"{self._int(whole, 'f' if she else 'm', noun=True)} {one} {half}")
        return self._signed(match, words + (f" {noun}" if noun else ""))

    def _slashed(self, match: re.Match[str]) -> str:
        """Read a fraction with U+2044, which is never a date or a choice."""
        g = self._g
        part = g.fractions(int(match["over"]), int(match["under"]))
        if part is None:
            over = g.symbols.get("over", g.symbols["/"])
            part = f"{self._int(match['over'])} {over} {self._int(match['under'])}"
        return f"{self._int(match['whole'])} {self._joined_fraction(part)}" if match["whole"] else part

    def _fraction(self, match: re.Match[str]) -> str:
        over, under = int(match["over"]), int(match["under"])
        said_over, said_under = self._int(match["over"]), self._int(match["under"])
        if re.match(r" ?=", match.string[match.end() :]):
            return f"{said_over} {self._g.symbols['÷']} {said_under}"
        if match["stars"]:
            return f"{said_over} {self._g.out_of} {said_under}{match['stars']}"
        if over == under:
            return f"{said_over} {self._g.out_of if under == 10 else ''} {said_under}".replace("  ", " ")
        if (
            self._g.tag == "en"
            and under in (10, 100)
            and over < under
            and not _PART_OF.match(match.string, match.end())
        ):
            return f"{said_over} {self._g.out_of} {said_under}"
        if over < under and (part := self._g.fractions(over, under)) is not None:
            return part
        if over + under == 100 and under < over:
            return f"{said_over} {said_under}"
        if over > 12 and under > 31 or _PRESSURE.search(match.string) and over > under:
            return f"{said_over} {self._g.symbols.get('over', self._g.symbols['/'])} {said_under}"
        if self._g.tag == "en" and 1 <= over <= 12 and 11 <= under <= 31:
            return self._g.date(under, over, None)
        if self._g.tag == "en" and under < over <= 12:
            return self._g.date(under, over, None)
        if self._g.tag != "en" and 12 < over <= 31 and 1 <= under <= 12 and not _PRESSURE.search(match.string):
            return self._g.date(over, under, None)
        return f"{said_over} {self._g.symbols['over' if self._g.tag == 'en' else '/']} {said_under}"

    def _version(self, match: re.Match[str]) -> str:
        words = self._dotted(match["version"])
        named = match.group()[0] in "vV"
        words += " " if match.groupdict().get("letter") else ""
        return f"{self._g.version} {words}" if named and self._g.version else words

    def _word_and_version(self, match: re.Match[str]) -> str:
        if self._g.tag == "en":
            return match.group()
        return f"{match['word']} {self._dotted(match['v'])}"

    def _abbreviation(self, match: re.Match[str]) -> str:
        written, text = match.group(), match.string
        words = self._g.abbreviations[written]
        rest = text[match.end() :]
        if len(written) == 2 and written[1] == "." and not re.match(r" [^\W_]", rest):
            return written  # an initial, or the last letter of a code
        if written in ("No.", "no.") and not rest.strip():
            return written
        if written.endswith(".") and not rest.strip() and text[: match.start()].strip():
            return words + "."
        if written in ("No.", "no.", "Nos.", "nos.", "min.", "Sat.", "Sun.", "sec.", "fig.") and not re.match(
            r" ?\d", rest
        ):
            return written if written in ("No.", "no.", "Nos.", "nos.") else words
        return words

    def _operation(self, match: re.Match[str]) -> str:
        sign = match["op"].strip().replace("/", "÷")
        word = self._g.minus if sign in "-−" else self._g.symbols[sign]
        return f"{self._number(match['n'])} {word} "

    def _by(self, match: re.Match[str]) -> str:
        """Read the sign between two lengths. What follows it is left to the rules for measures."""
        first = match["n"] + match["unit"] if match["unit"] else self._number(match["n"])
        if re.match(r"[\d.,]+ ?=", match.string[match.end() :]) or _PRODUCT.search(match.string):
            return f"{first} {self._g.symbols['×']} "
        return f"{first} {self._g.symbols.get('by', self._g.symbols['×'])} "

    def _price_per(self, match: re.Match[str]) -> str:
        """Read the slash of "$0.02/1k tokens"."""
        return f"{match['price']} {'per' if self._g.tag == 'it' else self._g.per} "

    def _per_time(self, match: re.Match[str]) -> str:
        stop = "." if match.group().endswith(".") and match["end"] is not None else ""
        return f" {self._g.per} {self._g.units['h' if match['h'] else 'min'].one}{stop}"

    def _range(self, match: re.Match[str]) -> str:
        ends = (match["n"], match["n2"])
        if all(len(n) == 5 and n.isdigit() and not n.endswith("00") for n in ends):  # postal codes
            return f" {self._g.to} ".join(map(self._spell, ends))
        if all(len(n) == 4 and n.isdigit() for n in ends) and not all(map(self._is_year, ends)):
            if int(ends[1]) <= int(ends[0]) or not any(n.endswith("0") for n in ends):
                return ", ".join(map(self._spell, ends))  # a phone number; a range rises
        if all(map(str.isdigit, ends)) and len(ends[0]) > 4 and int(ends[1]) < int(ends[0]):
            return ", ".join(map(self._spell, ends))  # "12345-6", an account with its check digit
        words = [self._g.year(int(n)) if self._is_year(n) else self._number(n) for n in ends]
        return f"{words[0]} {self._g.to} {words[1]}"

    def _ratio(self, match: re.Match[str]) -> str:
        to = self._g.symbols["over"] if self._g.tag == "de" else self._g.to
        return f"{self._number(match['n'])} {to} {self._number(match['n2'])}"

    def _plain(self, match: re.Match[str]) -> str:
        number = match["n"]
        if self._is_year(number) and not match["sign"]:
            return self._g.year(int(number))
        following = _NOUN.match(match.string, match.end()) if self._feminine is not None else None
        if following is None or self._not_counted.fullmatch(following[1]):
            return self._signed(match, self._number(number))
        assert self._feminine is not None
        gender: Gender = "f" if self._feminine.fullmatch(following[1]) else "m"
        return self._signed(match, self._number(number, gender, noun=True))
