//! The graph of a crate's modules: which module names an item of which other one. Knows no rule.
//!
//! Files are read as tokens, so that comments, documentation and strings name nothing. Items under `#[cfg(test)]` are
//! left out. A name that a module re-exports counts as the module that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module's path from the crate root, which is the empty path.
type Module = Vec<String>;

/// The modules of one crate, and the paths that each of them names.
pub(crate) struct Modules {
    /// The paths that a module names, as they are written, each with the place of one mention.
    named: BTreeMap<Module, BTreeMap<Vec<String>, String>>,
    /// What `use` brings into a module under which name.
    imports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

/// Modules under one parent that need each other, with one mention for each arrow between them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    pub(crate) modules: Vec<String>,
    pub(crate) arrows: Vec<String>,
}

impl Modules {
    /// Reads the crate whose root is the file `root`, `lib.rs` or `main.rs`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self { named: BTreeMap::new(), imports: BTreeMap::new() };
        let folder = root.parent().expect("a file is in a folder").to_owned();
        modules.file(root, Vec::new(), &folder);
        modules
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let mut modules = Self { named: BTreeMap::new(), imports: BTreeMap::new() };
        for (module, text) in files {
            let module: Module =
                module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let tokens = TokenStream::from_str(text).expect("Rust");
            modules.tokens(tokens, &module, &format!("{}.rs", module.join("/")), None);
        }
        modules
    }

    fn file(&mut self, path: &Path, module: Module, children: &Path) {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let text = text.strip_prefix("#!/").map_or(text.as_str(), |rest| rest);
        let tokens = TokenStream::from_str(text)
            .unwrap_or_else(|error| panic!("{}: not Rust: {error}", path.display()));
        self.tokens(tokens, &module, &path.display().to_string(), Some(children));
    }

    /// `children` is the folder of the files of modules that are declared here.
    fn tokens(&mut self, tokens: TokenStream, module: &Module, file: &str, children: Option<&Path>) {
        self.named.entry(module.clone()).or_default();
        self.imports.entry(module.clone()).or_default();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        let mut path_attribute = None;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    let attribute = tokens[at + 1..].iter().find_map(|token| match token {
                        TokenTree::Group(group) => Some(group.stream().to_string()),
                        _ => None,
                    });
                    let attribute = attribute.unwrap_or_default();
                    at += 1;
                    if let Some(TokenTree::Punct(_)) = tokens.get(at) {
                        at += 1; // `#![...]`
                    }
                    at += 1;
                    if is_for_tests(&attribute) {
                        at = end_of_item(&tokens, at);
                    } else if let Some(value) = attribute.strip_prefix("path = \"") {
                        path_attribute = Some(value.trim_end_matches('"').to_owned());
                    }
                    continue;
                }
                TokenTree::Ident(word) if *word == "mod" => {
                    let (Some(TokenTree::Ident(name)), Some(after)) =
                        (tokens.get(at + 1), tokens.get(at + 2))
                    else {
                        at += 1;
                        continue;
                    };
                    let name = name.to_string();
                    let mut child = module.clone();
                    child.push(name.clone());
                    match after {
                        TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                            let folder = children.map(|folder| folder.join(&name));
                            self.tokens(body.stream(), &child, file, folder.as_deref());
                        }
                        _ => {
                            if let Some(folder) = children {
                                self.declared(folder, &name, child, path_attribute.take(), file);
                            }
                        }
                    }
                    path_attribute = None;
                    at += 3;
                    continue;
                }
                TokenTree::Ident(word) if *word == "use" => {
                    let begin = &tokens[at + 1..];
                    for (path, name) in use_tree(begin, &[]) {
                        self.name(module, &path, file);
                        self.imports.entry(module.clone()).or_default().insert(name, path);
                    }
                    at = end_of_use(&tokens, at);
                    continue;
                }
                TokenTree::Ident(_) if is_start(&tokens, at) => {
                    let (path, next) = plain_path(&tokens, at);
                    self.name(module, &path, file);
                    at = next;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream(), module, file, children),
                _ => {}
            }
            at += 1;
        }
    }

    fn declared(
        &mut self,
        folder: &Path,
        name: &str,
        module: Module,
        path: Option<String>,
        declared_in: &str,
    ) {
        let own = folder.join(name);
        if let Some(path) = path {
            let beside = Path::new(declared_in).parent().expect("a folder").join(path);
            let children = beside.parent().expect("a folder").to_owned();
            return self.file(&beside, module, &children);
        }
        let flat: PathBuf = folder.join(format!("{name}.rs"));
        let file = if flat.exists() { flat } else { own.join("mod.rs") };
        self.file(&file, module, &own);
    }

    fn name(&mut self, module: &Module, path: &[String], file: &str) {
        let named = self.named.entry(module.clone()).or_default();
        named.entry(path.to_vec()).or_insert_with(|| file.to_owned());
    }

    /// A path as it is written in `module`, from the crate root on; none if it leads into another crate.
    fn absolute(&self, path: &[String], module: &Module) -> Option<Vec<String>> {
        let mut rest = path;
        let mut full = match path.first()?.as_str() {
            "crate" => {
                rest = &path[1..];
                Vec::new()
            }
            "self" => {
                rest = &path[1..];
                module.clone()
            }
            "super" => module.clone(),
            first => {
                let mut child = module.clone();
                child.push(first.to_owned());
                self.named.contains_key(&child).then(|| module.clone())?
            }
        };
        while rest.first().is_some_and(|name| name == "super") {
            full.pop();
            rest = &rest[1..];
        }
        full.extend_from_slice(rest);
        Some(full)
    }

    /// The module that defines what `path` names, a path from the crate root. Re-exports are followed, and a
    /// name of no module ends the path.
    fn home(&self, path: &[String], depth: usize) -> Module {
        let mut module = Vec::new();
        for (at, name) in path.iter().enumerate() {
            let mut child = module.clone();
            child.push(name.clone());
            if self.named.contains_key(&child) {
                module = child;
                continue;
            }
            let target = self.imports.get(&module).and_then(|imports| imports.get(name));
            let target = target.and_then(|target| self.absolute(target, &module));
            if let Some(mut target) = target
                && target != path[..=at]
                && depth < DEEPEST
            {
                target.extend_from_slice(&path[at + 1..]);
                return self.home(&target, depth + 1);
            }
            break;
        }
        module
    }

    /// The arrows between modules that have the same parent, by parent. An arrow from a module to what lies within
    /// another one counts as an arrow to that other one.
    fn arrows(&self) -> BTreeMap<Module, BTreeMap<(String, String), String>> {
        let mut arrows: BTreeMap<Module, BTreeMap<(String, String), String>> = BTreeMap::new();
        for (from, named) in &self.named {
            for (path, place) in named {
                let Some(path) = self.absolute(path, from) else { continue };
                let to = self.home(&path, 0);
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if shared < from.len() && shared < to.len() {
                    let arrow = (from[shared].clone(), to[shared].clone());
                    arrows
                        .entry(from[..shared].to_vec())
                        .or_default()
                        .entry(arrow)
                        .or_insert_with(|| format!("{place} names {}", path.join("::")));
                }
            }
        }
        arrows
    }

    /// The cycles among the children of each module, by that module's path.
    pub(crate) fn cycles(&self) -> BTreeMap<String, Vec<Cycle>> {
        let mut all = BTreeMap::new();
        for (parent, arrows) in self.arrows() {
            let cycles = cycles(&arrows);
            if !cycles.is_empty() {
                all.insert(parent.join("::"), cycles);
            }
        }
        all
    }
}

/// How many re-exports of re-exports are followed.
const DEEPEST: usize = 16;

/// The sets of modules that reach each other.
fn cycles(arrows: &BTreeMap<(String, String), String>) -> Vec<Cycle> {
    let modules: BTreeSet<&String> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let reach = |start: &String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut open = vec![start];
        while let Some(module) = open.pop() {
            for (_, to) in arrows.keys().filter(|(from, _)| from == module) {
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        seen.into_iter().cloned().collect::<BTreeSet<String>>()
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        modules.iter().map(|module| (*module, reach(module))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for module in modules {
        if done.contains(module) || !reached[module].contains(module) {
            continue;
        }
        let together: Vec<String> = reached[module]
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(module)))
            .cloned()
            .collect();
        done.extend(together.iter().cloned());
        let within = |(from, to): &&(String, String)| together.contains(from) && together.contains(to);
        let between = arrows.keys().filter(within);
        let arrows = between.map(|key| format!("{} -> {}: {}", key.0, key.1, arrows[key])).collect();
        found.push(Cycle { modules: together, arrows });
    }
    found
}

/// Whether an attribute makes its item part of tests alone.
fn is_for_tests(attribute: &str) -> bool {
    let compact: String = attribute.chars().filter(|c| !c.is_whitespace()).collect();
    compact == "cfg(test)" || compact.starts_with("cfg(all(test") || compact == "test"
}

/// Where the item that begins at `at` ends: behind its `;` or its braces.
fn end_of_item(tokens: &[TokenTree], mut at: usize) -> usize {
    let is_use =
        tokens[at..].iter().take(4).any(|token| matches!(token, TokenTree::Ident(word) if *word == "use"));
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(mark) if mark.as_char() == ';' || mark.as_char() == ',' => return at + 1,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !is_use => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn end_of_use(tokens: &[TokenTree], mut at: usize) -> usize {
    while at < tokens.len() && !matches!(&tokens[at], TokenTree::Punct(mark) if mark.as_char() == ';') {
        at += 1;
    }
    at + 1
}

/// Whether a path that stays in this crate begins at `at`.
fn is_start(tokens: &[TokenTree], at: usize) -> bool {
    let TokenTree::Ident(word) = &tokens[at] else { return false };
    (*word == "crate" || *word == "super" || *word == "self") && is_separator(tokens, at + 1)
}

fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
    colon(at) && colon(at + 1)
}

/// The path that begins at `at`, and where it ends.
fn plain_path(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        path.push(word.to_string());
        at += 1;
        if !is_separator(tokens, at) {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// The paths of a `use`, each with the name that it brings into scope (`*` for a glob).
fn use_tree(tokens: &[TokenTree], prefix: &[String]) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut path = prefix.to_vec();
    let mut renamed = None;
    let mut at = 0;
    let mut pending = false;
    let finish = |path: &[String], renamed: Option<String>, found: &mut Vec<(Vec<String>, String)>| {
        let mut path = path.to_vec();
        if path.last().is_some_and(|name| name == "self") && path.len() > 1 {
            path.pop();
        }
        let name = renamed.or_else(|| path.last().cloned()).unwrap_or_default();
        found.push((path, name));
    };
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(mark) if mark.as_char() == ';' => break,
            TokenTree::Punct(mark) if mark.as_char() == ',' => {
                if pending {
                    finish(&path, renamed.take(), &mut found);
                }
                path = prefix.to_vec();
                pending = false;
            }
            TokenTree::Punct(mark) if mark.as_char() == '*' => {
                found.push((path.clone(), "*".to_owned()));
                pending = false;
            }
            TokenTree::Ident(word) if *word == "as" => {
                if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                    renamed = Some(name.to_string());
                }
                at += 1;
            }
            TokenTree::Ident(word) => {
                path.push(word.to_string());
                pending = true;
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                found.extend(use_tree(&inner, &path));
                pending = false;
            }
            _ => {}
        }
        at += 1;
    }
    if pending {
        finish(&path, renamed, &mut found);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_of(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let cycles = Modules::of(files).cycles();
        cycles
            .into_iter()
            .flat_map(|(parent, cycles)| cycles.into_iter().map(move |cycle| (parent.clone(), cycle.modules)))
            .collect()
    }

    fn at(parent: &str, modules: &[&str]) -> (String, Vec<String>) {
        (parent.to_owned(), modules.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn arrows_one_way_are_no_cycle() {
        let files = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B; use std::fmt;"),
            ("b", "use super::c;"),
            ("c", ""),
        ];
        assert_eq!(cycles_of(&files), []);
    }

    #[test]
    fn a_cycle_is_found_through_imports_paths_and_re_exports() {
        let files = [
            ("", "mod a; mod b; mod c; pub use a::{A, other as Renamed};"),
            ("a", "use crate::{b::{self, B}};"),
            ("b", "fn f() { crate::c::call() }"),
            ("c", "type T = crate::A;"),
        ];
        assert_eq!(cycles_of(&files), [at("", &["a", "b", "c"])]);
    }

    #[test]
    fn cycles_lie_below_the_root_as_well() {
        let files = [
            ("", "mod a;"),
            ("a", "mod x; mod y; pub struct A;"),
            ("a::x", "use super::{A, y::Y};"),
            ("a::y", "use super::x::X;"),
        ];
        assert_eq!(cycles_of(&files), [at("a", &["x", "y"])]);
    }

    #[test]
    fn tests_and_comments_make_no_arrow() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "use crate::b;"),
            (
                "b",
                "/// See [`crate::a::A`].\nfn f() {} #[cfg(test)] mod tests { use crate::a; } #[cfg(test)] use crate::a::{A};",
            ),
        ];
        assert_eq!(cycles_of(&files), []);
    }
}
