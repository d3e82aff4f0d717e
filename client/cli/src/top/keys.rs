//! What keys do, as in htop. Pure: a key and a state in, a state out.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::state::{Mode, Pane, State};

/// What a key asks for beyond the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing.
    Nothing,
    /// The end.
    Quit,
    /// To stop as a job, as Ctrl-Z has it.
    Suspend,
    /// A new view now.
    Refresh,
    /// A whole frame, over what other programs may have written.
    Redraw,
}

/// What the help says of keys.
pub(super) const HELP: [(&str, &str); 15] = [
    ("q F10 Ctrl-C", "quit"),
    ("? F1 h", "this help"),
    ("Tab Shift-Tab", "next pane, previous pane"),
    ("1 2 3 4", "findings, runs, nodes, hot shards"),
    ("Up Down k j", "previous row, next row"),
    ("PgUp PgDn", "a screen up, a screen down"),
    ("Home End g G", "first row, last row"),
    ("F6", "choose the order of nodes or shards"),
    ("< >", "previous order, next order"),
    ("/ F3 F4", "show only rows that contain a text"),
    ("Esc", "close; end the filter"),
    ("Space", "pause, continue"),
    ("+ -", "ask less often, more often"),
    ("r F5", "ask now"),
    ("Ctrl-L", "draw the whole screen again"),
];

/// Presses a key. `page` is the number of rows that the pane in focus shows.
pub(super) fn press(state: &mut State, key: KeyEvent, page: usize) -> Act {
    if key.kind == KeyEventKind::Release {
        return Act::Nothing;
    }
    state.remark = None;
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return with_control(state, key.code);
    }
    match state.mode {
        Mode::Rows => rows(state, key.code, page),
        Mode::Help => {
            match key.code {
                KeyCode::Char('q') | KeyCode::F(10) => return Act::Quit,
                _ => state.mode = Mode::Rows,
            }
            Act::Nothing
        }
        Mode::Sort(at) => sort(state, key.code, at),
        Mode::Filter => filter(state, key.code),
    }
}

fn with_control(state: &mut State, code: KeyCode) -> Act {
    match code {
        KeyCode::Char('c') => return Act::Quit,
        KeyCode::Char('z') => return Act::Suspend,
        KeyCode::Char('l') => return Act::Redraw,
        KeyCode::Char('u') if state.mode == Mode::Filter => {
            state.cursor_mut().filter.clear();
            state.begin();
        }
        _ => {}
    }
    Act::Nothing
}

fn rows(state: &mut State, code: KeyCode, page: usize) -> Act {
    match code {
        KeyCode::Char('q') | KeyCode::F(10) => return Act::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => state.mode = Mode::Help,
        KeyCode::Tab => turn(state, 1),
        KeyCode::BackTab => turn(state, Pane::ALL.len() - 1),
        KeyCode::Char(digit @ '1'..='4') => state.pane = Pane::ALL[digit as usize - '1' as usize],
        KeyCode::Up | KeyCode::Char('k') => step(state, |at, _| at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => step(state, |at, _| at.saturating_add(1)),
        KeyCode::PageUp => step(state, |at, _| at.saturating_sub(page.max(1))),
        KeyCode::PageDown => step(state, |at, _| at.saturating_add(page.max(1))),
        KeyCode::Home | KeyCode::Char('g') => step(state, |_, _| 0),
        KeyCode::End | KeyCode::Char('G') => step(state, |_, last| last),
        KeyCode::F(6) => match (state.order(state.pane), state.pane.orders()) {
            (Some(order), orders) => {
                state.mode = Mode::Sort(orders.iter().position(|other| *other == order).unwrap_or(0));
            }
            (None, _) => state.remark(unsorted(state.pane)),
        },
        KeyCode::Char('<') => next_order(state, false),
        KeyCode::Char('>') => next_order(state, true),
        KeyCode::Char('/') | KeyCode::F(3 | 4) => state.mode = Mode::Filter,
        KeyCode::Esc => {
            state.cursor_mut().filter.clear();
            state.settle();
        }
        KeyCode::Char(' ') => {
            state.is_paused = !state.is_paused;
            return if state.is_paused { Act::Nothing } else { Act::Refresh };
        }
        KeyCode::Char('+' | '=') => state.change_interval(true),
        KeyCode::Char('-' | '_') => state.change_interval(false),
        KeyCode::Char('r') | KeyCode::F(5) => return Act::Refresh,
        _ => {}
    }
    Act::Nothing
}

fn turn(state: &mut State, by: usize) {
    state.pane = Pane::ALL[(state.pane.index() + by) % Pane::ALL.len()];
}

/// Selects the row that `to` names, given the selected one and the last one.
fn step(state: &mut State, to: impl Fn(usize, usize) -> usize) {
    let last = state.count(state.pane).saturating_sub(1);
    let cursor = state.cursor_mut();
    cursor.selected = to(cursor.selected, last).min(last);
}

fn next_order(state: &mut State, is_forward: bool) {
    let (Some(order), orders) = (state.order(state.pane), state.pane.orders()) else {
        state.remark(unsorted(state.pane));
        return;
    };
    let at = orders.iter().position(|other| *other == order).unwrap_or(0);
    let by = if is_forward { 1 } else { orders.len() - 1 };
    state.sort(orders[(at + by) % orders.len()]);
}

fn unsorted(pane: Pane) -> String {
    match pane {
        Pane::Findings => "findings are sorted by severity".to_owned(),
        _ => "the run that waits most for data is the first".to_owned(),
    }
}

fn sort(state: &mut State, code: KeyCode, at: usize) -> Act {
    let orders = state.pane.orders();
    let last = orders.len().saturating_sub(1);
    match code {
        KeyCode::Up | KeyCode::Char('k') => state.mode = Mode::Sort(at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => state.mode = Mode::Sort((at + 1).min(last)),
        KeyCode::Home => state.mode = Mode::Sort(0),
        KeyCode::End => state.mode = Mode::Sort(last),
        KeyCode::Enter => {
            state.mode = Mode::Rows;
            if let Some(order) = orders.get(at) {
                state.sort(*order);
            }
        }
        KeyCode::Esc | KeyCode::F(6) | KeyCode::Char('q') => state.mode = Mode::Rows,
        KeyCode::F(10) => return Act::Quit,
        _ => {}
    }
    Act::Nothing
}

fn filter(state: &mut State, code: KeyCode) -> Act {
    match code {
        KeyCode::Char(c) => state.write_filter(c),
        KeyCode::Backspace => {
            state.cursor_mut().filter.pop();
            state.begin();
        }
        KeyCode::Enter => state.mode = Mode::Rows,
        KeyCode::Esc => {
            state.cursor_mut().filter.clear();
            state.begin();
            state.mode = Mode::Rows;
        }
        KeyCode::F(10) => return Act::Quit,
        _ => {}
    }
    Act::Nothing
}
