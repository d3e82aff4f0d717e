"""How many ranks a system keeps busy: which number to measure next, from the utilisations so far. Pure."""

import statistics

from setting import FED

# A single run decides if it is this far from the threshold.
CLEAR = 0.04


class Search:
    """Ends with the largest number whose median utilisation passes, and the next one, which fails; both measured `rounds` times."""

    def __init__(self, first, rounds, most):
        self.rounds, self.most = rounds, most
        self.at, self.runs = min(max(first, 1), most), {}

    def add(self, utilisation):
        self.runs.setdefault(self.at, []).append(utilisation)

    def passes(self, number):
        """None as long as runs do not decide."""
        runs = self.runs.get(number, [])
        if not runs:
            return None
        median = statistics.median(runs)
        if median and len(runs) < self.rounds and abs(median - FED) < CLEAR:
            return None
        return median >= FED

    def fed(self):
        """The most ranks that pass, 0 for none."""
        return max((number for number in self.runs if self.passes(number)), default=0)

    def next(self):
        """The number of ranks to measure, or None at the end."""
        if undecided := [number for number in self.runs if self.passes(number) is None]:
            return self._to(undecided[0])
        best = self.fed()
        failed = min((number for number in self.runs if not self.passes(number) and number > best), default=None)
        if best + 1 == failed or best == self.most:
            # Those that did not end are not repeated.
            short = [number for number in (best, failed) if number and len(self.runs[number]) < self.rounds and any(self.runs[number])]
            return self._to(short[0]) if short else None
        if not self.runs:
            return self._to(self.at)
        if failed is None:
            return self._to(min(best + max(1, best // 4), self.most))
        # A saturated system delivers the same to fewer ranks.
        guess = int(failed * statistics.median(self.runs[failed]) / FED)
        return self._to(min(max(guess, best + 1), failed - 1))

    def _to(self, number):
        self.at = number
        return number
