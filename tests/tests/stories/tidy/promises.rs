//! Statements of documents and their sources: the rows of `docs/PROMISES.md` name tests and benches, and so does
//! each section of a page that has a measured figure. Knows the form of both, and no file.

use std::collections::BTreeSet;

use super::english::prose;
use super::repository::links;

/// Units of measured figures. Seconds and sizes are not among them, since most of those are settings.
const UNITS: &[&str] = &["%", "x", "×", "times", "points", "MB/s", "GB/s", "ms", "µs", "ns", "samples/s"];

/// Pages that name the source of every figure. A link to one of them names a source, too.
const PAGES_OF_SOURCES: &[&str] = &["benches/README.md", "PAPER.md", "PERFORMANCE.md", "PROMISES.md"];

/// The tests and files of the repository.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) files: BTreeSet<String>,
    /// Each test: the path of its file, and its name.
    pub(crate) tests: BTreeSet<(String, String)>,
}

impl Known {
    /// Notes a file, and the tests that its text declares.
    pub(crate) fn add(&mut self, path: &str, text: &str) {
        let names = match path.rsplit_once('.') {
            Some((_, "rs")) => rust_tests(text),
            Some((_, "py")) => python_tests(text),
            _ => Vec::new(),
        };
        self.tests.extend(names.into_iter().map(|name| (path.to_owned(), name.to_owned())));
        self.files.insert(path.to_owned());
    }

    /// Whether the text is `PATH::NAME` of a test.
    fn has_test(&self, text: &str) -> bool {
        let (path, name) = text.split_once("::").unwrap_or_default();
        self.tests.contains(&(path.to_owned(), name.to_owned()))
    }

    /// Whether the text is `--bench NAME`, with arguments or without, or the path of a file in `benches`.
    fn has_bench(&self, text: &str) -> bool {
        if let Some((_, given)) = text.split_once("--bench ") {
            let name = given.split(' ').next().unwrap_or_default();
            let (file, folder) =
                (format!("benches/benches/{name}.rs"), format!("benches/benches/{name}/main.rs"));
            return self.files.contains(&file) || self.files.contains(&folder);
        }
        let path = text.split(' ').next().unwrap_or_default();
        path.starts_with("benches/") && self.files.contains(path)
    }

    /// Whether the text is a test or a bench, the name of a test alone, or the end of the path of a file with tests.
    fn has_source(&self, text: &str) -> bool {
        let is_end =
            |path: &str| path == text || path.strip_suffix(text).is_some_and(|rest| rest.ends_with('/'));
        let is_named = self.tests.iter().any(|(path, name)| name == text || is_end(path));
        is_named || self.has_test(text) || self.has_bench(text)
    }
}

/// The names of the tests in a Rust file.
fn rust_tests(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut names = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = ["fn ", "async fn "].iter().find_map(|start| line.strip_prefix(start));
        let mut above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        if above.any(|line| *line == "#[test]" || line.starts_with("#[tokio::test")) {
            names.extend(declared.and_then(|declared| declared.split('(').next()));
        }
    }
    names
}

/// The names of the tests in a Python file.
fn python_tests(text: &str) -> Vec<&str> {
    let declared = text.lines().filter_map(|line| line.trim_start().strip_prefix("def "));
    declared.filter_map(|line| line.split('(').next()).filter(|name| name.starts_with("test_")).collect()
}

/// Rows of the page of promises that name no test, or one that does not exist: each with its line.
pub(crate) fn unproven(page: &str, known: &Known) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for (number, row) in rows(page) {
        let tests = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
        if spans(tests).next().is_none() {
            faults.push((number, "names no test".to_owned()));
        }
        let unknown = spans(tests).filter(|text| !known.has_test(text) && !known.has_bench(text));
        faults.extend(unknown.map(|text| (number, format!("names {text}, which is no test and no bench"))));
    }
    faults
}

/// Figures in sections that name no source, each with its line.
pub(crate) fn unsourced(page: &str, known: &Known) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for section in sections(page) {
        let text = section.iter().map(|(_, line)| line.trim()).collect::<Vec<_>>().join(" ");
        let is_linked = links(&text).any(|target| {
            target.contains("/tests/") || PAGES_OF_SOURCES.iter().any(|page| target.ends_with(page))
        });
        if !is_linked && !spans(&text).any(|text| known.has_source(text)) {
            faults.extend(
                section
                    .iter()
                    .flat_map(|(number, line)| figures(line).into_iter().map(|found| (*number, found))),
            );
        }
    }
    faults
}

/// Code spans that look like the name of a test, a sentence of five words or more, and are none.
pub(crate) fn unknown_tests(page: &str, known: &Known) -> Vec<(usize, String)> {
    let is_sentence = |text: &&str| {
        text.matches('_').count() >= 4
            && !["shardd_", "_"].iter().any(|start| text.starts_with(start))
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let mut faults = Vec::new();
    for (number, line) in prose(page) {
        let names = spans(line).filter(is_sentence).filter(|name| !known.has_source(name));
        faults.extend(names.map(|name| (number, name.to_owned())));
    }
    faults
}

/// The rows of tables, without their heads.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let is_rule = |line: &str| line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c));
    let lines: Vec<(usize, &str)> = prose(page).collect();
    let is_head = |at: usize| lines.get(at + 1).is_some_and(|(_, next)| is_rule(next));
    let rows = lines
        .iter()
        .enumerate()
        .filter(|(at, (_, line))| line.starts_with('|') && !is_rule(line) && !is_head(*at));
    rows.map(|(_, row)| *row).collect()
}

/// The lines under each heading, with it.
fn sections(page: &str) -> Vec<Vec<(usize, &str)>> {
    let mut sections = vec![Vec::new()];
    for (number, line) in prose(page) {
        if line.starts_with('#') {
            sections.push(Vec::new());
        }
        sections.last_mut().expect("there is one from the beginning").push((number, line));
    }
    sections
}

/// The texts in backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Numbers of a line with the unit of a measurement: `1.04 times`, `64 %`, `0.9 GB/s`. Code is left out, and so
/// are dimensions (`32 x 32`) and points that are counted.
fn figures(line: &str) -> Vec<String> {
    let bare = line.split('`').step_by(2).collect::<Vec<_>>().join(" code ");
    let is_mark = |c: char| "()[]|*,.;:\"".contains(c);
    let words: Vec<&str> = bare.split_whitespace().map(|word| word.trim_matches(is_mark)).collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let mut found = Vec::new();
    for at in 0..words.len() {
        let digits = word(at).rfind(|c: char| c.is_ascii_digit()).map_or(0, |last| last + 1);
        let (number, joined) = word(at).split_at(digits);
        if !number.starts_with(|c: char| c.is_ascii_digit())
            || !number.chars().all(|c| "0123456789.,".contains(c))
        {
            continue;
        }
        let (unit, next) =
            if joined.is_empty() { (word(at + 1), word(at + 2)) } else { (joined, word(at + 1)) };
        let is_figure = match unit {
            "x" | "×" => !next.starts_with(|c: char| c.is_ascii_digit()) && next.chars().count() != 1,
            "points" => number.contains('.'),
            _ => UNITS.contains(&unit),
        };
        if is_figure {
            found.push(format!("{number} {unit}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let mut known = Known::default();
        known.add(
            "plan/src/laws.rs",
            "/// Law 1.\n#[test]\n// Why.\nfn every_sample_is_read_once_by_all_ranks(n: u8) {\n",
        );
        known.add("client/tests/test_resume.py", "def test_it_resumes():\n    pass\n");
        known.add("benches/benches/resume.rs", "fn main() {}\n");
        known.add("benches/benches/exchange/main.rs", "fn main() {}\n");
        known.add("benches/peers/run", "#!/bin/sh\n");
        known
    }

    #[test]
    fn tests_are_functions_with_the_attribute() {
        let rust = "fn helper() {}\n#[tokio::test(start_paused = true)]\nasync fn it_waits() {\n\
            #[expect(lint)]\nfn other() {}\n";
        assert_eq!(rust_tests(rust), ["it_waits"]);
        assert_eq!(python_tests("def test_a(x):\n    def helper(): ...\n"), ["test_a"]);
    }

    #[test]
    fn a_row_names_tests_and_benches_that_exist() {
        let head = "| promise | tests |\n|---|---|\n";
        let faults = |rows: &str| unproven(&format!("{head}{rows}"), &known());
        assert_eq!(
            faults("| `--q` is kept. | `plan/src/laws.rs::every_sample_is_read_once_by_all_ranks` |\n"),
            []
        );
        assert_eq!(
            faults("| Fast. | `--bench exchange -- --link`, `benches/peers/run`; `--bench resume` |\n"),
            []
        );
        assert_eq!(faults("| `--q` is kept. | by nature |\n"), [(3, "names no test".to_owned())]);
        for unknown in [
            "plan/src/laws.rs::no_such",
            "plan/src/laws.rs",
            "client::every_sample_is_read_once_by_all_ranks",
            "--bench no",
        ] {
            let faults = faults(&format!("| Kept. | `{unknown}` |\n"));
            assert_eq!(faults, [(3, format!("names {unknown}, which is no test and no bench"))]);
        }
    }

    #[test]
    fn a_figure_has_a_source_in_its_section() {
        let faults = |text: &str| unsourced(&format!("# A\n\n{text}\n\n# B\n\nNo figure.\n"), &known());
        let found = |text: &str| vec![(3, text.to_owned())];
        for (text, figure) in [
            ("It takes 1.04 times as long.", "1.04 times"),
            ("It reaches (64 %).", "64 %"),
            ("**0.9 GB/s**, each way", "0.9 GB/s"),
            ("| a | 3x |", "3 x"),
            ("It lost 1.8 points.", "1.8 points"),
        ] {
            assert_eq!(faults(text), found(figure));
        }
        for source in [
            "[figures](../benches/README.md#resuming)",
            "[tests](PROMISES.md#order)",
            "[test](../client/tests/test_resume.py)",
            "`plan/src/laws.rs`",
            "`src/laws.rs`",
            "`every_sample_is_read_once_by_all_ranks`",
            "`--bench\nresume`",
        ] {
            assert_eq!(faults(&format!("It takes 2 times as long ({source}).")), []);
        }
        for other in ["[page](PLAN.md)", "`laws`", "`aws.rs`", "`--bench no`", "[B](#b)"] {
            assert_eq!(faults(&format!("It takes 2 times as long ({other}).")), found("2 times"));
        }
    }

    #[test]
    fn settings_and_examples_are_no_figures() {
        for text in [
            "Images of 32 x 32 pixels, n x 16 bytes, 10^8 samples.",
            "It waits for 40 s, and keeps 64 MiB.",
            "The disc has 6,000 points.",
            "Pass `--share 5 %` or `3 x`.",
            "\n    It took 5 ms.",
            "```text\n64 %\n```",
        ] {
            assert_eq!(unsourced(&format!("# A\n\n{text}\n"), &known()), []);
        }
    }

    #[test]
    fn names_of_tests_in_a_text_exist() {
        let page = "`every_sample_is_read_once_by_all_ranks` `nothing_is_ever_read_twice_here` \
            `shardd_one_two_three_total` `__shardd_schema__`";
        assert_eq!(unknown_tests(page, &known()), [(1, "nothing_is_ever_read_twice_here".to_owned())]);
    }
}
