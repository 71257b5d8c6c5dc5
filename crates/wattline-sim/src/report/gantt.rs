//! Which job held which GPU: bar by bar where that can be read, as a heat map where not.

use super::svg::{self, Anchor, Area, Clipped, Scale, Svg, WIDE, count, duration, percent};
use super::{Bar, Gantt, RunReport, Span, TimeDomain};

/// More rows than this are not told apart by eye.
const MOST_ROWS: usize = 64;
/// More bars, or more spans of sleep, than this make a page slow to scroll.
const MOST_BARS: usize = 4_000;

/// Most rows and columns of the heat map.
const HEAT_ROWS: usize = 32;
const HEAT_COLUMNS: usize = 240;

/// Number of hues that jobs are spread over; the style sheet gives each its colour.
pub(super) const HUES: u32 = 24;

const LEFT: f64 = 96.0;
const TOP: f64 = 6.0;
const BELOW: f64 = 30.0;

/// A picture and the sentence that goes with it.
pub(super) struct GanttPlot {
    pub(super) svg: String,
    pub(super) caption: String,
    pub(super) is_heat_map: bool,
}

/// Draws one run.
pub(super) fn draw(run: &RunReport, domain: TimeDomain) -> GanttPlot {
    let gantt = &run.gantt;
    let placed = Placed::of(gantt);
    let most = placed.bars.len().max(placed.sleep.len());
    if gantt.rows.len() > MOST_ROWS || most > MOST_BARS {
        heat_map(run, &placed, domain)
    } else {
        bar_by_bar(run, &placed, domain)
    }
}

/// The bars and spans that can be drawn.
struct Placed<'a> {
    bars: Vec<&'a Bar>,
    sleep: Vec<&'a Span>,
    left_out: usize,
}

impl<'a> Placed<'a> {
    fn of(gantt: &'a Gantt) -> Placed<'a> {
        let rows = gantt.rows.len();
        let fits = |row: u32, start: f64, end: f64| {
            (row as usize) < rows && svg::drawable(start) && svg::drawable(end) && start <= end
        };
        let bars: Vec<_> = gantt.bars.iter().filter(|b| fits(b.row, b.start_s, b.end_s)).collect();
        let sleep: Vec<_> =
            gantt.sleep.iter().filter(|s| fits(s.row, s.start_s, s.end_s)).collect();
        let left_out = gantt.bars.len() + gantt.sleep.len() - bars.len() - sleep.len();
        Placed { bars, sleep, left_out }
    }

    fn note_left_out(&self, caption: &mut String) {
        if self.left_out > 0 {
            let n = count(self.left_out);
            caption.push_str(&format!(" {n} spans without a valid row or time are left out."));
        }
    }
}

/// The frame of a picture: so many rows of such a height under a common time axis.
struct Frame {
    svg: Svg,
    plot: Area,
    row_height: f64,
    time: Scale,
}

impl Frame {
    fn new(label: &str, rows: usize, row_height: f64, domain: TimeDomain) -> Frame {
        let plot = Area { x: LEFT, y: TOP, w: WIDE - LEFT - 16.0, h: rows as f64 * row_height };
        let mut svg = Svg::new("gantt wide", WIDE, plot.bottom() + BELOW, label);
        let time = Scale::new((domain.start, domain.end), (plot.x, plot.right()));
        let ticks = svg::time_ticks(domain.start, domain.end, 10);
        let marks: Vec<_> = ticks.into_iter().map(|t| (time.at(t.value), t.label)).collect();
        svg::x_axis(&mut svg, plot, WIDE, &marks);
        Frame { svg, plot, row_height, time }
    }

    fn top_of(&self, row: usize) -> f64 {
        self.plot.y + row as f64 * self.row_height
    }

    fn row_label(&mut self, row: usize, text: &str) {
        let y = self.top_of(row) + self.row_height / 2.0 + 3.4;
        let text = Clipped { text, limit: 16 };
        self.svg.text("row", (self.plot.x - 7.0, y), Anchor::End, text);
    }

    /// The outline of a span; a moment is drawn as a hairline rather than not at all.
    fn outline(&self, d: &mut String, row: usize, start: f64, end: f64) -> Area {
        let (x0, x1) = (self.time.at(start), self.time.at(end));
        let gap = if self.row_height >= 12.0 { 1.0 } else { 0.5 };
        let area = Area {
            x: x0,
            y: self.top_of(row) + gap,
            w: (x1 - x0).max(0.6),
            h: self.row_height - 2.0 * gap,
        };
        svg::push_point(d, 'M', area.x, area.y);
        svg::push_coord(d, 'h', area.w);
        svg::push_coord(d, 'v', area.h);
        svg::push_coord(d, 'h', -area.w);
        d.push('z');
        area
    }
}

fn bar_by_bar(run: &RunReport, placed: &Placed<'_>, domain: TimeDomain) -> GanttPlot {
    let rows = &run.gantt.rows;
    let late = placed.bars.iter().filter(|b| b.late).count();
    let mut caption = format!(
        "{} GPUs, {} bars, {} of them of late jobs.",
        count(rows.len()),
        count(placed.bars.len()),
        count(late)
    );
    placed.note_left_out(&mut caption);
    let label = format!("Jobs on GPUs over time under {}. {caption}", run.policy);
    let row_height = (420.0 / rows.len().max(1) as f64).clamp(10.0, 20.0);
    let mut frame = Frame::new(&label, rows.len().max(1), row_height, domain);
    if rows.is_empty() {
        let middle = (frame.plot.x + frame.plot.w / 2.0, frame.plot.y + 14.0);
        frame.svg.text("empty", middle, Anchor::Middle, "no GPUs".into());
    }

    draw_row_names(&mut frame, rows);
    frame.svg.open("sleeping");
    for span in placed.sleep.iter().filter(|s| s.start_s < s.end_s) {
        let row = span.row as usize;
        let mut d = String::new();
        frame.outline(&mut d, row, span.start_s, span.end_s);
        let title = format!("{} asleep · {}", rows[row], times(span.start_s, span.end_s));
        frame.svg.path("asleep", &d, &title);
    }
    frame.svg.close();

    // Late bars come last, so that no neighbour covers their outline.
    frame.svg.open("bars");
    let mut hatch = String::new();
    let mut names: Vec<(Area, &Bar)> = Vec::new();
    let (overdue, on_time): (Vec<&Bar>, Vec<&Bar>) = placed.bars.iter().partition(|b| b.late);
    for bar in on_time.into_iter().chain(overdue) {
        let row = bar.row as usize;
        let mut d = String::new();
        let area = frame.outline(&mut d, row, bar.start_s, bar.end_s);
        let hue = hue_of(bar.job);
        let (class, note) = match bar.late {
            true => (format!("j{hue} late"), " · late"),
            false => (format!("j{hue}"), ""),
        };
        let name = svg::clip(&bar.label, 80);
        let title = format!("{name} · {} · {}{note}", rows[row], times(bar.start_s, bar.end_s));
        frame.svg.path(&class, &d, &title);
        if bar.late {
            hatch.push_str(&d);
        }
        let label = bar.label.as_str();
        let room = area.w - 8.0;
        // The first test spares counting the characters of a name far too long.
        if area.h >= 10.0 && label.len() < 200 && svg::text_width(label, 9.5) <= room {
            names.push((area, bar));
        }
    }
    frame.svg.close();
    frame.svg.path("late-hatch", &hatch, "");
    frame.svg.open("names");
    for (area, bar) in names.into_iter().filter(|(_, b)| !b.label.is_empty()) {
        let at = (area.x + 4.0, area.y + area.h / 2.0 + 3.3);
        let class = if bar.late { "name late" } else { "name" };
        frame.svg.text(class, at, Anchor::Start, (&bar.label).into());
    }
    frame.svg.close();
    GanttPlot { svg: frame.svg.finish(), caption, is_heat_map: false }
}

/// Names the rows and rules a line where a node ends.
fn draw_row_names(frame: &mut Frame, rows: &[String]) {
    frame.svg.open("axis");
    let node = |name: &str| name.rsplit_once('/').map(|(node, _)| node.to_owned());
    for (i, name) in rows.iter().enumerate() {
        frame.row_label(i, name);
        let ends = i + 1 < rows.len() && node(name).is_some() && node(name) != node(&rows[i + 1]);
        if ends {
            let y = frame.top_of(i + 1);
            frame.svg.line("grid", (frame.plot.x, y), (frame.plot.right(), y));
        }
    }
    frame.svg.close();
}

/// A colour for a job that stays the same from run to run and page to page. Multiplying by the
/// golden ratio sends neighbouring numbers to distant hues.
pub(super) fn hue_of(job: u32) -> u32 {
    let spread = job.wrapping_mul(0x9e37_79b9);
    ((u64::from(spread) * u64::from(HUES)) >> 32) as u32
}

fn times(start: f64, end: f64) -> String {
    format!("{} – {} ({})", duration(start), duration(end), duration(end - start))
}

/// Seconds of GPU time in one cell of the heat map.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    busy: f64,
    late: f64,
    asleep: f64,
}

/// Seconds of GPU time for each group of rows and each bucket of time.
struct HeatGrid {
    cells: Vec<Cell>,
    group: usize,
    bucket_s: f64,
    domain: TimeDomain,
}

impl HeatGrid {
    fn new(rows: usize, domain: TimeDomain) -> HeatGrid {
        let group = rows.div_ceil(HEAT_ROWS).max(1);
        let groups = rows.div_ceil(group);
        let bucket_s = (domain.end - domain.start) / HEAT_COLUMNS as f64;
        HeatGrid { cells: vec![Cell::default(); groups * HEAT_COLUMNS], group, bucket_s, domain }
    }

    fn add(&mut self, row: u32, start: f64, end: f64, into: impl Fn(&mut Cell, f64)) {
        let offset = (row as usize / self.group) * HEAT_COLUMNS;
        let first = ((start - self.domain.start) / self.bucket_s).floor() as usize;
        let last = ((end - self.domain.start) / self.bucket_s).floor() as usize;
        for column in first.min(HEAT_COLUMNS - 1)..=last.min(HEAT_COLUMNS - 1) {
            let from = self.domain.start + column as f64 * self.bucket_s;
            let shared = end.min(from + self.bucket_s) - start.max(from);
            into(&mut self.cells[offset + column], shared.max(0.0));
        }
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunks(HEAT_COLUMNS)
    }
}

/// Busy shares are drawn in tenths.
pub(super) const HEAT_LEVELS: usize = 10;

fn heat_map(run: &RunReport, placed: &Placed<'_>, domain: TimeDomain) -> GanttPlot {
    let rows = &run.gantt.rows;
    let mut grid = HeatGrid::new(rows.len(), domain);
    for bar in &placed.bars {
        grid.add(bar.row, bar.start_s, bar.end_s, |cell, s| {
            cell.busy += s;
            cell.late += if bar.late { s } else { 0.0 };
        });
    }
    for span in &placed.sleep {
        grid.add(span.row, span.start_s, span.end_s, |cell, s| cell.asleep += s);
    }

    let late = placed.bars.iter().filter(|b| b.late).count();
    let gpus = match grid.group {
        1 => "one GPU".to_owned(),
        n => format!("{n} neighbouring GPUs"),
    };
    let mut caption = format!(
        "Too dense to draw bar by bar ({} GPUs, {} bars, {} of them of late jobs): each cell \
         stands for {gpus} over {}, the stronger the busier; hatched where late jobs had most of \
         the busy time, grey where most GPUs slept.",
        count(rows.len()),
        count(placed.bars.len()),
        count(late),
        duration(grid.bucket_s)
    );
    placed.note_left_out(&mut caption);

    let groups = rows.len().div_ceil(grid.group);
    let row_height = (360.0 / groups.max(1) as f64).clamp(11.0, 20.0);
    let label = format!("Busy share of GPUs over time under {}. {caption}", run.policy);
    let mut frame = Frame::new(&label, groups, row_height, domain);
    draw_cells(&mut frame, &grid, rows.len());

    for (i, (members, cells)) in rows.chunks(grid.group).zip(grid.rows()).enumerate() {
        let name = group_name(members);
        frame.row_label(i, &name);
        let whole = (domain.end - domain.start) * members.len() as f64;
        let share = |of: fn(&Cell) -> f64| {
            percent((cells.iter().map(of).sum::<f64>() / whole).clamp(0.0, 1.0))
        };
        let (busy, asleep) = (share(|c| c.busy), share(|c| c.asleep));
        let area = Area { y: frame.top_of(i), h: row_height, ..frame.plot };
        frame.svg.rect("slice", area, &format!("{name} · busy {busy} · asleep {asleep}"));
    }
    GanttPlot { svg: frame.svg.finish(), caption, is_heat_map: true }
}

/// Draws all cells of one level as one path of thick strokes: a few bytes a cell.
fn draw_cells(frame: &mut Frame, grid: &HeatGrid, rows: usize) {
    let mut paths: Vec<String> = vec![String::new(); HEAT_LEVELS + 1];
    let mut hatch = String::new();
    let width = frame.plot.w / HEAT_COLUMNS as f64;
    for (i, cells) in grid.rows().enumerate() {
        let members = grid.group.min(rows - i * grid.group);
        let whole = grid.bucket_s * members as f64;
        let y = frame.top_of(i) + frame.row_height / 2.0;
        let level = |cell: &Cell| {
            let busy = (cell.busy / whole).clamp(0.0, 1.0);
            match cell.asleep > whole / 2.0 {
                true => Some(0),
                false if busy < 0.01 => None,
                false => Some((busy * HEAT_LEVELS as f64 - 1e-6).ceil().max(1.0) as usize),
            }
        };
        for (from, to, level) in equal_runs(cells, level) {
            let x = frame.plot.x + from as f64 * width;
            svg::push_point(&mut paths[level.min(HEAT_LEVELS)], 'M', x, y);
            svg::push_coord(&mut paths[level.min(HEAT_LEVELS)], 'h', (to - from) as f64 * width);
        }
        let mostly_late = |c: &Cell| (c.late > c.busy / 2.0 && c.busy > 0.0).then_some(());
        for (from, to, ()) in equal_runs(cells, mostly_late) {
            let x = frame.plot.x + from as f64 * width;
            svg::push_point(&mut hatch, 'M', x, frame.top_of(i) + 0.5);
            svg::push_coord(&mut hatch, 'h', (to - from) as f64 * width);
            svg::push_coord(&mut hatch, 'v', frame.row_height - 1.0);
            svg::push_coord(&mut hatch, 'h', (from as f64 - to as f64) * width);
            hatch.push('z');
        }
    }
    frame.svg.open_stroked("cells", frame.row_height - 1.0);
    for (level, d) in paths.iter().enumerate() {
        frame.svg.path(&format!("q{level}"), d, "");
    }
    frame.svg.close();
    frame.svg.path("late-hatch", &hatch, "");
}

/// Maximal runs of cells that `of` gives the same value, as half-open ranges; `None` is skipped.
fn equal_runs<T: PartialEq + Copy>(
    cells: &[Cell],
    of: impl Fn(&Cell) -> Option<T>,
) -> Vec<(usize, usize, T)> {
    let mut runs: Vec<(usize, usize, T)> = Vec::new();
    for (i, cell) in cells.iter().enumerate() {
        let Some(value) = of(cell) else { continue };
        match runs.last_mut() {
            Some((_, to, last)) if *to == i && *last == value => *to = i + 1,
            _ => runs.push((i, i + 1, value)),
        }
    }
    runs
}

fn group_name(members: &[String]) -> String {
    match members {
        [] => String::new(),
        [only] => only.clone(),
        [first, .., last] => format!("{}–{}", svg::clip(first, 60), svg::clip(last, 60)),
    }
}
