//! Aligned plain-text tables under bold headings. Does not know their contents.

use anstyle::Style;

const HEADING: Style = Style::new().bold();

/// Rows under headings; columns whose cells are all numbers are aligned to the right.
pub(crate) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Table {
        Table { headings: headings.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.headings.len(), String::new());
        self.rows.push(cells);
    }

    /// The table with two spaces between columns and a newline after every row.
    pub(crate) fn render(&self) -> String {
        let columns = self.headings.len();
        let right: Vec<bool> = (0..columns).map(|column| self.is_numeric(column)).collect();
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.lines().map(|line| line[c].chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for (number, line) in self.lines().enumerate() {
            let cells: Vec<String> = (0..columns)
                .map(|c| {
                    let padding = " ".repeat(widths[c] - line[c].chars().count());
                    if right[c] { padding + &line[c] } else { line[c].clone() + &padding }
                })
                .collect();
            let cells = cells.join("  ");
            let text = cells.trim_end();
            match number {
                0 => out.push_str(&format!("{HEADING}{text}{HEADING:#}\n")),
                _ => out.push_str(&format!("{text}\n")),
            }
        }
        out
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.headings).chain(&self.rows)
    }

    fn is_numeric(&self, column: usize) -> bool {
        let mut cells =
            self.rows.iter().map(|row| row[column].as_str()).filter(|c| !c.is_empty() && *c != "-");
        let mut any = false;
        let all = cells.all(|cell| {
            any = true;
            cell.chars().next().is_some_and(|c| c.is_ascii_digit()) && !looks_like_hex(cell)
        });
        any && all
    }
}

/// Short digests and addresses begin with a digit now and then; they are names, not numbers.
fn looks_like_hex(cell: &str) -> bool {
    (cell.len() >= 12 && cell.chars().all(|c| c.is_ascii_hexdigit())) || cell.matches('.').count() > 1
}

/// Facts about one thing: `name  value` lines with the values aligned.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_align_right_and_names_left() {
        let mut table = Table::new(&["dataset", "samples", "version"]);
        table.row(["digits".into(), "1,437".into(), "00aa11bb22cc".into()]);
        table.row(["cifar10".into(), "50,000".into(), "77aa11bb22cc".into()]);
        let expected = "\u{1b}[1mdataset  samples  version\u{1b}[0m\n\
                        digits     1,437  00aa11bb22cc\n\
                        cifar10   50,000  77aa11bb22cc\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn facts_share_one_column() {
        assert_eq!(
            facts(&[("plan", "1a".into()), ("partitions", "16".into())]),
            "plan        1a\npartitions  16\n"
        );
    }
}
