//! `shardctl cost`: the requests of a training to its store and their list price, before it begins and as they were counted.

mod counted;
mod prices;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use clap::{Args, ValueEnum};
use serde::Serialize;
use shardd_api::status::WireCounts;
use shardd_plan::Plan;
use shardd_simulation::{
    Asked, KeptIn, RowsRead, StoreReads, StoreReadsError, StoreScenario, StoredShard, store_reads,
};
use shardd_store::catalog::{Catalog, CatalogError};
use shardd_store::connect::{Connect, HEALTH_TIMEOUT, Target};
use shardfmt::joined::joined;
use shardfmt::{ByteSize, ManifestFile, ShardError, Sidecar};

use self::counted::{CountedEpoch, CountedRun};
use self::prices::Prices;
use crate::failure::Failure;
use crate::human::{count, plural};
use crate::nodes::live_nodes;
use crate::output;
use crate::plan::PlanOrRun;
use crate::table::{Table, facts};

/// Steps that a loader asks for together, by default.
const READ_AHEAD: u64 = 8;

/// Epochs that are listed one by one.
const LISTED: usize = 8;

/// Predict the requests of a training to its store, and their list price
///
/// Counts what the nodes will request for the plan: whole shards once where their caches have room, and single rows in every
/// epoch where they lack it. With --run, prints beside it what the nodes counted of a run. Prices are list prices of the given
/// date and region; requests that fail and are made again are not predicted.
#[derive(Args)]
pub(crate) struct Cost {
    #[command(flatten)]
    plan: PlanOrRun,

    /// Nodes of the cluster, each with one rank of the run [default with --run: its nodes]
    #[arg(long, required_unless_present = "run")]
    nodes: Option<u32>,

    /// Size of each node's cache for the run [default: 64GiB; with --run the smallest of its nodes]
    #[arg(long, value_name = "SIZE")]
    cache: Option<ByteSize>,

    /// Epochs of the training [default: 10; with --run those that were read]
    #[arg(long)]
    epochs: Option<u32>,

    /// Where the cluster keeps its metadata: in the store, nodes look there for changes [default: that of the nodes, or sled]
    #[arg(long, value_enum, value_name = "PLACE")]
    metastore: Option<Place>,

    /// Samples in a step, all ranks together: rows that are due together share requests [default: 32 for each node]
    #[arg(long)]
    global_batch_size: Option<u64>,

    /// Prices: s3-standard, gcs-standard, azure-hot, r2, or a TOML file of your own with the same fields
    #[arg(long, value_name = "LIST", default_value = "s3-standard")]
    prices: String,
}

/// Where metadata can be.
#[derive(Clone, Copy, ValueEnum)]
enum Place {
    Sled,
    Store,
    Etcd,
}

impl From<Place> for KeptIn {
    fn from(place: Place) -> KeptIn {
        match place {
            Place::Sled => KeptIn::Sled,
            Place::Store => KeptIn::Store,
            Place::Etcd => KeptIn::Etcd,
        }
    }
}

/// A prediction, and what was counted.
#[derive(Serialize)]
struct Report {
    nodes: u32,
    epochs: u32,
    prices: Prices,
    predicted: StoreReads,
    price: Priced,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<Vec<CountedEpoch>>,
}

/// The list prices of a prediction.
#[derive(Serialize)]
struct Priced {
    nodes_start: f64,
    run: f64,
    epochs: Vec<f64>,
    /// The run from its first request to its last.
    of_run: f64,
    per_hour: f64,
    storage_per_month: f64,
    /// The run when each rank reads every shard by itself in every epoch.
    naive_run: f64,
}

impl Cost {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let prices: Prices = self.prices.parse().map_err(Failure::wrong)?;
        let catalog = connect.catalog()?;
        let (plan, manifest, run) = self.plan.open(&*catalog)?;
        let counted = run.map(|run| CountedRun::ask(connect, &run.id, &prices)).transpose()?;
        let of_run = |value: fn(&CountedRun) -> u64| counted.as_ref().map(value);
        let nodes = self.nodes.or(of_run(|run| run.nodes.into()).map(|nodes| nodes as u32)).unwrap_or(1);
        let cache = self.cache.map(|size| size.0).or(of_run(|run| run.cache_bytes)).unwrap_or(64 << 30);
        let read = of_run(|run| run.epochs.len() as u64).filter(|epochs| *epochs > 0);
        let epochs = self.epochs.or(read.map(|epochs| epochs as u32)).unwrap_or(10);
        let batch = self.global_batch_size.unwrap_or(32 * u64::from(nodes.max(1)));
        let window = READ_AHEAD.saturating_mul(batch.div_ceil(u64::from(nodes.max(1))));
        let metadata = self.metastore.map_or_else(|| present_place(connect), KeptIn::from);
        let scenario = StoreScenario {
            shards: &[],
            window,
            document_bytes: 0,
            nodes,
            cache_bytes: cache,
            epochs,
            metadata,
        };
        let predicted = predict(&*catalog, &plan, &manifest, scenario)?;
        if let Some(silent) = counted.as_ref().map(|run| &run.silent).filter(|silent| !silent.is_empty()) {
            let nodes = silent.join(", ");
            output::note(json, &format!("the counts lack those of nodes that did not answer: {nodes}"));
        }
        let counted = counted.map(|run| run.epochs);
        let price = Priced::of(&predicted, &prices);
        let report = Report { nodes, epochs, prices, predicted, price, counted };
        match json {
            true => output::json(&report),
            false => output::print(&report.render(&plan)),
        }
        Ok(())
    }
}

/// Where the metadata is as the nodes say; in sled where none answers.
fn present_place(connect: &Connect) -> KeptIn {
    let Ok(Target::Servers(servers)) = connect.target() else { return KeptIn::Sled };
    let http = servers.http_within(HEALTH_TIMEOUT);
    let nodes = live_nodes(&http, servers.first_that_answers()).unwrap_or_default();
    match nodes.into_iter().find_map(|state| state.record.metastore).as_deref() {
        None | Some("sled") => KeptIn::Sled,
        Some("store") => KeptIn::Store,
        Some(_) => KeptIn::Etcd,
    }
}

fn predict(
    catalog: &dyn Catalog,
    plan: &Plan,
    manifest: &ManifestFile,
    scenario: StoreScenario<'_>,
) -> Result<StoreReads, Failure> {
    let entries = manifest.entries(0..manifest.totals().shards)?;
    let shards: Vec<StoredShard> = entries
        .iter()
        .map(|shard| StoredShard { rows: shard.rows, bytes: shard.bytes, row_bytes: shard.row_bytes })
        .collect();
    let document_bytes = (manifest.file_bytes()?.len() + plan.document().to_bytes().len()) as u64;
    let scenario = StoreScenario { shards: &shards, document_bytes, ..scenario };
    let mut sidecars: BTreeMap<u32, Sidecar> = BTreeMap::new();
    let read = |shard: u32, rows: &[Range<u32>]| -> Result<RowsRead, Unread> {
        let sidecar = match sidecars.entry(shard) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(catalog.sidecar(&entries[shard as usize])?),
        };
        // As nodes read them.
        let reads = joined(sidecar.read_plan(manifest.schema(), rows)?.ranges());
        let bytes = reads.iter().map(|read| read.end - read.start).sum();
        Ok(RowsRead { requests: reads.len() as u64, bytes })
    };
    store_reads(plan, &scenario, read).map_err(|error| match error {
        StoreReadsError::Scenario(error) => Failure::wrong(error),
        StoreReadsError::Rows(error) => error.into(),
    })
}

/// Why it is not known what reading rows takes.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Shard(#[from] ShardError),
}

impl Priced {
    fn of(reads: &StoreReads, prices: &Prices) -> Priced {
        Priced {
            nodes_start: prices.of(reads.nodes_start),
            run: prices.of(reads.run),
            epochs: reads.epochs.iter().map(|epoch| prices.of(*epoch)).collect(),
            of_run: prices.of(reads.of_run()),
            per_hour: prices.of(reads.per_hour),
            storage_per_month: prices.of_month(reads.stored_bytes),
            naive_run: prices.of(reads.naive_run()),
        }
    }
}

impl Report {
    fn render(&self, plan: &Plan) -> String {
        let reads = &self.predicted;
        let size = |bytes: u64| ByteSize(bytes).to_string();
        let room = match reads.short_nodes {
            0 => "room for all".to_owned(),
            short => format!(
                "{} of {} lack room, and read single rows",
                count(short.into()),
                plural(self.nodes.into(), "node")
            ),
        };
        let Prices { service, region, date, currency, .. } = &self.prices;
        let head = facts(&[
            ("plan", format!("{}, {}", plan.id().short(), plural(plan.sample_count(), "sample"))),
            (
                "caches",
                format!(
                    "{} of {} that the run needs: {room}",
                    size(reads.cache_bytes),
                    size(reads.needed_bytes)
                ),
            ),
            ("prices", format!("{service}, {region}, list prices of {date}, in {currency}")),
        ]);
        let counted = self.counted.as_ref().map(|epochs| self.render_counted(epochs)).unwrap_or_default();
        format!("{head}\n{}{counted}", self.render_predicted())
    }

    fn render_predicted(&self) -> String {
        let reads = &self.predicted;
        let mut table = Table::new(&["predicted", "class A", "class B", "read", "price"]);
        let mut row = |name: String, asked: Asked| {
            let (a, b) = (count(asked.class_a), count(asked.class_b));
            table.row([name, a, b, ByteSize(asked.read_bytes).to_string(), money(self.prices.of(asked))]);
        };
        row("run begins and ends".to_owned(), reads.run);
        for (first, last, asked) in alike(&reads.epochs) {
            let name = match last - first {
                0 => format!("epoch {first}"),
                _ => format!("epochs {first} to {last}, each"),
            };
            row(name, asked);
        }
        row("run".to_owned(), reads.of_run());
        row("run, all ranks read all".to_owned(), reads.naive_run());
        row("nodes start".to_owned(), reads.nodes_start);
        row("hour at rest".to_owned(), reads.per_hour);
        let stored = ByteSize(reads.stored_bytes).to_string();
        let month = money(self.prices.of_month(reads.stored_bytes));
        format!("{}storage of {stored}: {month} a month\n", table.render())
    }

    fn render_counted(&self, epochs: &[CountedEpoch]) -> String {
        if epochs.is_empty() {
            return "\nno node has counted requests of this run to a remote store\n".to_owned();
        }
        let mut table = Table::new(&["counted", "class A", "class B", "read", "price", "failed", "hedged"]);
        let mut all = WireCounts::default();
        let mut row = |name: String, counts: &WireCounts| {
            let asked = counted::asked(counts);
            table.row([
                name,
                count(asked.class_a),
                count(asked.class_b),
                ByteSize(asked.read_bytes).to_string(),
                money(self.prices.of(asked)),
                count(counts.failed),
                count(counts.hedged),
            ]);
        };
        let left_out = epochs.len().saturating_sub(LISTED);
        for (number, epoch) in epochs.iter().enumerate() {
            all.add(&epoch.counts);
            // The first ones, and the last.
            if number < LISTED - 1 || number + 1 == epochs.len() {
                row(format!("epoch {}", epoch.epoch), &epoch.counts);
            }
        }
        row("run".to_owned(), &all);
        let more = match left_out {
            0 => String::new(),
            more => format!("{} not listed: --json lists all\n", plural(more as u64, "epoch")),
        };
        format!("\n{}{more}", table.render())
    }
}

/// Epochs that follow each other and ask the same: the first, the last, and what each asks.
fn alike(epochs: &[Asked]) -> Vec<(usize, usize, Asked)> {
    let mut alike: Vec<(usize, usize, Asked)> = Vec::new();
    for (epoch, asked) in epochs.iter().enumerate() {
        match alike.last_mut().filter(|(_, _, of)| of == asked) {
            Some((_, last, _)) => *last = epoch,
            None => alike.push((epoch, epoch, *asked)),
        }
    }
    alike
}

/// A price with two digits after the point, or as many as it takes to see something.
fn money(price: f64) -> String {
    match price {
        0.0 => "0".to_owned(),
        price if price >= 0.995 => format!("{}.{:02}", count(price as u64), (price.fract() * 100.0) as u64),
        price if price >= 0.000_1 => format!("{price:.4}"),
        price => format!("{price:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gets(class_b: u64) -> Asked {
        Asked { class_b, ..Asked::default() }
    }

    #[test]
    fn epochs_that_ask_the_same_are_one_line() {
        let epochs = [gets(40), gets(0), gets(0), gets(0), gets(2)];
        assert_eq!(alike(&epochs), [(0, 0, gets(40)), (1, 3, gets(0)), (4, 4, gets(2))]);
        assert_eq!(alike(&[]), []);
    }

    #[test]
    fn small_prices_are_seen() {
        let prices = [0.0, 0.000_002, 0.0123, 1.5, 12_345.678].map(money);
        assert_eq!(prices, ["0", "0.000002", "0.0123", "1.50", "12,345.67"]);
    }

    #[test]
    fn the_table_has_a_line_for_each_kind_of_request() {
        let asked = |class_a, class_b, read_bytes| Asked { class_a, class_b, read_bytes };
        let report = Report {
            nodes: 2,
            epochs: 3,
            prices: "s3-standard".parse().expect("a list"),
            predicted: StoreReads {
                needed_bytes: 80 << 20,
                cache_bytes: 128 << 30,
                short_nodes: 0,
                stored_bytes: 64 << 20,
                nodes_start: asked(7, 1, 0),
                run: asked(2, 18, 4096),
                epochs: vec![asked(1, 60, 64 << 20), asked(1, 0, 0), asked(1, 0, 0)],
                per_hour: asked(0, 720, 0),
                naive_epoch: asked(0, 120, 128 << 20),
            },
            price: Priced {
                nodes_start: 0.0,
                run: 0.0,
                epochs: vec![],
                of_run: 0.0,
                per_hour: 0.0,
                storage_per_month: 0.0,
                naive_run: 0.0,
            },
            counted: None,
        };
        let expected = "\
predicted                class A  class B       read     price
run begins and ends            2       18    4.0 KiB  0.000017
epoch 0                        1       60   64.0 MiB  0.000029
epochs 1 to 2, each            1        0        0 B  0.000005
run                            5       78   64.0 MiB  0.000056
run, all ranks read all        0      360  384.0 MiB    0.0001
nodes start                    7        1        0 B  0.000035
hour at rest                   0      720        0 B    0.0003
storage of 64.0 MiB: 0.0014 a month
";
        let printed = report.render_predicted();
        assert_eq!(anstream::adapter::strip_str(&printed).to_string(), expected);
    }
}
