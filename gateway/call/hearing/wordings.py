"""The words by which an answer is judged in each language: acknowledgements, unfinished ends, digits, dates. Pure.

All entries are in the spelling of ``plain``: lower case, no punctuation, words separated by one space. The lists are
short on purpose. A word that is missing costs a decision by silence; a wrong one costs every caller who says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_CJK = re.compile(r"([\u3400-\u9fff])")


def plain(text: str) -> str:
    """Return the words of ``text`` in lower case, separated by one space, without punctuation. Each Chinese character
    counts as a word."""
    return " ".join(_WORD.findall(_CJK.sub(r" \1 ", text.lower()))).replace("’", "'")


def _set(*lines: str) -> frozenset[str]:
    """Return phrases that are separated by commas."""
    return frozenset(plain(phrase) for line in lines for phrase in line.split(",") if phrase.strip())


def _values(words: str, first: int = 0, step: int = 1) -> dict[str, int]:
    """Return consecutive values for words; several words of one value are joined by a slash."""
    return {
        word: value
        for value, names in zip(range(first, 1000, step), words.split(), strict=False)
        for word in names.split("/")
    }


_HUMS = _set("mhm, mm, mmm, hm, hmm, mm hmm, mhmm, mm mm, uh huh, aha, ah, oh, ok, okay")
"""Acknowledgements without a language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageWords:
    """The words of one language."""

    backchannels: frozenset[str]
    """Phrases that only acknowledge what the bot says. No word of refusal belongs here."""
    yes_no: frozenset[str] = frozenset()
    """Phrases that answer a question which wants yes or no."""
    open_ends: frozenset[str] = frozenset()
    """Words that end no sentence: conjunctions, prepositions, articles, auxiliaries, fillers."""
    units: Mapping[str, int] = field(default_factory=dict)
    """Words for 0 to 9."""
    two_digits: frozenset[str] = frozenset()
    """Words for 10 to 19, and for other numbers of two digits to which no unit is added."""
    tens: frozenset[str] = frozenset()
    """Words for 20, 30 ... to which a unit may be added."""
    joined: str = ""
    """Regular expression of one word for a number of two digits that contains its unit."""
    twice: frozenset[str] = frozenset()
    """Words that say a digit twice, before it."""
    thrice: frozenset[str] = frozenset()
    """Words that say a digit three times, before it."""
    between: frozenset[str] = frozenset()
    """Words that join tens and units."""
    at_signs: frozenset[str] = _set("@")
    """Spoken forms of the sign in an e-mail address."""
    dots: frozenset[str] = _set("dot")
    """Spoken forms of the full stop in an e-mail address."""
    months: frozenset[str] = frozenset()
    days: frozenset[str] = frozenset()
    """Weekdays, and words such as "tomorrow"."""


_EN = LanguageWords(
    backchannels=_HUMS
    | _set("yeah, yep, yes, right, sure, i see, got it, all right, alright, great, good, fine, exactly"),
    yes_no=_set(
        "yes, yeah, yep, yup, no, nope, nah, sure, correct, right, of course, certainly, absolutely, "
        "please do, no thanks, no thank you, yes please, that's right, that is right, that's correct, "
        "that is correct, not really, i think so, i hope so, i don't think so, i do, i did, i am, i was, "
        "i have, i can, i would, i will, it is, it was"
    ),
    open_ends=_set(
        "and, or, but, because, so, if, which, when, while, than, as, um, uh, er, erm, hmm, the, a, an, my, "
        "your, our, his, their, of, to, for, from, with, at, in, on, by, about, into, between, without, i'm, "
        "he's, she's, we're, i'd, i'll, we'd, we'll, could, should, want, need, would like, is called, i, "
        "name is, number is, address is, birthday is, it's, you know, i mean, let me see, let me think, "
        "hold on, one moment, just a second, very, i think, its, every, until, unless, although, whether, during, "
        "against, towards, they're, you're, i've, we've, they've, will be, have been, has been"
    ),
    units=_values("zero/oh/o/nought one two three four five six seven eight nine/niner"),
    two_digits=_set("ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen"),
    tens=_set("twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety"),
    twice=_set("double"),
    thrice=_set("triple, treble"),
    at_signs=_set("at"),
    dots=_set("dot, point"),
    months=_set("january, february, march, april, may, june, july, august, september, october, november, december"),
    days=_set("monday, tuesday, wednesday, thursday, friday, saturday, sunday, today, tomorrow, yesterday, tonight"),
)

_ES = LanguageWords(
    backchannels=_HUMS
    | _set("sí, si, ya, vale, claro, bien, muy bien, entiendo, de acuerdo, exacto, perfecto, bueno, ajá, correcto"),
    yes_no=_set(
        "sí, si, no, claro, claro que sí, claro que no, por supuesto, correcto, exacto, vale, sí por favor, "
        "no gracias, eso es"
    ),
    open_ends=_set(
        "y, e, o, u, pero, porque, que, cuando, donde, como, entonces, eh, em, este, pues, a ver, el, la, "
        "los, las, un, una, unos, unas, mi, tu, su, nuestro, nuestra, de, del, a, al, para, por, con, sin, "
        "en, sobre, entre, desde, hasta, yo, quiero, quisiera, quería, necesito, tengo, puedo, me llamo, "
        "nombre es, número es, dirección es, correo es, muy, digamos, un momento, o sea, me, le, mis, tus, sus, "
        "nuestros, nuestras, hacia, según, aunque, mientras"
    ),
    units=_values("cero uno/un/una dos tres cuatro cinco seis siete ocho nueve"),
    two_digits=_set(
        "diez, once, doce, trece, catorce, quince, dieciséis, diecisiete, dieciocho, diecinueve, veintiuno, "
        "veintiún, veintidós, veintitrés, veinticuatro, veinticinco, veintiséis, veintisiete, veintiocho, "
        "veintinueve"
    ),
    tens=_set("veinte, treinta, cuarenta, cincuenta, sesenta, setenta, ochenta, noventa"),
    between=_set("y"),
    twice=_set("doble"),
    thrice=_set("triple"),
    at_signs=_set("arroba"),
    dots=_set("punto"),
    months=_set(
        "enero, febrero, marzo, abril, mayo, junio, julio, agosto, septiembre, setiembre, octubre, noviembre, diciembre"
    ),
    days=_set("lunes, martes, miércoles, jueves, viernes, sábado, domingo, hoy, mañana, ayer, pasado mañana"),
)

_FR = LanguageWords(
    backchannels=_HUMS
    | _set(
        "oui, ouais, d'accord, bien, très bien, je vois, entendu, exactement, voilà, parfait, bien sûr, compris, hum"
    ),
    yes_no=_set(
        "oui, ouais, non, si, bien sûr, tout à fait, exactement, d'accord, oui merci, non merci, c'est ça, "
        "c'est exact, pas vraiment, volontiers"
    ),
    open_ends=_set(
        "et, ou, mais, parce que, que, qui, quand, comme, donc, alors, car, euh, heu, ben, bah, hum, le, la, "
        "les, un, une, des, du, de, mon, ma, mes, ton, ta, votre, vos, notre, son, sa, ses, cette, à, au, "
        "aux, pour, par, avec, sans, dans, en, sur, chez, entre, vers, je suis, je, j'ai, voudrais, je veux, "
        "m'appelle, nom est, numéro est, c'est le, adresse est, très, disons, attendez, un instant, un moment, ne, "
        "leur, leurs, nos, vos, ses, tes, ces, cet, chaque, sous, depuis, pendant, jusqu'à, quel, quelle"
    ),
    units=_values("zéro un/une deux trois quatre cinq six sept huit neuf"),
    two_digits=_set("onze, douze, treize, quatorze, quinze, seize"),
    tens=_set("dix, vingt, vingts, trente, quarante, cinquante, soixante, septante, huitante, octante, nonante"),
    between=_set("et"),
    twice=_set("double"),
    thrice=_set("triple"),
    at_signs=_set("arobase, arrobas, at"),
    dots=_set("point"),
    months=_set("janvier, février, mars, avril, mai, juin, juillet, août, septembre, octobre, novembre, décembre"),
    days=_set("lundi, mardi, mercredi, jeudi, vendredi, samedi, dimanche, aujourd'hui, demain, hier, après demain"),
)

_IT = LanguageWords(
    backchannels=_HUMS
    | _set("sì, si, certo, bene, va bene, capisco, d'accordo, esatto, perfetto, giusto, ho capito, già, eh"),
    yes_no=_set(
        "sì, si, no, certo, certamente, esatto, giusto, va bene, sì grazie, no grazie, proprio così, non proprio"
    ),
    open_ends=_set(
        "e, ed, o, ma, perché, che, quando, dove, se, come, quindi, allora, cioè, ehm, beh, mah, il, lo, la, "
        "i, gli, le, un, uno, una, mio, mia, tuo, suo, sua, nostro, di, del, della, dello, dei, a, al, alla, "
        "da, dal, dalla, in, nel, nella, con, per, tra, fra, su, sul, sulla, senza, vorrei, voglio, posso, "
        "devo, io, mi chiamo, nome è, numero è, indirizzo è, molto, diciamo, un attimo, aspetti, non, è, ho, ha, "
        "hanno, tua, nostra, vostro, vostra, miei, mie, tuoi, tue, suoi, sue, allo, agli, alle, dallo, dagli, dalle, "
        "degli, delle, nello, nei, negli, nelle, sui, sugli, sulle"
    ),
    units=_values("zero uno/un/una due tre quattro cinque sei sette otto nove"),
    two_digits=_set("dieci, undici, dodici, tredici, quattordici, quindici, sedici, diciassette, diciotto, diciannove"),
    tens=_set("venti, trenta, quaranta, cinquanta, sessanta, settanta, ottanta, novanta"),
    joined=r"(?:vent|trent|quarant|cinquant|sessant|settant|ottant|novant)[ia]?(?:uno|un|due|tre|tré|quattro|cinque|sei|sette|otto|nove)",
    twice=_set("doppio"),
    thrice=_set("triplo"),
    at_signs=_set("chiocciola, at"),
    dots=_set("punto"),
    months=_set(
        "gennaio, febbraio, marzo, aprile, maggio, giugno, luglio, agosto, settembre, ottobre, novembre, dicembre"
    ),
    days=_set("lunedì, martedì, mercoledì, giovedì, venerdì, sabato, domenica, oggi, domani, ieri, dopodomani"),
)

_PT = LanguageWords(
    backchannels=_HUMS
    | _set(
        "sim, tá, está bem, tá bom, certo, claro, bem, muito bem, entendi, percebo, exato, exatamente, pois, "
        "isso, perfeito, beleza"
    ),
    yes_no=_set(
        "sim, não, claro, claro que sim, certo, exato, isso, isso mesmo, está bem, sim por favor, "
        "não obrigado, não obrigada, com certeza"
    ),
    open_ends=_set(
        "e, ou, mas, porque, que, quando, onde, se, como, então, hum, ahn, tipo, o, a, os, as, um, uma, uns, "
        "umas, meu, minha, seu, sua, nosso, nossa, de, do, da, dos, das, em, no, na, nos, nas, para, pra, "
        "por, pelo, pela, com, sem, sobre, entre, até, eu, quero, queria, gostaria, preciso, tenho, posso, "
        "me chamo, chamo-me, nome é, número é, endereço é, morada é, muito, digamos, um momento"
    ),
    units=_values("zero um/uma dois/duas três quatro cinco seis/meia sete oito nove"),
    two_digits=_set(
        "dez, onze, doze, treze, catorze, quatorze, quinze, dezesseis, dezasseis, dezessete, dezassete, "
        "dezoito, dezenove, dezanove"
    ),
    tens=_set("vinte, trinta, quarenta, cinquenta, sessenta, setenta, oitenta, noventa"),
    between=_set("e"),
    twice=_set("duplo, dobrado"),
    thrice=_set("triplo"),
    at_signs=_set("arroba"),
    dots=_set("ponto"),
    months=_set("janeiro, fevereiro, março, abril, maio, junho, julho, agosto, setembro, outubro, novembro, dezembro"),
    days=_set(
        "segunda, terça, quarta, quinta, sexta, segunda feira, terça feira, quarta feira, quinta feira, "
        "sexta feira, sábado, domingo, hoje, amanhã, ontem"
    ),
)

_DE = LanguageWords(
    backchannels=_HUMS
    | _set(
        "ja, jo, jaja, genau, gut, sehr gut, alles klar, klar, verstehe, ich verstehe, stimmt, richtig, "
        "in ordnung, super, prima, ach so, aha"
    ),
    yes_no=_set(
        "ja, jo, jawohl, nein, nee, nö, doch, genau, klar, natürlich, richtig, stimmt, gern, gerne, "
        "ja bitte, nein danke, auf keinen fall, das stimmt, das ist richtig"
    ),
    open_ends=_set(
        "und, oder, aber, weil, denn, dass, ob, wenn, als, wie, wo, also, dann, sondern, äh, ähm, öh, na ja, "
        "der, die, den, dem, des, ein, eine, einen, einem, einer, mein, meine, meinen, meiner, ihre, unser, "
        "unsere, seine, von, vom, zum, zur, für, mit, ohne, in, im, am, bei, beim, über, zwischen, "
        "ich möchte, ich hätte, ich habe, ich bin, ich will, ich, wir, ich heiße, name ist, nummer ist, "
        "adresse ist, lautet, das ist, sehr, moment, einen moment, sagen wir, kein, keine, keinen, keinem, dein, "
        "deine, deinen, unserer, unserem, seinen, seiner, ihren, ihrem, seit, wegen, während, obwohl"
    ),
    units=_values("null eins/ein/eine zwei/zwo drei vier fünf sechs sieben acht neun"),
    two_digits=_set(
        "zehn, elf, zwölf, dreizehn, vierzehn, fünfzehn, sechzehn, siebzehn, achtzehn, neunzehn, zwanzig, "
        "dreißig, dreissig, vierzig, fünfzig, sechzig, siebzig, achtzig, neunzig"
    ),
    joined=r"(?:ein|zwei|zwo|drei|vier|fünf|sechs|sieben|acht|neun)und(?:zwanzig|dreißig|dreissig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig)",
    twice=_set("doppel, zweimal"),
    thrice=_set("dreimal"),
    at_signs=_set("at, ät, klammeraffe"),
    dots=_set("punkt"),
    months=_set(
        "januar, jänner, februar, märz, april, mai, juni, juli, august, september, oktober, november, dezember"
    ),
    days=_set(
        "montag, dienstag, mittwoch, donnerstag, freitag, samstag, sonnabend, sonntag, heute, morgen, "
        "übermorgen, gestern"
    ),
)

_ZH = LanguageWords(
    backchannels=_HUMS
    | _set(
        "嗯, 嗯嗯, 对, 对对, 对对对, 好, 好的, 好好, 是, 是的, 是是, 哦, 噢, 啊, 行, 可以, 明白, 知道了, "
        "没错, 了解, 当然"
    ),
    yes_no=_set(
        "是, 是的, 对, 对的, 好, 好的, 可以, 行, 没错, 不, 不是, 不是的, 不对, 不用, 不要, 不行, 没有, 不用了, 不可以"
    ),
    open_ends=_set(
        "和, 跟, 或者, 还是, 但是, 可是, 因为, 所以, 如果, 然后, 而且, 就是, 那个, 这个, 呃, 对于, 关于, 我, "
        "我想, 我要, 我的, 我们, 想要, 需要, 我叫, 名字是, 号码是, 地址是, 一个, 等一下"
    ),
    units=_values("零/〇/洞 一/幺 二/两 三 四 五 六 七 八 九"),
    at_signs=_set("艾特, at"),
    dots=_set("点"),
    days=_set(
        "今天, 明天, 后天, 昨天, 周一, 周二, 周三, 周四, 周五, 周六, 周日, 星期一, 星期二, 星期三, 星期四, "
        "星期五, 星期六, 星期天, 星期日"
    ),
)

WORDINGS: Mapping[str, LanguageWords] = {"en": _EN, "es": _ES, "fr": _FR, "it": _IT, "pt": _PT, "de": _DE, "zh": _ZH}
"""The words by language, the first part of a BCP 47 tag."""

NO_LANGUAGE = LanguageWords(backchannels=_HUMS)
"""The words of a language that ``WORDINGS`` lacks."""


def wording(language: str) -> LanguageWords:
    """Return the words of the language with this BCP 47 tag."""
    return WORDINGS.get(language.lower().replace("_", "-").split("-")[0], NO_LANGUAGE)


def is_made_of(text: str, phrases: Iterable[str]) -> bool:
    """Return True if ``text``, in the spelling of ``plain``, is one or more of the phrases and nothing else."""
    known = {tuple(phrase.split()) for phrase in phrases}
    longest = max(map(len, known), default=0)
    words = text.split()
    ends = {0}  # numbers of words that phrases can cover from the beginning
    for end in range(1, len(words) + 1):
        if any(
            end - size in ends and tuple(words[end - size : end]) in known for size in range(1, min(longest, end) + 1)
        ):
            ends.add(end)
    return bool(words) and len(words) in ends


def may_become_made_of(text: str, phrases: Iterable[str]) -> bool:
    """Return True if ``text``, in the spelling of ``plain``, ends within a phrase: "all" of "all right". What comes
    before that is made of the phrases."""
    known = set(phrases)
    words = text.split()
    for at in range(len(words)):
        before, begun = " ".join(words[:at]), " ".join(words[at:]) + " "
        if any(phrase.startswith(begun) for phrase in known) and (not before or is_made_of(before, known)):
            return True
    return False
