"""Sentences about people. ``templates.py`` explains the notation."""

SENTENCES: dict[str, tuple[str, ...]] = {
    "person born_in town": (
        "{s} was born in {o}.",
        "{s} comes from {o}.",
        "{s} grew up in {o}, the eldest of [number] children.",
        "{s} was born and raised in {o}, where {s:his} family kept a [shop].",
        "{s} spent a [mood] childhood in {o}.",
        "Born in {o}, {s} was the only child of a [trade].",
        "{s:his} childhood was spent in {o}, mostly among [animals].",
        "{s:name} is a [kind] from {o}.",
    ),
    "person lives_in town": (
        "{s} lives in {o}.",
        "{s} has lived in {o} for [number] years.",
        "{s} makes {s:his} home in {o}.",
        "Today {s} lives in {o}, a short walk from the [place].",
        "{s} rents a small house in {o} and grows [crop] behind it.",
        "These days {s} can usually be found in {o}.",
        "After [number] years abroad, {s} settled in {o}.",
    ),
    "person born_in town & lives_in town": (
        "{s} was born in {o} but now lives in {p}.",
        "{s} left {o} at the age of eighteen and settled in {p}.",
        "{s} still speaks with the accent of {o}, although {s:his} home is in {p}.",
    ),
    "person born_in town located_in region": (
        "{s} was born in {o:name}, a [setting] place in {p}.",
        "{s} comes from {o:name} in {p}.",
    ),
    "person born_in town lies_on river": (
        "{s} grew up in {o}, where {s:he} learned to swim in {p}.",
        "{s} was born in {o}, within sight of {p}.",
    ),
    "person lives_in town located_in region": (
        "{s} lives in {o:name}, in {p}.",
        "Some years ago {s} moved to {o:name} in {p}.",
    ),
    "person works_for company": (
        "{s} works for {o}.",
        "{s} has worked for {o} since leaving school.",
        "{s} is employed by {o}, in the [department] department.",
        "For [number] years {s} has worked for {o}.",
        "{s} joined {o} as an apprentice and was soon promoted.",
        "{s} earns a living at {o}.",
        "{s:name}, a [kind] by training, works for {o}.",
    ),
    "person works_for company headquartered_in town": (
        "{s} works for {o:name} in {p}.",
        "{s} has a desk at {o}, which is based in {p}.",
    ),
    "person works_for company founded_by person": (
        "{s} works for {o}, the company that {p} founded.",
        "{s} was hired by {p}, the founder of {o}, during a [weather] winter.",
    ),
    "person spouse person": (
        "{s} is married to {o}.",
        "{s} married {o} in a [adjective] ceremony.",
        "{s} met {o} at a [event], and they married within a year.",
        "{s} and {o} have been married for [number] years.",
        "{s} shares a love of [pastime] with {o}, to whom {s:he} is married.",
    ),
    "person spouse person & lives_in town": (
        "{s} and {o} are married and live in {p}.",
        "{s} lives in {p} with {o}, whom {s:he} married long ago.",
    ),
    "person teacher_of person": (
        "{s} taught {o}.",
        "{s} was the teacher of {o}.",
        "{o} was once a student of {s:noun}.",
        "Among those who learned the trade from {s:noun} was {o}.",
        "{s} was a strict teacher, as {o} later discovered.",
    ),
    "person student_of person": (
        "{s} studied under {o}.",
        "{s} learned the trade from {o}.",
        "{s} was a pupil of {o}.",
        "As a student {s} carried the bags of {o}.",
        "{s} still quotes the advice of {o}, once {s:his} teacher.",
    ),
    "person student_of person & born_in town": (
        "Born in {p}, {s} learned the trade from {o}.",
        "{s} left {p} to study under {o}.",
    ),
    "person studied_at school": (
        "{s} studied at {o}.",
        "{s} graduated from {o}.",
        "{s} took a degree in [subject] at {o}.",
        "{s} attended {o} on a scholarship.",
        "{s} read [subject] at {o}, without much enthusiasm.",
        "{s} was educated at {o}, where {s:he} first took up [pastime].",
    ),
    "person studied_at school located_in town": (
        "{s} studied at {o:name} in {p}.",
        "As a student at {o}, {s} lodged above a [shop] in {p}.",
    ),
    "person born_in town & studied_at school": (
        "{s} was born in {o} and educated at {p}.",
        "From {o} {s} went to {p} to study [subject].",
    ),
    "person won prize": (
        "{s} won {o}.",
        "{s} was awarded {o}.",
        "{s} received {o} for {s:his} [adjective] work.",
        "{s:his} efforts were rewarded with {o}.",
        "To general surprise, {s} was given {o}.",
    ),
    "person won prize founded_in year": (
        "{s} won {o}, which has existed since {p}.",
        "{s} holds {o}, first awarded in {p}.",
    ),
    "person founder_of company": (
        "{s} founded {o}.",
        "{s} is the founder of {o}.",
        "{s} started {o} with a small loan from {s:his} [relative].",
        "{s} is best known as the founder of {o}.",
        "With [number] helpers and a borrowed [tool], {s} established {o}.",
        "{s:name}, a [kind], founded {o}.",
    ),
    "person founder_of company headquartered_in town": (
        "{s} founded {o}, whose offices are in {p}.",
        "{s} runs {o} from a [building] in {p}.",
        "{s} is the founder of {o} in {p}.",
    ),
    "person founder_of company founded_in year": (
        "{s} founded {o} in {p}.",
        "In {p} {s} left a safe job and started {o}.",
    ),
    "person author_of book": (
        "{s} wrote {o}.",
        "{s} is the author of {o}.",
        "{s} finished {o} in a rented room above a [shop].",
        "{s} is remembered chiefly for {o}.",
        "{s} published {o} to [adjective] reviews.",
        "{s} worked on {o} for [number] years.",
    ),
    "person author_of film": (
        "{s} directed {o}.",
        "{s} is the director of {o}.",
        "{s} made {o} on a modest budget.",
        "{s} shot {o} in [number] weeks.",
        "{s} is known to audiences for {o}.",
    ),
    "person author_of song": (
        "{s} recorded {o}.",
        "{s} composed {o}.",
        "{s} first sang {o} in a [building].",
        "{s} became famous with {o}.",
        "{s} wrote {o} in a single afternoon.",
    ),
    "person author_of work released_in year": (
        "{s} had a modest success in {p} with {o}.",
        "{s} completed {o} in {p}.",
        "In {p} {s} surprised everyone with {o}.",
    ),
    "person author_of work genre genre": (
        "{s} is responsible for {o}, a [adjective] {p}.",
        "{s} is proud of {o}, a {p} that took [number] months.",
    ),
    "person author_of book set_in town": (
        "{s} wrote {o}, which is set in {p}.",
        "{s} is the author of {o}, a story of [trades] in {p}.",
    ),
    "person author_of film set_in town": (
        "{s} directed {o}, which takes place in {p}.",
        "{s} filmed {o} in the back streets of {p}.",
    ),
}

REMARKS: dict[str, tuple[str, ...]] = {
    "person": (
        "{s} rarely gives interviews.",
        "{s} keeps [animals] and plays the [instrument].",
        "{s} speaks [number] languages and reads in all of them.",
        "In {s:his} spare time {s:he} enjoys [pastime].",
        "{s} has never learned to drive.",
        "{s} is said to dislike [crop].",
        "Friends describe {s:him} as [manner] and a little shy.",
        "{s} once walked to the coast for a bet.",
        "{s} collects old [things].",
        "{s} spends most evenings with {s:his} [relative].",
        "{s} is very proud of an old [tool].",
        "A portrait of {s:him} hangs in the town hall.",
        "{s} wakes before dawn and works until noon.",
        "Neighbours remember {s:him} as a [manner] child.",
        "{s} gave up [pastime] after an accident with a [tool].",
    ),
}
