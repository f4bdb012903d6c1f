"""Small measuring instruments: a bounded window with exact quantiles, and a line fitted with forgetting."""

from __future__ import annotations

from collections import deque


class Window:
    """The last `size` values, with exact quantiles in constant time (an insertion costs one bisection)."""

    __slots__ = ("_newest", "_sorted", "count", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        """How many there are; its length, for those who ask often."""
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if self.count == self.size:
            oldest = self._newest.popleft()
            del self._sorted[_first_above(self._sorted, oldest) - 1]
        else:
            self.count += 1
        self._newest.append(value)
        self._sorted.insert(_first_above(self._sorted, value), value)

    def __len__(self) -> int:
        return self.count

    def quantile(self, ratio: float) -> float:
        """The smallest value that at least `ratio` of the window does not exceed. The window must not be empty."""
        last = self.count - 1
        place = -1 - int(-ratio * self.count // 1)
        if place > last:
            place = last
        return self._sorted[place] if place > 0 else self._sorted[0]

    def count_above(self, value: float) -> int:
        """How many are larger."""
        return len(self._sorted) - _first_above(self._sorted, value)

    def median_above(self, value: float) -> float:
        """The smallest value that at least half of those larger than this do not exceed. There must be such values."""
        first = _first_above(self._sorted, value)
        return self._sorted[first + (len(self._sorted) - first - 1) // 2]


def _first_above(values: list[float], value: float) -> int:
    """Its place behind all that are not larger. `bisect` compares objects; compiled, this compares numbers."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) >> 1
        if value < values[middle]:
            high = middle
        else:
            low = middle + 1
    return low


def nearest(value: float) -> int:
    """What `round` says of a number that is not below zero, which is looked up and called as an object."""
    whole = int(value)
    part = value - whole
    return whole + 1 if part > 0.5 or (part == 0.5 and whole % 2) else whole


class FittedLine:
    """y = intercept + slope · x by least squares, each older observation weighing `keep_ratio` of the next.

    Both terms are kept at zero or above: more work never takes less time. With x all alike the line is flat.
    """

    __slots__ = ("_keep_ratio", "_sum", "_sum_x", "_sum_xx", "_sum_xy", "_sum_y", "intercept", "slope")

    def __init__(self, keep_ratio: float) -> None:
        self._keep_ratio = keep_ratio
        self._sum = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0
        self.intercept = self.slope = 0.0

    def add(self, x: float, y: float) -> None:
        keep = self._keep_ratio
        self._sum = total = self._sum * keep + 1.0
        self._sum_x = sum_x = self._sum_x * keep + x
        self._sum_y = sum_y = self._sum_y * keep + y
        self._sum_xx = sum_xx = self._sum_xx * keep + x * x
        self._sum_xy = sum_xy = self._sum_xy * keep + x * y
        spread = sum_xx - sum_x * sum_x / total
        slope = (sum_xy - sum_x * sum_y / total) / spread if spread > 1e-9 * sum_xx else 0.0
        self.slope = slope = slope if slope > 0.0 else 0.0
        self.intercept = (sum_y - slope * sum_x) / total
        if self.intercept < 0.0:  # through the origin instead
            self.intercept, self.slope = 0.0, sum_xy / sum_xx

    def at(self, x: float) -> float:
        """The fitted y, or 0.0 before anything was observed."""
        return self.intercept + self.slope * x


class FittedPlane:
    """y = intercept + a · x + b · z by least squares, each older observation weighing `keep_ratio` of the next.

    All three terms are kept at zero or above: a slope that would be negative is left out. Where x and z cannot be told from
    each other, since one of them is always the same, both count alike.
    """

    __slots__ = ("_keep_ratio", "_n", "_x", "_xx", "_xy", "_xz", "_y", "_z", "_zy", "_zz", "a", "b", "intercept")

    def __init__(self, keep_ratio: float) -> None:
        self._keep_ratio = keep_ratio
        self._n = self._x = self._z = self._y = 0.0
        self._xx = self._xz = self._zz = self._xy = self._zy = 0.0
        self.intercept = self.a = self.b = 0.0

    def add(self, x: float, z: float, y: float) -> None:
        """One observation."""
        keep = self._keep_ratio
        self._n, self._x, self._z, self._y = self._n * keep + 1.0, self._x * keep + x, self._z * keep + z, self._y * keep + y
        self._xx, self._xz, self._zz = self._xx * keep + x * x, self._xz * keep + x * z, self._zz * keep + z * z
        self._xy, self._zy = self._xy * keep + x * y, self._zy * keep + z * y
        self._solve()

    def _solve(self) -> None:
        """The normal equations, about the means."""
        n, x, z, y = self._n, self._x / self._n, self._z / self._n, self._y / self._n
        xx, zz, xz = self._xx - n * x * x, self._zz - n * z * z, self._xz - n * x * z
        xy, zy = self._xy - n * x * y, self._zy - n * z * y
        determinant = xx * zz - xz * xz
        if determinant > 1e-9 * self._xx * self._zz:
            a, b = (xy * zz - zy * xz) / determinant, (zy * xx - xy * xz) / determinant
            if b < 0.0:
                a, b = max(0.0, xy / xx), 0.0
            elif a < 0.0:
                a, b = 0.0, max(0.0, zy / zz)
        else:
            spread = xx + 2.0 * xz + zz
            a = b = max(0.0, (xy + zy) / spread) if spread > 1e-9 * (self._xx + self._zz) else 0.0
        intercept = y - a * x - b * z
        if intercept < 0.0 and a * x + b * z > 0.0:  # through the origin, in the same proportion
            scale = y / (a * x + b * z)
            a, b, intercept = a * scale, b * scale, 0.0
        self.intercept, self.a, self.b = max(0.0, intercept), a, b

    def at(self, x: float, z: float) -> float:
        """The fitted y, or 0.0 before anything was observed."""
        return self.intercept + self.a * x + self.b * z
