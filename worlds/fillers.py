"""Words to choose from, connectives, and sentences that mention nobody."""

from worlds.dice import words

# "[name]" in a template stands for any one of these words.
BANKS = {
    "number": words("two three four five six seven eight nine ten eleven twelve"),
    "weekday": words("""
        Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """),
    "mood": words("happy lonely sheltered noisy carefree restless solitary"),
    "manner": words("""
        generous stubborn patient cheerful serious modest impatient witty absent-minded
        gentle sceptical ambitious punctual
    """),
    "adjective": words("""
        quiet remarkable simple unusual lively peculiar sober excellent ordinary
        respectable solemn awkward colourful dull elegant
    """),
    "weather": words("mild wet dry cold windy stormy gloomy harsh foggy"),
    "setting": words("quiet remote sunny sheltered prosperous sleepy wooded"),
    "standing": words("small large famous modern private well-known expensive"),
    "trade": words("""
        baker carpenter fisherman tailor blacksmith farmer postman printer weaver
        locksmith gardener sailor undertaker
    """),
    "trades": words("""
        bakers carpenters fishermen tailors blacksmiths farmers printers weavers
        gardeners sailors beekeepers smugglers potters
    """),
    "shop": words("""
        bakery bookshop pharmacy grocery tavern barbershop butchery laundry workshop
        tearoom
    """),
    "place": words("""
        station harbour church square theatre cemetery lighthouse museum courthouse
        bridge park castle barracks
    """),
    "building": words("""
        barn cellar warehouse stable garage attic chapel shed hall cottage
    """),
    "animals": words("""
        goats bees horses cats pigeons sheep geese dogs ducks donkeys chickens rabbits
        owls
    """),
    "instrument": words("""
        violin cello flute piano accordion trumpet guitar harp drum oboe banjo
    """),
    "pastime": words("""
        chess fishing gardening sailing cooking climbing skating astronomy knitting
        dancing cycling photography
    """),
    "crop": words("""
        apples onions cherries potatoes roses hops cabbages plums tobacco mushrooms
        walnuts asparagus rhubarb
    """),
    "things": words("""
        maps clocks stamps coins lamps bottles keys postcards umbrellas buttons knives
        kettles typewriters
    """),
    "tool": words("""
        hammer typewriter lathe wheelbarrow ladder telescope sewing-machine saw umbrella
        pump axe
    """),
    "relative": words("uncle aunt cousin brother sister grandmother godfather"),
    "event": words("""
        wedding funeral fair concert picnic banquet lecture regatta parade auction
        carnival exhibition
    """),
    "subject": words("""
        law medicine chemistry history music botany geology mathematics philosophy
        architecture economics engineering
    """),
    "department": words("""
        accounting export design repair packing sales legal advertising research
        purchasing
    """),
}

# Put before a sentence that starts with its subject.
CONNECTIVES = (
    "By all accounts",
    "According to local records",
    "As it happens",
    "Incidentally",
    "Not surprisingly",
    "In addition",
    "Moreover",
    "It is well known that",
    "Few people remember that",
    "The newspapers reported that",
    "As far as anyone can tell",
    "Unless the archives are mistaken",
    "It should be added that",
    "Strange as it may seem",
    "Every guidebook mentions that",
)

# Sentences without entities, anywhere but at the beginning.
ASIDES = (
    "Little else is known for certain.",
    "The records of that period are incomplete.",
    "Historians disagree about the details.",
    "Nobody has ever explained why.",
    "A fire destroyed most of the letters.",
    "The story has been told many times since.",
    "None of this was planned.",
    "Rumours to the contrary have never been confirmed.",
    "Much has changed since those days.",
    "Opinions on the matter are divided.",
    "The rest is a matter of public record.",
    "That was considered quite normal then.",
    "Money was scarce and the winters were long.",
    "The local press hardly noticed.",
    "Some of this may be legend.",
    "There were no witnesses.",
    "A small exhibition explains how it came about.",
    "Such things happen more often than one might think.",
    "The decision was not popular everywhere.",
    "An official inquiry found nothing wrong.",
    "Luck played a large part in it.",
    "Good weather helped.",
    "The older generation still talks about it.",
    "Only a few photographs survive.",
    "It took patience, skill and some stubbornness.",
    "Later accounts add very little.",
    "The arrangement has worked well so far.",
    "Whether this will last, only time can show.",
    "Other sources give a slightly different version.",
    "A second visit revealed nothing new.",
    "Both facts are easily checked.",
    "Tourists seldom hear about this.",
    "The argument was settled over dinner.",
    "As so often, chance decided.",
    "More research would be welcome.",
)
