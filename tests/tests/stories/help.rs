//! The help of the three programs: it is plain English, and the reference in the documentation is a copy of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use shardd_tests::binary;

use crate::tidy::english;

/// The help of every command, by its words: `shardctl plan at`.
fn pages(program: &str) -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    let mut commands = vec![vec![program.to_owned()]];
    while let Some(words) = commands.pop() {
        let help = Command::new(binary(program)).args(&words[1..]).arg("--help").env_clear().output();
        let help = help.expect("the program starts");
        assert!(
            help.status.success(),
            "{} --help: {}",
            words.join(" "),
            String::from_utf8_lossy(&help.stderr)
        );
        let help = String::from_utf8(help.stdout).expect("text");
        commands.extend(subcommands(&help).map(|name| [words.clone(), vec![name]].concat()));
        pages.insert(words.join(" "), help);
    }
    pages
}

/// The subcommands of a help page, which stand two spaces in under headings other than those of options.
fn subcommands(help: &str) -> impl Iterator<Item = String> {
    let mut is_list = false;
    help.lines().filter_map(move |line| {
        if let Some(heading) = line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            is_list = !heading.is_empty() && !heading.starts_with("Usage") && heading != "Arguments";
            return None;
        }
        let name = line.strip_prefix("  ").filter(|_| is_list)?.split(' ').next()?;
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase()) && name != "help";
        is_name.then(|| name.to_owned())
    })
}

/// A help page without the groups of flags that all subcommands share.
fn without_shared_flags(help: &str) -> String {
    let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
    let mut is_shared = false;
    let kept = help.lines().filter(|line| {
        if is_heading(line) {
            is_shared = ["Connection:", "Output:"].contains(line);
        }
        !is_shared
    });
    kept.collect::<Vec<_>>().join("\n")
}

fn reference(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/reference/{program}.md"))
}

const PROGRAMS: [&str; 3] = ["shardctl", "shardd", "shardtrain"];

#[test]
fn every_command_has_a_page_in_the_reference_that_is_its_help() {
    for program in PROGRAMS {
        let mut text = format!(
            "# {program}\n\nEach section is the output of `--help`, without the flags that all subcommands share: those are in the \
             first\nsection. `SHARDD_WRITE_DOCS=1 cargo test --release --workspace --test stories help` writes this page.\n"
        );
        for (command, help) in pages(program) {
            let help = if command == program { help } else { without_shared_flags(&help) };
            text += &format!("\n## {command}\n\n```text\n{}\n```\n", help.trim_end());
        }
        let file = reference(program);
        if std::env::var_os("SHARDD_WRITE_DOCS").is_some() {
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("creates");
            std::fs::write(&file, &text).expect("writes");
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        let differs = known.lines().zip(text.lines()).position(|(known, now)| known != now);
        assert!(
            known == text,
            "docs/reference/{program}.md differs from the help, first in line {}: write it with SHARDD_WRITE_DOCS=1",
            differs.map_or(known.lines().count(), |line| line + 1)
        );
    }
}

#[test]
fn help_is_in_plain_english() {
    for program in PROGRAMS {
        for (command, help) in pages(program) {
            // Indented text would count as code.
            let text: Vec<&str> = help.lines().map(str::trim_start).collect();
            let count = english::count(&text.join("\n"));
            assert!(count.is_plain(), "`{command} --help` has {:?} in {} words", count.markers, count.words);
        }
    }
}

#[test]
fn the_short_help_of_each_program_fits_two_screens() {
    for program in PROGRAMS {
        let help = Command::new(binary(program)).arg("-h").env_clear().output().expect("the program starts");
        let lines = String::from_utf8_lossy(&help.stdout).lines().count();
        assert!(lines <= 110, "`{program} -h` has {lines} lines");
    }
}
