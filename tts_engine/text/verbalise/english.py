"""English words (American: the month comes before the day)."""

from __future__ import annotations

from tts_engine.text.verbalise.grammar import Gender, Grammar, Noun

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = (
    "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
).split()
_IRREGULAR = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
MONTHS = "January February March April May June July August September October November December".split()


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    parts = [f"{_ONES[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        parts.append(_TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else ""))
    elif rest or not hundreds:
        parts.append(_ONES[rest])
    return " ".join(parts)


def cardinal(number: int, gender: Gender = "m", before_noun: bool = False) -> str:
    """Return the name of a number."""
    if number < 1000:
        return _below_thousand(number)
    parts, scale = [], 0
    while number:
        number, group = divmod(number, 1000)
        if group:
            parts.append(_below_thousand(group) + (f" {_SCALES[scale - 1]}" if scale else ""))
        scale += 1
    return " ".join(reversed(parts))


def ordinal(number: int, gender: Gender = "m") -> str:
    """Return "first", "twenty-second" ..."""
    words = cardinal(number)
    start = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[start:]
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    else:
        last = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return words[:start] + last


def year(number: int) -> str:
    """Return "nineteen ninety-nine", "two thousand five", "twenty twenty-five"."""
    century, rest = divmod(number, 100)
    if not 11 <= century <= 99 or century % 10 == 0 and rest < 10:
        return cardinal(number)
    if not rest:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def date(day: int, month: int, year_: int | None) -> str:
    """Return "March fourth, twenty twenty-five"."""
    return f"{MONTHS[month - 1]} {ordinal(day)}" + (f", {year(year_)}" if year_ is not None else "")


def time(hour: int, minute: int, second: int | None, half: str) -> str:
    """Return "nine oh five P.M.", "twelve o'clock"."""
    words = cardinal(hour)
    if second is not None:
        words += f"{' hour' if hour == 1 else ' hours'} {cardinal(minute)}{' minute' if minute == 1 else ' minutes'}"
        words += f" and {cardinal(second)}{' second' if second == 1 else ' seconds'}"
    elif not minute:
        words += "" if half else " hundred" if hour in (0, *range(13, 25)) else " o'clock"
    else:
        words += f" {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    return words + (f" {half.upper()}.M." if half else "")


_DENOMINATORS = (*range(2, 11), 12, 16, 20, 32, 64, 100)


def fraction(over: int, under: int) -> str | None:
    """Return "three quarters"."""
    if under not in _DENOMINATORS or not 0 < over < under * 4:
        return None
    if under == 2:
        return "one half" if over == 1 else f"{cardinal(over)} halves"
    name = "quarter" if under == 4 else ordinal(under)
    return f"{cardinal(over)} {name}{'' if over == 1 else 's'}"


def _unit(one: str, many: str = "") -> Noun:
    return Noun(one, many or one + "s")


_CENT, _PENNY = _unit("cent"), Noun("penny", "pence")
CURRENCIES: dict[str, tuple[Noun, Noun | None]] = {
    "$": (_unit("dollar"), _CENT), "US$": (_unit("dollar"), _CENT), "USD": (_unit("US dollar"), _CENT),
    "CA$": (_unit("Canadian dollar"), _CENT), "C$": (_unit("Canadian dollar"), _CENT),
    "CAD": (_unit("Canadian dollar"), _CENT), "A$": (_unit("Australian dollar"), _CENT),
    "AU$": (_unit("Australian dollar"), _CENT), "AUD": (_unit("Australian dollar"), _CENT),
    "NZ$": (_unit("New Zealand dollar"), _CENT), "NZD": (_unit("New Zealand dollar"), _CENT),
    "HK$": (_unit("Hong Kong dollar"), _CENT), "HKD": (_unit("Hong Kong dollar"), _CENT),
    "S$": (_unit("Singapore dollar"), _CENT), "SGD": (_unit("Singapore dollar"), _CENT),
    "MX$": (_unit("Mexican peso"), Noun("centavo", "centavos")),
    "MXN": (_unit("Mexican peso"), Noun("centavo", "centavos")),
    "R$": (Noun("real", "reais"), Noun("centavo", "centavos")),
    "BRL": (Noun("Brazilian real", "Brazilian reais"), Noun("centavo", "centavos")),
    "€": (_unit("euro"), _CENT), "EUR": (_unit("euro"), _CENT),
    "£": (_unit("pound"), _PENNY), "GBP": (_unit("British pound"), _PENNY),
    "¥": (Noun("yen", "yen"), None), "JPY": (Noun("Japanese yen", "Japanese yen"), None),
    "￥": (Noun("yuan", "yuan"), None), "CNY": (Noun("yuan", "yuan"), None), "RMB": (Noun("yuan", "yuan"), None),
    "₹": (_unit("rupee"), Noun("paisa", "paise")), "INR": (_unit("Indian rupee"), Noun("paisa", "paise")),
    "Rs.": (_unit("rupee"), Noun("paisa", "paise")), "Rs": (_unit("rupee"), Noun("paisa", "paise")),
    "₩": (Noun("won", "won"), None), "KRW": (Noun("Korean won", "Korean won"), None),
    "₽": (_unit("ruble"), _unit("kopeck")), "₺": (Noun("lira", "lira"), None), "₪": (_unit("shekel"), None),
    "₫": (Noun("dong", "dong"), None), "₱": (_unit("peso"), Noun("centavo", "centavos")),
    "₦": (Noun("naira", "naira"), None), "฿": (Noun("baht", "baht"), None), "₴": (_unit("hryvnia"), None),
    "CHF": (_unit("Swiss franc"), Noun("rappen", "rappen")), "zł": (Noun("zloty", "zlotys"), None),
    "PLN": (Noun("Polish zloty", "Polish zlotys"), None), "kr": (Noun("krone", "kroner"), None), "kr.": (Noun("krone", "kroner"), None), "SEK": (Noun("Swedish krona", "Swedish kronor"), None),
    "NOK": (Noun("Norwegian krone", "Norwegian kroner"), None),
    "DKK": (Noun("Danish krone", "Danish kroner"), None), "AED": (_unit("dirham"), None),
    "ZAR": (Noun("rand", "rand"), _CENT), "¢": (_CENT, None),
}  # fmt: skip

_UNITS = {
    "km": _unit("kilometer"), "m": _unit("meter"), "cm": _unit("centimeter"), "mm": _unit("millimeter"),
    "µm": _unit("micrometer"), "nm": _unit("nanometer"),
    "mi": _unit("mile"), "ft": Noun("foot", "feet"),
    "in.": Noun("inch", "inches"), "ins": Noun("inch", "inches"), "yd": _unit("yard"), "yds": _unit("yard"),
    "kg": _unit("kilogram"), "g": _unit("gram"), "mg": _unit("milligram"), "mcg": _unit("microgram"),
    "pg": _unit("picogram"), "ng": _unit("nanogram"), "mmol": _unit("millimole"), "mEq": _unit("milliequivalent"),
    "U/L": Noun("unit per liter", "units per liter"), "qts": _unit("quart"), "µg": _unit("microgram"), "μg": _unit("microgram"), "μm": _unit("micrometer"), "KG": _unit("kilogram"),
    "Kg": _unit("kilogram"), "KM": _unit("kilometer"), "Km": _unit("kilometer"), "ML": _unit("milliliter"),
    "MG": _unit("milligram"), "d": _unit("day"), "kgs": _unit("kilogram"),
    "lb": _unit("pound"), "lbs": _unit("pound"),
    "oz": _unit("ounce"),
    "l": _unit("liter"), "L": _unit("liter"), "ml": _unit("milliliter"), "mL": _unit("milliliter"),
    "cl": _unit("centiliter"), "dl": _unit("deciliter"), "dL": _unit("deciliter"),
    "fl. oz.": _unit("fluid ounce"), "Ω": _unit("ohm"), "kΩ": _unit("kilohm"), "ppm": Noun("part per million", "parts per million"),
    "ppb": Noun("part per billion", "parts per billion"), "fps": Noun("frame per second", "frames per second"),
    "Nm": _unit("newton meter"), "dpi": Noun("D P I", "D P I"), "cc": Noun("C C", "C C"),
    "gal": _unit("gallon"), "qt": _unit("quart"), "pt": _unit("pint"),
    "tbsp": _unit("tablespoon"), "Tbsp": _unit("tablespoon"), "tbsps": _unit("tablespoon"), "tsps": _unit("teaspoon"), "tsp": _unit("teaspoon"), "fl oz": _unit("fluid ounce"),
    "mph": Noun("mile per hour", "miles per hour"), "km/h": Noun("kilometer per hour", "kilometers per hour"),
    "kph": Noun("kilometer per hour", "kilometers per hour"), "kmh": Noun("kilometer per hour", "kilometers per hour"),
    "m/s": Noun("meter per second", "meters per second"), "mpg": Noun("mile per gallon", "miles per gallon"),
    "rpm": Noun("revolution per minute", "revolutions per minute"),
    "bpm": Noun("beat per minute", "beats per minute"),
    "km²": _unit("square kilometer"), "m²": _unit("square meter"), "cm²": _unit("square centimeter"),
    "m2": _unit("square meter"), "km2": _unit("square kilometer"), "m3": _unit("cubic meter"),
    "m³": _unit("cubic meter"), "cm³": _unit("cubic centimeter"), "km³": _unit("cubic kilometer"),
    "sq ft": Noun("square foot", "square feet"), "sq. ft.": Noun("square foot", "square feet"),
    "sq m": _unit("square meter"), "sqft": Noun("square foot", "square feet"), "ha": _unit("hectare"), "ac": _unit("acre"),
    "ft²": Noun("square foot", "square feet"), "in²": Noun("square inch", "square inches"), "mi²": _unit("square mile"),
    "sq mi": _unit("square mile"), "K/uL": Noun("thousand per microliter", "thousand per microliter"),
    "M/uL": Noun("million per microliter", "million per microliter"),
    "h": _unit("hour"), "hr": _unit("hour"), "hrs": _unit("hour"),
    "min": _unit("minute"), "mins": _unit("minute"),
    "sec": _unit("second"), "secs": _unit("second"), "ms": _unit("millisecond"),
    "s": _unit("second"), "yr": _unit("year"), "yrs": _unit("year"),
    "nts": _unit("night"), "mo.": _unit("month"), "wk": _unit("week"), "wks": _unit("week"), "mo": _unit("month"), "mos": _unit("month"),
    "kB": _unit("kilobyte"), "KB": _unit("kilobyte"), "MB": _unit("megabyte"), "GB": _unit("gigabyte"),
    "TB": _unit("terabyte"), "Kbps": Noun("kilobit per second", "kilobits per second"),
    "kbps": Noun("kilobit per second", "kilobits per second"),
    "Mbps": Noun("megabit per second", "megabits per second"),
    "mbps": Noun("megabit per second", "megabits per second"),
    "Gbps": Noun("gigabit per second", "gigabits per second"), "Mbit/s": Noun("megabit per second", "megabits per second"),
    "MB/s": Noun("megabyte per second", "megabytes per second"),
    "Hz": Noun("hertz", "hertz"), "kHz": Noun("kilohertz", "kilohertz"), "MHz": Noun("megahertz", "megahertz"),
    "GHz": Noun("gigahertz", "gigahertz"), "V": _unit("volt"), "W": _unit("watt"), "kW": _unit("kilowatt"),
    "MW": _unit("megawatt"), "kWh": _unit("kilowatt hour"), "mAh": _unit("milliamp hour"), "mA": _unit("milliamp"),
    "A": _unit("amp"), "tab.": _unit("tablet"), "tabs.": _unit("tablet"), "cap.": _unit("capsule"), "caps.": _unit("capsule"), "hp": Noun("horsepower", "horsepower"), "dB": _unit("decibel"), "psi": Noun("PSI", "PSI"),
    "mmHg": Noun("millimeter of mercury", "millimeters of mercury"), "kPa": _unit("kilopascal"),
    "kcal": _unit("kilocalorie"), "cal": _unit("calorie"), "IU": _unit("international unit"),
    "px": _unit("pixel"), "MP": _unit("megapixel"), "pts": _unit("point"), "pcs": _unit("piece"),
    "pkg": _unit("package"), "ct": Noun("count", "count"), "K": Noun("kelvin", "kelvin"),
}  # fmt: skip
del _UNITS["K"], _UNITS["ct"], _UNITS["MP"]  # "10K" is a thousand; the others have more than one reading

ENGLISH = Grammar(
    tag="en", cardinal=cardinal, ordinal=ordinal, year=year, date=date, time=time, digits=_ONES[:10],
    decimal_mark=".", point="point", other_point="point", fraction_digits="digits", minus="minus", plus="plus",
    conjunction="and", to="to", percent="percent", money_and="and", month_first=True, months=MONTHS,
    month_short="jan feb mar apr may jun jul aug sep oct nov dec".split(),
    currencies=CURRENCIES, units=_UNITS, degrees={"C": "Celsius", "F": "Fahrenheit"}, degree=_unit("degree"),
    magnitudes={
        "k": ("thousand",) * 2, "K": ("thousand",) * 2, "thousand": ("thousand",) * 2, "m": ("million",) * 2,
        "M": ("million",) * 2, "mn": ("million",) * 2, "mm": ("million",) * 2, "mil": ("million",) * 2,
        "million": ("million",) * 2, "b": ("billion",) * 2, "B": ("billion",) * 2, "bn": ("billion",) * 2,
        "billion": ("billion",) * 2, "t": ("trillion",) * 2, "T": ("trillion",) * 2, "tn": ("trillion",) * 2,
        "trillion": ("trillion",) * 2, "lakh": ("lakh",) * 2, "crore": ("crore",) * 2, "hundred": ("hundred",) * 2,
    },
    symbols={
        "&": "and", "+": "plus", "=": "equals", "@": "at", "%": "percent", "~": "about", "≈": "about", "<": "less than",
        ">": "greater than", "≤": "at most", "≥": "at least", "×": "times", "÷": "divided by", "±": "plus or minus",
        "*": "times", "/": "slash", "§": "section", "°": "degrees", "№": "number", "→": "to", "#": "hash", "₂": "two",
        "²": "squared", "³": "cubed", "‰": "per mille", "^": "to the power of", "\\": "backslash", "|": "or",
        "_": "underscore", "©": "copyright", "®": "registered", "™": "trademark", "$": "dollar", "€": "euro",
        "£": "pound", "¥": "yen", "¢": "cents", "₹": "rupee", "₩": "won", "√": "square root of", "∞": "infinity",
        "over": "over", "by": "by", "≠": "is not equal to", "µ": "micro", "−": "minus",
    },
    address={
        ".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon", "?": "question mark",
        "=": "equals", "&": "and", "#": "hash", "+": "plus", "%": "percent", "~": "tilde",
    },
    fractions=fraction, and_fraction="and", per="per", star="star", pound="pound",
    key_words=r"press|pressing|pressed|dial|dialing|enter|entering|hit|push|type|key|keys|button|keypad|tap|star|pound|hash|symbol|sign",
    code_words=(
        r"code|pin|otp|passcode|password|ending in|ends in|ends with|ending|last four(?: digits)?|last 4(?: digits)?|extension|"
        r"ext\.?|zip(?: code)?|postal code|confirmation|reference|ref\.?|account|acct\.?|routing|card|order|ticket|invoice|"
        r"tracking|booking|case|claim|policy|member id|customer id|id|serial|passport|license|licence|flight|room|suite|"
        r"apt\.?|unit|port|call|dial|text|(?:phone|fax|tel)|cvv|cvc|ein|vin|imei|npi|mrn|badge|locker|locator|plate|"
        r"prescription|dispute|docket|membership|reservation|ssn|p o box"
    ),
    date_words=r"appt|appointment|date|visit|meeting|delivery|pick-?up|on|by|until|till|before|after|since|due|dated|from|for|expires|effective|closed|opened|sent|shipped|posted|paid|"
    r"filed|received|arrived|delivered|updated|renewed|expired|ended|started|starts|begins|ends|signed|issued|ordered|returned|scheduled|"
    r"moved to|resolved|approved|processed|mailed|mon|tue|wed|thu|fri|sat|sun|\w+day",
    abbreviations={
        "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "vs.": "versus", "vs": "versus",
        "pts": "points", "pts.": "points", "flt": "flight", "approx.": "approximately", "p.p.": "per person", "est.": "estimated", "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr.": "Doctor", "Mr.": "Mister", "Mrs.": "Missus", "Ms.": "Miz",
        "Prof.": "Professor", "Jr.": "Junior", "Sr.": "Senior", "Gen.": "General", "Capt.": "Captain", "Sgt.": "Sergeant",
        "Lt.": "Lieutenant", "Col.": "Colonel", "Rev.": "Reverend", "Hon.": "Honorable", "Gov.": "Governor",
        "Sen.": "Senator", "Rep.": "Representative", "Pres.": "President", "Ave.": "Avenue", "Blvd.": "Boulevard",
        "Rd.": "Road", "Ln.": "Lane", "Hwy.": "Highway", "Pkwy.": "Parkway", "Apt.": "Apartment", "Ste.": "Suite",
        "Bldg.": "Building", "Mt.": "Mount", "Ft.": "Fort", "Dept.": "Department", "dept.": "department",
        "Inc.": "Incorporated", "Corp.": "Corporation", "Ltd.": "Limited", "Co.": "Company", "Bros.": "Brothers",
        "ext.": "extension", "Ext.": "Extension", "tel.": "telephone", "Tel.": "Telephone", "appt.": "appointment",
        "Appt.": "Appointment", "acct.": "account", "acct": "account", "accts": "accounts", "amt": "amount", "amt.": "amount", "pmt": "payment", "pmts": "payments", "qty.": "quantity", "Qty.": "Quantity",
        "max.": "maximum", "min.": "minimum", "avg.": "average", "temp.": "temperature", "misc.": "miscellaneous",
        "incl.": "including", "excl.": "excluding", "govt.": "government", "mgmt.": "management", "w/": "with",
        "w/o": "without", "b/c": "because", "P.O.": "P O", "a.k.a.": "also known as", "No.": "number", "no.": "number",
        "Nos.": "numbers", "nos.": "numbers", "pp.": "pages", "vol.": "volume", "Vol.": "Volume", "ch.": "chapter", "Ch.": "Chapter",
        "Attn": "Attention", "apt.": "apartment", "bldg.": "building", "ste.": "suite", "attn": "attention", "c/o": "care of", "Esq.": "Esquire", "exp.": "expires", "wt.": "weight",
        "ht.": "height", "ea.": "each", "w/in": "within", "Hrs": "Hours", "hrs": "hours", "yrs": "years", "mins": "minutes",
        "approx": "approximately", "appt": "appointment", "appts": "appointments", "pls": "please", "plz": "please",
        "thx": "thanks", "tmrw": "tomorrow", "msg": "message", "msgs": "messages", "pkg": "package", "mgr": "manager", "int'l": "international", "Int'l": "International", "intl.": "international", "nat'l": "national",
        "gov't": "government", "dep't": "department", "equiv.": "equivalent", "Pct.": "Precinct", "assoc.": "associate", "Assn.": "Association", "Univ.": "University", "doz.": "dozen", "mgmt": "management", "req'd": "required", "Dep.": "departs", "dep.": "departs", "arr.": "arrives", "Arr.": "arrives",
        "avg": "average", "opt.": "option", "ded.": "deductible", "Drs.": "Doctors", "Rm.": "Room", "rm.": "room", "qty": "quantity", "Qty": "Quantity",
        "ins.": "insurance", "pcm": "per calendar month", "maint.": "maintenance", "Maint.": "Maintenance", "qtr.": "quarter", "Qtr.": "Quarter", "std.": "standard", "Std.": "Standard", "eff.": "effective", "emerg.": "emergency", "elec.": "electric", "lg.": "large", "sm.": "small", "btwn.": "between", "btwn": "between", "Jct.": "Junction", "avail.": "available", "avail": "available", "sched.": "scheduled",
        "rec'd": "received", "recd": "received", "rcvd": "received", "rcvd.": "received", "cust.": "customer", "conf.": "confirmation", "pymt": "payment",
        "bal.": "balance", "wks": "weeks", "mos": "months", "mos.": "months", "wks.": "weeks", "Twp.": "Township", "Stn.": "Station", "Plz.": "Plaza", "Ctr.": "Center", "ctr.": "center",
        "Asst.": "Assistant", "asst.": "assistant", "Mgr.": "Manager", "mgr.": "manager", "Supt.": "Superintendent", "Natl.": "National", "Intl.": "International", "pkgs.": "packages",
        "Hosp.": "Hospital", "svc.": "service", "svcs": "services", "svcs.": "services", "bdrm": "bedroom", "bdrms": "bedrooms", "Mx.": "Mix", "Msgr.": "Monsignor", "Cpl.": "Corporal",
        "Det.": "Detective", "Atty.": "Attorney", "Cmdr.": "Commander", "Maj.": "Major", "freq.": "frequent", "orig.": "original", "prev.": "previous", "est'd": "established",
        "addl.": "additional", "add'l": "additional", "gtd.": "guaranteed", "cont'd": "continued", "ph.": "phone", "veh.": "vehicle",
        "fig.": "figure", "Fig.": "Figure", "sec.": "section", "Sec.": "Section", "ref.": "reference", "Ref.": "Reference",
        "Mon.": "Monday", "Tue.": "Tuesday", "Tues.": "Tuesday", "Wed.": "Wednesday", "Thu.": "Thursday",
        "Weds.": "Wednesday", "Weds": "Wednesday", "Thur.": "Thursday", "Thurs.": "Thursday", "Fri.": "Friday", "Sat.": "Saturday", "Sun.": "Sunday",
    },
    number_sign="number", ordinal_pattern=r"(?P<number>\d{1,3}(?:,\d{3})+|\d+) ?(?:st|nd|rd|th)(?![\w])",
    roman_before={
        **dict.fromkeys(
            "chapter part section volume book act scene phase type stage level class title article appendix world war "
            "super bowl division group tier grade category schedule table figure unit module step round rocky iphone "
            "vatican".split(), "cardinal"),
        **dict.fromkeys(
            "henry king queen pope louis elizabeth charles george william edward james richard mary john paul pius "
            "benedict leo clement gregory alexander peter frederick napoleon catherine ivan nicholas philip francis "
            "ferdinand leopold ramses darius albert harald felipe".split(), "ordinal"),
    },
    out_of="out of", times_word="times", version="version",
)  # fmt: skip
