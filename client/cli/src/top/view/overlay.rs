//! What lies over the panes or below them: the help, the choice of an order, the line of keys.

use ratatui::layout::Rect;
use shardd_api::loop_time::Stage;

use super::layout::SMALLEST;
use super::paint::{Brush, Tone, columns, wrapped};
use super::words::letter;
use crate::top::keys::HELP;
use crate::top::state::{Mode, State};

/// The keys of the last line.
const KEYS: [(&str, &str); 8] = [
    ("F1", "Help"),
    ("Tab", "Pane"),
    ("F4", "Filter"),
    ("F6", "Sort"),
    ("Space", "Pause"),
    ("+-", "Interval"),
    ("1-4", "Go"),
    ("F10", "Quit"),
];

/// The message on a screen that is too small.
pub(super) fn too_small(brush: &mut Brush<'_>, area: Rect) {
    let (width, height) = SMALLEST;
    let text = format!(
        "This terminal has {} columns and {} lines; `shardctl top` needs {width} and {height}. q quits.",
        area.width, area.height
    );
    for (line, y) in wrapped(&text, area.width, area.height.into()).iter().zip(area.top()..area.bottom()) {
        brush.text(area.x, y, area.width, line, Tone::Strong);
    }
}

/// The help, in place of all else.
pub(super) fn help(brush: &mut Brush<'_>, area: Rect) {
    let mut lines: Vec<(String, Tone)> =
        vec![("shardctl top: any key closes this help".to_owned(), Tone::Strong)];
    lines.extend(HELP.iter().map(|(keys, what)| (format!("{keys:14} {what}"), Tone::Usual)));
    let stages: Vec<String> =
        Stage::ALL.iter().map(|stage| format!("{} {}", letter(*stage), stage.name())).collect();
    let legend = [
        format!(
            "{}, · its own work: the time of the rank that waits most, in `waits for`.",
            stages.join(", ")
        ),
        "`exposed` is the part of the last minute in which it waited for data: 0 is best.".to_owned(),
        "`left` is when the epoch ends, earliest and latest. `cache` and `disk` are the parts in use."
            .to_owned(),
        "Shards are counted as reads decay: one counts half after some minutes.".to_owned(),
    ];
    let legend = legend.iter().flat_map(|text| wrapped(text, area.width, usize::MAX - 1));
    lines.extend(legend.map(|line| (line, Tone::Usual)));
    for ((line, tone), y) in lines.iter().zip(area.top()..area.bottom()) {
        brush.text(area.x, y, area.width, line, *tone);
    }
}

/// The orders to choose from, over the pane; `at` is under the cursor.
pub(super) fn orders(state: &State, at: usize, pane: Rect, screen: Rect, brush: &mut Brush<'_>) {
    let orders = state.pane.orders();
    let height = (orders.len() as u16 + 1).min(screen.height);
    let width = 24_u16.min(screen.width);
    let y = pane.y.min(screen.bottom() - height);
    let area = Rect { x: screen.x, y, width, height };
    brush.clear(area);
    brush.text(area.x, area.y, width, "Sort by (Enter chooses)", Tone::Focus);
    for (number, (order, y)) in orders.iter().zip(area.y + 1..area.bottom()).enumerate() {
        let line = Rect { y, height: 1, ..area };
        let mark = if number == at { ">" } else { " " };
        let is_current = state.order(state.pane) == Some(*order);
        let current = if is_current { " (now)" } else { "" };
        brush.text(line.x, y, width, &format!("{mark} {}{current}", order.name()), Tone::Usual);
        if number == at {
            brush.tone(line, Tone::Selected);
        }
    }
}

/// The last line: keys, or the filter that is being written, or a remark.
pub(super) fn keys(state: &State, area: Rect, brush: &mut Brush<'_>) {
    if area.height == 0 {
        return;
    }
    let filter = &state.cursor(state.pane).filter;
    if state.mode == Mode::Filter {
        let text = format!("Filter of {}: {filter}_", state.pane.name().to_lowercase());
        brush.text(area.x, area.y, area.width, &text, Tone::Strong);
        let hint = "Enter keeps it, Esc ends it";
        if columns(&text) + columns(hint) + 2 <= usize::from(area.width) {
            brush.right(area.x, area.y, area.width, hint, Tone::Dim);
        }
        return;
    }
    if let Some(remark) = &state.remark {
        brush.text(area.x, area.y, area.width, remark, Tone::Strong);
        return;
    }
    let mut x = area.x;
    for (key, what) in KEYS {
        if x + (columns(key) + columns(what)) as u16 + 1 > area.right() {
            return;
        }
        x = brush.text(x, area.y, area.right() - x, key, Tone::Strong);
        x = brush.text(x, area.y, area.right() - x, what, Tone::Selected) + 1;
    }
}
