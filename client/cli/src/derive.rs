//! `shardctl derive`: a dataset of samples of another one, by rules.

use std::num::NonZeroUsize;

use clap::Args;
use serde_json::json;
use shardd_ingest::version::{Base, DeriveError, derive};
use shardd_store::catalog::{Catalog, CatalogError, CatalogStore, CommitNote};
use shardd_store::connect::{Connect, find_version};
use shardd_views::decimal::Decimal;
use shardd_views::dedup::MinHash;
use shardd_views::expr::Expr;
use shardd_views::key::Key;
use shardd_views::rule::{Dedup, Rule};
use shardd_views::sample::Sample;
use shardd_views::split::Parts;
use shardfmt::{ByteSize, DatasetName, DatasetRef, Message, Operation, VersionId};

use crate::failure::Failure;
use crate::human::{duration, plural};
use crate::ingest::processors;
use crate::output;
use crate::work::WorkProgress;

/// Make a dataset of the samples of another one: filtered, deduplicated, split, sampled, with some columns
///
/// The rules apply in the order of this list, whatever the order of the options. Equal sources and rules make equal versions.
#[derive(Args)]
pub(crate) struct Derive {
    /// The dataset to take samples of, or a version of it (NAME@TAG)
    source: DatasetRef,

    /// The dataset to make
    name: DatasetName,

    /// Keep the samples for which this SQL expression is true: "label IN (1, 2) AND length(text) > 20"
    #[arg(long, value_name = "EXPRESSION", value_parser = expression, help_heading = "Rules")]
    filter: Option<Expr>,

    /// Keep the first of equal samples; with columns, of samples with equal values there
    #[arg(long, value_name = "COLUMN,...", num_args = 0..=1, require_equals = true, default_missing_value = "", help_heading = "Rules")]
    dedup: Option<String>,

    /// Keep the first of samples with similar texts in this column (MinHash of 5-word n-grams)
    #[arg(long, value_name = "COLUMN", help_heading = "Rules")]
    near_dedup: Option<String>,

    /// Jaccard similarity from which texts are similar
    #[arg(long, value_name = "SIMILARITY", default_value = "0.7", value_parser = decimal, requires = "near_dedup", help_heading = "Rules")]
    threshold: Decimal,

    /// Keep a part of a split, such as `train` of --parts train=0.9,test=0.1
    #[arg(long, value_name = "NAME", requires = "parts", help_heading = "Rules")]
    part: Option<String>,

    /// The parts of the split, with their weights
    #[arg(long, value_name = "NAME=WEIGHT,...", value_parser = parts, requires = "part", help_heading = "Rules")]
    parts: Option<Parts>,

    /// Columns whose equal values stay in one part, such as a patient's [default: all columns]
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',', requires = "part", help_heading = "Rules")]
    by: Option<Vec<String>>,

    /// Columns within whose values the parts have exact sizes; a part is then not stable under append
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',', requires = "part", help_heading = "Rules")]
    stratify: Option<Vec<String>>,

    /// Keep this share of the samples, such as 0.1
    #[arg(long, value_parser = decimal, group = "sample", help_heading = "Rules")]
    fraction: Option<Decimal>,

    /// Keep this number of samples
    #[arg(long, value_name = "SAMPLES", group = "sample", help_heading = "Rules")]
    count: Option<u64>,

    /// Leave out and repeat samples, so that all values of this column are equally frequent
    #[arg(long, value_name = "COLUMN", group = "sample", requires = "total", help_heading = "Rules")]
    balance: Option<String>,

    /// Leave out and repeat samples in proportion to this column
    #[arg(long, value_name = "COLUMN", group = "sample", requires = "total", help_heading = "Rules")]
    weights: Option<String>,

    /// Samples of the result of --balance or --weights
    #[arg(long, value_name = "SAMPLES", requires = "sample", conflicts_with_all = ["fraction", "count"], help_heading = "Rules")]
    total: Option<u64>,

    /// Keep these columns, in this order
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',', help_heading = "Rules")]
    columns: Option<Vec<String>>,

    /// Key of the split and of the sample
    #[arg(long, default_value_t = 0, help_heading = "Rules")]
    seed: u64,

    /// Target size of shards, such as 4MiB [default: as for an ingest]
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<ByteSize>,

    /// Message, kept in the history
    #[arg(long, short, default_value = "")]
    message: Message,

    /// Threads to work with, each of which takes memory for two shards; the result does not depend on it [default: one per
    /// processor]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

fn expression(text: &str) -> Result<Expr, String> {
    Expr::parse(text).map_err(|error| first_line(&error))
}

/// A message without the lines that show a place in the expression: errors of this program have one line.
fn first_line(error: &dyn std::error::Error) -> String {
    let line =
        |error: &dyn std::error::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(line(error), |text, cause| {
        let cause = line(cause);
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

fn decimal(text: &str) -> Result<Decimal, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn parts(text: &str) -> Result<Parts, String> {
    Parts::parse(text).map_err(|error| error.to_string())
}

impl Derive {
    fn rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let Some(expression) = self.filter.clone() {
            rules.push(Rule::Filter { expression });
        }
        if let Some(columns) = &self.dedup {
            let columns: Vec<String> =
                columns.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let by = if columns.is_empty() { Key::Row } else { Key::Columns(columns) };
            rules.push(Rule::Dedup { method: Dedup::Exact { by } });
        }
        if let Some(column) = self.near_dedup.clone() {
            let parameters = MinHash { threshold: self.threshold, ..MinHash::default() };
            rules.push(Rule::Dedup { method: Dedup::Minhash { column, parameters } });
        }
        if let (Some(part), Some(parts)) = (self.part.clone(), self.parts.clone()) {
            let by = self.by.clone().map_or(Key::Row, Key::Columns);
            rules.push(Rule::SplitPart { parts, part, by, stratify: self.stratify.clone(), seed: self.seed });
        }
        let total = self.total.unwrap_or_default();
        let sample = match (self.fraction, self.count, &self.balance, &self.weights) {
            (Some(fraction), ..) => Some(Sample::Fraction { fraction }),
            (_, Some(count), ..) => Some(Sample::Count { count }),
            (.., Some(by), _) => Some(Sample::Balanced { by: by.clone(), total }),
            (.., Some(weights)) => Some(Sample::Weighted { weights: weights.clone(), total }),
            _ => None,
        };
        rules.extend(sample.map(|sample| Rule::Sample { sample, seed: self.seed }));
        rules.extend(self.columns.clone().map(|columns| Rule::Select { columns }));
        rules
    }

    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let rules = self.rules();
        if rules.is_empty() {
            return Err(Failure::usage(
                "no rule: give --filter, --dedup, --near-dedup, --part, --fraction, --count, --balance, --weights or --columns",
            ));
        }
        let catalog = connect.catalog()?;
        let before = find_version(&*catalog, &self.source)?;
        let manifest = catalog.manifest(before.version)?;
        let provenance = catalog.provenance(before.version)?;
        let base = Base { id: before.version, manifest: &manifest, provenance: provenance.as_ref() };
        let progress = WorkProgress::new(json, "deriving", before.samples);
        let threads = self.threads.map_or_else(processors, usize::from);
        let shelf = CatalogStore(&*catalog);
        let expected = present(&*catalog, &self.name)?;
        let derived = derive(base, &rules, self.shard_size, &shelf, threads, &shelf, &progress);
        let took = progress.finish();
        let derived = derived.map_err(|error| match error {
            DeriveError::Version(error) => error.into(),
            error => Failure::failed(first_line(&error)),
        })?;
        let note = CommitNote {
            operation: Operation::DERIVE,
            message: self.message,
            provenance: derived.provenance,
        };
        let after = catalog.commit(&self.name, expected, &derived.manifest, &note)?;
        let steps: Vec<_> = rules.iter().zip(&derived.left).collect();
        if json {
            output::json(&json!({
                "event": "done",
                "dataset": after.name,
                "version": after.version,
                "source": before.version,
                "samples": after.samples,
                "samples_before": before.samples,
                "shards": after.shards,
                "rules": steps.iter().map(|(rule, left)| json!({"rule": rule, "samples": left})).collect::<Vec<_>>(),
                "seconds": took.as_secs_f64(),
            }));
            return Ok(());
        }
        let mut page = String::new();
        for (rule, left) in steps {
            page.push_str(&format!("{rule}: {} left\n", plural(*left, "sample")));
        }
        page.push_str(&format!(
            "{}: {} of {} in {}, version {}; {}\n",
            after.name,
            plural(after.samples, "sample"),
            before.samples,
            plural(after.shards, "shard"),
            after.version.short(),
            duration(took),
        ));
        output::print(&page);
        Ok(())
    }
}

/// The present version of a dataset, if there is one.
fn present(catalog: &dyn Catalog, name: &DatasetName) -> Result<Option<VersionId>, Failure> {
    match catalog.dataset(name) {
        Ok(info) => Ok(Some(info.version)),
        Err(CatalogError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
