"""A method that is slow by a clock of its own, so that tests need not wait."""

from seedless_method import FixedCodes


class SlowCodes(FixedCodes):
    """Takes a second per hundred items, in ten steps."""

    now = 0.0

    def _fit(self, data, report):
        items = max(X.shape[0] for X in data.X.values())
        for step in range(10):
            SlowCodes.now += self._seconds(items) / 10
            report("codes", step + 1, 10)
        return super()._fit(data, report)

    def _seconds(self, items):
        return items / 100


class SteadyCodes(SlowCodes):
    """Takes 1.5 seconds, however many items there are."""

    def _seconds(self, items):
        return 1.5


class UnevenCodes(SlowCodes):
    """Takes a hundred times longer with more than a thousand items."""

    def _seconds(self, items):
        return 0.01 if items < 1000 else 1.0


class FailingCodes(SlowCodes):
    """Refuses everything."""

    def _seconds(self, items):
        raise ValueError("never")
