//! Where everything is on the screen: a state and a size in, places out. Pure.

use ratatui::layout::Rect;
use shardd_api::overview::Finding;

use super::paint::wrapped;
use super::verdict::verdict;
use crate::top::state::{Pane, State, Window};

/// The smallest screen.
pub(in crate::top) const SMALLEST: (u16, u16) = (40, 10);
/// The most lines of the verdict.
const VERDICT: usize = 3;
/// The most lines of a cause, and of a remedy.
const EXPLAINED: usize = 4;
/// How many findings are explained where there is no cursor.
const OPEN: usize = 20;
/// The lines of findings that another pane leaves them.
const FINDINGS: usize = 5;
/// The indent of a cause and a remedy.
pub(super) const INDENT: u16 = 4;
/// The most rows of nodes that are asked for.
const MOST_ROWS: usize = 1000;

/// The places of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::top) struct Layout {
    /// The verdict, and its lines.
    pub(super) verdict: (Rect, Vec<String>),
    pub(super) summary: Rect,
    /// For a cluster that does not answer.
    pub(super) banner: Rect,
    /// The panes, each with a line for its heading if it is there at all.
    pub(super) panes: [Rect; 4],
    pub(super) keys: Rect,
}

/// Whether a screen of this size can be drawn.
pub(super) fn fits(area: Rect) -> bool {
    area.width >= SMALLEST.0 && area.height >= SMALLEST.1
}

/// The places on a screen; those for which there is no room have no height.
pub(in crate::top) fn layout(state: &State, area: Rect) -> Layout {
    let mut left = area;
    let keys = u16::from(!state.is_plain).min(area.height);
    left.height -= keys;
    let lines = wrapped(&verdict(&state.seen.view.overview).text, area.width, VERDICT);
    let verdict = (take(&mut left, lines.len()), lines);
    let summary = take(&mut left, 1);
    let banner = take(&mut left, usize::from(state.trouble.is_some()));
    let heights = heights(state, left.height.into(), area.width);
    let panes = heights.map(|height| take(&mut left, height));
    Layout { verdict, summary, banner, panes, keys: Rect { y: area.bottom() - keys, height: keys, ..area } }
}

/// Takes some lines from above.
fn take(left: &mut Rect, height: usize) -> Rect {
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(left.height);
    let taken = Rect { height, ..*left };
    *left = Rect { y: left.y + height, height: left.height - height, ..*left };
    taken
}

/// The lines of each pane: headings first, then some rows of each, then all of the pane in focus, then the others.
fn heights(state: &State, lines: usize, width: u16) -> [usize; 4] {
    let needed = Pane::ALL.map(|pane| 1 + rows_of(state, pane, width).max(1));
    let in_focus = state.pane.index();
    let mut heights = [0; 4];
    let mut left = lines;
    let mut grow = |heights: &mut [usize; 4], pane: usize, to: usize| {
        let more = to.min(needed[pane]).saturating_sub(heights[pane]).min(left);
        heights[pane] += more;
        left -= more;
    };
    let others = || (0..4_usize).filter(move |pane| *pane != in_focus);
    grow(&mut heights, in_focus, 2);
    others().for_each(|pane| grow(&mut heights, pane, 1));
    for rows in 2..=3 {
        others().for_each(|pane| grow(&mut heights, pane, rows));
    }
    grow(&mut heights, Pane::Findings.index(), FINDINGS);
    grow(&mut heights, in_focus, usize::MAX);
    others().for_each(|pane| grow(&mut heights, pane, usize::MAX));
    heights
}

/// The lines that all rows of a pane take.
fn rows_of(state: &State, pane: Pane, width: u16) -> usize {
    let count = state.count(pane);
    match pane {
        Pane::Findings => {
            let findings = state.findings();
            let open = findings.iter().enumerate().filter(|(place, _)| is_open(state, *place));
            count + open.map(|(_, finding)| explained_of(state, *finding, width)).sum::<usize>()
        }
        Pane::Runs | Pane::Nodes | Pane::Hot => count,
    }
}

/// Whether a finding, by its place among those that are shown, is explained: the selected one, while the cursor is there; for a
/// pipe the worst ones.
pub(super) fn is_open(state: &State, place: usize) -> bool {
    match state.is_plain {
        true => place < OPEN,
        false => state.pane == Pane::Findings && place == state.cursor(Pane::Findings).selected,
    }
}

fn explained_of(state: &State, at: usize, width: u16) -> usize {
    state.seen.view.overview.findings.get(at).map_or(0, |finding| explained(finding, width).len())
}

/// The cause and the remedy of a finding in lines.
pub(super) fn explained(finding: &Finding, width: u16) -> Vec<String> {
    let width = width.saturating_sub(INDENT);
    let cause = wrapped(&format!("cause: {}", finding.cause), width, EXPLAINED);
    let remedy = wrapped(&format!("remedy: {}", finding.remedy), width, EXPLAINED);
    cause.into_iter().chain(remedy).collect()
}

/// How many rows of a pane are on the screen.
pub(in crate::top) fn page(layout: &Layout, pane: Pane) -> usize {
    usize::from(layout.panes[pane.index()].height.saturating_sub(1))
}

/// Moves the rows of all panes so that the selected ones are on the screen, and no line of it is wasted.
pub(in crate::top) fn scroll(state: &mut State, area: Rect) {
    let layout = layout(state, area);
    for pane in Pane::ALL {
        let rows = page(&layout, pane);
        let count = state.count(pane);
        let extra = rows_of(state, pane, area.width).saturating_sub(count);
        let cursor = &mut state.cursors[pane.index()];
        let selected = cursor.selected;
        let lowest = (selected + 1 + extra).saturating_sub(rows).min(selected);
        let highest = selected.min((count + extra).saturating_sub(rows));
        cursor.top = cursor.top.min(highest).max(lowest);
    }
}

/// The rows of nodes to ask for: those on the screen, and a screen before and after them.
pub(in crate::top) fn window(state: &State, layout: &Layout) -> Window {
    let cursor = state.cursor(Pane::Nodes);
    let rows = page(layout, Pane::Nodes).max(1);
    Window {
        order: state.node_order,
        search: cursor.filter.clone(),
        offset: cursor.top.saturating_sub(rows),
        limit: (3 * rows).min(MOST_ROWS),
    }
}

/// Whether the rows of nodes on the screen are among those that were answered.
pub(in crate::top) fn has_rows(state: &State, layout: &Layout) -> bool {
    let (seen, wanted) = (&state.seen.window, window(state, layout));
    let cursor = state.cursor(Pane::Nodes);
    let end = (cursor.top + page(layout, Pane::Nodes)).min(state.seen.rows.total);
    seen.order == wanted.order
        && seen.search == wanted.search
        && seen.offset <= cursor.top
        && end <= seen.offset + seen.limit
}
