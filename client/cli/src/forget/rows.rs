//! Which rows are meant: by the values of their columns, or named one by one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use shardd_api::suggest::no_such;
use shardd_ingest::version::{Condition, ConditionError, Matcher, find_rows, read_sidecar};
use shardd_store::catalog::{Catalog, CatalogError, CatalogStore, DatasetInfo};
use shardfmt::{At, DatasetName, DatasetRef, Manifest, Operation, RowDigest, ShardId, VersionId};

use crate::failure::Failure;
use crate::human::plural;
use crate::work::WorkProgress;

/// The rows that are meant.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) rows: BTreeSet<RowDigest>,
    /// How many samples of the version that was named they are, where known.
    pub(super) matching: Option<u64>,
    /// The selection, in words.
    pub(super) meant: String,
}

/// `COLUMN=VALUE`, or `COLUMN=@FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Where {
    column: String,
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    One(String),
    Of(std::path::PathBuf),
}

impl FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Where, String> {
        let (column, value) = text
            .split_once('=')
            .filter(|(column, _)| !column.is_empty())
            .ok_or_else(|| "use COLUMN=VALUE, or COLUMN=@FILE with a value on each line".to_owned())?;
        let value = match value.strip_prefix('@') {
            None => Value::One(value.to_owned()),
            Some(rest) if rest.starts_with('@') => Value::One(rest.to_owned()),
            Some(file) => Value::Of(file.into()),
        };
        Ok(Where { column: column.to_owned(), value })
    }
}

impl Where {
    fn condition(&self) -> Result<Condition, Failure> {
        let values = match &self.value {
            Value::One(value) => vec![value.clone()],
            Value::Of(file) => {
                let lines: Vec<String> = read(file)?.lines().map(str::to_owned).collect();
                let values: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
                if values.is_empty() {
                    return Err(Failure::usage(format!(
                        "{} has no value: write one on each line",
                        file.display()
                    )));
                }
                values
            }
        };
        Ok(Condition { column: self.column.clone(), values })
    }

    fn meant(&self) -> String {
        match &self.value {
            Value::One(value) => format!("{}={value:?}", self.column),
            Value::Of(file) => format!("{} as in {}", self.column, file.display()),
        }
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::failed(format!("{} cannot be read: {error}", file.display())))
}

/// The rows that fit conditions, in any version of the dataset that something still names: an older version may have rows that the
/// present one has not.
pub(super) fn fitting(
    catalog: &dyn Catalog,
    version: &DatasetInfo,
    conditions: &[Where],
    threads: usize,
    json: bool,
) -> Result<Found, Failure> {
    let meant: Vec<String> = conditions.iter().map(Where::meant).collect();
    let conditions: Vec<Condition> = conditions.iter().map(Where::condition).collect::<Result<_, _>>()?;
    let named = catalog.manifest(version.version)?;
    let matcher = Matcher::new(&named.schema, &conditions).map_err(refused)?;
    let mut found = Found { meant: meant.join(" and "), matching: Some(0), ..Found::default() };
    let mut seen = BTreeSet::new();
    let mut search = |manifest: &Manifest, matcher: &Matcher| -> Result<u64, Failure> {
        let unseen = manifest.shards.iter().filter(|shard| !seen.contains(&shard.id));
        let shards: Vec<_> = unseen.cloned().collect();
        let samples = shards.iter().map(|shard| u64::from(shard.rows)).sum();
        let progress = WorkProgress::new(json, "searching", samples);
        let by_shard = find_rows(&shards, matcher, &CatalogStore(catalog), threads, &progress);
        progress.finish();
        let by_shard = by_shard?;
        seen.extend(shards.iter().map(|shard| shard.id));
        let count = |id: &ShardId| by_shard.get(id).map_or(0, Vec::len) as u64;
        let matching = manifest.shards.iter().map(|shard| count(&shard.id)).sum();
        found.rows.extend(by_shard.into_values().flatten());
        Ok(matching)
    };
    let matching = search(&named, &matcher)?;
    for other in versions_of(catalog, &version.name)?.into_iter().filter(|id| *id != version.version) {
        let manifest = match catalog.manifest(other) {
            // Records of trainings may name deleted versions.
            Err(CatalogError::NotFound { .. }) => continue,
            manifest => manifest?,
        };
        // Where there is no such column, or it has another type, nothing fits.
        if let Ok(matcher) = Matcher::new(&manifest.schema, &conditions) {
            search(&manifest, &matcher)?;
        }
    }
    found.matching = Some(matching);
    Ok(found)
}

fn refused(error: ConditionError) -> Failure {
    match error {
        ConditionError::NoColumn { column, columns } => {
            Failure::usage(no_such(&format!("column {column}"), &column, &columns))
        }
        ConditionError::Unsupported { .. } => {
            Failure::usage(format!("{error}; --rows FILE names them by number or digest"))
        }
        error => Failure::wrong(error),
    }
}

/// All versions of a dataset that its history, tags, plans and runs name.
fn versions_of(catalog: &dyn Catalog, name: &DatasetName) -> Result<BTreeSet<VersionId>, Failure> {
    let mut versions = BTreeSet::new();
    match catalog.log(name, usize::MAX) {
        Ok(log) => versions.extend(log.iter().map(|entry| entry.commit.version)),
        Err(CatalogError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    versions.extend(catalog.tags(Some(name))?.iter().map(|tag| tag.version));
    versions.extend(catalog.plans()?.iter().filter(|plan| plan.dataset == *name).map(|plan| plan.version));
    let runs = catalog.runs()?;
    versions
        .extend(runs.iter().filter(|run| run.dataset.as_ref() == Some(name)).filter_map(|run| run.version));
    Ok(versions)
}

/// A line of a file of rows.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Number(u64),
    Digest(RowDigest),
}

/// The rows that the lines of a file name. Numbers are those of the samples of a version.
pub(super) fn named(
    catalog: &dyn Catalog,
    asked: &DatasetRef,
    version: &DatasetInfo,
    file: &Path,
) -> Result<Found, Failure> {
    let lines =
        parse(&read(file)?).map_err(|wrong| Failure::usage(format!("{}: {wrong}", file.display())))?;
    let meant = format!("a row of {}", file.display());
    let has_numbers = lines.iter().any(|(_, named)| matches!(named, Named::Number(_)));
    if !has_numbers {
        let digest = |(_, named)| if let Named::Digest(digest) = named { Some(digest) } else { None };
        return Ok(Found { rows: lines.into_iter().filter_map(digest).collect(), matching: None, meant });
    }
    if asked.at == At::Present {
        let log = catalog.log(&version.name, 1)?;
        if log.first().is_some_and(|last| last.commit.operation == Operation::FORGET) {
            return Err(Failure::usage(format!(
                "the last commit to {name} forgot rows, and samples have other numbers since: name the version that the numbers of {} count in, such as {name}@~1 or {name}@{}",
                file.display(),
                version.version.short(),
                name = version.name
            )));
        }
    }
    let manifest = catalog.manifest(version.version)?;
    let mut found = Found { meant, ..Found::default() };
    let mut numbers: Vec<(usize, u64)> = Vec::new();
    for (line, named) in lines {
        match named {
            Named::Digest(digest) => _ = found.rows.insert(digest),
            Named::Number(number) if number < version.samples => numbers.push((line, number)),
            Named::Number(number) => {
                return Err(Failure::usage(format!(
                    "{}: line {line}: there is no sample {number}: the version has {}, from 0",
                    file.display(),
                    version.samples
                )));
            }
        }
    }
    numbers.sort_by_key(|(_, number)| *number);
    numbers.dedup_by_key(|(_, number)| *number);
    found.matching = Some(numbers.len() as u64);
    let mut numbers = numbers.into_iter().map(|(_, number)| number).peekable();
    let mut start = 0;
    for entry in &manifest.shards {
        let end = start + u64::from(entry.rows);
        if numbers.peek().is_some_and(|number| *number < end) {
            let sidecar = read_sidecar(&CatalogStore(catalog), entry).map_err(|damage| {
                Failure::failed(format!(
                    "the sidecar of shard {} {damage}; see `shardctl verify --repair`",
                    entry.id
                ))
            })?;
            while let Some(number) = numbers.next_if(|number| *number < end) {
                // Less than the rows of a shard.
                found.rows.insert(sidecar.rows[(number - start) as usize]);
            }
        }
        start = end;
    }
    Ok(found)
}

/// The lines that name rows, with their numbers from 1; else the error in the first that does not.
fn parse(text: &str) -> Result<Vec<(usize, Named)>, String> {
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let named: Vec<(usize, Named)> = lines
        .map(|(number, line)| match (line.parse::<RowDigest>(), line.parse::<u64>()) {
            (Ok(digest), _) => Ok((number, Named::Digest(digest))),
            (_, Ok(sample)) => Ok((number, Named::Number(sample))),
            _ => Err(format!(
                "line {number}: {line:?} is neither the number of a sample nor a row digest of 32 lower-case hexadecimal digits"
            )),
        })
        .collect::<Result<_, _>>()?;
    match named.is_empty() {
        true => Err(format!("{} of rows: name one on each line", plural(0, "line"))),
        false => Ok(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_column_and_a_value_or_a_file() {
        let parse = |text: &str| text.parse::<Where>().map(|parsed| (parsed.column, parsed.value));
        assert_eq!(parse("user=a=b"), Ok(("user".to_owned(), Value::One("a=b".to_owned()))));
        assert_eq!(parse("user="), Ok(("user".to_owned(), Value::One(String::new()))));
        assert_eq!(parse("user=@names"), Ok(("user".to_owned(), Value::Of("names".into()))));
        assert_eq!(parse("user=@@home"), Ok(("user".to_owned(), Value::One("@home".to_owned()))));
        for wrong in ["user", "=x", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_names_rows_by_number_or_digest_and_a_bad_line_is_named() {
        let digest = RowDigest::of(b"row");
        let parsed = parse(&format!("7\n\n {digest} \n")).expect("two rows");
        assert_eq!(parsed, [(1, Named::Number(7)), (3, Named::Digest(digest))]);
        let wrong = parse("7\nseven\n").expect_err("no number");
        assert!(wrong.starts_with("line 2: \"seven\" is neither"), "{wrong}");
        assert!(parse("\n").is_err(), "a file of no rows means none");
    }
}
