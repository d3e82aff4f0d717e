//! Findings as a page: groups under headings, the problems first seen. Pure.

use anstyle::{AnsiColor, Style};

use super::finding::{Finding, Severity};
use crate::human::plural;

/// The width of a page.
const WIDTH: usize = 100;
const HEADING: Style = Style::new().bold();

/// The page of all findings, or of the problems.
pub(crate) fn render(findings: &[Finding], all: bool) -> String {
    let shown: Vec<&Finding> = findings.iter().filter(|finding| all || finding.is_problem()).collect();
    let checks = shown.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    let severities = shown.iter().map(|finding| finding.severity.name().len()).max().unwrap_or(0);
    let mut page = String::new();
    for group in shown.chunk_by(|one, other| one.group == other.group) {
        page += &format!("{HEADING}{}{HEADING:#}\n", group[0].group.heading());
        for finding in group {
            page += &entry(finding, severities, checks);
        }
        page.push('\n');
    }
    page + &summary(findings, all)
}

fn entry(finding: &Finding, severities: usize, checks: usize) -> String {
    let style = style(finding.severity);
    let name = finding.severity.name();
    let indent = severities + checks + 6;
    let mut text = format!(
        "  {style}{name}{style:#}{:1$}  {2:3$}  ",
        "",
        severities - name.len(),
        finding.check,
        checks
    );
    text += &wrapped(&finding.evidence, indent);
    text.push('\n');
    let mut line = |label: &str, value: &str| {
        text += &format!("{:indent$}{label} ", "");
        text += &wrapped(value, indent + label.len() + 1);
        text.push('\n');
    };
    if let Some(remedy) = &finding.remedy {
        line("remedy:", remedy);
    }
    if let Some(command) = &finding.command {
        // A command stays on one line, to be copied.
        text += &format!("{:indent$}  $ {command}\n", "");
    }
    if finding.is_problem() {
        text += &format!("{:indent$}see {}\n", "", finding.doc);
    }
    text
}

/// The counts at the end.
fn summary(findings: &[Finding], all: bool) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count() as u64;
    let (fine, infos) = (count(Severity::Ok), count(Severity::Info));
    let mut parts = Vec::new();
    for (severity, noun) in [(Severity::Error, "error"), (Severity::Warning, "warning")] {
        if count(severity) > 0 {
            parts.push(plural(count(severity), noun));
        }
    }
    if parts.is_empty() {
        parts.push("no problem found".to_owned());
    }
    parts.push(format!("{} fine", plural(fine, "check")));
    if infos > 0 {
        parts.push(plural(infos, "note"));
    }
    let hint = if all || fine + infos == 0 { "" } else { "; --all shows them all" };
    format!("{}{hint}\n", parts.join(", "))
}

fn style(severity: Severity) -> Style {
    match severity {
        Severity::Ok => AnsiColor::Green.on_default(),
        Severity::Info => AnsiColor::Cyan.on_default(),
        Severity::Warning => AnsiColor::Yellow.on_default(),
        Severity::Error => AnsiColor::Red.on_default().bold(),
    }
}

/// The text in lines, all but the first after `indent` spaces.
fn wrapped(text: &str, indent: usize) -> String {
    let width = WIDTH.saturating_sub(indent).max(40);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line += &format!(" {word}")
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Check, Group, doc};
    use super::*;

    #[test]
    fn a_page_has_problems_in_groups_and_counts_the_rest() {
        let (files, store) = (
            Check::new(Group::Machine, "open_files", doc::START),
            Check::new(Group::Store, "store_write", doc::STORES),
        );
        let findings = [
            files.warning("256 files").mend("Raise it.").run("ulimit -S -n 65536"),
            files.ok("fine"),
            store.error("word ".repeat(30).trim()),
            store.info("a note"),
        ];
        let page = anstream::adapter::strip_str(&render(&findings, false)).to_string();
        let expected = "\
This machine
  warning  open_files   256 files
                        remedy: Raise it.
                          $ ulimit -S -n 65536
                        see docs/OPERATIONS.md#start-with-the-machine

Store
  error    store_write  word word word word word word word word word word word word word word word
                        word word word word word word word word word word word word word word word
                        see docs/STORES.md#stores

1 error, 1 warning, 1 check fine, 1 note; --all shows them all
";
        assert_eq!(page, expected);
        let all = render(&findings, true);
        assert!(all.contains("a note") && all.contains("fine") && !all.contains("--all"), "{all}");
        assert_eq!(render(&findings[1..2], false), "no problem found, 1 check fine; --all shows them all\n");
    }
}
