"""Line and bar charts as SVG files. Every series is a group <g data-series="NAME"> that has its points or bars."""
import dataclasses
import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 74, 20, 40, 46
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"]
GREY = "#777777"


@dataclasses.dataclass
class Series:
    """Values by x (a number; in bar charts a category). A series without points stays in the legend, marked so."""
    name: str
    points: list
    is_paper: bool = False   # of the paper: grey, dashed
    has_markers: bool = True
    has_line: bool = True


@dataclasses.dataclass
class Chart:
    title: str
    x_label: str
    y_label: str
    series: list
    x_log2: bool = False
    y_log10: bool = False
    y_from_zero: bool = True
    categories: list = None  # of a bar chart, in order


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(str(words))}</text>'


def number_text(value):
    """At most four digits; from 1000 on with a factor: 15.1 P."""
    if value == 0:
        return "0"
    for factor, unit in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{unit}"
    return f"{value:.4g}"


def round_steps(low, high, count=6):
    """The multiples of 1, 2 or 5 times a power of ten in [low, high]: `count` or fewer."""
    if high <= low:
        return [low]
    size = 10 ** math.floor(math.log10((high - low) / count))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (size * factor) <= count)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def frame(chart):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            text(LEFT, 20, chart.title, "start", 'font-size="13"'),
            text((WIDTH + LEFT) / 2, HEIGHT - 8, chart.x_label),
            text(16, HEIGHT / 2, chart.y_label, more=f'transform="rotate(-90 16 {HEIGHT / 2:.0f})"')]


def colours_of(series):
    """A colour a series: the paper's are grey."""
    own = iter(COLOURS * (1 + len(series) // len(COLOURS)))
    return [GREY if one.is_paper else next(own) for one in series]


def legend(series, colours):
    out = []
    for i, (one, colour) in enumerate(zip(series, colours)):
        y = TOP + 12 + 16 * i
        name = one.name if one.points else f"{one.name} (not measured)"
        out.append(f'<rect x="{WIDTH - RIGHT - 12}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        out.append(text(WIDTH - RIGHT - 18, y, name, "end", f'fill="{colour}"'))
    return out


def grid_line(y, value):
    return [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>',
            text(LEFT - 8, y + 4, number_text(value), "end")]


def y_axis(chart):
    """(position of a value, values of grid lines). Above the highest value there is room for the legend."""
    values = [y for one in chart.series for _, y in one.points] or [0, 1]
    low, high = min(values), max(values)
    room = 16 * (len(chart.series) + 1) / (HEIGHT - TOP - BOTTOM)
    if chart.y_log10:
        low, high = math.log10(low) - 0.2, math.log10(high) + 0.2
        high = low + (high - low) / max(0.2, 1 - room)
        ticks = [10.0 ** power for power in range(math.ceil(low), math.floor(high) + 1)]
    else:
        low = 0 if chart.y_from_zero else low
        high = high if high > low else low + 1
        high = low + (high - low) / max(0.2, 1 - room)
        ticks = round_steps(low, high)

    def y_of(value):
        value = math.log10(value) if chart.y_log10 else value
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)
    return y_of, ticks


def line_chart(chart):
    """SVG text."""
    xs = sorted({x for one in chart.series for x, _ in one.points}) or [0, 1]
    scale = math.log2 if chart.x_log2 else float
    first, last = scale(xs[0]), scale(xs[-1])
    width = (last - first) or 1
    y_of, y_ticks = y_axis(chart)

    def x_of(value):
        return LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * (scale(value) - first) / width

    out = frame(chart)
    for value in y_ticks:
        out += grid_line(y_of(value), value)
    for value in (xs if chart.x_log2 else round_steps(xs[0], xs[-1])):
        out.append(text(x_of(value), HEIGHT - BOTTOM + 18, number_text(value)))
    colours = colours_of(chart.series)
    for one, colour in zip(chart.series, colours):
        out.append(f'<g data-series="{html.escape(one.name)}" fill="none" stroke="{colour}">')
        if one.has_line and len(one.points) > 1:
            places = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in one.points)
            dashes = ' stroke-dasharray="5 4"' if one.is_paper else ""
            out.append(f'<polyline points="{places}" stroke-width="1.5"{dashes}/>')
        if one.has_markers or len(one.points) == 1:
            out += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"><title>'
                    f'{html.escape(one.name)}: {number_text(x)}, {number_text(y)}</title></circle>'
                    for x, y in one.points]
        out.append("</g>")
    return "\n".join(out + legend(chart.series, colours)) + "\n</svg>\n"


def bar_chart(chart):
    """SVG text."""
    categories = chart.categories
    y_of, y_ticks = y_axis(chart)
    room = (WIDTH - LEFT - RIGHT) / max(1, len(categories))
    width = min(36.0, 0.8 * room / max(1, len(chart.series)))
    out = frame(chart)
    for value in y_ticks:
        out += grid_line(y_of(value), value)
    for i, category in enumerate(categories):
        out.append(text(LEFT + room * (i + 0.5), HEIGHT - BOTTOM + 18, category))
    colours = colours_of(chart.series)
    for one, colour in zip(chart.series, colours):
        out.append(f'<g data-series="{html.escape(one.name)}" fill="{colour}">')
        for category, value in one.points:
            shown = [other for other in chart.series if category in dict(other.points)]
            x = LEFT + room * (categories.index(category) + 0.5) + width * (shown.index(one) - len(shown) / 2)
            out.append(f'<rect x="{x:.1f}" y="{y_of(value):.1f}" width="{width - 2:.1f}" '
                       f'height="{y_of(0) - y_of(value):.1f}"/>')
            out.append(text(x + width / 2 - 1, y_of(value) - 3, f"{value:.3g}", more='font-size="10"'))
        out.append("</g>")
    return "\n".join(out + legend(chart.series, colours)) + "\n</svg>\n"
