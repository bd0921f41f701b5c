"""Made-up speech, the stand-in where the plays cannot be had: it can be learned, no more.

Enters: numbers of roles and words. Leaves: one string per role, by name, the form of `shakespeare`.
"""

import numpy as np

WORDS = """
    a after all an and are as at away be bring but by cold come dark day do door down ever eyes
    fair fall fear find fire for from give go gold good great hand have hear heart her here him
    his home hour house how I if in is it keep king know last leave light live long look make
    man many me moon more morning mother my name never new night no not now of on one open or
    our out over queen rain ring road rose say sea see send she ship sing sleep snow so son song
    soon star stay stone storm sun sword take tell than that the their them then there they
    thing this time to tree under up us wait walk wall was water way we well were what when
    where who wife will wind winter with woman word world year you young
""".split()  # noqa: SIM905


def speech(roles: int = 400, words: int = 900, seed: int = 0) -> dict[str, str]:
    """Each role draws from its own favourite words, in sentences of about seven."""
    generator = np.random.default_rng(seed)
    out = {}
    for role in range(roles):
        favour = generator.dirichlet(np.full(len(WORDS), 0.3))
        said = generator.choice(len(WORDS), words, p=favour)
        ends = generator.random(words) < 0.15
        starts = [True, *ends[:-1]]
        out[f"BABBLE_{role:03d}"] = "".join(
            (WORDS[w].capitalize() if start else WORDS[w]) + (". " if end else " ")
            for w, start, end in zip(said, starts, ends, strict=True)
        )
    return out
