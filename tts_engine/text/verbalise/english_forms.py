"""Written forms that only English has, apart from those of the calendar and of places: money, sizes, names, files."""

from __future__ import annotations

import re

from tts_engine.text.verbalise import english_calendar, english_places
from tts_engine.text.verbalise.grammar import Grammar, Noun
from tts_engine.text.verbalise.numbers import DASH, Rule, any_of, roman

_WEEKDAYS = {
    "M": "Monday", "T": "Tuesday", "Tu": "Tuesday", "W": "Wednesday", "Th": "Thursday", "F": "Friday", "Sa": "Saturday", "Su": "Sunday",
}  # fmt: skip
_MANY = {2: "hundreds", 3: "thousands", 4: "tens of thousands", 5: "hundreds of thousands", 6: "millions"}
"""Words for "1,000s of", by the number of zeros."""
_BEFORE_CODE = {
    "ref": "reference", "acct": "account", "conf": "confirmation", "appt": "appointment", "tel": "telephone",
    "ext": "extension",
}  # fmt: skip
_PRICED = (
    "bills?|notes?|coins?|gift|coupons?|vouchers?|credits?|deposits?|fees?|co-?pays?|copayments?|deductibles?|minimums?|maximums?|"
    "repair|upgrade|prize|reward|donation|estimate|quote|meal|menu|pass|membership|premium|loan|limits?|discounts?|rebates?|bonus|shipping|delivery|tip|check|cashback|surcharge|plan|tickets?|charges?|penalty|fine|refund|payment|purchase|order|"
    "transfer|wire|withdrawal|(?:annual|monthly|late|service|cancellation|delivery|cover|down|reconnect|resort|booking) "
    "(?:fees?|charges?|plans?|payments?|premiums?|deductibles?|surcharges?|limits?)"
)
"""Words after a price that says of which kind they are: "your $25 copay"."""


def _joint(mark: str) -> str:
    """Return the word for the mark between two sizes: ``8' x 10'``, ``32"-34"``."""
    return "by" if mark.strip() in "x×" else "to"


def rules(grammar: Grammar) -> list[Rule]:
    """Return the rules for these forms. They come before those for dates."""

    def said(digits: str) -> str:
        return grammar.cardinal(int(digits), "m", False)

    def expiry(match: re.Match[str]) -> str:
        month, year = int(match["m"]), int(match["y"])
        if (
            not 1 <= month <= 12
            or year <= 31
            and not re.search(r"\b(?:card|visa|mastercard|amex|exp|expiration date|expiry)\b", match.string, re.I)
        ):
            return match.group()
        before = re.sub(r"^(e)xp\b\.?", r"\1xpires", match["before"], flags=re.I)
        return f"{before}{grammar.months[month - 1]} {grammar.year(2000 + year)}"

    def quoted(match: re.Match[str], marks: str) -> bool:
        """Return True if the mark ends a quotation."""
        if match.string[: match.start()].endswith(('"', "“", "„")):
            return True
        outside = re.sub(rf"(?<![\"“„\d.])\d+(?:\.\d+)?[{marks}]", "", match.string[: match.start() + 1])
        if marks[0] == "'":
            return re.search(r"(?<!\w)['‘][^'’]*$", outside) is not None
        return len(re.findall('["“”]', outside)) % 2 == 1

    def inches(match: re.Match[str]) -> str:
        if quoted(match, '"”″'):
            return match.group()
        if match["by"]:
            return f"{match['n']} inches {_joint(match['by'])} "
        one = re.match(
            r" (?!x\b|by\b|and\b|or\b|tall|wide|long|deep|high|thick|of\b|in\b|from|at\b)(?:\dK\b|[A-Za-z]{2,})",
            match.string[match.end() :],
        )
        return f"{match['n']} {'inch' if one or match['n'] == '1' else 'inches'}"

    def feet(match: re.Match[str]) -> str:
        if quoted(match, "'’′"):
            return match.group()
        return (
            f"{match['n']} feet {_joint(match['by'])} "
            if match["by"]
            else f"{match['n']} {'foot' if match['n'] == '1' else 'feet'}"
        )

    def pairs(digits: str) -> str:
        return (
            f"{said(digits[:2])} {'oh ' if digits[2] == '0' else ''}{said(digits[2:])}"
            if digits[2:] != "00"
            else f"{said(digits[:2])} hundred"
        )

    hour, minute, second = (grammar.units[name] for name in ("hr", "min", "sec"))

    def duration(match: re.Match[str]) -> str:
        parts = ((match["h"], hour), (match["m"], minute), (match["s"], second))
        words = " ".join(f"{said(n)} {noun.after(n)}" for n, noun in parts if n)
        # "a 1h 25m layover"
        one = re.search(r"\b[Aa]n? $", match.string[: match.start()]) and re.match(
            r" [a-z]{3,}", match.string[match.end() :]
        )
        return re.sub(r"(hour|minute|second)s\b", r"\1", words) if one else words

    def several(match: re.Match[str]) -> str:
        """Read people of an age: "under 16s", "for 0-4s"."""
        before, first = match["before"], match["from"]
        if not first and before[0] not in "UuOo":
            return match.group()
        words = re.sub(r"ys$", "ies", re.sub(r"xs$", "xes", f"{said(match['n'])}s"))
        return f"{before[: -len(first) - 1]}{said(first)} to {words}" if first else before + words

    def priced(match: re.Match[str]) -> str:
        unit, cent = grammar.currencies[match["cur"]]
        whole = (match["n"] or "0").replace(",", "")
        words = f"{said(whole)} {unit.one}"
        if whole == "0" and match["c"] and cent:
            return f"{said(match['c'])} {cent.one}"
        if match["c"] and int(match["c"]) and cent:
            words += f" {grammar.money_and} {said(match['c'])} {cent.one}"
        return words

    def power(match: re.Match[str]) -> str:
        sign = f"{grammar.minus} " if match["sign"] and match["sign"] in "-−" else ""
        return f"{match['n']} times ten to the power of {sign}{said(match['p'])}"

    def numeral(match: re.Match[str]) -> str:
        value = roman(match["roman"])
        before = match.string[: match.start()]
        if kings.search(before) is not None or re.search(r"\b[A-Z][a-z]+ $", before) is None:
            return match.group()
        if re.search(r"\b(?:Mr|Dr|Hon|Rev|Prof|Mister|Doctor|Reverend|Professor)\.? (?:[A-Z][\w.]* ){1,3}$", before):
            return f"the {grammar.ordinal(value, 'm')}"
        return grammar.cardinal(value, "m", False)

    def scale(match: re.Match[str]) -> str:
        return f"{match['n']} degrees {grammar.degrees[match['scale']]}"

    def singular(match: re.Match[str]) -> str:
        return f"{match['before'] or ''}{match['n']} {unit(match['unit']).one}"

    def unit(written: str) -> Noun:
        return grammar.units.get(written) or grammar.units[written.rstrip(".")]

    things = (
        "cans?|bottles?|cups?|glass(?:es)?|bags?|box(?:es)?|packs?|jars?|steaks?|packages?|ladders?|fence|containers?|tubs?|drinks?|"
        "run|walk|drive|hike|race|screens?|boards?|pole|rope|hose|cables?|cords?|bed|serving|mug|tank|trailer|truck|roll|tubes?|dose|"
        "delay|warranty|wait|flight|lesson|session|layover|trip|contract|subscription|term|loan|mortgage|lease|notice|class|course|shift|break|meeting|guarantee|"
        "chargers?|batter(?:y|ies)|bulbs?|adapters?|engines?|motors?|drives?|SSD|phones?|laptops?|tablets?|plans?|connection|kettles?"
    )
    sizes = "oz|oz\\.|lb|lb\\.|lbs|lbs\\.|ft|ft\\.|gal|gal\\.|qt|mi|km|kg|ml|hr|hr\\.|min|min\\.|fl oz|mg|GB|TB|MB|L|W|kW|V|Mbps|Gbps|mph|hp|in\\.|mo|mo\\.|yr|yr\\.|wk|acre|sq\\. ft\\.|sq ft"
    after_size = (
        "and|per|away|tall|wide|long|from|for|of|is|was|are|were|has|have|had|will|that|which|you|we|they|with|into|onto|over|under|"
        "before|after|early|late|ago|left|more|less|deep|high|thick|apart|remaining|each|every|but|when|until|because|so|then|can|may|"
        "free|total|max|min|she|his|her|their|the|this|those|between|during|since|whole"
    )
    kings = re.compile(rf"\b(?:{any_of(grammar.roman_before)}) $", re.I)
    screens = "TVs?|monitors?|displays?|videos?|screens?|UHD|HDR|resolution|cameras?|streaming|content|smart|OLED|QLED|LED|Ultra|Blu"
    return [
        (re.compile(r"\b(?P<name>(?:Table|Figure|Fig\.|Exhibit|Form|Appendix|Section|Exercise|Problem|Eq\.) \d{1,3})-(?=\d{1,3}\b)"), lambda m: f"{m['name']} dash ", "-"),
        # Codes that hold marks which later rules read.
        (re.compile(r"(?<=[a-z])\.?#(?=:? ?[\dA-Z])|(?<=[A-Z]{2})#(?=:? ?[\dA-Z])"), lambda _: " number ", "#"),
        (re.compile(rf"\b(?P<word>{any_of(_BEFORE_CODE)})\b\.?(?=:$|:? ?(?:#|number\b|[Nn]o\b|code\b|[A-Z]{{0,4}}-?\d))", re.I), lambda m: m["word"][0] + _BEFORE_CODE[m["word"].lower()][1:]),
        (re.compile(r"\b(?P<word>[Ff]lights?) (?P<air>[A-Z]{2}|[A-Z]\d|\d[A-Z]) (?P<n>[1-9]\d{2,3})\b(?![.,:/-]\d)"), lambda m: f"{m['word']} {m['air'] if m['air'].isalpha() else ' '.join(grammar.digits[int(c)] if c.isdigit() else c for c in m['air'])} {pairs(m['n']) if len(m['n']) == 4 else ' '.join(grammar.digits[int(d)] for d in m['n'])}"),
        (re.compile(r"\b(?P<n>480|720|1080|1440|2160)(?P<p>[pi])(?=\b|[36]0\b)"), lambda m: f"{pairs(m['n']) if len(m['n']) == 4 else said(m['n'][0]) + ' ' + said(m['n'][1:])} {m['p'].upper()}", "pi"),
        (re.compile(rf"(?<![\w.,$€£-])(?P<n>[24568]|1[026])K\b(?= (?:{screens})\b| ?(?:run|race|walk|fun run)\b)|(?<=\bin )(?P<n2>[2458])K\b"), lambda m: f"{said(m['n'] or m['n2'])} K", "K"),
        (re.compile(r"(?<![\w.,$€£-])(?P<n>[48])K\b(?=[,.;)]| ?@| and\b| or\b|$)"), lambda m: f"{said(m['n'])} K" if re.search(r"\b(?:HDMI|TVs?|UHD|Hz|[Vv]ideo|[Mm]onitor|[Ss]tream|[Rr]esolution|[Ss]creen|[Dd]isplay)", m.string) else m[0], "K"),
        (re.compile(r"(?<=\w) ?['’‘]n['’]? (?=\w)"), lambda _: " and ", "n"),
        (re.compile(r"(?<=\d{4}) x(?P<n>\d{1,5})\b(?! ?[x×])"), lambda m: f", extension {' '.join(grammar.digits[int(d)] for d in m['n'])}", "x"),
        (re.compile(r"(?<=\b[JS]r\. )Dr\b\.?"), lambda m: "Drive" + ("." if m[0].endswith(".") and not m.string[m.end() :].strip() else "")),
        (re.compile(r"(?<![\w.,:/$€£+#-])(?P<a>[45])0(?P<b>[1-9])(?![\w%-]|[.,:]\d)"), lambda m: f"{said(m['a'])} oh {said(m['b'])}" if re.search(r"\b(?:error|HTTP|status code)", m.string) or m.string[: m.start()].endswith((" a ", " the ")) and re.match(r"[.,;!?]|$", m.string[m.end() :]) else m[0], "0"),
        (re.compile(r"\b(?P<what>(?i:tax|taxes|VAT|GST|fees|breakfast|shipping|parking|tip|service)) incl\.(?P<end>$)?(?! [a-z])"), lambda m: f"{m['what']} included" + ("" if m["end"] is None else "."), "."),
        (re.compile(r"(?<=\d )(?P<what>ppl|pkgs)\b"), lambda m: "people" if m["what"] == "ppl" else "packages", "p"),
        (re.compile(r"(?<![\w.,/])(?P<part>[¼½¾]|1/4|1/2|3/4)-(?P<unit>lb|oz|in|mi|gal)\b\.?(?= [a-z])"), lambda m: f"{({'¼': 'quarter', '½': 'half', '¾': 'three quarter', '1/4': 'quarter', '1/2': 'half', '3/4': 'three quarter'})[m['part']]} {grammar.units['in.' if m['unit'] == 'in' else m['unit']].one}", "-"),
        (re.compile(r"(?<=\d)[ -]?(?P<room>BR|BDR|BD|BA)\b"), lambda m: " bath" if m["room"] == "BA" else " bedroom", "B"),
        (re.compile(r"(?P<unit>\bmpg|miles per gallon) hwy\b"), lambda m: f"{m['unit']} highway", "h"),
        (re.compile(r"½-(?=price|day|hour|off|size|board|term|marathon)"), lambda _: "half-", "½"),
        (re.compile(r"\b501\(c\)(?:\((?P<n>\d{1,2})\))?"), lambda m: "five oh one C" + (f" {said(m['n'])}" if m["n"] else ""), "("),
        (re.compile(r"\b(?P<the>[Tt]he) (?P<h>[01]?\d|2[0-3])\.(?P<m>[0-5]\d)(?=[.,;!?]|$| (?:from|to|train|service|departure|is)\b)"), lambda m: f"{m['the']} {m['h']}:{m['m']}" if re.search(r"\b(?:trains?|tickets?|platform|rail|depart\w*|cancelled|delayed|from [A-Z])", m.string) else m[0], "."),
        (re.compile(r"(?<![\w.,])(?P<h>[5-9]|1\d|2[0-3])h(?P<m>[0-5]\d)\b"), lambda m: f"{m['h']}:{m['m']}", "h"),
        (re.compile(r"\b(?P<h>1[0-2]|[1-9])/(?P<h2>1[0-2]|[1-9])c\b"), lambda m: f"{said(m['h'])}, {said(m['h2'])} Central", "c"),
        (re.compile(r"\bbtw (?=\d)"), lambda _: "between ", "b"),
        (re.compile(r"(?<=\d) pp\.(?P<end>$)?(?=\W|$)"), lambda m: " per person" + ("" if m["end"] is None else "."), "p"),
        (re.compile(r"\bincl\.(?=[?!])"), lambda _: "included", "."),
        (re.compile(r"(?P<place>\b(?i:route|bus|line|train|tram|model) )(?P<n>\d{1,3})X\b"), lambda m: f"{m['place']}{said(m['n'])} X", "X"),
        (re.compile(r"\b(?P<beds>[1-6])/(?P<baths>[1-4](?:\.5)?) (?=house|home|condo|town ?house|apartment|bungalow|ranch)"), lambda m: f"{m['beds']} {m['baths']} ", "/"),
        (re.compile(r"\b(?P<what>(?i:floors|rooms|gates|platforms|tracks|lanes|doors|units|bays)) (?P<n>\d{1,3})/(?P<n2>\d{1,3})(?![\w/])"), lambda m: f"{m['what']} {said(m['n'])} and {said(m['n2'])}", "/"),
        (re.compile(r"\bft[-·]lbs?\b"), lambda _: "foot pounds", "f"),
        (re.compile(r"\bI (?P<and>&|and|or) II\b"), lambda m: f"one {'or' if m['and'] == 'or' else 'and'} two", "I"),
        (re.compile(r"\bYr\. (?=\d)"), lambda _: "Year ", "Y"),
        (re.compile(r"\b(?:M|Tu|T|W|Th)(?:/(?:Tu|W|Th|F|Sa|Su))+\b"), lambda m: ", ".join(_WEEKDAYS[day] for day in m[0].split("/")), "/"),
        (re.compile(r"(?P<before>\b(?:odds|settled|priced|bet)\b[^.!?\d]{0,12} )(?P<n>\d{1,3})/(?P<n2>\d{1,3})(?![\w/]|[.,]\d)"), lambda m: f"{m['before']}{said(m['n'])} to {said(m['n2'])}", "/"),
        (re.compile(r"(?P<before>\b[Nn]umber(?: is|:)? )#(?=[A-Z\d])"), lambda m: m["before"], "#"),
        (re.compile(r"(?P<before>\b(?:[Uu]nder|[Oo]ver|[Ff]or|[Kk]ids|[Cc]hildren|[Aa]ges|[Aa]dults|&|and)[ -](?:(?P<from>\d{1,2})[-–])?)(?P<n>\d{1,2})s(?=[.,;!?)]|$| (?!and \d|of\b|before|after|ago|left|delay|wait|long)[a-z])"), several, "s"),
        (re.compile(r"\b(?P<g>AB|[ABO])(?P<sign>[-−+])(?=[\s.,;!?)]|$)"), lambda m: f"{m['g']} {'positive' if m['sign'] == '+' else 'negative'}" if re.search(r"\bblood\b", m.string) else m[0], "-−+"),
        (re.compile(r"(?<=\d)\+ (?P<unit>min|hr)\b\.?(?P<end>$)?"), lambda m: f" plus {'minutes' if m['unit'] == 'min' else 'hours'}" + ("" if m["end"] is None else "."), "+"),
        (re.compile(r"\b(?P<before>from|at|on|to) pl\. (?=\d)"), lambda m: f"{m['before']} platform ", "."),
        (re.compile(r"(?P<price>[$€£]\d[\d.,]*) ?pp\b\.?(?P<end>$)?"), lambda m: f"{m['price']} per person" + ("." if m[0].endswith(".") and m["end"] is not None else ""), "p"),
        (re.compile(r"\b(?P<before>every|each|per) (?:1/2|½) (?=hour|mile|day|month)"), lambda m: f"{m['before']} half "),
        (re.compile(r"(?<![\w.,$€£#-])(?:1234|4321|0000|1111)(?![\w%]|[.,]\d)"), lambda m: " ".join(grammar.digits[int(d)] for d in m[0]) if re.search(r"\b(?:PIN|[Pp]ass(?:code|word)|[Cc]ode|digits)\b", m.string) else m[0]),
        (re.compile(r"\b(?P<form>1099|1098|1040|1095)(?= forms?\b)"), lambda m: pairs(m["form"]), "9408"),
        (re.compile(r"§{2,} ?(?=\w)"), lambda _: "sections ", "§"),
        (re.compile(r"\b(?P<name>RTX|GTX|RX|Ryzen [3579]|Amtrak|LaserJet|OfficeJet|DeskJet|Latitude|Inspiron) (?P<n>[1-9]\d(?!00)\d\d)(?!\w|[.,:]\d)"), lambda m: f"{m['name']} {pairs(m['n'])}"),
        (re.compile(r"(?P<before>\b(?:[Aa]|[Tt]he|[Tt]his|[Oo]ur|[Yy]our|[Aa]nnual|[Cc]harity|[Vv]irtual|[Rr][au]n) )(?P<n>5|10|15)K(?=[.,;!?)]|$| (?:is|was|starts|begins|on|at|in|this|and|course|route)\b)"), lambda m: f"{m['before']}{said(m['n'])} K", "K"),
        (re.compile(r"(?P<before>\b(?:ending|ends|ended|card|account|acct\.?)(?: (?:in|with|number|is))? )x(?=\d{3,5}\b)", re.I), lambda m: m["before"], "x"),
        (re.compile(r"(?<=[a-z] )x(?P<n>\d{3,5})\b(?! ?[\d.,%]\d)"), lambda m: f"extension {' '.join(grammar.digits[int(d)] for d in m['n'])}", "x"),
        (re.compile(r"(?<=\d) [x×] (?=[$€£]\d)|(?<=[a-z]) [x×] (?=\d+ (?:days?|weeks?|months?|years?|hours?|doses?)\b)"), lambda _: " × ", "x×"),
        (re.compile(r"\b(?<!\d )(?<!\d-)(?P<thing>[a-z]{4,}) [x×] (?=\d{1,3}\b)"), lambda m: f"{m['thing']} × ", "x×"),
        (re.compile(r"(?<=\d)[- ]?(?P<unit>ct|pk)\b(?:\.(?=.))?"), lambda m: " count" if m["unit"] == "ct" else " pack", "kc"),
        (re.compile(r"(?P<word>\b(?i:dial|press|enter|hit) )#(?P<n>\d{1,6})\b"), lambda m: f"{m['word']}{grammar.pound} {' '.join(grammar.digits[int(d)] for d in m['n'])}", "#"),
        (re.compile(r"\b([Ee])xp\. (?=date\b)"), lambda m: f"{m[1]}xpiration ", "."),
        (re.compile(r"(?<![\w.,$€£])(?P<n>100|10{0,2},?000|1,000,000)['’]?s(?= of\b)"), lambda m: _MANY[m["n"].count("0")], "0"),
        (re.compile(r"\b(?P<n>9|1[0458]|2[24])[Kk]t?\b(?= (?:(?:white|yellow|rose|solid) )?gold)"), lambda m: f"{said(m['n'])} karat", "Kk"),
        (re.compile(r"\breg\. (?=[$€£]\d)"), lambda _: "regular ", "."),
        (re.compile(r"(?P<before>\b(?:[Aa]n?|[Tt]he) )(?P<n>\d{1,3})° (?=[a-z]{3,})"), lambda m: f"{m['before']}{m['n']} degree ", "°"),
        (re.compile(r"(?<=[A-Za-z]) ?#(?=:| (?:is|was|for|on)\b)"), lambda _: " number", "#"),
        (re.compile(r"(?<![\w#])# (?=of [a-z])"), lambda _: "number ", "#"),
        (re.compile(r"(?<=[a-z] )[Nn]o\.(?=:)"), lambda _: "number", ":"),
        (re.compile(r"\b(?P<word>[Ee]rror(?: code)?:?) (?P<n>[1-9]0[1-9])\b(?!-|[.,:]\d)"), lambda m: f"{m['word']} {said(m['n'][0])} oh {said(m['n'][2])}", "0"),
        (re.compile(r"(?<=\b(?:not|are) )incl\.|(?<=\bis )incl\."), lambda _: "included", "."),
        (re.compile(r"(?<=\d)[- ]?(?:yr|y/o|yo)[. -]{0,2}old\b"), lambda _: " year old", "y"),
        (re.compile(r"(?<=\b(?:call|dial) )x(?P<n>\d{1,5})\b"), lambda m: f"extension {' '.join(grammar.digits[int(d)] for d in m['n'])}", "x"),
        (re.compile(r"\b(?P<word>[Nn]umber|[Nn]o\.) (?P<n>\d{4,6})(?![\w%-]|[.,:]\d)"), lambda m: f"{m['word'][0]}umber {' '.join(grammar.digits[int(d)] for d in m['n'])}"),
        (re.compile(r"(?<=[a-z] )[Nn]o\. (?=[A-Z]{1,4}-?\d)"), lambda _: "number ", "."),
        (re.compile(r"(?<=\d%)(?=[a-z])"), lambda _: " ", "%"),
        (re.compile(r"\b(?P<word>Vol|Ch|Sec|Art)\. (?=[IVX]+\b)"), lambda m: {"Vol": "Volume ", "Ch": "Chapter ", "Sec": "Section ", "Art": "Article "}[m["word"]], "."),
        (re.compile(r"(?<=\d)\* ?(?=(?:hotels?|resorts?|ratings?|reviews?)\b)"), lambda _: " star ", "*"),
        (re.compile(r"(?<![\w#])#s(?= ?\d)"), lambda _: "numbers", "#"),
        (re.compile(r"\b(?P<word>[Oo]pt|Prop\.|Pct) (?=\d)"), lambda m: {"o": "option ", "O": "Option ", "P": "Proposition "}.get(m["word"][0], "") if m["word"] != "Pct" else "Precinct "),
        (re.compile(r"(?P<price>[$€£]\d[\d.,]*(?:/[a-z]+\.?)?) [x×] (?=\d)"), lambda m: f"{m['price']} × ", "x×"),
        (re.compile(r"\b802\.(?P<n>\d{1,2})(?P<letters>[a-z]{0,2})\b"), lambda m: f"eight oh two dot {said(m['n'])} {' '.join(m['letters'].upper())}".rstrip(), "."),
        (re.compile(r"\b(?P<l>[A-Z])\.(?P<n>\d{3})\b"), lambda m: f"{m['l']} {' '.join(grammar.digits[int(d)] for d in m['n'])}", "."),
        (re.compile(r"\b(?P<air>[Bb]oeing )?7(?P<b>[0-8]7)(?:-(?P<c>[1-9])(?P<d>00)?\b(?![-/]\d)|(?(air)\b(?!-)|(?!)))"), lambda m: f"{m['air'] or ''}seven {'oh ' if m['b'][0] == '0' else ''}{said(m['b'])}" + (f" {said(m['c'])}{' hundred' if m['d'] else ''}" if m["c"] else ""), "7"),
        (re.compile(r"\bF-(?P<n>[1-9])50\b"), lambda m: f"F {said(m['n'])} fifty", "F"),
        (re.compile(r"(?<=\b[CF])#(?!\w)"), lambda _: " sharp", "#"),
        (re.compile(r"(?P<before>\b(?:[Gg]rades?|[Tt]ype|[Bb]lood(?: type)?|[Aa]|[Aa]n|is|of) )(?P<g>AB|[A-DFO])[-−](?=$|[\s.,;!?)])"), lambda m: f"{m['before']}{m['g']} minus", "-−"),
        (re.compile(r"(?P<before>\b(?:[Gg]rades?|[Ll]evels?|[Ff]loors?) |\b[Pp]re-?)(?P<k>K|[A-Z])[-–](?=\d)"), lambda m: f"{m['before']}{m['k']} to ", "-–"),
        (re.compile(r"(?<![\w.,])(?P<n>\d\.\d+(?=[eE])|\d(?=[eE][-−+]))[eE](?P<sign>[-−+])?(?P<p>\d{1,2})\b"), power, "eE"),
        # What a number with its unit tells of a thing: "a 2 lb bag", "16 oz cans".
        (re.compile(rf"(?<![\w.,/-])(?P<before>)(?P<n>\d{{1,3}}(?:,\d{{3}})+|\d{{1,4}}(?:\.\d+)?)[ -]?(?P<unit>{sizes})(?= (?:{things})\b)"), singular),
        (re.compile(rf"(?P<before>\b(?:[Aa]n?|[Tt]h(?:e|is|at)|[Yy]our|[Oo]ur|[Mm]y|[Ee](?:ach|very)|[Nn]ew) )(?P<n>\d{{1,3}}(?:,\d{{3}})+|\d{{1,4}}(?:\.\d+)?) ?(?P<unit>{sizes})(?= (?:[A-Z]+\d[\w-]* )?(?!(?:{after_size})\b)[a-z]{{3,}})"), singular),
        (re.compile(r"\b(?P<word>(?i:attempt|step|part|page|box|package|parcel|item|stop|day|question|try|round|game|piece|bag|message|slide)) (?P<n>\d{1,2})/(?P<n2>\d{1,3})(?![\w/]|[.,]\d)"), lambda m: f"{m['word']} {said(m['n'])} of {said(m['n2'])}", "/"),
        (re.compile(r"(?<![\w-])(?P<n>\d{1,3})(?P<l>(?![KMB])[A-Z]|B(?=[-–]\d+[A-J]))[-–](?P<n2>\d{1,3})(?P<l2>(?![KM])[A-Z])(?![\w-])"), lambda m: f"{said(m['n'])} {m['l']} to {said(m['n2'])} {m['l2']}", "-–"),
        (re.compile(r"\b(?P<first>he|his|him|she|hers?|yes)/(?=(?:she|hers?|he|him|his|they|their|them|no)\b)", re.I), lambda m: f"{m['first']} or ", "/"),
        (re.compile(r"(?<=[a-z])/(?P<unit>hr|yr|mo|wk)\b\.?(?!\w)"), lambda m: f" per {grammar.units[m['unit']].one}", "/"),
        (re.compile(r"\bq(?P<n>\d{1,2})(?P<unit>h|d|w)\b"), lambda m: f"every {said(m['n'])} {({'h': 'hour', 'd': 'day', 'w': 'week'}[m['unit']])}s", "q"),
        (re.compile(r"\b[Ee]st\. (?=(?:1[5-9]\d\d|20[0-2]\d)\b)"), lambda m: f"{m[0][0]}stablished ", "."),
        # Durations, years, forms.
        (re.compile(r"(?<![\w.,-])(?:(?P<h>\d{1,3})h ?(?P<m>\d{1,2})m(?: ?(?P<s>\d{1,2})s)?)\b"), duration, "h"),
        (re.compile(r"(?<![\w.,-])(?P<h>(?!))?(?P<m>\d{1,3})m ?(?P<s>\d{1,2})s\b"), duration, "m"),
        (re.compile(r"\b(?P<word>[Ff]orm|IRS|[Yy]our|[Aa]|[Tt]he|[Tt]ax) (?P<n>1[01]\d[1-9]|10[1-9]0)\b(?=[-\s.,;?!]|$)(?![,.]\d| ?[%$€£]| [a-z]+s\b)(?<=10[4-9]\d)"), lambda m: f"{m['word']} {pairs(m['n'])}"),
        (re.compile(r"\b(?P<word>[Ff]orm|IRS) (?P<n>[1-9]\d[1-9]\d|[1-9]\d0[1-9])\b(?![\w,.]\d)"), lambda m: f"{m['word']} {pairs(m['n'])}"),
        (re.compile(r"\b(?P<word>[Tt]rain) (?P<n>[1-9]\d(?!00)\d\d)\b(?![\w,.:]\d)"), lambda m: f"{m['word']} {pairs(m['n'])}"),
        # Sides of a thing: 48"W x 24"D x 30"H.
        (re.compile(r"(?<![\d.,])(?P<n>\d{1,3}(?:\.\d{1,2})?) ?(?:[\"”″]|in\.?) ?(?P<side>[WDHL])\b(?P<by> ?[x×] ?(?=\d))?"), lambda m: f"{m['n']} inches {({'W': 'wide', 'D': 'deep', 'H': 'high', 'L': 'long'})[m['side']]}{' by ' if m['by'] else ''}", "WDHL"),
        (re.compile(r"\bFY ?(?P<y>(?:19|20)\d\d)\b"), lambda m: f"F Y {grammar.year(int(m['y']))}", "Y"),
        (re.compile(r"(?<=[a-z] )[Nn]o\. (?=(?:is|was|on|for|of|ending|ends|below|above|you|starts|begins|shown)\b)"), lambda _: "number ", "."),
        (re.compile(r"\b([Pp])g?\. ?(?=\d)"), lambda m: f"{m[1]}age ", "."),
        (re.compile(r"\bArt\. ?(?=\d)|\bSec (?=\d)"), lambda m: "Article " if m[0][0] == "A" else "Section ", "AS"),
        (re.compile(r"\b([Nn])o\.(?=\d)"), lambda m: f"{m[1]}umber ", "."),
        (re.compile(r"\b([Ss]eats|[Rr]ows|[Gg]ates|[Ss]ections|[Ll]ines|[Oo]ptions|[Tt]erminals|[Zz]ones|[Gg]roups|[Tt]racks|[Hh]alls|[Bb]uildings|[Ww]ings|[Ss]tudios|[Bb]locks|[Uu]nits|[Dd]oors|[Vv]itamins) ([A-Z]) ?[-–] ?([A-Z])\b"), lambda m: f"{m[1]} {m[2]} to {m[3]}", "-–"),
        (re.compile(r"(?<![\w-])(?P<l>[A-Z])(?P<n>\d{1,3})[-–](?P=l)(?P<n2>\d{1,3})(?![\w-])"), lambda m: f"{m['l']} {said(m['n'])} to {m['l']} {said(m['n2'])}" if int(m["n2"]) > int(m["n"]) else m[0], "-–"),
        # Sizes.
        (re.compile(r"(?<![\w./,-])(?P<n>\d{1,3}(?:\.\d)?)[-–](?=\d{1,3}(?:\.\d)?[\"”″](?!\w))"), lambda m: f"{m['n']} to ", '"”″'),
        (re.compile(r"\b(?P<s>X*S|M)[-–](?=(?:\dX|X+)?L\b)"), lambda m: f"{m['s']} to ", "L"),
        (re.compile(r"(?<![\w.,])(?P<n>\d)x(?P<n2>\d\d?)s\b"), lambda m: f"{said(m['n'])} by {re.sub('x$', 'xe', said(m['n2']))}s", "x"),
        (re.compile(rf"(?<![\w./,-])(?P<n>\d{{1,3}}){DASH}(?=\d{{1,3}} \d{{1,2}}/\d{{1,2}}(?![\w/]))"), lambda m: f"{said(m['n'])} to ", "/"),
        (re.compile(r"(?<![\w./,-])(?P<n>\d{1,2})-(?P<over>\d{1,2})/(?P<under>[2348]|16)(?![\w/])"), lambda m: f"{m['n']} {m['over']}/{m['under']}" if int(m["over"]) < int(m["under"]) else m[0], "/"),
        (re.compile(r"(?:(?<![\w.'’′-])|(?<=[\"”″][x–-]))(?<!\d['’′] )(?P<n>\d{1,3}(?:\.\d{1,2})?(?: \d/\d{1,2})?)[\"”″](?:(?P<by> ?[x×–-] ?(?=\d))|(?!\w))"), inches, '"”″'),
        (re.compile(r"(?:(?<![\w.'’′-])|(?<=['’′][x–-]))(?P<n>\d{1,3}(?:\.\d{1,2})?)['’′](?:(?P<by> ?[x×–-] ?(?=\d))|(?![\w'’]| ?\d))"), feet, "'’′"),
        (re.compile(r"(?<=\d ft )(?P<n>\d{1,2}) in\b(?!\.)"), lambda m: f"{m['n']} {'inch' if m['n'] == '1' else 'inches'}", "f"),
        (re.compile(r"(?P<n>[x×] ?\d{1,3}(?:\.\d)?) in(?=$|\.$)"), lambda m: f"{m['n']} inches", "x×"),
        (re.compile(r"(?<=\d)-?ish\b"), lambda _: " ish", "i"),
        (re.compile(r"(?P<n>\d) ?MP(?= (?:cameras?|sensors?|photos?|lens|main|ultra|selfie|front|rear)\b)"), lambda m: f"{m['n']} megapixel", "M"),
        (re.compile(r"\b(?P<n>\d{1,2})W-(?P<n2>\d{2})\b"), lambda m: f"{said(m['n'])} W {said(m['n2'])}", "W"),
        (re.compile(r"(?<=[½⅓⅔¼¾]) ?[x×] ?(?=\d)"), lambda _: " by ", "½⅓⅔¼¾"),
        (re.compile(r"(?<=\d)in\b(?!\.\w)"), lambda _: " inches", "i"),
        (re.compile(r"(?<![\w.,:])(?P<n>\d{1,3}(?:\.\d{1,2})?(?:[ -]\d/\d{1,2})?) in(?=[,;)]| (?:x|by|wide|tall|long|deep|high|thick)\b)"), lambda m: f"{m['n']} {'inch' if m['n'] == '1' else 'inches'}"),
        (re.compile(r"(?<![\w.,-])(?P<n>[-−]?\d{1,3}\.\d) ?(?P<scale>[CF])\b"), scale, "CF"),
        (re.compile(r"(?<![\w.,-])(?P<n>[-−]?\d{1,3}) ?(?P<scale>[CF])\b(?<!\bseat \d\d[CF])(?=(?:[^.]|\.\d)*\b(?:oven|bake|outside|fever|heat|temp|temperature|degrees|sunny|cloudy|rain|snow|minutes)\b)"), scale, "CF"),
        (re.compile(r"(?<![\w.,/-])(?P<n>6[1-9]|[7-9]\d|[1-5]\d\d) ?(?P<scale>F)\b(?![-.'’]\w)"), scale, "F"),
        (re.compile(r"\b(?:[Dd]eg(?:rees)?|(?P<one>degree))\.? (?P<scale>[CF])\b"), lambda m: f"{m['one'] or 'degrees'} {grammar.degrees[m['scale']]}"),
        # Keys of a keyboard.
        (re.compile(r"\b(Ctrl|Cmd|Esc|Opt)(?= ?\+|\b)"), lambda m: {"Ctrl": "Control", "Cmd": "Command", "Esc": "Escape", "Opt": "Option"}[m[1]], "CEO"),
        (re.compile(r"(?<=\+)(?: ?)(Del|Ins|PrtSc)\b"), lambda m: {"Del": " Delete", "Ins": " Insert", "PrtSc": " Print Screen"}[m[1]], "+"),
        (re.compile(r"\b(?P<before>(?:expir\w*|exp\.?|valid (?:thru|through|until))(?: date)?:?(?: (?:is|on|in|of))? )(?P<m>\d\d)/(?P<y>\d\d)(?![\w/])", re.I), expiry, "/"),
        (re.compile(r"(?<=\bor )(?:[2-9]11|988|999|112)(?![\w%]|[.,:]\d| [a-z]+s\b)|(?<![\w.,:/$€£+#-])911(?![\w%-]|[.,:]\d| (?!calls|operators|services|dispatchers)[a-z]+s\b)"), lambda m: " ".join(grammar.digits[int(d)] for d in m[0]), "189"),
        (re.compile(r"\b(?P<word>account|acct\.?|order|policy|invoice|reference|ref\.?|case|ticket|claim|member|serial|flight|bus|room|tracking|confirmation|booking|reservation|plate|model|part|routing|id|customer|loan|prescription|Rx|receipt|meter|permit|license|licence|file) [Nn]o\. ?(?=[\dA-Z])", re.I), lambda m: f"{m['word']} number ", "."),
        # Amounts in the form of continental Europe: "5 000,50 €", "1.234,56".
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3}(?:[ .]\d{3})+,\d{1,2}|\d+,\d{2}(?= ?€)|(?<=[€£])\d+,\d{2}|(?<=€ )\d+,\d{2})(?!\w|[.,]\d)"), lambda m: re.sub(r"[ .]", "", m["n"]).replace(",", "."), ","),
        (re.compile(r"(?<![\w.,])(?P<n>\d{1,3}(?:[ .]\d{3})+)(?= ?€(?!\d))"), lambda m: re.sub(r"[ .]", "", m["n"]), "€"),
        (re.compile(r"[$€£](?P<n>\d[\d.,]*(?: (?:thousand|million|billion))?) (?:dollars|euros|pounds)\b"), lambda m: m[0].rpartition(" ")[0], "$€£"),
        (re.compile(r"(?<![\w.,-])\d{1,3}(?: \d{3})* 000(?! ?[\d€$£])"), lambda m: said(m.group().replace(" ", "")), "0"),
        (re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\w]|[.,]\d)"), lambda m: said(m[0].replace(".", "")), "."),
        # Money.
        (re.compile(r"\b(?P<cur>AUD|CAD|NZD|HKD|SGD|USD|MXN) ?\$ ?(?=\d)"), lambda m: f"{m['cur']} ", "$"),
        (re.compile(rf"(?<![\w-])(?P<cur>[$€£])(?:(?P<n>\d{{1,3}}(?:,\d{{3}})*|\d+)|(?=\.))(?:\.(?P<c>\d\d))?(?= (?:[A-Z]{{2,5}} )?(?:{_PRICED})\b)(?! (?:charges?|fees?|order|payment|purchase) (?:of|for|from)\b)"), priced, "$€£"),
        (re.compile(r"(?<=\d) ?/ ?ea\b\.?|(?<=\d) ea\b\.?"), lambda _: " each", "a"),
        (re.compile(r"\bper (?P<unit>hr|yr|mo|wk|min|sec|lb|oz|gal|mi|km|kg|sq ft|kWh|kW|GB|MB|TB|mL|mg|dL)\b\.?(?!\w)"), lambda m: f"per {grammar.units[m['unit']].one}" + ("." if m[0].endswith(".") and not m.string[m.end() :].strip() else "")),
        (re.compile(r"(?<=\d) ?bps\b"), lambda _: " basis points", "b"),
        (re.compile(r"(?<=\d) ?pp\b(?!\.)"), lambda _: " percentage points", "p"),
        (re.compile(r"\b([Ss])q\. (?=[a-z]{4,})"), lambda m: f"{m[1]}quare ", "."),
        (re.compile(r"\b([Vv]ersion|[Rr]elease) v(?=\d)"), lambda m: f"{m[1]} ", "v"),
        (re.compile(r"(?<![\w/.-])v\.?(?=\d+\b(?![.,]\d))"), lambda _: "version ", "v"),
        (re.compile(r"(?<=[a-z] )v\. (?=[A-Z])"), lambda _: "versus ", "v"),
        *english_places.rules(grammar),
        *english_calendar.rules(grammar),
        (re.compile(r"(?<=[a-z] )(?P<roman>II|III|VII|VIII|IX|XI|XII|XIII)\b(?![.'’]\w)"), numeral, "I"),
        (re.compile(r"\b40([13])\(?([kKbB])\)?(?!\w)"), lambda m: f"four oh {grammar.digits[int(m[1])]} {m[2].upper()}", "4"),
        (re.compile(r"\b529(?= (?:plan|account|savings)\b)"), lambda _: "five twenty-nine", "5"),
        (re.compile(r"(?<=\w)\.(?=(?:txt|pdf|docx?|xlsx?|pptx?|jpe?g|png|gif|csv|zip|mp[34]|html?|json|xml|exe)\b)"), lambda _: " dot ", "."),
    ]  # fmt: skip
