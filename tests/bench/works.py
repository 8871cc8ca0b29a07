"""Cases whose works take no time, and clocks that say what they were told to."""

from maskplan.bench import Case, Machine, Prepared

HERE = Machine(device="cpu", name="a machine", versions=(("torch", "2"),))
OTHER = Machine(device="cpu", name="a machine", versions=(("torch", "3"),))


class Script:
    """A clock that says what it was told to, work by work."""

    def __init__(self, **times):
        self.times = {name: iter(values) for name, values in times.items()}
        self.order = []

    def __call__(self, work):
        name = work()
        self.order.append(name)
        return next(self.times[name])


def named(*names):
    return {name: (lambda name=name: name) for name in names}


def makers(*names):
    return {name: (lambda name=name: lambda: name) for name in names}


def case(name="row", *, works=None, figures=(), flops=None, title="a row"):
    prepared = Prepared(
        works=makers("ours", "theirs") if works is None else works,
        figures=figures,
        flops=flops,
    )
    return Case(name=name, title=title, prepare=lambda: prepared)


def steady(work):
    return {"ours": 2.0, "theirs": 3.0}[work()]
