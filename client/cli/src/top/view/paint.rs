//! Draws texts and tables into the cells of a screen. Nothing that is drawn can steer the terminal or leave its place.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::plain::plain;

/// The first column of a table is at least as wide; others make room.
const NARROWEST: u16 = 8;

/// What a text means, which decides its look. Each differs from the others without colour, or stands beside a word that does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Usual,
    Dim,
    Strong,
    Good,
    Warning,
    Critical,
    Heading,
    /// The heading of the pane in focus.
    Focus,
    /// The selected row.
    Selected,
}

impl Tone {
    fn style(self, has_colour: bool) -> Style {
        let style = Style::new();
        let coloured = |style: Style, colour| if has_colour { style.fg(colour) } else { style };
        match self {
            Tone::Usual => style,
            Tone::Dim => style.add_modifier(Modifier::DIM),
            Tone::Strong => style.add_modifier(Modifier::BOLD),
            Tone::Good => coloured(style, Color::Green),
            Tone::Warning => coloured(style.add_modifier(Modifier::BOLD), Color::Yellow),
            Tone::Critical => coloured(style.add_modifier(Modifier::BOLD), Color::Red),
            Tone::Heading => style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            Tone::Focus => style.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            Tone::Selected => style.add_modifier(Modifier::REVERSED),
        }
    }
}

/// A text and its meaning.
pub(super) type Toned = (String, Tone);

/// Draws on a screen.
pub(super) struct Brush<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) has_colour: bool,
}

impl Brush<'_> {
    /// Draws a text from a place on, within a width: a longer one ends with `…`. The column after it.
    pub(super) fn text(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        let area = self.buffer.area;
        if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() {
            return x;
        }
        let width = width.min(area.right() - x);
        let text = plain(text);
        let style = tone.style(self.has_colour);
        if columns(&text) <= width.into() {
            return self.buffer.set_stringn(x, y, text, width.into(), style).0;
        }
        let (end, _) = self.buffer.set_stringn(x, y, text, width.saturating_sub(1).into(), style);
        self.buffer.set_stringn(end, y, "…", width.min(1).into(), style).0
    }

    /// The same, ending at the right edge of the width.
    pub(super) fn right(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
        let taken = u16::try_from(columns(&plain(text))).unwrap_or(u16::MAX).min(width);
        self.text(x.saturating_add(width - taken), y, taken, text, tone);
    }

    /// Gives a place this look, whatever is drawn there.
    pub(super) fn tone(&mut self, area: Rect, tone: Tone) {
        let area = area.intersection(self.buffer.area);
        self.buffer.set_style(area, tone.style(self.has_colour));
    }

    /// Empties a place.
    pub(super) fn clear(&mut self, area: Rect) {
        for position in area.intersection(self.buffer.area).positions() {
            self.buffer[position].reset();
        }
    }
}

/// A column of a table of `R`.
pub(super) struct Column<R> {
    pub(super) title: &'static str,
    pub(super) width: u16,
    pub(super) is_right: bool,
    /// The narrowest screen that has it.
    pub(super) from: u16,
    pub(super) cell: fn(&R) -> Toned,
}

/// A table under a heading.
pub(super) struct Table<'a, R> {
    /// The heading of the first column.
    pub(super) title: String,
    pub(super) has_focus: bool,
    /// The first column, which takes the width that is left.
    pub(super) name: fn(&R) -> Toned,
    pub(super) columns: &'a [Column<R>],
    /// The title of the column that it is sorted by.
    pub(super) sorted_by: Option<&'a str>,
    /// Its rows; `None` for one that is not here yet.
    pub(super) rows: Vec<Option<&'a R>>,
    /// Which of these is selected.
    pub(super) selected: Option<usize>,
}

impl<R> Table<'_, R> {
    pub(super) fn draw(&self, brush: &mut Brush<'_>, area: Rect) {
        let Some(mut left) = area.width.checked_sub(2) else { return };
        let mut shown = Vec::new();
        for column in self.columns.iter().filter(|column| column.from <= area.width) {
            let Some(rest) = left.checked_sub(column.width + 1).filter(|rest| *rest >= NARROWEST) else {
                break;
            };
            left = rest;
            shown.push(column);
        }
        heading(brush, area, &self.title, self.has_focus);
        let tone = if self.has_focus { Tone::Focus } else { Tone::Heading };
        let mut x = area.x + 2 + left + 1;
        for column in &shown {
            let title = match self.sorted_by == Some(column.title) {
                true => format!("{}▾", column.title),
                false => column.title.to_owned(),
            };
            match column.is_right {
                true => brush.right(x, area.y, column.width, &title, tone),
                false => {
                    brush.text(x, area.y, column.width, &title, tone);
                }
            }
            x += column.width + 1;
        }
        for (at, (row, y)) in self.rows.iter().zip(area.y + 1..area.bottom()).enumerate() {
            let (name, tone) = row.map_or_else(|| ("…".to_owned(), Tone::Dim), self.name);
            brush.text(area.x + 2, y, left, &name, tone);
            let mut x = area.x + 2 + left + 1;
            for column in shown.iter().take_while(|_| row.is_some()) {
                let (text, tone) = row.map_or_else(|| (String::new(), Tone::Dim), column.cell);
                match column.is_right {
                    true => brush.right(x, y, column.width, &text, tone),
                    false => {
                        brush.text(x, y, column.width, &text, tone);
                    }
                }
                x += column.width + 1;
            }
            if self.selected == Some(at) {
                select(brush, Rect { y, height: 1, ..area });
            }
        }
    }
}

/// Draws the heading of a pane into its first line.
pub(super) fn heading(brush: &mut Brush<'_>, area: Rect, title: &str, has_focus: bool) {
    let tone = if has_focus { Tone::Focus } else { Tone::Heading };
    if area.height > 0 {
        brush.text(area.x, area.y, area.width, title, tone);
        brush.tone(Rect { height: 1, ..area }, tone);
    }
}

/// Marks a line as the selected one.
pub(super) fn select(brush: &mut Brush<'_>, line: Rect) {
    brush.text(line.x, line.y, 1, ">", Tone::Strong);
    brush.tone(line, Tone::Selected);
}

/// The columns of the screen that a text takes.
pub(super) fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in lines of at most `width` columns, and at most `most` of them; the last one ends with `…` if there is more.
pub(super) fn wrapped(text: &str, width: u16, most: usize) -> Vec<String> {
    let text = plain(text);
    let width = usize::from(width.max(1));
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        let taken = columns(line);
        if taken == 0 {
            line.push_str(word);
        } else if taken + 1 + columns(word) <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
        if lines.len() > most {
            break;
        }
    }
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            // Wider than the line on purpose: drawing cuts it and marks the cut.
            last.push_str(&" …".repeat(width));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: u16, draw: impl FnOnce(&mut Brush<'_>)) -> String {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, 1));
        draw(&mut Brush { buffer: &mut buffer, has_colour: false });
        buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect()
    }

    #[test]
    fn what_does_not_fit_is_cut_and_marked() {
        assert_eq!(drawn(6, |brush| _ = brush.text(1, 0, 4, "abcdef", Tone::Usual)), " abc… ");
        assert_eq!(drawn(6, |brush| _ = brush.text(1, 0, 4, "abcd", Tone::Usual)), " abcd ");
        assert_eq!(drawn(6, |brush| brush.right(1, 0, 4, "ab", Tone::Usual)), "   ab ");
        assert_eq!(drawn(6, |brush| _ = brush.text(1, 0, 0, "ab", Tone::Usual)), "      ");
        assert_eq!(drawn(4, |brush| _ = brush.text(9, 7, 4, "ab", Tone::Usual)), "    ");
        // Of a character of two columns no half is drawn.
        assert_eq!(drawn(4, |brush| _ = brush.text(0, 0, 4, "猫猫猫", Tone::Usual)), "猫 … ");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two  three", 8, 9), ["one two", "three"]);
        assert_eq!(wrapped("", 8, 9), [""]);
        let cut = wrapped("one two three four", 8, 2);
        assert_eq!(cut.len(), 2);
        assert!(cut[1].starts_with("three …"), "{cut:?}");
        assert_eq!(wrapped("one", 0, 1), ["one"]);
    }
}
