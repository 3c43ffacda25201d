"""The phrases by which people, answering machines, screening assistants and menus answer, by language. Pure.

All phrases are written as ``plain`` writes them. A phrase counts wherever its words follow one another. The wordings
are our own guesses at what such systems say; no recording of a live system was compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.call.hearing.wordings import plain


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(plain(each) for each in text.split(",") if each.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPhrases:
    """The phrases of one language."""

    human: tuple[str, ...]
    """Beginnings of a person's first words."""
    machine: tuple[str, ...]
    screening: tuple[str, ...]
    menu: tuple[str, ...]
    """Phrases of menus and of announcements in queues."""


PHRASES: Mapping[str, AnswerPhrases] = {
    "en": AnswerPhrases(
        human=_phrases("hello, hi, hey, yes, yeah, good morning, good afternoon, good evening, speaking, who is this"),
        machine=_phrases(
            "leave a message, leave your message, leave me a message, leave your name, after the tone, after the beep,"
            "at the tone, voicemail, voice mail, mailbox, can't take your call, cannot take your call,"
            "can't come to the phone, cannot come to the phone, not available, is unavailable,"
            "no one is available, unable to take your call, can't get to the phone, missed your call,"
            "you have reached, you've reached, get back to you, record your message, answering machine, voice mailbox,"
            "voice message, after the signal, at the beep, wait for the beep, the number you, return your call,"
            "call you back, please call again, try again later, our hours are, office is closed, ring you later,"
            "leave me something, leave a short message"
        ),
        screening=_phrases(
            "record your name and reason, your name and reason for calling, state your name, say your name,"
            "why you're calling, why you are calling, why you call, see if this person is available,"
            "call assist, call assistant, automated assistant, screening service, call is being screened,"
            "calls from unknown numbers,"
            "the person you're calling is using, the person you are calling is using, may i ask who is calling,"
            "may i ask who's calling, who is calling and, purpose of your call, say who you are"
        ),
        menu=_phrases(
            "press one, press 1, press two, press 2, press the pound, press star, main menu, following options,"
            "menu options, all of our agents, all our agents, please hold, your call is important,"
            "representatives are currently, next available, next free, stay on the line, in the queue, in a queue,"
            "calls are recorded, call may be recorded, thank you for waiting, thank you for holding, continue to hold,"
            "agents are busy, will be answered shortly, press zero, press 0, press or say, dial nine one one, dial 911"
        ),
    ),
    "de": AnswerPhrases(
        human=_phrases("hallo, ja, guten tag, guten morgen, guten abend, grüß gott, am apparat, wer ist da"),
        machine=_phrases(
            "hinterlassen sie, nach dem signalton, nach dem ton, nach dem piepton, anrufbeantworter, mailbox,"
            "nicht erreichbar, zurzeit nicht, zur zeit nicht, im moment nicht, nicht persönlich, rufe zurück,"
            "eine nachricht, sprachbox"
        ),
        screening=_phrases(
            "ihren namen und den grund, grund ihres anrufs, nennen sie ihren namen, grund für den anruf"
        ),
        menu=_phrases(
            "drücken sie, wählen sie die, bitte warten sie, der nächste freie, ihr anruf ist, hauptmenü,"
            "alle mitarbeiter, bleiben sie in der leitung, in der warteschlange"
        ),
    ),
    "fr": AnswerPhrases(
        human=_phrases("allô, allo, oui, bonjour, bonsoir, qui est à l'appareil"),
        machine=_phrases(
            "laissez un message, laisser un message, laissez votre message, laisser votre message, après le bip,"
            "après le signal sonore, messagerie, répondeur, pas disponible, absent pour le moment, vous rappellerai"
        ),
        screening=_phrases("votre nom et la raison, raison de votre appel, motif de votre appel, dites votre nom"),
        menu=_phrases(
            "tapez un, tapez 1, appuyez sur, veuillez patienter, menu principal, votre appel est important,"
            "ne quittez pas, nos conseillers"
        ),
    ),
    "es": AnswerPhrases(
        human=_phrases("hola, sí, dígame, diga, bueno, aló, buenos días, buenas tardes, quién es"),
        machine=_phrases(
            "deje un mensaje, deje su mensaje, deja un mensaje, deja tu mensaje, después de la señal,"
            "después del tono, buzón de voz, contestador, no está disponible, no puedo atender, no puede atender"
        ),
        screening=_phrases("su nombre y el motivo, tu nombre y el motivo, motivo de su llamada, diga su nombre"),
        menu=_phrases(
            "oprima, pulse, marque uno, marque 1, presione, menú principal, su llamada es importante,"
            "manténgase en la línea, nuestros agentes, no cuelgue"
        ),
    ),
    "it": AnswerPhrases(
        human=_phrases("pronto, sì, buongiorno, buonasera, chi parla, ciao"),
        machine=_phrases(
            "lasciate un messaggio, lascia un messaggio, lasciare un messaggio, dopo il segnale, segreteria,"
            "non è raggiungibile, dopo il bip, non posso rispondere, non disponibile"
        ),
        screening=_phrases("nome e il motivo, motivo della chiamata, dica il suo nome"),
        menu=_phrases(
            "premere, premi, prema, digiti, attendere in linea, resti in linea, menu principale, primo operatore"
        ),
    ),
    "pt": AnswerPhrases(
        human=_phrases("alô, olá, sim, bom dia, boa tarde, boa noite, quem fala, pronto"),
        machine=_phrases(
            "deixe a sua mensagem, deixe sua mensagem, deixe uma mensagem, após o sinal, depois do sinal,"
            "caixa postal, correio de voz, não está disponível, não posso atender"
        ),
        screening=_phrases("seu nome e o motivo, motivo da ligação, motivo da chamada, diga o seu nome"),
        menu=_phrases("tecle, digite, pressione, prima, menu principal, aguarde na linha, sua ligação é"),
    ),
    "zh": AnswerPhrases(
        human=_phrases("喂, 你好, 您好, 哪位"),
        machine=_phrases(
            "请留言, 嘀声后, 滴声后, 提示音后, 语音信箱, 暂时无法接通, 无人接听, 已关机, 正在通话中, 不在服务区,"
            "请稍后再拨"
        ),
        screening=_phrases("请说出您的姓名, 来电原因, 来电事由, 电话助理, 智能助理"),
        menu=_phrases("请按, 按一, 主菜单, 请稍候, 请不要挂机, 座席忙, 客服代表, 排队"),
    ),
}


def phrases_of(language: str) -> tuple[AnswerPhrases, ...]:
    """Return the phrases of a language tag such as ``de-AT``, or of all languages if the language is unknown."""
    found = PHRASES.get(language.lower().partition("-")[0])
    return (found,) if found else tuple(PHRASES.values())
