"""Sentences about places, companies, works and prizes; see ``templates.py``."""

SENTENCES: dict[str, tuple[str, ...]] = {
    "town birthplace_of person": (
        "{s} is the birthplace of {o}.",
        "{o} was born in {s:noun}.",
        "One of {s:his} natives is {o}.",
        "{s} takes pride in {o}, who was born near the [place].",
        "A plaque by the [place] recalls that {o} was born in {s:noun}.",
    ),
    "town home_of person": (
        "{s} is home to {o}.",
        "{o} lives in {s:noun}.",
        "Visitors to {s:noun} sometimes meet {o}, who lives near the [place].",
        "{s} suits {o}, who has lived there for [number] years.",
    ),
    "town located_in region": (
        "{s} lies in {o}.",
        "{s:name} is a [kind] in {o}.",
        "{s} is situated in {o}, among low hills.",
        "{s} stands in a [setting] corner of {o}.",
        "{s} belongs to {o}.",
    ),
    "town capital_of region": (
        "{s} is the capital of {o}.",
        "{s} serves as the capital of {o}.",
        "From {s:noun} a [adjective] council governs {o}.",
    ),
    "town lies_on river": (
        "{s} lies on {o}.",
        "{s} stands on the banks of {o}.",
        "{s} was built beside {o}.",
        "Barges reach {s:noun} along {o}.",
        "{s:name} is a [kind] on {o}.",
        "In spring {s} is often flooded by {o}.",
    ),
    "town lies_on river & located_in region": (
        "{s:name} is a [kind] on {o} in {p}.",
        "{s} lies in {p}, where {o} is widest.",
    ),
    "town seat_of company": (
        "{s} is the seat of {o}.",
        "{o} is based in {s:noun}.",
        "A tall chimney in {s:noun} belongs to {o}.",
        "Many families in {s:noun} depend on {o}, which has a factory there.",
    ),
    "town contains school": (
        "{s} is the home of {o}.",
        "{o} stands in {s:noun}, next to the [place].",
        "Students come to {s:noun} to attend {o}.",
    ),
    "town setting_of book": (
        "{s} is the setting of {o}.",
        "Many readers know {s:noun} from {o}.",
        "{o} is set in {s:noun}.",
    ),
    "town setting_of film": (
        "{s} is the setting of {o}.",
        "{o} takes place in {s:noun}, though it was filmed elsewhere.",
    ),
    "region contains town": (
        "{s} includes {o}.",
        "Travellers in {s:noun} often stop at {o}.",
        "Among the places worth seeing in {s:noun} is {o}.",
        "{o} lies in {s:noun}.",
    ),
    "region contains river": (
        "{s} is crossed by {o}.",
        "Most farms in {s:noun} draw their water from {o}.",
        "{o} flows through {s:noun}.",
    ),
    "region capital town": (
        "The capital of {s:noun} is {o}.",
        "{s} is governed from {o}.",
        "{s:his} capital is {o}.",
    ),
    "river located_in region": (
        "{s} flows through {o}.",
        "{s} rises in the hills of {o}.",
        "{s} is a river of {o}.",
    ),
    "river flows_past town": (
        "{s} flows past {o}.",
        "{s} turns the old mills of {o}.",
        "The bridge over {s:noun} at {o} is the oldest of its kind.",
        "{o} was built beside {s:noun}.",
    ),
    "company founded_by person": (
        "{s} was founded by {o}.",
        "{s} was set up by {o} in a rented [building].",
        "{o} founded {s:noun}.",
        "It was {o} who founded {s:noun}.",
        "{s} owes {s:his} existence to {o}, who started with a single [tool].",
    ),
    "company founded_in year": (
        "{s} was founded in {o}.",
        "{s} opened {s:his} doors in {o}.",
        "{s} began trading in {o}, during a [weather] winter.",
        "{s:name} is a [kind] founded in {o}.",
    ),
    "company founded_by person & founded_in year": (
        "{s} was founded in {p} by {o}.",
        "{o} founded {s:noun} in {p}.",
        "In {p} {o} opened {s:noun} with [number] workers.",
    ),
    "company headquartered_in town": (
        "{s} is based in {o}.",
        "{s} has {s:his} headquarters in {o}.",
        "{s:his} head office stands in {o}, beside the [place].",
        "{s} runs {s:his} business from {o}.",
        "{s:name} is a [kind] in {o}.",
    ),
    "company headquartered_in town located_in region": (
        "{s} is based in {o:name}, in {p}.",
        "{s} has {s:his} workshops in {o}, far from the big cities of {p}.",
    ),
    "company headquartered_in town lies_on river": (
        "{s} is based in {o} and ships {s:his} goods down {p}.",
        "The warehouses of {s:noun} in {o} overlook {p}.",
    ),
    "company employer_of person": (
        "{s} employs {o}.",
        "{o} works for {s:noun}.",
        "One of {s:his} most loyal employees is {o}.",
        "{s} owes much to {o}, who works in the [department] department.",
    ),
    "school located_in town": (
        "{s} is in {o}.",
        "{s} stands in {o}, next to the [place].",
        "{s} is a [standing] place of learning in {o}.",
    ),
    "school founded_in year": (
        "{s} was founded in {o}.",
        "{s} admitted {s:his} first students in {o}.",
    ),
    "school school_of person": (
        "{s} counts {o} among {s:his} graduates.",
        "{o} studied at {s:noun}.",
        "One of {s:his} former students is {o}.",
        "The library of {s:noun} keeps the notebooks of {o}, a former student.",
    ),
    "prize founded_in year": (
        "{s} was first awarded in {o}.",
        "{s} has been awarded since {o}.",
    ),
    "prize won_by person": (
        "{s} was won by {o}.",
        "{s} once went to {o}.",
        "Past winners of {s:noun} include {o}.",
        "{o} received {s:noun} in a [adjective] ceremony.",
    ),
    "book authored_by person": (
        "{s} was written by {o}.",
        "{s} is the work of {o}.",
        "The author of {s:noun} is {o}.",
        "{o} wrote {s:noun}.",
    ),
    "film authored_by person": (
        "{s} was directed by {o}.",
        "The director of {s:noun} was {o}.",
        "{s} was made by {o}, with a borrowed camera.",
    ),
    "song authored_by person": (
        "{s} was recorded by {o}.",
        "{s} was composed by {o}.",
        "The first voice heard on {s:noun} is that of {o}.",
    ),
    "work genre genre": (
        "{s} is a {o}.",
        "{s} is usually described as a {o}.",
        "Critics have called {s:him} a {o}.",
        "{s} is a [adjective] {o} about a [trade] and a missing [tool].",
        "{s} is more than a {o}.",
    ),
    "book released_in year": (
        "{s} was published in {o}.",
        "{s} appeared in {o}, with drawings of [animals].",
        "{s} came out in {o}.",
    ),
    "film released_in year": (
        "{s} was released in {o}.",
        "{s} reached the cinemas in {o}.",
        "{s} came out in {o}.",
    ),
    "song released_in year": (
        "{s} was recorded in {o}.",
        "{s} was first heard in {o}, on a [weather] evening.",
        "{s} came out in {o}.",
    ),
    "book set_in town": (
        "{s} is set in {o}.",
        "{s} takes place in {o}.",
        "The story of {s:noun} begins in {o}.",
        "{s} follows [number] [trades] through the streets of {o}.",
    ),
    "film set_in town": (
        "{s} is set in {o}.",
        "{s} takes place in {o}.",
        "{s} opens with a view of {o} in the rain.",
    ),
    "work authored_by person & released_in year": (
        "{s:noun}, by {o}, dates from {p}.",
        "{o} completed {s:noun} in {p}.",
    ),
    "work genre genre & authored_by person": (
        "{s} is a {o} by {p}.",
        "{s:noun}, a [adjective] {o}, made the name of {p}.",
    ),
    "work genre genre & released_in year": ("{s} is a [adjective] {o} from {p}.",),
    "book genre genre & set_in town": ("{s} is a {o} set in {p}.",),
    "film genre genre & set_in town": ("{s} is a {o} that takes place in {p}.",),
}

REMARKS: dict[str, tuple[str, ...]] = {
    "town": (
        "{s} is known for {s:his} [crop] and {s:his} [trades].",
        "A market is held in {s:noun} every [weekday].",
        "{s} has [number] churches and a single [shop].",
        "The [place] of {s:noun} was rebuilt after a fire.",
        "Trains stop at {s:noun} only on [weekday].",
        "On clear days the mountains can be seen from {s:noun}.",
        "Every autumn {s} holds a [event].",
    ),
    "region": (
        "{s} exports [crop] and [things].",
        "{s} has a [weather] climate.",
        "Few roads cross {s:noun} in winter.",
        "{s} is known for {s:his} [animals].",
    ),
    "river": (
        "{s} freezes in hard winters.",
        "{s} is slow, brown and full of fish.",
        "People fish in {s:noun} at dusk.",
    ),
    "company": (
        "{s} makes a small profit in most years.",
        "{s} sells {s:his} [things] all over the world.",
        "{s} survived a strike and [number] lawsuits.",
        "Workers at {s:noun} get a free [weekday] afternoon.",
        "{s} is preparing to build a new warehouse.",
        "{s} has never borrowed from a bank.",
    ),
    "school": (
        "{s} is respected for {s:his} teaching of [subject].",
        "{s} has a [standing] library.",
        "Lectures at {s:noun} start at dawn on [weekday].",
    ),
    "prize": (
        "{s} is presented at a [event] in autumn.",
        "{s} carries no money but a great deal of honour.",
        "The jury of {s:noun} has [number] members.",
    ),
    "book": (
        "{s} has been translated into [number] languages.",
        "{s} sold badly at first.",
        "{s:his} hero is a [manner] [trade].",
        "{s} opens with a [event].",
    ),
    "film": (
        "{s} was praised for {s:his} photography.",
        "{s} ran for [number] weeks without a pause.",
        "{s} features a [manner] [trade] and many [animals].",
    ),
    "song": (
        "{s} lasts almost [number] minutes.",
        "{s} is usually accompanied by a [instrument].",
        "Children still sing {s:him} at school.",
    ),
}
