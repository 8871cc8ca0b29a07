"""Text that a stranger's file may hold, and provenance that does not fit its plan."""

import maskplan as mp

TEXT = (
    "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>\"'&{{data}}$x$"
)


def hostile_provenance(**fields) -> mp.Provenance:
    return mp.Provenance(builder=TEXT, parameters={TEXT: [TEXT]}, **fields)


# (grid, token order), each of which has to be refused for a plan of 24 x 24 tokens.
UNFIT = {
    "another length": ({"t": 2, "h": 3, "w": 5}, None),
    "very many tokens": ({"t": 2**31 - 1, "h": 1, "w": 1}, None),
    "more than can be": ({"t": 2**31, "h": 2**31, "w": 1}, None),
    "nothing": ({}, None),
    "an unknown field": ({"t": 2, "h": 3, "w": 4, "colour": TEXT}, None),
    "text for a number": ({"t": TEXT, "h": 3, "w": 4}, None),
    "half a frame": ({"t": 2.5, "h": 3, "w": 4}, None),
    "an empty order": ({"t": 2, "h": 3, "w": 4}, {}),
    "a tile of nothing": ({"t": 2, "h": 3, "w": 4}, {"tile": [0, 1, 1], "multiple": 1}),
    "slots beyond count": ({"t": 2, "h": 3, "w": 4}, {"tile": [1, 1, 1], "multiple": 2**31 - 1}),
    "slots beyond 64 bits": ({"t": 2, "h": 3, "w": 4}, {"tile": [1, 1, 1], "multiple": 2**80}),
    "a list for an order": ({"t": 2, "h": 3, "w": 4}, {"tile": TEXT, "multiple": [1]}),
}
