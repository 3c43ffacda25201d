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
            "leave a message, leave your message, leave me a message, leave your name, after the tone,"
            "after the beep, at the tone, voicemail, voice mail, mailbox, can't take your call,"
            "cannot take your call, can't come to the phone, cannot come to the phone, not available,"
            "is unavailable, no one is available, unable to take your call, can't get to the phone,"
            "missed your call, you have reached, you've reached, get back to you, record your message,"
            "answering machine, voice mailbox, voice message, after the signal, at the beep,"
            "wait for the beep, the number you, return your call, call you back, please call again,"
            "try again later, our hours are, office is closed, ring you later, leave me something,"
            "leave a short message, the person at extension, on another line,"
            "not in service, no longer in service, has been disconnected, switched off, out of coverage,"
            "automatic voice message, forwarded to, your message after, no one can take, available to take your call,"
            "not able to take, unavailable right now, currently unavailable, when done hang up,"
            "finished recording, hang up or press"
        ),
        screening=_phrases(
            "record your name and reason, your name and reason for calling, state your name, say your name,"
            "why you're calling, why you are calling, why you call, see if this person is available,"
            "call assist, call assistant, automated assistant, screening service, call is being screened,"
            "calls from unknown numbers, the person you're calling is using,"
            "the person you are calling is using, may i ask who is calling, may i ask who's calling,"
            "who is calling and, purpose of your call, say who you are, say your name and, tell me your name,"
            "your name and why, please state your name, record your name, who is calling and why,"
            "who's calling and why, screening your call, get a copy of this conversation,"
            "google assistant to screen"
        ),
        menu=_phrases(
            "press one, press 1, press two, press 2, press the pound, press star, main menu,"
            "following options, menu options, all of our agents, all our agents, please hold,"
            "your call is important, representatives are currently, next available, next free,"
            "stay on the line, in the queue, in a queue, calls are recorded, call may be recorded,"
            "thank you for waiting, thank you for holding, continue to hold, agents are busy,"
            "will be answered shortly, press zero, press 0, press or say, dial nine one one, dial 911,"
            "first in line, in the order it was received, your patience, please stay on the line,"
            "please continue to hold, please wait while, next available agent, "
            "high call volume, higher than normal, please select, enter the, touch tone,"
            "welcome to the directory, be with you in, number in the queue,"
            "in line and will be, caller in line, for quality purposes, otherwise stay on the line,"
            "hang up and dial"
        ),
    ),
    "de": AnswerPhrases(
        human=_phrases("hallo, ja, guten tag, guten morgen, guten abend, grüß gott, am apparat, wer ist da"),
        machine=_phrases(
            "melde mich zurück, hinterlassen sie, nach dem signalton, nach dem ton, nach dem piepton,"
            "anrufbeantworter,"
            "mailbox,"
            "nicht erreichbar, zurzeit nicht, zur zeit nicht, im moment nicht, nicht persönlich, rufe zurück,"
            "eine nachricht, sprachbox, hinterlasst, hinterlasse, nachricht nach dem, nach dem piep,"
            "nach dem signal, ans telefon gehen, sie sind verbunden mit, sprechen sie nach, "
            "melden uns, nicht vergeben, gewählte rufnummer, kein anschluss, vorübergehend nicht, mobilbox,"
            "sprachnachricht, voicebox, voicemail, außerhalb unserer, später noch einmal,"
            "später erneut, angerufene, gewünschte gesprächspartner, am apparat nicht, rufen zurück,"
            "rufen sie zurück, nicht ans telefon,"
            "person an der nebenstelle"
        ),
        screening=_phrases(
            "ihren namen und den grund, grund ihres anrufs, nennen sie ihren namen, grund für den anruf,"
            "name und der grund, namen und grund, namen und anliegen, ob die person verfügbar,"
            "wer anruft, anruf assistent, anrufassistent, anrufe werden gefiltert, sagen sie ihren namen"
        ),
        menu=_phrases(
            "haben sie etwas geduld, haben sie geduld, drücken sie, wählen sie die, bitte warten sie,"
            "der nächste freie, ihr anruf ist, hauptmenü,"
            "alle mitarbeiter, bleiben sie in der leitung, in der warteschlange, alle leitungen, alle plätze,"
            "alle unsere, mitarbeiter sind, um geduld, einen moment geduld, legen sie nicht auf,"
            "nicht aufzulegen, werden verbunden, gespräch wird aufgezeichnet, gespräche werden aufgezeichnet,"
            "nächster freier, wählen sie bitte, für fragen zu, sind der nächste, warteposition,"
            "vielen dank für ihre geduld, danke für ihre geduld, in kürze"
        ),
    ),
    "fr": AnswerPhrases(
        human=_phrases("allô, allo, oui, bonjour, bonsoir, qui est à l'appareil"),
        machine=_phrases(
            "laissez un message, laisser un message, laissez votre message, laisser votre message,"
            "après le bip, après le signal sonore, messagerie, répondeur, pas disponible,"
            "absent pour le moment, vous rappellerai, laisser un, laissez moi un, laissez nous un,"
            "laissez votre nom, après la tonalité, après le signal, après le timbre, boîte vocale, boîte de,"
            "n'est pas disponible, ne suis pas disponible, pas disponibles, injoignable, pas joignable,"
            "indisponible, ne peut pas vous répondre, ne peux pas vous répondre, ne peut vous répondre,"
            "ne peux vous répondre, avez bien joint, vous rappellerons,"
            "rappeler ultérieurement, rappelez plus tard, n'est pas attribué, numéro que vous avez,"
            "la personne au poste, votre correspondant, "
            "sommes fermés, vous avez joint, personne n'est, appuyez sur le dièse, votre message"
        ),
        screening=_phrases(
            "votre nom et la raison, raison de votre appel, motif de votre appel, dites votre nom,"
            "votre nom et le motif, votre nom et la, si cette personne est disponible,"
            "si la personne est disponible, enregistrez votre nom, enregistrer votre nom, indiquez votre nom,"
            "dire votre nom, filtre les appels"
        ),
        menu=_phrases(
            "tapez un, tapez 1, appuyez sur, veuillez patienter, menu principal, votre appel est important,"
            "ne quittez pas, nos conseillers, appuyez, tapez, conseiller va, vont vous répondre, de patienter,"
            "votre patience, avoir patienté, restez en ligne, rester en ligne, en ligne et votre, tous nos,"
            "toutes nos, temps d'attente, mis en attente, file d'attente, prochain agent,"
            "prochain représentant, représentant disponible, premier dans la, être enregistré,"
            "être enregistrée, composez le, composer les, bienvenue à l'annuaire, bienvenue dans,"
            "répertoire"
        ),
    ),
    "es": AnswerPhrases(
        human=_phrases("hola, sí, dígame, diga, bueno, aló, buenos días, buenas tardes, quién es"),
        machine=_phrases(
            "deje un mensaje, deje su mensaje, deja un mensaje, deja tu mensaje, después de la señal,"
            "después del tono, buzón de voz, contestador, no está disponible, no puedo atender,"
            "no puede atender, deje un, dejar un mensaje, dejar su mensaje, dejen su mensaje, por favor deje,"
            "deje su nombre, grabe su mensaje, después del bip, después del pitido, tras la señal,"
            "oír la señal, escuchar el tono, oír el tono, escuche el tono, al tono, "
            "no disponible, no nos encontramos, apagado o fuera, fuera de cobertura, fuera del área,"
            "fuera de servicio, se ha comunicado con, te has comunicado con, le devolver,"
            "devolveremos la llamada, devolveré la llamada, llame más tarde, intente más tarde, el número que,"
            "el número marcado, el teléfono al que, la persona en la extensión, la persona de la extensión,"
            ""
            "nadie está disponible, buzón, contestadora, correo de voz, cuando termine,"
            "al finalizar, su mensaje, tu mensaje"
        ),
        screening=_phrases(
            "su nombre y el motivo, tu nombre y el motivo, motivo de su llamada, diga su nombre,"
            "su nombre y la razón, tu nombre y la razón, su nombre y por qué, grabe su nombre,"
            "graba tu nombre, si graba su nombre, si esta persona está disponible,"
            "si la persona está disponible, motivo de tu llamada,"
            "decir su nombre, asistente de llamadas"
        ),
        menu=_phrases(
            "oprima, pulse, marque uno, marque 1, presione, menú principal, su llamada es importante,"
            "manténgase nuestros agentes, no cuelgue, marque el, marque la, todos nuestros,"
            "espere en línea, espere en la línea, permanezca en, en la línea, en breve, será atendida,"
            "será atendido, será contestada, será respondida, siguiente agente, siguiente representante,"
            "próximo agente, próximo representante, primer representante, representantes, gracias por esperar,"
            "gracias por su espera, gracias por su paciencia, por su paciencia, su paciencia, su llamada será,"
            "su llamada es, llamada puede ser grabada, bienvenido al, bienvenidos al, directorio, teclado,"
            "ingrese, introduzca, primero en la, en la cola, próxima en la"
        ),
    ),
    "it": AnswerPhrases(
        human=_phrases("pronto, sì, buongiorno, buonasera, chi parla, ciao"),
        machine=_phrases(
            "lasciate un messaggio, lascia un messaggio, lasciare un messaggio, dopo il segnale, segreteria,"
            "non è raggiungibile, dopo il bip, non posso rispondere, non disponibile, lasciate il vostro,"
            "lasciare il vostro, lascia il tuo, lasciate un, lasci un messaggio, lasciate il, dopo il tono,"
            "dopo il segnale acustico, segnale acustico, non è al momento, non è disponibile,"
            "momentaneamente, da lei chiamato, da lei selezionato, il numero selezionato, non raggiungibile,"
            "irraggiungibile, richiameremo, richiamerò, il numero da lei, "
            "un messaggio, il messaggio, vostro messaggio, suo messaggio, casella vocale,"
            "la persona all'interno, l'utente, nessuno è disponibile,"
            "nessuno può, non c'è nessuno, dopo il beep, cancelletto"
        ),
        screening=_phrases(
            "nome e il motivo, motivo della chiamata, dica il suo nome, nome e motivo, suo nome e, tuo nome e,"
            "registri il suo nome, registra il tuo nome, dire il suo nome, dica il nome, pronunci il suo nome,"
            "se questa persona è disponibile, se la persona è disponibile,"
            "motivo della sua chiamata, motivo della telefonata, il proprio nome, "
            "dite il vostro nome"
        ),
        menu=_phrases(
            "premere, premi, prema, digiti, attendere resti in linea, menu principale,"
            "primo operatore, digitare, tutti i nostri, tutti gli operatori, nostri operatori, operatori sono,"
            "rimanga in, rimanete in, restate in, resti in, attenda in, di attendere, per l'attesa,"
            "per la pazienza, vostra pazienza, sua pazienza, la sua chiamata, vostra chiamata, tua chiamata,"
            "prossimo operatore, operatore disponibile, in linea, essere registrata, verrà registrata,"
            "benvenuti, benvenuto nella, elenco, prime tre lettere, tastiera, prossimo della coda, in coda"
        ),
    ),
    "pt": AnswerPhrases(
        human=_phrases("alô, olá, sim, bom dia, boa tarde, boa noite, quem fala, pronto"),
        machine=_phrases(
            "deixe a sua mensagem, deixe sua mensagem, deixe uma mensagem, após o sinal, depois do sinal,"
            "caixa postal, correio de voz, não está disponível, não posso atender, deixe o seu, deixe seu,"
            "deixe recado, deixe um recado, deixar uma mensagem, deixar recado, grave a sua mensagem,"
            "grave sua mensagem, grave seu recado, após o bip, depois do bip, após o tom, depois do tom,"
            "fora da área, está desligado, não pode atender, não podemos atender, encaminhada para,"
            "o número que, ligue mais tarde, tente mais tarde, retornaremos, retornarei, ligo de volta,"
            "indisponível, secretária eletrônica, não estou disponível, "
            "você ligou para, sua mensagem, atendedor"
        ),
        screening=_phrases(
            "seu nome e o motivo, motivo da ligação, motivo da chamada, diga o seu nome, seu nome e o,"
            "grave seu nome, gravar seu nome, se a pessoa está disponível, se esta pessoa está disponível,"
            "quem fala e, motivo do contato, motivo da sua, diga seu nome,"
            "assistente de chamadas"
        ),
        menu=_phrases(
            "tecle, digite, pressione, prima, menu principal, aguarde sua ligação é, disque,"
            "todos os nossos, todos nossos, nossos atendentes, atendentes estão, "
            "aguarde na, permaneça na, na linha, próximo atendente, por aguardar,"
            "sua paciência, sua ligação será, sua chamada, sua chamada será, será atendido, será atendida,"
            "pode ser gravada, está sendo gravada, menu, fila de espera, na fila, bem vindo ao, bem vindo à,"
            "para falar com"
        ),
    ),
    "zh": AnswerPhrases(
        human=_phrases("喂, 你好, 您好, 哪位"),
        machine=_phrases(
            "听到滴, 听到提示音, 请留言, 嘀声后, 滴声后, 提示音后, 语音信箱, 暂时无法接通, 无人接听, 已关机,"
            "正在通话中, 不在服务区, 请稍后再拨, 您拨打的, 请在, 滴的一声, 嘟声后, 嘟的一声,"
            "无法接听, 不方便接听, 用户正忙, 留下您的, 稍后再拨, 已停机, 是空号, 转接到, 语音留言"
        ),
        screening=_phrases(
            "请说出您的姓名, 来电原因, 来电事由, 电话助理, 智能助理, 您的姓名和, 请告诉我您的, 您是哪位请说,留下姓名和"
        ),
        menu=_phrases(
            "被录音, 请按, 按一, 主菜单, 请稍候, 请不要挂机, 座席忙, 客服代表, 排队, 所有座席, 坐席, 正在排队,"
            "请按键, 请您稍候, 您的来电, 正在为您转接, 请耐心等待, 客服人员,"
            "人工服务, 欢迎致电, 普通话请按"
        ),
    ),
}


def phrases_of(language: str) -> tuple[AnswerPhrases, ...]:
    """Return the phrases of a language tag such as ``de-AT``, or of all languages if the language is unknown."""
    found = PHRASES.get(language.lower().partition("-")[0])
    return (found,) if found else tuple(PHRASES.values())
