//! What all plots need: an SVG writer that escapes, scales, ticks and units.

use std::fmt::Write;

/// Width of the wide plots in user units; the page scales them to the space there is.
pub(super) const WIDE: f64 = 960.0;

/// Whether a value can be placed on an axis. The bound keeps differences of two values finite and
/// far from the limits of the integers that coordinates are rounded to.
pub(super) fn drawable(v: f64) -> bool {
    v.is_finite() && v.abs() < 1e15
}

/// Escapes text for both element content and quoted attributes.
///
/// Control characters are not allowed in a document even when escaped, and terminal sequences or
/// direction overrides in a job's name could disguise what the page says, so they are replaced by
/// visible stand-ins.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => out.push(' '),
            '\0'..='\u{1f}' => {
                out.push(char::from_u32(0x2400 + c as u32).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            '\u{7f}' => out.push('\u{2421}'),
            '\u{80}'..='\u{9f}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}' => out.push(char::REPLACEMENT_CHARACTER),
            c if (c as u32) & 0xfffe == 0xfffe => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

/// At most `limit` characters of a text, with an ellipsis where some were cut off.
pub(super) fn clip(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Writes a coordinate with one decimal at most: finer is not visible and only costs bytes.
pub(super) fn push_num(out: &mut String, v: f64) {
    let tenths = (v * 10.0).round() as i64;
    let sign = if tenths < 0 { "-" } else { "" };
    let (whole, part) = (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10);
    let _ = match part {
        0 => write!(out, "{sign}{whole}"),
        _ => write!(out, "{sign}{whole}.{part}"),
    };
}

/// A coordinate as text; see [`push_num`].
pub(super) fn num(v: f64) -> String {
    let mut out = String::new();
    push_num(&mut out, v);
    out
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG picture under construction.
pub(super) struct Svg {
    out: String,
}

impl Svg {
    /// Opens a picture of the given size in user units; `label` is read out in its place.
    pub(super) fn new(class: &str, width: f64, height: f64, label: &str) -> Svg {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg class=\"{class}\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\">",
            w = num(width),
            h = num(height),
            label = escape(label),
        );
        Svg { out }
    }

    /// Opens a group of elements that share a class.
    pub(super) fn open(&mut self, class: &str) {
        let _ = writeln!(self.out, "<g class=\"{class}\">");
    }

    /// Opens a group whose strokes are as wide as the drawing asks, which no style sheet can know.
    pub(super) fn open_stroked(&mut self, class: &str, width: f64) {
        let _ = writeln!(self.out, "<g class=\"{class}\" stroke-width=\"{}\">", num(width));
    }

    /// Closes the group opened last.
    pub(super) fn close(&mut self) {
        self.out.push_str("</g>\n");
    }

    /// Draws a path, with a tooltip where `title` is not empty; draws nothing for an empty path.
    pub(super) fn path(&mut self, class: &str, d: &str, title: &str) {
        if d.is_empty() {
            return;
        }
        let _ = write!(self.out, "<path class=\"{class}\" d=\"{d}\"");
        self.end_with_title("path", title);
    }

    /// Draws a rectangle, with a tooltip where `title` is not empty.
    pub(super) fn rect(&mut self, class: &str, area: Area, title: &str) {
        let _ = write!(
            self.out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            num(area.x),
            num(area.y),
            num(area.w.max(0.0)),
            num(area.h.max(0.0)),
        );
        self.end_with_title("rect", title);
    }

    /// Draws a straight line.
    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let mut d = String::new();
        push_point(&mut d, 'M', from.0, from.1);
        push_point(&mut d, 'L', to.0, to.1);
        self.path(class, &d, "");
    }

    /// Writes a text; longer than `limit` characters, it is cut and its whole is the tooltip.
    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: Clipped<'_>) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let shown = clip(text.text, text.limit);
        let _ = write!(
            self.out,
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}",
            num(at.0),
            num(at.1),
            escape(&shown),
        );
        if shown.len() != text.text.len() {
            let _ = write!(self.out, "<title>{}</title>", escape(&clip(text.text, TOOLTIP_CHARS)));
        }
        self.out.push_str("</text>\n");
    }

    /// Ends the picture and gives its text.
    pub(super) fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }

    fn end_with_title(&mut self, tag: &str, title: &str) {
        if title.is_empty() {
            self.out.push_str("/>\n");
        } else {
            let title = escape(&clip(title, TOOLTIP_CHARS));
            let _ = writeln!(self.out, "><title>{title}</title></{tag}>");
        }
    }
}

/// Longest tooltip: a name of a megabyte must not be repeated for each of its bars.
const TOOLTIP_CHARS: usize = 240;

/// A text and how many of its characters there is room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clipped<'a> {
    pub(super) text: &'a str,
    pub(super) limit: usize,
}

impl<'a> From<&'a str> for Clipped<'a> {
    fn from(text: &'a str) -> Self {
        Clipped { text, limit: usize::MAX }
    }
}

impl<'a> From<&'a String> for Clipped<'a> {
    fn from(text: &'a String) -> Self {
        Clipped { text, limit: usize::MAX }
    }
}

/// Appends a path command with a point.
pub(super) fn push_point(d: &mut String, command: char, x: f64, y: f64) {
    d.push(command);
    push_num(d, x);
    d.push(' ');
    push_num(d, y);
}

/// Appends a path command with a single coordinate.
pub(super) fn push_coord(d: &mut String, command: char, v: f64) {
    d.push(command);
    push_num(d, v);
}

/// A rectangle in user units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

impl Area {
    pub(super) fn right(&self) -> f64 {
        self.x + self.w
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.h
    }
}

/// A linear map from values to coordinates; values outside are drawn at the edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    from: (f64, f64),
    to: (f64, f64),
}

impl Scale {
    pub(super) fn new(from: (f64, f64), to: (f64, f64)) -> Scale {
        Scale { from, to }
    }

    pub(super) fn at(&self, v: f64) -> f64 {
        let share = (v - self.from.0) / (self.from.1 - self.from.0);
        self.to.0 + share.clamp(0.0, 1.0) * (self.to.1 - self.to.0)
    }
}

/// A mark on an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// Draws horizontal grid lines with their labels to the left of the plot.
pub(super) fn y_axis(svg: &mut Svg, plot: Area, scale: Scale, ticks: &[Tick]) {
    svg.open("axis");
    for tick in ticks {
        let y = scale.at(tick.value);
        svg.line("grid", (plot.x, y), (plot.right(), y));
        svg.text("tick", (plot.x - 7.0, y + 4.0), Anchor::End, (&tick.label).into());
    }
    svg.close();
}

/// Draws vertical grid lines with their labels under the plot. Labels at the ends are turned
/// inwards where they would leave the picture, and one that would touch its neighbour is left out.
pub(super) fn x_axis(svg: &mut Svg, plot: Area, width: f64, marks: &[(f64, String)]) {
    svg.open("axis");
    let mut free_from = f64::NEG_INFINITY;
    for (x, label) in marks {
        svg.line("grid", (*x, plot.y), (*x, plot.bottom()));
        let half = text_width(label, 12.0) / 2.0;
        let (anchor, at, left, right) = if x - half < 2.0 {
            (Anchor::Start, 2.0, 2.0, 2.0 + 2.0 * half)
        } else if x + half > width - 2.0 {
            (Anchor::End, width - 2.0, width - 2.0 - 2.0 * half, width)
        } else {
            (Anchor::Middle, *x, x - half, x + half)
        };
        if left > free_from {
            svg.text("tick", (at, plot.bottom() + 17.0), anchor, label.into());
            free_from = right + 6.0;
        }
    }
    svg.line("base", (plot.x, plot.bottom()), (plot.right(), plot.bottom()));
    svg.close();
}

/// A guess, on the wide side, at the width of a text in a sans-serif font of the given size.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.58
}

/// Multiples of the smallest step of 1, 2 or 5 times a power of ten that gives at most `most`
/// intervals between `lo` and `hi`, and that step.
fn nice_values(lo: f64, hi: f64, most: usize) -> (Vec<f64>, f64) {
    let raw = (hi - lo) / most.max(1) as f64;
    if !(raw.is_finite() && raw > 0.0) {
        return (vec![lo], 1.0);
    }
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= raw * (1.0 - 1e-9))
        .unwrap_or(10.0 * power);
    (multiples(lo, hi, step), step)
}

fn multiples(lo: f64, hi: f64, step: f64) -> Vec<f64> {
    let first = (lo / step - 1e-9).ceil();
    let last = (hi / step + 1e-9).floor();
    // The count is small by the choice of the step; the bound only guards against rounding.
    let count = (last - first).clamp(-1.0, 100.0) as i64 + 1;
    (0..count).map(|i| (first + i as f64) * step + 0.0).collect()
}

/// The largest value of an axis that starts at zero: the next tick at or above `max`.
pub(super) fn nice_top(max: f64, most: usize) -> f64 {
    if max <= 0.0 {
        return 1.0;
    }
    let (_, step) = nice_values(0.0, max, most);
    (max / step - 1e-9).ceil() * step
}

/// Ticks in one unit for the whole axis; `units` holds factor and name, smallest first.
fn unit_ticks(lo: f64, hi: f64, most: usize, units: &[(f64, &str)], prefix: &str) -> Vec<Tick> {
    let (values, step) = nice_values(lo, hi, most);
    let size = lo.abs().max(hi.abs());
    let (factor, unit) = pick_unit(size, units);
    let decimals = (-(step / factor).log10().floor()).clamp(0.0, 6.0) as usize;
    let tick = |value: f64| {
        let sign = if value < 0.0 { "−" } else { "" };
        let number = group(&format!("{:.decimals$}", (value / factor).abs()));
        Tick { value, label: format!("{sign}{prefix}{number}{unit}") }
    };
    values.into_iter().map(tick).collect()
}

fn pick_unit<'a>(size: f64, units: &[(f64, &'a str)]) -> (f64, &'a str) {
    let fits = units.iter().rev().find(|(factor, _)| size >= *factor * (1.0 - 1e-9));
    fits.or(units.first()).copied().unwrap_or((1.0, ""))
}

const WATTS: [(f64, &str); 4] = [(1.0, " W"), (1e3, " kW"), (1e6, " MW"), (1e9, " GW")];
const EUROS: [(f64, &str); 3] = [(1.0, ""), (1e6, " M"), (1e9, " bn")];
const SECONDS: [(f64, &str); 4] = [(1.0, " s"), (60.0, " min"), (3600.0, " h"), (86_400.0, " d")];

/// Ticks of an axis of watts.
pub(super) fn power_ticks(lo: f64, hi: f64, most: usize) -> Vec<Tick> {
    unit_ticks(lo, hi, most, &WATTS, "")
}

/// Ticks of an axis of euros.
pub(super) fn eur_ticks(lo: f64, hi: f64, most: usize) -> Vec<Tick> {
    unit_ticks(lo, hi, most, &EUROS, "€")
}

/// Ticks of an axis of plain numbers.
pub(super) fn number_ticks(lo: f64, hi: f64, most: usize) -> Vec<Tick> {
    unit_ticks(lo, hi, most, &[(1.0, "")], "")
}

/// Steps that people count time in, in seconds.
const TIME_STEPS: [f64; 21] = [
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
    10_800.0, 21_600.0, 43_200.0, 86_400.0, 172_800.0, 432_000.0, 604_800.0,
];

/// Ticks of an axis of time: whole minutes, hours or days rather than round numbers of seconds.
pub(super) fn time_ticks(lo: f64, hi: f64, most: usize) -> Vec<Tick> {
    let raw = (hi - lo) / most.max(1) as f64;
    if raw <= 0.5 {
        return unit_ticks(lo, hi, most, &SECONDS[..1], "");
    }
    let Some(step) = TIME_STEPS.into_iter().find(|s| *s >= raw) else {
        return in_days(lo, hi, most);
    };
    let (factor, unit) = pick_unit(step, &SECONDS);
    let decimals = usize::from(step % factor != 0.0);
    let label = |v: f64| match v {
        0.0 => "0".to_owned(),
        v => format!("{}{unit}", group(&format!("{:.decimals$}", v / factor))),
    };
    multiples(lo, hi, step).into_iter().map(|value| Tick { value, label: label(value) }).collect()
}

fn in_days(lo: f64, hi: f64, most: usize) -> Vec<Tick> {
    let day = 86_400.0;
    let ticks = unit_ticks(lo / day, hi / day, most, &[(1.0, " d")], "");
    ticks.into_iter().map(|t| Tick { value: t.value * day, label: t.label }).collect()
}

/// Ticks of a logarithmic axis of time: further apart on a long axis than on a short one.
pub(super) fn log_time_ticks(lo: f64, hi: f64) -> Vec<Tick> {
    /// Value, label, and whether a long axis shows it.
    const MARKS: [(f64, &str, bool); 24] = [
        (1e-3, "1 ms", true),
        (1e-2, "10 ms", true),
        (0.1, "0.1 s", true),
        (1.0, "1 s", true),
        (3.0, "3 s", false),
        (10.0, "10 s", true),
        (30.0, "30 s", false),
        (60.0, "1 min", true),
        (180.0, "3 min", false),
        (600.0, "10 min", true),
        (1_800.0, "30 min", false),
        (3_600.0, "1 h", true),
        (7_200.0, "2 h", false),
        (21_600.0, "6 h", true),
        (43_200.0, "12 h", false),
        (86_400.0, "1 d", true),
        (259_200.0, "3 d", false),
        (604_800.0, "7 d", true),
        (1_209_600.0, "14 d", false),
        (2_592_000.0, "30 d", true),
        (31_536_000.0, "1 y", true),
        (315_360_000.0, "10 y", true),
        (3_153_600_000.0, "100 y", true),
        (31_536_000_000.0, "1,000 y", true),
    ];
    let inside = |v: f64| v >= lo * 0.999 && v <= hi * 1.001;
    let long = MARKS.iter().filter(|(v, _, coarse)| *coarse && inside(*v)).count() > 4;
    MARKS
        .iter()
        .filter(|(v, _, coarse)| inside(*v) && (*coarse || !long))
        .map(|(value, label, _)| Tick { value: *value, label: (*label).to_owned() })
        .collect()
}

/// A power with three significant digits.
pub(super) fn power(w: f64) -> String {
    let (factor, unit) = pick_unit(w.abs(), &WATTS);
    format!("{}{unit}", three_digits(w / factor))
}

/// A length of time with three significant digits.
pub(super) fn duration(s: f64) -> String {
    // Up to two days, hours say more than a fraction of days.
    let units = if s.abs() < 172_800.0 { &SECONDS[..3] } else { &SECONDS[..] };
    let (factor, unit) = pick_unit(s.abs(), units);
    format!("{}{unit}", three_digits(s / factor))
}

/// An amount of money: cents for small ones, whole euros for large ones.
pub(super) fn eur(v: f64) -> String {
    let size = v.abs();
    let sign = if v < 0.0 { "−" } else { "" };
    match size {
        0.0 => "€0".to_owned(),
        _ if size >= 1e6 => {
            let (factor, unit) = pick_unit(size, &EUROS);
            format!("{sign}€{}{unit}", three_digits(size / factor))
        }
        _ if size >= 1e3 => format!("{sign}€{}", group(&format!("{size:.0}"))),
        _ if size >= 0.1 => format!("{sign}€{size:.2}"),
        _ => format!("{sign}€{}", three_digits(size)),
    }
}

/// A count with its thousands set apart.
pub(super) fn count(n: usize) -> String {
    group(&n.to_string())
}

/// A share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{}\u{a0}%", three_digits(share * 100.0))
}

fn three_digits(v: f64) -> String {
    let size = v.abs();
    if size == 0.0 || !v.is_finite() {
        return "0".to_owned();
    }
    let decimals = (2.0 - size.log10().floor()).clamp(0.0, 8.0) as usize;
    let text = format!("{size:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    let sign = if v < 0.0 && text != "0" { "−" } else { "" };
    format!("{sign}{}", group(text))
}

/// Puts commas between the thousands of a plain decimal number.
fn group(number: &str) -> String {
    let (whole, rest) = number.find('.').map_or((number, ""), |dot| number.split_at(dot));
    let mut out = String::with_capacity(number.len() + 4);
    for (i, c) in whole.chars().enumerate() {
        let left = whole.len() - i;
        if i > 0 && left % 3 == 0 && out.ends_with(|c: char| c.is_ascii_digit()) {
            out.push(',');
        }
        out.push(c);
    }
    out.push_str(rest);
    out
}
