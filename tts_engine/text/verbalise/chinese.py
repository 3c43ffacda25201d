"""Prepares Chinese text for wetext: reads the kinds that its transducers read wrongly, and leaves it the others.

Read here: codes and numbers of phones, cards and orders (digit by digit), amounts with a sign, a separator or a
magnitude, ranges of percentages, telephone keys, addresses, versions, times with seconds.
"""

from __future__ import annotations

import re

from tts_engine.text.verbalise.codes import WEB_ADDRESS
from tts_engine.text.verbalise.numbers import ROMAN_FORM, SIGN_FORM, VULGAR_FRACTIONS, roman

_NAMES = "零一二三四五六七八九"
_SPELLED = "零幺二三四五六七八九"
"""Digits of a code or a phone number: 幺 for 1, which on the phone is not mistaken for 七."""
_CURRENCIES = {
    "¥": "元", "￥": "元", "RMB": "元", "CNY": "元", "$": "美元", "US$": "美元", "USD": "美元", "€": "欧元", "EUR": "欧元",
    "£": "英镑", "GBP": "英镑", "HK$": "港元", "HKD": "港元", "NT$": "新台币", "JPY": "日元", "₩": "韩元", "₹": "卢比",
}  # fmt: skip
_ADDRESS_WORDS = {
    ".": "点", "/": "斜杠", "-": "杠", "_": "下划线", "@": "艾特", ":": "冒号", "?": "问号", "=": "等于", "&": "和",
    "#": "井号", "+": "加", "%": "百分号", "~": "波浪号",
}  # fmt: skip
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_MONEY_SIGNS = "|".join(re.escape(sign) for sign in sorted(_CURRENCIES, key=len, reverse=True))
_CODE_WORDS = (
    "验证码|校验码|动态码|密码|口令|取件码|取货码|提货码|邀请码|兑换码|优惠码|识别码|编码|代码|尾号|卡号|账号|帐号|订单号|"
    "订单|单号|流水号|编号|号码|证号|工号|学号|会员号|合同号|保单号|发票号|座位号|房间号|房号|门牌号|车牌号?|航班号?|车次|"
    "支票号|端口|错误码|错误代码|电话|手机|拨打|致电|分机|转接|热线|邮编|身份证"
)
_UNITS = {
    "kbps": "千比特每秒", "Kbps": "千比特每秒", "Mbps": "兆比特每秒", "Gbps": "吉比特每秒", "Mb/s": "兆比特每秒", "Gb/s": "吉比特每秒",
    "MB/s": "兆字节每秒", "KB/s": "千字节每秒", "kWh": "千瓦时", "KWh": "千瓦时", "kwh": "千瓦时", "MWh": "兆瓦时", "Wh": "瓦时", "mAh": "毫安时",
    "kW": "千瓦", "MW": "兆瓦", "kcal": "千卡", "kHz": "千赫", "MHz": "兆赫", "GHz": "吉赫", "Hz": "赫兹", "dB": "分贝", "kPa": "千帕", "mmol/L": "毫摩尔每升",
    "V": "伏", "W": "瓦", "kVA": "千伏安", "mg/dL": "毫克每分升", "μg": "微克", "mcg": "微克",
}  # fmt: skip


def cardinal(number: int) -> str:
    """Return the name of a number below 10**16."""
    if number < 10:
        return _NAMES[number]
    words, zero = "", False
    digits = str(number)
    for position, char in enumerate(digits):
        power = len(digits) - 1 - position
        if char == "0":
            zero = True
        else:
            words += ("零" if zero and words else "") + _NAMES[int(char)] + ("", "十", "百", "千")[power % 4]
            zero = False
        if power % 4 == 0 and power:
            group = int(digits[max(0, position - 3) : position + 1])
            if group:
                words += ("", "万", "亿", "万亿")[power // 4]
                zero = False
    return words[1:] if words.startswith("一十") else words


def _number(text: str) -> str:
    whole, _, rest = text.replace(",", "").partition(".")
    if len(whole) > 16:
        return _spell(whole)
    return cardinal(int(whole)) + (f"点{''.join(_NAMES[int(d)] for d in rest)}" if rest else "")


def _spell(text: str) -> str:
    return "".join(_SPELLED[int(char)] for char in text if char.isdigit())


def _plain(text: str) -> str:
    return "".join(_NAMES[int(char)] for char in text)


def _groups(text: str) -> str:
    plus = "加" if text.startswith("+") else ""
    return plus + "，".join(map(_spell, re.findall(r"\d+", text)))


def _sign(text: str | None) -> str:
    return {"": "", "+": "正", "±": "正负"}.get(text or "", "负")


def _money(match: re.Match[str]) -> str:
    unit = _CURRENCIES[match["cur"]]
    mag = match["mag"] or ""
    sign = _sign(match["sign"] or match["inner"])
    if match["n2"]:
        return f"{sign}{_number(match['n'])}到{_number(match['n2'])}{match['mag2'] or mag}{unit}"
    number = match["n"] if mag else re.sub(r"\.00?$", "", match["n"])
    return f"{sign}{_number(number)}{mag}{unit}"


def _address(match: re.Match[str]) -> str:
    address = re.sub(r"^(?:https?|ftp)://(?:www\.)?", "", match.group())
    pieces = re.findall(r"\d+|[A-Za-z]+|.", address.rstrip("/"))
    said = [_spell(p) if p.isdigit() else f" {_ADDRESS_WORDS[p]} " if p in _ADDRESS_WORDS else p for p in pieces]
    return "".join(said).strip()


def _code(match: re.Match[str]) -> str:
    """Read a code of letters and digits with hyphens, of which no letter is a unit: "QX7-T9L"."""
    return re.sub(r"[\d-]", lambda m: " " if m[0] == "-" else _spell(m[0]), match.group())


def _key(match: re.Match[str]) -> str:
    return re.sub("[*#]", lambda m: "星号" if m[0] == "*" else "井号", match.group())


def _key_name(match: re.Match[str]) -> str:
    return "星号" if match[1] == "*" else "井号"


def _dotted(match: re.Match[str]) -> str:
    return "点".join(_spell(part) if len(part) > 2 or part[0] == "0" and part != "0" else _number(part)
                    for part in match["dotted"].split("."))  # fmt: skip


def _time(match: re.Match[str]) -> str:
    hour, minute, second = (int(each) for each in match.groups())
    if hour > 24:
        return match.group()
    minutes = f"{'零' if 0 < minute < 10 else ''}{cardinal(minute)}分"
    return f"{cardinal(hour)}点{minutes}{'零' if 0 < second < 10 else ''}{cardinal(second)}秒"


def _clock(hour: str, minute: str) -> str:
    zero = "零" if 0 < int(minute) < 10 else ""
    return f"{'两' if int(hour) == 2 else cardinal(int(hour))}点" + (
        f"{zero}{cardinal(int(minute))}分" if int(minute) else ""
    )


def _vulgar(match: re.Match[str]) -> str:
    over, under = VULGAR_FRACTIONS[match[2]]
    whole = f"{_number(match[1])}又" if match[1] else ""
    return f"{whole}{cardinal(under)}分之{cardinal(over)}"


_ASCII = "A-Za-z0-9_"
_PERS = "天|日|周|月|年|次|人|晚|夜|小时|分钟|分|秒|件|张|间|位|份|斤|公斤|台"
_RULES = [
    (re.compile(r"(?<=\d)，(?=\d)"), lambda _: "， "),  # wetext would take it for a separator of thousands
    (re.compile(r"(?<![A-Za-z0-9-])(?=[A-Z0-9-]*(?:[A-Z]\d+[A-Z]|\d{4,}-[A-Z]\b))[A-Z0-9]+(?:-[A-Z0-9]+)+(?![A-Za-z0-9-])", re.ASCII), _code),
    (re.compile(r"(?P<before>(?:有效期|到期|失效|过期)[^，。；！？\d]{0,6})(?P<m>0[1-9]|1[0-2])/(?P<y>\d\d)(?![\d/])"), lambda m: f"{m['before']}{_plain('20' + m['y'])}年{cardinal(int(m['m']))}月"),
    (re.compile(rf"(?P<before>(?:{_CODE_WORDS})[是为：:\s#]*)(?P<code>(?=[A-Z\d-]*[A-Z])(?=[A-Z\d-]*\d)[A-Z\d]+(?:-[A-Z\d]+)+)(?![A-Za-z0-9-])"), lambda m: m["before"] + re.sub(r"[\d-]", lambda c: " " if c[0] == "-" else _spell(c[0]), m["code"])),
    (re.compile(r"(?<!\d)((?:19|20)\d\d)(?=款|届|版(?!本)|赛季|级(?!别))"), lambda m: _plain(m[1])),
    (re.compile(r"(?<![A-Za-z0-9])(?P<roman>II|III|IV|VI|VII|VIII|IX)(?=[型级期类代])"), lambda m: cardinal(roman(m["roman"]))),
    (re.compile(r"(?<=[A-Z\u4e00-\u9fff]) ?(?:\+ ?(?=[A-Z\u4e00-\u9fff])|(?<=[A-Z])\+(?=\d)|= ?(?=[A-Z\d\u4e00-\u9fff]))"), lambda m: "加" if "+" in m[0] else "等于"),
    (re.compile(r"(?<![\d/])(?:24 ?[/xX×] ?7|7 ?[/xX×] ?24)(?![\d/]|小时)"), lambda _: "七天二十四小时"),
    (re.compile(r"(?<!\d)(\d{3,4})[*＊xX•]{2,}(\d{3,4})(?!\d)"), lambda m: f"{_spell(m[1])}，{_spell(m[2])}"),
    (re.compile(rf"(?<![{_ASCII}-])--(0[1-9]|1[0-2])-([0-2]\d|3[01])(?![{_ASCII}-])"), lambda m: f"{int(m[1])}月{int(m[2])}日"),
    (re.compile(rf"(?<![{_ASCII}-])--(0[1-9]|1[0-2])(?: (\d{{4}}))?(?![{_ASCII}-])"),
     lambda m: (f"{m[2]}年" if m[2] else "") + f"{int(m[1])}月"),
    (re.compile(r"(?<![\d.,/])(?:(\d{1,3}) )?(\d{1,3})⁄(\d{1,4})(?!\d)"),
     lambda m: f"{_number(m[1]) + '又' if m[1] else ''}{_number(m[3])}分之{_number(m[2])}"),
    (re.compile(r"(?<=[年月日号点时分]) ?[-–—~～] ?(?=\d{1,4}[年月日号点时分])"), lambda _: "到"),
    (re.compile(r"(周|星期|礼拜)([一二三四五六日天]) ?[-–—~～] ?((?:周|星期|礼拜)?[一二三四五六日天])"), lambda m: f"{m[1]}{m[2]}到{m[3]}"),
    (re.compile(rf"(?P<a>(?:[¥￥$€£] ?)?{_NUMBER} ?(?:元|块|美元|次|片|粒|滴|支|毫升|毫克|mg|ml|g|ML)?)/(?P<per>{_PERS})(?![\u4e00-\u9fff]{{3}}报)"), lambda m: f"每{m['per']}{m['a']}"),
    (re.compile(r"(?<![\d.])(\d{4})[-–—](\d{4})(?=学年|年)"), lambda m: f"{_plain(m[1])}到{_plain(m[2])}"),
    (re.compile(r"(?<![\d/.])(\d{2,3})/(\d{2,3})(?![\d/月]| ?mmHg| ?毫米)"), lambda m: f"{_number(m[1])}比{_number(m[2])}" if int(m[1]) > int(m[2]) >= 30 else m[0]),
    (re.compile(r"(?P<before>房间号?[是为在：: ]*)(?P<n>\d{3,4})(?!\d)"), lambda m: m["before"] + _spell(m["n"])),
    (re.compile(r"(?<=[万亿千百])(km|kg|KM|KG|m²|㎡)(?![A-Za-z])"), lambda m: {"km": "公里", "kg": "公斤"}.get(m[1].lower(), "平方米")),
    (re.compile(r"(?<=[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼])(?P<city>[A-Z])[·•・ ]?(?P<code>[A-Z0-9]{5,6})(?![A-Za-z0-9])"), lambda m: m["city"] + re.sub(r"\d", lambda d: _spell(d[0]), m["code"])),
    (re.compile(r"(\d{1,3})(?=单元)"), lambda m: cardinal(int(m[1]))),
    (re.compile(r"(?<=[座栋幢元])(\d{3,4})(?![\d年月日元个米人万.,])"), lambda m: _spell(m[1])),
    (re.compile(r"(?<=[A-Z])2(?=[层楼座区栋号口])"), lambda _: "二"),
    (re.compile(r"(?<![\d.,/:：年月第])2(?=点(?!\d)|点\d{1,2}分)"), lambda _: "两"),
    (re.compile(r"(?<=\d月)2(?=[日号])"), lambda _: "二"),
    (re.compile(rf"(?<![{'A-Za-z0-9_'}.])({_NUMBER})‰"), lambda m: f"千分之{_number(m[1])}"),
    (re.compile(r"(?<![\w*℃°%％℉])[~～≈](?= ?[¥￥$€£]?\d)"), lambda _: "约"),
    (re.compile(r"(?<![<>=])([<>])(?= ?\d)"), lambda m: "小于" if m[1] == "<" else "大于"),
    (re.compile(r"(?<=\d)转(\d{1,6})(?!\d|[^\W\d])"), lambda m: f"转{_spell(m[1])}"),
    (re.compile(r"\bNo\. ?(?=\d)", re.ASCII), lambda _: "第"),
    (re.compile(r"(?<![A-Za-z0-9-])([A-Z]{2})(\d{4})(?![A-Za-z0-9.%-])"), lambda m: m[1] + _spell(m[2])),
    (re.compile(r"(?<![A-Za-z0-9])([A-Z]{2}|[A-Z]\d|\d[A-Z]) ?(\d{3,4})(?=次?航班)"), lambda m: m[1] + _spell(m[2])),
    (re.compile(WEB_ADDRESS, re.ASCII | re.I), _address),
    (re.compile(rf"(?<![{_ASCII}.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![{_ASCII}])"),
     lambda m: "点".join(_spell(part) for part in m.group().split("."))),
    (re.compile(rf"(?<![{_ASCII}.])(?P<v>[vV]|版本)?(?P<dotted>\d+(?:\.\d+){{2,}})(?P<after>版本)?(?![{_ASCII}])"),
     lambda m: f"{_dotted(m)}版本" if m["after"] else f"{'版本' if m['v'] and m['v'] in 'vV' else m['v'] or ''}{_dotted(m)}"),
    (re.compile(r"(?<![A-Za-z0-9_*#])([*#])号?(?=键)"), _key_name),
    (re.compile(r"(?:按|拨|输入|键)[^。！？\d]{0,12}[*#][^。！？\d]{0,12}"), _key),
    (re.compile(rf"(?<![{_ASCII}])[*#][\d*#]*\d[\d*#]*|(?<![\d.])\d+#"),
     lambda m: "".join({"*": "星号", "#": "井号"}.get(c) or _SPELLED[int(c)] for c in m.group())),
    (re.compile(rf"(?P<before>(?:{_CODE_WORDS})(?:[是为：:\s#]|号码|尾号)*)(?P<code>\+?(?:[A-Za-z]{{1,12}}-?)?(?:\d{{3,}}(?:[ -]\d{{2,}})*|\d\d(?: \d\d)+|\d+(?:-\d+)+))(?![\d.,:：%]\d|[年月日元个块])"),
     lambda m: m["before"] + re.match(r"\+?[A-Za-z]*", m["code"])[0].replace("+", "加") + _groups(re.sub("^[+A-Za-z]+-?", "", m["code"]))),  # type: ignore[index]
    (re.compile(rf"(?<![{_ASCII}.,])(?:\+|00)\d[\d ()-]{{6,}}\d(?!\d)"), lambda m: _groups(m.group())),
    (re.compile(rf"(?<![{_ASCII}.,])(?:1[3-9]\d[ -]?\d{{4}}[ -]?\d{{4}}|0\d{{2,3}}[ -]\d{{3,4}}[ -]?\d{{4}}|400[ -]?\d{{3}}[ -]?\d{{4}}|\d{{4}}(?:[ -]\d{{4}}){{2,4}}(?:[ -]\d{{1,3}})?)(?!\d)"),
     lambda m: _groups(m.group())),
    (re.compile(r"(?<![A-Za-z0-9_.,:：/-])0\d{2,}(?![\d.,:：年月日/-])"), lambda m: _spell(m[0])),
    (re.compile(rf"(?<![{_ASCII}.,])\d{{15,}}[Xx]?(?![{_ASCII}])"), lambda m: _spell(m.group()) + ("X" if m.group()[-1] in "xX" else "")),
    (re.compile(rf"(?:(?<![{_ASCII}%元)])(?P<sign>{SIGN_FORM}))?(?P<cur>{_MONEY_SIGNS}) ?(?P<inner>[-−])?(?P<n>{_NUMBER})(?P<mag>[万亿千百]*)(?:[-–~～](?:{_MONEY_SIGNS})?(?P<n2>{_NUMBER})(?P<mag2>[万亿千百]*))?元?"), _money),
    (re.compile(rf"(?<![{_ASCII}.])(?P<a>{_NUMBER})%?[-–~～](?P<b>{_NUMBER})[%％]"),
     lambda m: f"百分之{_number(m['a'])}到百分之{_number(m['b'])}"),
    (re.compile(rf"(?<![{_ASCII}.])(?P<sign>{SIGN_FORM})?(?P<n>{_NUMBER})[%％]"),
     lambda m: f"百分之{_sign(m['sign'])}{_number(m['n'])}"),
    (re.compile(r"(?<![\d/.])(\d{2,3})/(\d{2,3}) ?(mmHg|毫米汞柱)"),
     lambda m: f"{_number(m[1])}比{_number(m[2])}毫米汞柱"),
    (re.compile(r"(?<=\d) ?mmHg"), lambda _: "毫米汞柱"),
    (re.compile(rf"(?<![{_ASCII}:.])(\d{{1,2}}):([0-5]\d):([0-5]\d)(?![\d:])"), _time),
    (re.compile(rf"(?<![{_ASCII}:.])(?<!\d：)([01]?\d|2[0-4])[:：]([0-5]\d) ?[-–—~～至到] ?([01]?\d|2[0-4])[:：]([0-5]\d)(?![\d:])"),
     lambda m: f"{_clock(m[1], m[2])}到{_clock(m[3], m[4])}"),
    (re.compile(rf"(?<![{_ASCII}])(?P<train>[GDCKTZ])(?P<n>\d{{1,4}})(?=次|号?列车|[/／])"), lambda m: m["train"] + _spell(m["n"])),
    (re.compile(rf"(?<![{_ASCII}.,])\d{{3,4}}(?=室|房间?(?![子屋租贷价东])|病房)"), lambda m: _spell(m.group())),
    (re.compile(rf"(?<![{_ASCII}.])(?P<n>{_NUMBER}) ?(?P<unit>{'|'.join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))})(?![{_ASCII}])"),
     lambda m: _number(m["n"]) + _UNITS[m["unit"]]),
    (re.compile(r"(?<=比分)([是为：:]?) ?(\d{1,3})[-–](\d{1,3})"), lambda m: f"{m[1]}{_number(m[2])}比{_number(m[3])}"),
    (re.compile(rf"(?<![{_ASCII}.,年月日-])(\d{{1,4}}(?:\.\d+)?)[-–—](\d{{1,4}}(?:\.\d+)?)(?=个|级|天|日内|周|岁|人|次|片|粒|滴|小时|分钟|秒|公里|元|米|层|楼|名|位|件|工作日|折|倍|度|毫升|点(?!\d)|号|月|页|章|分(?!之)|块|斤|公斤|千克)"),
     lambda m: f"{_number(m[1])}到{_number(m[2])}"),
    (re.compile(rf"第({ROMAN_FORM})(?=[章节卷部期册届条回季类级])"), lambda m: f"第{cardinal(roman(m[1]))}"),
    (re.compile(r"第(\d{1,4}) ?[-–~～] ?(\d{1,4})(?![\d.])"), lambda m: f"第{cardinal(int(m[1]))}到{cardinal(int(m[2]))}"),
    (re.compile(r"(?<![A-Za-z0-9.])(\d{2,5})M(?![A-Za-z0-9])"), lambda m: f"{cardinal(int(m[1]))}兆"),
    (re.compile(r"第(\d{1,8})(?![\d.])"), lambda m: f"第{cardinal(int(m[1]))}"),
    (re.compile(r"(?<=\d) ?[~～] ?(?=[-−]?\d)"), lambda _: "到"),
    (re.compile(r"(?<![\d.,/:年月])2(?=个|小时|天|周|次|件|位|名|张|条|份|台|间|种|家|杯|瓶|盒|人份|晚|碗|斤|公斤|段|笔|项|套|部|辆|根|支|片|粒|滴|颗|节|门|堂|场|双|对|封|轮|趟|遍|处|款|顿|道|把|只|座|扇|束|箱|桶|包|袋|桌|批|枚)"), lambda _: "两"),
    (re.compile(r"(\d+)?([½⅓⅔¼¾])"), _vulgar),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)"), lambda _: " "),
    (re.compile(r"(?<=\d) ?÷ ?(?=\d)"), lambda _: "除以"),
    (re.compile(r"(?<=\d)\.00?(?= ?(?:元|块|美元|欧元|英镑|港元|日元)(?![\d.]))"), lambda _: ""),
    (re.compile(rf"(?<![{_ASCII}:.])(?<!\d：)([01]?\d|2[0-4])[:：]([0-5]\d)(?![\d:：]| ?[AaPp]\.?[Mm]|[^\W\d_]*比)"), lambda m: _clock(m[1], m[2])),
    (re.compile(r"(?<=[约近超过])(\d{1,2})/(\d{1,2})(?![\d/])"), lambda m: f"{_number(m[2])}分之{_number(m[1])}"),
    (re.compile(rf"(?<![A-WYZa-wyz0-9_.])(?P<n>{_NUMBER})(?P<unit>(?:[cmk]?m|厘米|毫米|米)?) ?[xX×*] ?(?=\d)"), lambda m: f"{m['n']}{m['unit']}乘"),
    (re.compile(r"7 ?[x×*] ?24(?=小时)"), lambda _: "七乘二十四"),
    (re.compile(rf"(?<![{_ASCII}.,])(?P<sign>[-−–])(?=\d)(?!\d+[-/年])(?P<n>{_NUMBER})(?![\d:]| ?[°℃])"), lambda m: f"负{_number(m['n'])}"),
    (re.compile(r"(?<![\d.,])\d+\.\d+(?= ?[KMGT]B?(?![A-Za-z]))"), lambda m: _number(m.group())),  # wetext takes "月12.6GB" for a date
    (re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])"), lambda m: _number(m.group())),
]  # fmt: skip
_BARE_CODE = re.compile(r"[^\w$¥￥€£%-]*\d{4,}[^\w%$€£℃°]*")
"""A text of one row of digits: a clause such as this follows "your code is"."""
_WORTH = re.compile(r"[\d@*#+=½⅓⅔¼¾]|第[IVX]|周.[-–—~～]|www\.|://")


def prepare(text: str) -> str:
    """Return the text with the kinds named above in words."""
    if not _WORTH.search(text):
        return text
    if _BARE_CODE.fullmatch(text):
        return re.sub(
            r"\d+",
            lambda m: (
                cardinal(int(m[0])) if m[0].endswith("000") and m[0][0] != "0" and len(m[0]) < 16 else _spell(m[0])
            ),
            text,
        )
    for pattern, read in _RULES:
        text = pattern.sub(read, text)
    return text
