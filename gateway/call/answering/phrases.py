"""The phrases by which people, answering machines, screening assistants and menus answer, by language. Pure.

A pattern is a sequence of words as ``folded`` writes them. It counts wherever these words follow one another:

    leave/record    one of these words            _     up to four other words
    laiss*          a word that begins so         #     a number
    voice+mail      written as one word or two

One pattern decides. A person may say those with ``?`` too ("I will call you back"), so two of them are needed, and they
are no certain sign. After words that only a person says ("how can I help?"), only a screening assistant's patterns and
those with ``!`` decide.

The wordings of the assistants of iOS and Google are compared with published transcripts
(``tests/vectors/answering/wordings.json``). All others are our own guesses at what such systems say; no recording of a
live system was compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from gateway.call.hearing.wordings import plain, wording
from gateway.seams.messages import AnsweredBy

_GREETING_WORDS = 6
"""Most words of an utterance that is a person's because it begins with a greeting."""
_CONTRACTIONS = (
    (re.compile(r"\bcan(?:no|'?)t\b"), "can not"),
    (re.compile(r"\bwon'?t\b"), "will not"),
    (re.compile(r"\b(do|does|is|are|was|has|have|could|would)n'?t\b"), r"\1 not"),
    (re.compile(r"\b(you|we|they|i|who|what)'?ve\b"), r"\1 have"),
    (re.compile(r"\b(you|they)re\b|\b(\w+)'re\b"), r"\1\2 are"),
    (re.compile(r"\bi'm\b"), "i am"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"\b(who|what|that)s\b|'s\b"), r"\1 is"),
)
_SIMPLIFIED = str.maketrans(
    "請聽語暫時無關機話務區後撥嘀聲滿轉將間號碼說訴爲為電鍵選單親員來個確認幫與誰貴現線對錄問嗎謝費業題須總續導",
    "请听语暂时无关机话务区后拨嘀声满转将间号码说诉为为电键选单亲员来个确认帮与谁贵现线对录问吗谢费业题须总续导",
)
"""Characters of the Mandarin phrases: a recogniser may write either kind."""


def folded(text: str) -> str:
    """Return the words of ``plain`` without accents and apostrophes, and English contractions in full."""
    words = plain(text.translate(_SIMPLIFIED))
    for pattern, whole in _CONTRACTIONS:
        words = pattern.sub(whole, words)
    letters = unicodedata.normalize("NFKD", words.replace("ß", "ss").replace("œ", "oe").replace("'", " "))
    return " ".join("".join(each for each in letters if not unicodedata.combining(each)).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPhrases:
    """The patterns of one language, separated by commas."""

    greeting: str
    """Beginnings of a person's first words; no patterns."""
    person: str
    """Phrases that only someone says who listens."""
    machine: str
    screening: str
    menu: str
    """Phrases of menus and of announcements in queues."""


PHRASES: Mapping[str, AnswerPhrases] = {
    "en": AnswerPhrases(
        greeting=(
            "hello, hi, hey, hiya, yes, yeah, yep, good morning, good afternoon, good evening, speaking, who is this"
        ),
        person=(
            "how can/may/could i/we help, can/may i help you, what can i do for you, can/may i take _ message,"
            "can/could/may i call/ring/phone/text you, do you want to leave, do you want me to,"
            "would you like to leave, would you like me to, shall i, who am i speaking,"
            "what is this about/regarding, what is it about/regarding, who are you,"
            "got/saw/heard/read your voice+mail/message/call/text, you left me/a/us, number you are calling from,"
            "wrong number, sorry to keep you, sorry for keeping you, sorry for the wait"
        ),
        machine=(
            "leave _ message/messages/name/number/details/voice+mail, leave me/us something, leaving a/your message,"
            "after/at/following/until/hear/for the tone/beep/bleep/signal, sound of the tone/beep,"
            "wait for the beep, voice+mail, mail+box, answering machine/service/system, message bank,"
            "messaging system/service, voice message system/service, voice message, record your/a message,"
            "your message after/now, finished/done recording, when done hang up, hang up or press,"
            "you know what to do, no+one/no+body is available/here, no+one/no+body can take,"
            "no+one/no+body can come, we are not in, we are not home, not at home, away from my/the/our desk/phone,"
            "the person at extension,"
            "number/person/party/subscriber/customer you have called/dialed/dialled/reached,"
            "number/person/party/subscriber/customer you called/dialed/dialled, number you _ is,"
            "number/person/party/subscriber/customer/client you are trying/attempting to reach/call,"
            "not/longer in service, been disconnected, switched/turned off, out of coverage/service/range,"
            "office/practice/shop/store/clinic/surgery is closed,"
            "office/practice/shop/store/clinic is now/currently closed, we are now/currently closed,"
            "our _ hours are, forwarded to, sent/diverted/transferred to _ voice/automated, has not been set up,"
            "mailbox is full, can not accept _ messages, send me a text, ?available to take your call,"
            "?can/could not take your call, ?can/could not take my calls, ?unable/able to take _ call,"
            "?can not come to the phone, ?can/could not get to the phone, ?can not answer, ?unable to come,"
            "?not available, ?unavailable, ?you have reached, ?missed your call, ?get/getting back to you,"
            "?return/returning your call, ?call/ring/phone you back/later, ?on another line,"
            "?as soon as i/we/possible, ?try again later, ?please call again/back, ?out of the office"
        ),
        screening=(
            "record/state/say/announce your _ name, tell/give me your name and why/reason, if you record,"
            "who you are and why, say/state why you are calling, who is calling and why,"
            "see if this/the person is available, if this person is available, ask if this person,"
            "call/calling assist, call assistant, assist by google, google assistant, screening service,"
            "call is being screened, screening this/your call, screens calls, call screening, caller id screening,"
            "calls from unknown/unidentified numbers/callers, accept unidentified calls, using a call/screening,"
            "copy of this conversation, recording this call for, with the person you called, automated assistant,"
            "for the person you are trying/calling, get the person you are trying/calling,"
            "?name and _ reason/why/purpose, ?reason for calling, ?reason for your call, ?purpose of your call,"
            "?tell me your name, ?why you are calling, ?why you call, ?you are calling about,"
            "?before i _ connect you, ?who is calling, ?virtual/ai/digital/personal assistant, ?put you through,"
            "?provide more detail"
        ),
        menu=(
            "!press/dial/push/select #, !press star/pound/hash, !press the pound/hash/star, !press or say,"
            "!say or press, !or say #, !you can say, !in a few words, main menu, following options/menu,"
            "menu options, options have changed, listen carefully, all _ agents/representatives/operators/advisors,"
            "agents/representatives/operators/advisors/lines are busy/currently/all, all lines are, next available,"
            "next free, your call is important/very/now/being, your call will be answered,"
            "your call has been placed, please hold, continue to hold, please stay/remain on the line,"
            "otherwise stay on, in the/a queue/q/cue, number # in, place in line, first in line, caller in line,"
            "in line and will be, order it was, order in which, calls/call are/is/may/will be recorded/monitored,"
            "for quality, for training purposes, your patience, be with you in/shortly, answered shortly,"
            "high call volume*, higher than normal/usual, experiencing _ volume, touch+tone,"
            "welcome to the directory, account number followed, please select/choose, please wait while,"
            "please enter, enter the/your _ number/digits/code/letters, hang up and dial, dial nine one one,"
            "dial 911, if this is a/an _ emergency, wait time, speak to/with an agent/operator,"
            "?for waiting/holding, ?thank you for calling, ?thanks for calling, ?welcome to, ?stay on the line,"
            "?hold the line, ?to speak/hear/make/reach/book, ?if you know/have/would, ?opening hours, ?following"
        ),
    ),
    "de": AnswerPhrases(
        greeting=(
            "hallo, ja, jo, guten tag, guten morgen, guten abend, grüß gott, grüezi, servus, moin, am apparat,"
            "wer ist da"
        ),
        person=(
            "kann ich _ helfen/ausrichten/tun, möchten/wollen sie _ hinterlassen, möchtest/willst du _ hinterlassen,"
            "können sie _ hinterlassen, soll/darf ich, wer ist/spricht da, wer ist dran, mit wem spreche,"
            "worum geht, um was geht, am apparat, verwählt, falsch verbunden, ich verbinde"
        ),
        machine=(
            "nach dem signal*/ton/tonsignal/piep*/beep*/bip*/pfeif*,"
            "hinterlass* _ nachricht/namen/name/nummer/rufnummer, hinterlass* sie/uns/mir, nachricht nach,"
            "jetzt _ nachricht hinterlassen, anruf+beantworter, mail+box, mobil+box, sprach+box, voice+box,"
            "voice+mail, combox, sprach+nachricht, sprechen sie _ nach/nachricht, sprich/sprecht _ nach/drauf,"
            "mir drauf, aufs band, aufs/auf den ab, gewünschte* gesprächspartner*/teilnehmer*/rufnummer,"
            "gewünschte*, angerufene*, gewählte* rufnummer/nummer, kein anschluss, anschluss _ nicht,"
            "?anschluss von/der, ?nicht zu hause, nicht vergeben, rufnummer _ nicht, vorübergehend nicht,"
            "nicht bedient, person an der nebenstelle, außerhalb unserer/der,"
            "geschäftszeiten/sprechzeiten/öffnungszeiten/bürozeiten, büro/praxis/geschäft/laden _ geschlossen,"
            "wir haben _ geschlossen, sind nicht im büro, niemand erreichbar/zu/kann/verfügbar, weitergeleitet,"
            "?nicht erreichbar, ?nicht zu erreichen, ?nicht persönlich, ?nicht ans telefon, ?nicht entgegen*,"
            "?rufe/rufen/ruf _ zurück, ?meld*/meldet _ mich/uns, ?mich bei ihnen/dir, ?sind _ verbunden mit,"
            "?sie mit _ verbunden, ?haben _ erreicht, ?später noch einmal/erneut, ?schnellstmöglich,"
            "?sobald/schnell wie möglich, ?so bald wie, ?eine nachricht, ?ihre nachricht, ?gerade nicht da,"
            "?leider nicht"
        ),
        screening=(
            "nennen/sagen/nenne/sag/nimm/nehmen sie/du/mir/bitte/uns _ namen, ihren/deinen namen und,"
            "ihren/deinen namen aufnehm*/aufsprech*/nennen/nennst/sagen/sagst,"
            "namen und/sowie _ grund/anliegen/zweck, name und _ grund/anliegen,"
            "ob die/diese person _ verfügbar/erreichbar, ob diese person, anruf+assistent*, telefon+assistent*,"
            "anruf+filter*, anrufe* _ gefiltert, anruf wird gefiltert, filterdienst, screening service/dienst,"
            "assistent von google, google assist*, kopie dieses gesprächs, wer anruft, anrufe* von unbekannten,"
            "unbekannte* anrufer*, nimmt keine _ unbekannt*, ?grund ihres/deines/für _ anruf*,"
            "?warum/weshalb/wieso sie/du _ anrufen/anrufst, ?bevor ich _ verbinde"
        ),
        menu=(
            "!drücken/wählen sie _ #, !drücke/drück die #, !taste #, !drücken sie, !wählen sie die/bitte, hauptmenü,"
            "sagen sie _ stichwort/einfach, bitte warten sie, bitte bleiben sie, bleiben sie _ leitung/apparat,"
            "nächste* freie*, ihr anruf ist/wird, ihren anruf so, alle _ mitarbeiter*/leitungen/plätze/berater*,"
            "mitarbeiter* sind, mitarbeiter* ist für, in der warteschlange, warteschleife, warte+position,"
            "wartezeit, haben sie _ geduld, gedulden sie, um _ geduld, um geduld, moment geduld, ihre geduld,"
            "legen sie _ nicht auf, nicht aufzulegen, sie werden _ verbunden, werden verbunden,"
            "gespräch* _ aufgezeichnet, anruf* _ aufgezeichnet, aufzeichnung, qualität*, für fragen zu,"
            "sind der nächste, in kürze, ?herzlich willkommen, ?willkommen bei, ?für informationen, ?wenn/falls sie,"
            "?danke für ihren anruf"
        ),
    ),
    "fr": AnswerPhrases(
        greeting="allô, oui, ouais, bonjour, bonsoir, qui est à l'appareil, c'est qui, qui est ce",
        person=(
            "je peux/puis _ aider, puis je _ aider, que puis je, en quoi puis, voulez vous _ laisser/message,"
            "souhaitez vous laisser, tu veux laisser, je peux prendre, qui est à l'appareil, c'est de la part,"
            "c'est pour quoi, c'est à quel sujet, je vous le passe, je vous la passe, qui le/la demande,"
            "mauvais numéro"
        ),
        machine=(
            "laiss* _ message/messages/nom/numéro/coordonnées/mot, laiss* moi/nous un, laisser un,"
            "après le bip/signal/timbre/top/son/ton, après la tonalité, après bip, au bip, messagerie, répondeur,"
            "boîte vocale, boîte de, vous êtes bien sur, parlez après, enregistrez/enregistrer votre/un message,"
            "n'est pas/plus attribué, numéro _ attribué, numéro que vous avez, numéro composé/demandé,"
            "votre correspondant*, abonné* _ joignable/disponible, la personne au poste,"
            "personne que vous _ appelée/jointe, sommes _ fermé*, nous sommes _ absent*, actuellement fermé*,"
            "sont _ fermé*, bureaux _ fermés, cabinet/magasin/bureau/standard _ fermé, horaires d'ouverture,"
            "personne n'est/ne, appuyez sur le dièse, appuyez sur dièse, rappeler ultérieurement, hors service,"
            "vous rappellerons/rappellerai/rappelerons/rappelerai dès/au/le, ?pas/plus disponible*/joignable*,"
            "?indisponible*, ?injoignable*, ?absent*, ?vous avez _ joint,"
            "?vous rappellerai/rappellerons/rappelerai/rappelerons/rappellerez, ?peux/peut/pouvons _ répondre,"
            "?peux/peut/pouvons pas prendre, ?dès que possible, ?dans les plus brefs, ?votre message,"
            "?renouveler votre appel, ?vous êtes bien chez"
        ),
        screening=(
            "dites/indiquez/enregistrez/enregistrer/précisez/dire/indiquer/préciser/énoncez _ nom,"
            "si cette/la personne est, personne que vous appelez/appeler utilise, filtr* _ appel*, appel* filtré*,"
            "service de filtrage, assistant d'appel*, assistant google, assistant de google,"
            "copie de cette conversation, appels _ inconnus, numéros inconnus,"
            "?nom et _ raison/motif/objet/pourquoi, ?raison/motif/objet de votre/ton/l' _ appel,"
            "?pourquoi vous appelez, ?avant de vous _ passer/relation"
        ),
        menu=(
            "!tape*/appuye*/compose*/faites _ #, !tape*/appuye* sur, !tapez, !tapé, !tapés, !appuyez,"
            "!composez le/les, !composer les, !dites #, menu principal, votre appel est/sera/va, nos conseillers,"
            "conseiller* va/sont, tous nos, toutes nos, vont vous répondre, va vous répondre, votre patience,"
            "avoir patienté, restez/rester en ligne, rester en ligne, en ligne et votre, temps d'attente,"
            "mis en attente, file d'attente, prochain* agent/conseiller/représentant*, représentant* disponible,"
            "premier dans la, être enregistré*, est enregistré* à, enregistré* à des fins, bienvenue à l'annuaire,"
            "bienvenue dans, répertoire, serveur vocal, appels _ enregistrés, service demandé, ?ne quittez pas,"
            "?patienter, ?patientez, ?bienvenue, ?pour _ renseignement*/rendez, ?si vous souhaitez/êtes, ?instants,"
            "?merci de votre appel, ?est occupé*, ?sont occupé*"
        ),
    ),
    "es": AnswerPhrases(
        greeting=(
            "hola, sí, dígame, diga, bueno, aló, buenos días, buenas tardes, buenas noches, buenas, quién es,"
            "quién habla"
        ),
        person=(
            "en qué puedo/podemos/le, puedo ayudar*, quiere/quieres/desea dejar, le/te tomo, de parte de quién,"
            "quién le/lo/la llama, quién llama, con quién hablo, de qué se trata, número equivocado, se lo paso,"
            "le paso"
        ),
        machine=(
            "dej* _ mensaje/recado/nombre/número/datos, dej* un/su/tu, grab*/grav* _ mensaje,"
            "después del tono/bip/pitido/señal, después de la señal/del, después de oír/escuchar,"
            "tras la/el señal/tono/pitido, oír/escuchar/escuche/oiga/escuches/oigas _ señal/tono/bip/pitido,"
            "al tono, buzón, contestador*, correo de voz, casilla de mensajes, apagado o,"
            "fuera de cobertura/servicio/l/área, fuera del área, número que _ marc*/marcado, número marcado,"
            "número que ha, teléfono al que, móvil al que, se/te/nos ha/has/han comunicado con, ha/has llamado a,"
            "no se encuentra disponible, no nos encontramos, nadie está/puede, persona en/de la extensión,"
            "al finalizar, cuando termine, estamos cerrad*, horario de atención/oficina es, nuestro horario,"
            "oficinas _ cerrad*, devolver* la/tu/su _ llamada, le/te/les devolver*, suscriptor,"
            "?no está/estoy/estamos/disponible _ disponible, ?no disponible,"
            "?no puedo/podemos/puede _ atender*/contestar*, ?no puedo/podemos/puede responder*,"
            "?en cuanto pueda*/podamos, ?lo antes posible, ?más tarde, ?tan pronto, ?su/tu mensaje, ?le/te llamar*"
        ),
        screening=(
            "grab*/grav* _ nombre, diga/indique/mencione/dice/dices/di su/tu nombre, decir/indicar su/tu nombre,"
            "si esta/la persona está/se, si esta persona, asistente de llamadas/google, asistente virtual de google,"
            "filtr* _ llamad*, servicio de filtrado, copia de esta conversación, números desconocidos,"
            "llamadas desconocidas, la persona a la/quien _ llama*/llamando usa/utiliza,"
            "?nombre y _ motivo/razón/asunto/por, ?motivo/razón de su/tu/la _ llamada, ?por qué llama*,"
            "?antes de _ comunicar*/pasar*/conectar*"
        ),
        menu=(
            "!oprima/pulse/presione/marque _ #, !oprima, !pulse, !presione, !marque el/la, menú principal,"
            "menú de opciones, siguientes opciones, su llamada es/será/puede/está, no cuelgue,"
            "todos/todas nuestros/nuestras, nuestros agentes/representantes/asesores/operadores/ejecutivos,"
            "espere en _ línea, permanezca en, manténgase en, en la línea, en breve, será atendid*, será contestada,"
            "será respondida, siguiente/próximo/primer agente/representante/asesor/operador/ejecutivo,"
            "representantes, gracias por esper*, gracias por su espera/paciencia, su paciencia, ser grabada,"
            "está siendo grabada, directorio, teclado, ingrese, introduzca, primero/primera en la, en la cola/fila,"
            "próxima en, tiempo de espera, por motivos de calidad, fines de calidad, ?bienvenid*,"
            "?gracias por llamar, ?espere, ?si desea/conoce/necesita, ?para hablar/información, ?un momento"
        ),
    ),
    "it": AnswerPhrases(
        greeting="pronto, sì, buongiorno, buonasera, chi parla, chi è, ciao, salve",
        person=(
            "come posso aiutar*, posso aiutar*, posso esserle, in cosa posso, vuole/vuoi _ lasciare, chi parla,"
            "chi lo/la desidera/cerca, posso _ riferire, devo riferire, glielo passo, gliela passo,"
            "ha sbagliato numero"
        ),
        machine=(
            "lasc* _ messaggio/nome/recapito/numero/messaggi, lasc* il/un vostro/tuo/suo,"
            "dopo il segnale/bip/beep/tono/bit, segnale acustico, segreteria, casella vocale, casella di posta,"
            "cliente/utente/persona/numero da lei/te, da lei chiamat*/selezionat*/composto,"
            "numero selezionato/chiamato/composto, l'utente, non è raggiungibile, non raggiungibile,"
            "irraggiungibile, spento o, non è attivo, inesistente, la persona all'interno, nessuno è/può,"
            "non c'è nessuno, cancelletto, siamo chiusi, uffici sono chiusi, ufficio/studio/negozio è _ chiuso,"
            "orari di apertura, orario di ufficio, registr* _ messaggio, sarete/sarai/sarà _ ricontatt*/richiamat*,"
            "avete chiamato, hai/ha chiamato,"
            "?non posso/possiamo/può _ rispondere/rispondervi/risponderle/risponderti,"
            "?non sono/è/siamo _ disponibil*, ?non disponibil*, ?momentaneamente, ?richiamerò/richiameremo,"
            "?vi/ti/la richiamo, ?prima possibile, ?appena possibile, ?un messaggio, ?il messaggio,"
            "?suo/tuo/vostro messaggio, ?riprovare/riprovi più tardi"
        ),
        screening=(
            "registr* _ nome, dica/dite/pronunci*/dire/dici/indichi/indicare _ nome, se questa/la persona è,"
            "assistente _ chiamat*, assistente di google, assistente google, filtr* _ chiamat*, servizio di filtro,"
            "copia di questa conversazione, numeri sconosciuti, chiamate sconosciute,"
            "?nome e _ motivo/ragione/perché, ?motivo della _ chiamata/telefonata, ?perché sta/chiama*,"
            "?prima di _ passar*/metter*"
        ),
        menu=(
            "!prem*/digit*/selezioni/componga _ #, !premere, !premi, !prema, !digiti, !digitare, menu principale,"
            "seguenti opzioni, primo/prossimo operatore, tutti i nostri, tutti gli operatori, nostri operatori,"
            "operatori sono, operatore disponibile,"
            "rimanga/rimanete/restate/resti/attenda/attendere/rimanere/restare in, di attendere, per l'attesa,"
            "attesa stimata, tempo di attesa, per la _ pazienza/patienza, la _ pazienza/patienza,"
            "sua/vostra/tua chiamata, essere registrat*, verrà registrat*, benvenut* nell*, elenco,"
            "prime tre lettere, tastiera, tastierino, in coda, della coda, non riagganc*, per parlare con,"
            "?benvenut*, ?grazie per aver, ?la preghiamo, ?si prega, ?per informazioni, ?se desidera/conosce,"
            "?attendere, ?attenda, ?in linea, ?occupati"
        ),
    ),
    "pt": AnswerPhrases(
        greeting="alô, olá, oi, sim, bom dia, boa tarde, boa noite, quem fala, pronto, estou, estou sim",
        person=(
            "em que posso, posso ajud*, posso ser útil, quer/deseja/gostaria de deixar, quer/deseja deixar,"
            "quem está falando, quem gostaria, com quem _ falo, posso anotar, do que se trata, número errado"
        ),
        machine=(
            "deix* _ mensagem/recado/nome/número/contato/contacto, deix* o/a seu/sua, grav* _ mensagem/recado,"
            "após/depois o/do sinal/bip/bipe/tom/apito/toque, após ouvir, caixa postal, caixa de correio,"
            "correio de voz, voice+mail, secretária eletr*, atendedor, encaminhad* para/a/à, fora da/de área,"
            "fora de serviço, está/encontra desligado, desligado ou, telefone _ desligado, número que,"
            "número chamado/discado/marcado, não existe, você/voce ligou para, ligou para a/o, sujeit* a cobrança,"
            "estamos fechados, encontramos fechados, escritório _ fechado, horário de atendimento/funcionamento,"
            "ninguém _ atender/disponível, entregar _ recado, não se encontra disponível, assinante,"
            "cliente que ligou, ?não posso/podemos/pode/consigo _ atender,"
            "?não está/estou/estamos/disponível _ disponível/disponíveis, ?não disponível, ?indisponível,"
            "?retornarei/retornaremos/retorno, ?assim que possível/puder, ?ligo de volta, ?mais tarde,"
            "?sua/tua mensagem, ?logo que possível"
        ),
        screening=(
            "grav* _ nome, diga/dizer/disser/informe/informar/indique/fale _ nome, se esta/essa/a pessoa está,"
            "assistente _ chamad*/ligaç*, assistente do google, filtr* _ chamad*/ligaç*, triagem,"
            "cópia desta conversa, números desconhecidos, chamadas desconhecidas, ?nome e _ motivo/razão/porque/por,"
            "?motivo/razão da/do _ ligação/chamada/contato, ?motivo do contato, ?por que _ ligando, ?quem fala e,"
            "?antes de _ transferir/passar/conectar"
        ),
        menu=(
            "!tecle/digite/disque/pressione/prima/aperte/marque _ #, !tecle, !digite, !pressione, !prima, !disque,"
            "menu principal, menu, seguintes opções, todos os nossos, todos nossos,"
            "nossos atendentes/operadores/assistentes, atendentes/operadores/assistentes estão,"
            "aguarde/permaneça/continue/fique na, próximo atendente/operador/assistente, por aguardar,"
            "aguarde sua/a, sua paciência, sua ligação/chamada é/será/está, será atendid*, ser gravada,"
            "sendo gravada, fila, para falar com, tempo de espera, em instantes, bem vindo ao, bem vindo à,"
            "?bem vind*, ?bem+vind*, ?obrigad* por ligar, ?aguarde, ?um momento, ?se deseja/sabe/quiser, ?ocupad*"
        ),
    ),
    "zh": AnswerPhrases(
        greeting="喂, 你好, 您好, 哪位, 谁啊",
        person="找谁, 有什么可以帮, 有什么事, 你是谁, 您是谁, 打错了, 要留言吗, 需要留言吗",
        machine=(
            "请留言, 请您留言, 听到滴, 听到嘀, 听到提示音, 嘀声后, 滴声后, 提示音后, 提示音之后, 哔声后, 滴的一声,"
            "嘟声后, 嘟的一声, 语音信箱, 语音留言, 留言信箱, 无法接通, 无人接听, 无人应答, 关机, 正在通话中,"
            "不在服务区, 再拨, 您拨打的, 您所拨打的, 你拨打的, 用户正忙, 停机, 是空号, 转接到, 留下您的留言,"
            "留下你的留言, 留下您的消息, 请在 _ 留言, ?无法接听, ?不方便接听, ?不能接听, ?稍后回复, ?给您回电,"
            "?给你回电, ?留言"
        ),
        screening=(
            "来电原因, 来电事由, 来电目的, 电话助理, 电话助手, 智能助理, 智能助手, 姓名和来电, 此人是否,"
            "是否方便接听, 说出您的姓名, 说出你的姓名, 告诉我您的姓名, 您是哪位请说, 留下姓名和, 您的姓名和,"
            "你的姓名和, 请告诉我您的, ?您的姓名, ?你的姓名, ?为什么打来"
        ),
        menu=(
            "!请按, !按 #, !请按键, 主菜单, 请稍候, 请您稍候, 请不要挂机, 请勿挂机, 座席, 坐席, 客服代表, 客服人员,"
            "排队, 您的来电, 为您转接, 请耐心等待, 人工服务, 欢迎致电, 欢迎拨打, 被录音, 将被录音, 等待时间, ?稍等,"
            "?欢迎"
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Speaker:
    """The one who says some words."""

    by: AnsweredBy | None
    """None: the words do not tell."""
    sure: bool = True
    """False: a person may say these words, too."""


_ORDER: tuple[AnsweredBy | None, ...] = ("screening", "machine", "ivr", "human", None)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The patterns of one kind of answer."""

    by: AnsweredBy
    always: re.Pattern[str]
    """Those that decide even after words of a person."""
    sure: re.Pattern[str]
    likely: tuple[re.Pattern[str], ...]

    def is_likely(self, words: str) -> bool:
        return sum(each.search(words) is not None for each in self.likely) >= 2


class AnswerWords:
    """The search for the phrases of one language.

    Args:
        language: a key of ``PHRASES``.
    """

    def __init__(self, language: str) -> None:
        phrases = PHRASES[language]
        units = sorted((folded(each) for each in wording(language).units), key=len, reverse=True)
        self._number = rf"(?:\d+|{'|'.join(units)})"
        self._greeting = self._any(_listed(phrases.greeting))
        self._person = self._any(_listed(phrases.person))
        self._kinds = (
            self._kind("screening", phrases.screening),
            self._kind("machine", phrases.machine),
            self._kind("ivr", phrases.menu),
        )

    def said_by(self, words: str) -> Speaker:
        """Return who says ``folded`` words."""
        padded = f"{words} "
        by_person = self._person.search(padded) is not None
        for kind in self._kinds:
            if kind.always.search(padded):
                return Speaker(kind.by)
            if kind.sure.search(padded) and (not by_person or kind.by == "screening"):
                return Speaker(kind.by)
        if by_person:
            return Speaker("human")
        for kind in self._kinds:
            if kind.is_likely(padded):
                return Speaker(kind.by, sure=False)
        few = len(words.split()) <= _GREETING_WORDS
        return Speaker("human" if few and self._greeting.match(padded) else None)

    def _kind(self, by: AnsweredBy, text: str) -> _Kind:
        listed = _listed(text)
        always = [each[1:] for each in listed if each.startswith("!")]
        likely = [each[1:] for each in listed if each.startswith("?")]
        sure = [each for each in listed if each[0] not in "!?"]
        return _Kind(by, self._any(always), self._any(sure), tuple(self._any([each]) for each in likely))

    def _any(self, patterns: Iterable[str]) -> re.Pattern[str]:
        """Return the search for any of the patterns in words that end with a space. Without a pattern it finds none."""
        found = "|".join("".join(self._word(word) for word in each.split()) for each in patterns)
        return re.compile(rf"(?<!\S)(?:{found or '(?!)'})")

    def _word(self, word: str) -> str:
        if word == "_":
            return r"(?:\S+ ){0,4}"
        if word == "#":
            return f"{self._number} "
        return f"(?:{'|'.join(_alternative(each) for each in word.split('/'))}) "


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _alternative(word: str) -> str:
    parts = [re.escape(folded(each)) for each in word.removesuffix("*").split("+")]
    return " ?".join(parts) + (r"\S*" if word.endswith("*") else "")


@cache
def _of(language: str) -> AnswerWords:
    return AnswerWords(language)


def said_by(text: str, language: str) -> Speaker:
    """Return who says a text.

    Args:
        language: language tag such as ``de-AT``. Phrases of all languages count if it is unknown.
    """
    words = folded(text)
    known = language.lower().partition("-")[0]
    found = [_of(each).said_by(words) for each in ([known] if known in PHRASES else PHRASES)]
    return min(found, key=lambda each: (each.by is None, not each.sure, _ORDER.index(each.by)))
