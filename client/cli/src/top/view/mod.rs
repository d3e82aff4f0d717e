//! Draws the state as a screen. Pure: a state in, cells out.

mod layout;
mod overlay;
mod paint;
mod tables;
mod verdict;
mod words;

use ratatui::Frame;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use shardd_api::overview::rows::{NodeRow, RowOrder};
use shardd_api::overview::{Finding, Severity};
use shardfmt::ByteSize;

use self::layout::{INDENT, Layout, SMALLEST, explained, fits, is_open};
pub(super) use self::layout::{has_rows, layout, page, scroll, window};
use self::paint::{Brush, Table, Tone, columns, heading, select};
use self::verdict::verdict;
use self::words::time;
use super::state::{Mode, Pane, State};
use crate::human::count;

/// Draws a frame.
pub(super) fn draw(state: &State, frame: &mut Frame<'_>) {
    let area = frame.area();
    screen(state, area, frame.buffer_mut());
}

/// A screen of this width as text, as high as it takes, without escapes.
pub(super) fn text(state: &State, width: u16) -> String {
    /// Higher than any screen, and small enough for a buffer.
    const HIGHEST: u16 = 2000;
    let whole = Rect::new(0, 0, width, HIGHEST);
    let height = layout(state, whole).panes.map(Rect::bottom).into_iter().max().unwrap_or(0).max(SMALLEST.1);
    let area = Rect { height, ..whole };
    let mut buffer = Buffer::empty(area);
    screen(state, area, &mut buffer);
    let line = |cells: &[Cell]| {
        let mut line = String::new();
        let mut covered = 0;
        for cell in cells {
            // A wide character lies over the cells after it.
            if covered > 0 {
                covered -= 1;
                continue;
            }
            line.push_str(cell.symbol());
            covered = columns(cell.symbol()).saturating_sub(1);
        }
        line.trim_end().to_owned() + "\n"
    };
    let lines: String = buffer.content().chunks(usize::from(width).max(1)).map(line).collect();
    lines.trim_end().to_owned() + "\n"
}

fn screen(state: &State, area: Rect, buffer: &mut Buffer) {
    let mut brush = Brush { buffer, has_colour: state.has_colour };
    if !fits(area) {
        overlay::too_small(&mut brush, area);
        return;
    }
    if state.mode == Mode::Help {
        overlay::help(&mut brush, area);
        return;
    }
    let layout = layout(state, area);
    draw_verdict(state, &layout, &mut brush);
    draw_summary(state, layout.summary, &mut brush);
    draw_banner(state, layout.banner, &mut brush);
    for pane in Pane::ALL {
        draw_pane(state, pane, layout.panes[pane.index()], &mut brush);
    }
    if let Mode::Sort(at) = state.mode {
        overlay::orders(state, at, layout.panes[state.pane.index()], area, &mut brush);
    }
    overlay::keys(state, layout.keys, &mut brush);
}

fn draw_verdict(state: &State, layout: &Layout, brush: &mut Brush<'_>) {
    let tone = match verdict(&state.seen.view.overview).is_held_up {
        Some(true) => Tone::Critical,
        Some(false) => Tone::Good,
        None => Tone::Strong,
    };
    let (area, lines) = &layout.verdict;
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        brush.text(area.x, y, area.width, line, tone);
    }
}

/// The number of nodes by state, and their bytes. Parts that do not fit are left out.
fn draw_summary(state: &State, area: Rect, brush: &mut Brush<'_>) {
    let view = &state.seen.view;
    let (nodes, totals) = (&view.overview.nodes, &view.overview.totals);
    let counted = [
        (nodes.live, "live"),
        (nodes.lost, "lost"),
        (nodes.draining, "draining"),
        (nodes.unhealthy, "unhealthy"),
        (nodes.unanswered, "without answer"),
    ];
    let counted = counted.iter().enumerate().filter(|(at, (number, _))| *at == 0 || *number > 0);
    let counted: Vec<String> =
        counted.map(|(_, (number, what))| format!("{} {what}", count(*number as u64))).collect();
    let (used, limit) = (ByteSize(totals.cache_used_bytes), ByteSize(totals.cache_limit_bytes));
    let mut parts = vec![
        format!("asked: {}", view.node),
        format!("nodes: {}", counted.join(", ")),
        format!("cache {used} of {limit}"),
        format!("{} from the store", ByteSize(totals.origin_bytes)),
        format!("{} exchanged", ByteSize(totals.exchange_bytes)),
        format!("{} corrupt grains", count(totals.corrupt_grains)),
        format!("shardd {}", view.release),
    ];
    let clock = match (state.is_plain, state.is_paused) {
        (true, _) => format!("{} UTC", time(state.seen.at)),
        (false, true) => format!("PAUSED since {} UTC", time(state.seen.at)),
        (false, false) => format!("{} UTC, every {} s", time(state.now), state.interval.as_secs()),
    };
    let room = usize::from(area.width).saturating_sub(columns(&clock) + 2);
    while parts.len() > 1 && columns(&parts.join(" | ")) > room {
        parts.pop();
    }
    if area.height > 0 {
        brush.text(area.x, area.y, room as u16, &parts.join(" | "), Tone::Usual);
        brush.right(
            area.x,
            area.y,
            area.width,
            &clock,
            if state.is_paused { Tone::Warning } else { Tone::Dim },
        );
    }
}

fn draw_banner(state: &State, area: Rect, brush: &mut Brush<'_>) {
    let Some(trouble) = state.trouble.as_ref().filter(|_| area.height > 0) else { return };
    let age = state.now.saturating_sub(state.seen.at);
    let text = format!("NO ANSWER, this view is {age} s old: {} ({})", trouble.server, trouble.why);
    brush.text(area.x, area.y, area.width, &text, Tone::Critical);
    brush.tone(area, Tone::Focus);
}

fn draw_pane(state: &State, pane: Pane, area: Rect, brush: &mut Brush<'_>) {
    if area.height == 0 {
        return;
    }
    match pane {
        Pane::Findings => draw_findings(state, area, brush),
        Pane::Runs => Table {
            title: title(state, pane),
            has_focus: has_focus(state, pane),
            name: tables::run_name,
            columns: &tables::RUNS,
            sorted_by: None,
            rows: rows(state, pane, area, &state.runs()),
            selected: selected(state, pane),
        }
        .draw(brush, area),
        Pane::Nodes => Table {
            title: title(state, pane),
            has_focus: has_focus(state, pane),
            name: tables::node_name,
            columns: &tables::NODES,
            sorted_by: Some(match state.seen.window.order {
                RowOrder::Name => "",
                RowOrder::State => "state",
                RowOrder::Cache => "cache",
                RowOrder::Disk => "disk",
                RowOrder::Origin => "origin",
                RowOrder::Processors => "procs",
            }),
            rows: node_rows(state, area),
            selected: selected(state, pane),
        }
        .draw(brush, area),
        Pane::Hot => Table {
            title: title(state, pane),
            has_focus: has_focus(state, pane),
            name: tables::shard_name,
            columns: &tables::SHARDS,
            sorted_by: Some(state.seen.hot_order.name()),
            rows: rows(state, pane, area, &state.shards()),
            selected: selected(state, pane),
        }
        .draw(brush, area),
    }
    if state.count(pane) == 0 && area.height > 1 {
        brush.text(area.x + 2, area.y + 1, area.width - 2, &empty(state, pane), Tone::Dim);
    }
}

/// The heading: `3 Nodes (1,000)`, and the filter.
fn title(state: &State, pane: Pane) -> String {
    let cursor = state.cursor(pane);
    let filter = if cursor.filter.is_empty() { String::new() } else { format!(" /{}", cursor.filter) };
    let mark = match pane {
        Pane::Nodes if state.seen.window.order == RowOrder::Name => "▾",
        _ => "",
    };
    let total = match pane {
        Pane::Nodes => state.seen.rows.total,
        _ => state.count(pane),
    };
    let overview = &state.seen.view.overview;
    let more = match pane {
        Pane::Findings => overview.more_findings,
        Pane::Runs => overview.more_runs,
        Pane::Nodes | Pane::Hot => 0,
    };
    let of = if more > 0 { format!(" of {}", count((total + more) as u64)) } else { String::new() };
    format!("{} {}{mark} ({}{of}){filter}", pane.index() + 1, pane.name(), count(total as u64))
}

fn empty(state: &State, pane: Pane) -> String {
    if !state.cursor(pane).filter.is_empty() {
        return format!("nothing contains {:?}; Esc ends the filter", state.cursor(pane).filter);
    }
    match pane {
        Pane::Findings => "nothing is wrong".to_owned(),
        Pane::Runs => "no run is being read".to_owned(),
        Pane::Nodes => "no nodes".to_owned(),
        Pane::Hot => "no shard was read lately".to_owned(),
    }
}

fn has_focus(state: &State, pane: Pane) -> bool {
    state.pane == pane && !state.is_plain
}

/// The place of the selected row on the screen.
fn selected(state: &State, pane: Pane) -> Option<usize> {
    let cursor = state.cursor(pane);
    (has_focus(state, pane) && state.count(pane) > 0).then(|| cursor.selected.saturating_sub(cursor.top))
}

/// The rows that are on the screen.
fn rows<'a, R>(state: &State, pane: Pane, area: Rect, all: &[&'a R]) -> Vec<Option<&'a R>> {
    let height = usize::from(area.height.saturating_sub(1));
    all.iter().skip(state.cursor(pane).top).take(height).map(|row| Some(*row)).collect()
}

fn node_rows(state: &State, area: Rect) -> Vec<Option<&NodeRow>> {
    let rows = &state.seen.rows;
    let top = state.cursor(Pane::Nodes).top;
    let end = state.count(Pane::Nodes).min(top.saturating_add(usize::from(area.height.saturating_sub(1))));
    (top..end).map(|at| at.checked_sub(rows.offset).and_then(|at| rows.rows.get(at))).collect()
}

fn draw_findings(state: &State, area: Rect, brush: &mut Brush<'_>) {
    let pane = Pane::Findings;
    heading(brush, area, &title(state, pane), has_focus(state, pane));
    let cursor = state.cursor(pane);
    let all = &state.seen.view.overview.findings;
    let mut y = area.y + 1;
    for (at, finding) in state.findings().into_iter().enumerate().skip(cursor.top) {
        if y >= area.bottom() {
            break;
        }
        let finding = &all[finding];
        let is_selected = at == cursor.selected && has_focus(state, pane);
        let is_open = is_open(state, at);
        draw_finding(finding, is_open, Rect { y, height: 1, ..area }, brush);
        if is_selected {
            select(brush, Rect { y, height: 1, ..area });
        }
        y += 1;
        let lines = if is_open { explained(finding, area.width) } else { Vec::new() };
        for line in lines.iter().take(usize::from(area.bottom() - y)) {
            brush.text(area.x + INDENT, y, area.width - INDENT, line, Tone::Usual);
            y += 1;
        }
    }
}

/// A finding in a line: how bad, what; and why, unless that is written below.
fn draw_finding(finding: &Finding, is_open: bool, line: Rect, brush: &mut Brush<'_>) {
    let tone = match finding.severity {
        Severity::Critical => Tone::Critical,
        Severity::Warning => Tone::Warning,
        Severity::Info => Tone::Usual,
    };
    brush.text(line.x + 2, line.y, 8, finding.severity.name(), tone);
    let x = line.x + 2 + 8 + 1;
    let x = brush.text(x, line.y, line.right() - x, &finding.title, Tone::Strong);
    if !is_open && x + 2 < line.right() {
        brush.text(x, line.y, line.right() - x, &format!(": {}", finding.cause), Tone::Usual);
    }
}
