//! One run, any number of ranks: what each step reads is the same, and it is gone on with at the very sample. Without any
//! node, with nodes that lend files, with nodes that lend a ring, and with nodes that send bytes.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use shardd_api::local_transport::Transport;
use shardd_client::loader::{Cursor, LastBatch, Loader, LoaderConfig, LoaderSource};
use shardd_store::catalog::StorePlace;
use shardd_store::http::Credentials;
use shardd_tests::{Cluster, binary, is_quick, run, wait_until};
use shardfmt::{PlanId, RowCodec, RowDigest};
use tempfile::TempDir;

/// The reads of all ranks in an epoch: of each step its beginning, its reads and their ranks, and the next
/// place.
type Epoch = BTreeMap<u64, (BTreeMap<u64, RowDigest>, Cursor)>;

/// How a run is read.
#[derive(Clone, Copy, Debug)]
struct How {
    virtual_ranks: u32,
    batch_size: u32,
    last_batch: LastBatch,
}

/// Where it is read from, and its plan.
struct Place {
    source: Box<dyn Fn(&str) -> LoaderSource + Sync>,
    plan: PlanId,
    /// How nodes give it, if it is from nodes.
    transport: Option<Transport>,
}

impl Place {
    /// What `world` ranks read of an epoch from a position on.
    fn read(&self, how: How, world: u32, start: (u32, u64)) -> Epoch {
        // The ranks of a launch attach together.
        let run = format!("v{}-b{}", how.virtual_ranks, how.batch_size);
        let shares: Vec<Epoch> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..world)
                .map(|rank| {
                    let run = &run;
                    scope.spawn(move || self.share(how, run, (rank, world), start))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank reads")).collect()
        });
        let mut all = Epoch::new();
        for (at, (rows, cursor)) in shares.into_iter().flatten() {
            let step = all.entry(at).or_insert_with(|| (BTreeMap::new(), cursor));
            assert_eq!(step.1, cursor, "the cursor is the same on every rank");
            for (position, row) in rows {
                assert!(step.0.insert(position, row).is_none(), "position {position} is read by one rank");
            }
        }
        all
    }

    fn share(&self, how: How, run: &str, (rank, world): (u32, u32), start: (u32, u64)) -> Epoch {
        let mut config = LoaderConfig::new((self.source)(run), self.plan, how.batch_size);
        (config.rank, config.world, config.virtual_ranks) = (rank, world, Some(how.virtual_ranks));
        (config.last_batch, config.start, config.end_epoch) = (how.last_batch, start, start.0 + 1);
        config.map_files = self.transport != Some(Transport::Stream);
        let mut loader = Loader::open(config).expect("opens");
        let codec = RowCodec::new(loader.schema().clone()).expect("rows");
        let mut steps = Epoch::new();
        while let Some(step) = loader.next_step().expect("reads") {
            let mut rows = BTreeMap::new();
            for micro_batch in &step.micro_batches {
                let mut canonical = Vec::new();
                for (row, position) in micro_batch.positions.iter().enumerate() {
                    canonical.clear();
                    codec.encode(&micro_batch.batch, row, &mut canonical).expect("own rows");
                    rows.insert(*position, RowDigest::of(&canonical));
                }
            }
            steps.insert(step.positions().start, (rows, step.cursor));
        }
        let has_read = steps.values().any(|(rows, _)| !rows.is_empty());
        if let Some(transport) = self.transport.filter(|_| has_read) {
            assert!(!loader.transports().is_empty(), "the samples came by {transport}");
        }
        let others =
            loader.transports().into_iter().find(|(_, transport)| Some(*transport) != self.transport);
        assert_eq!(others, None, "everything came by {:?}", self.transport);
        steps
    }

    /// Every world reads the same steps, and every world continues where any other has stopped.
    fn check(&self, how: How, worlds: &[u32], chains: &[&[u32]]) {
        let whole = self.read(how, 1, (1, 0));
        let starts: Vec<u64> = whole.keys().copied().collect();
        let last = starts.len() - 1;
        for &world in worlds {
            assert!(
                self.read(how, world, (1, 0)) == whole,
                "{how:?}: {world} ranks read other steps than one"
            );
            for stop in [0, 1, 4, last - 1, last] {
                // After `stop` steps of whatever world, since all of them have read the same and have one cursor.
                let rest: Epoch = whole.range(starts[stop]..).map(|(at, step)| (*at, step.clone())).collect();
                let read = self.read(how, world, (1, starts[stop]));
                assert!(read == rest, "{how:?}: {world} ranks continue elsewhere after {stop} steps");
            }
        }
        for chain in chains {
            let mut seen: BTreeMap<u64, RowDigest> = BTreeMap::new();
            let mut at = 0;
            for (turn, &world) in chain.iter().enumerate() {
                let stop = starts.len() * (turn + 1) / chain.len();
                for (_, (rows, _)) in self.read(how, world, (1, starts[at])).into_iter().take(stop - at) {
                    for (position, row) in rows {
                        assert!(
                            seen.insert(position, row).is_none(),
                            "{chain:?}: {position} was read before"
                        );
                    }
                }
                at = stop;
            }
            let all: BTreeMap<u64, RowDigest> = whole.values().flat_map(|(rows, _)| rows.clone()).collect();
            assert!(seen == all, "{how:?}: {chain:?} read other samples than one world");
        }
        println!(
            "{how:?}: {} steps alike for {worlds:?} ranks; {} pairs of worlds and stops; chains {chains:?}",
            starts.len(),
            worlds.len() * worlds.len() * 5
        );
    }
}

fn digits() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../client/data/digits/train.parquet"))
}

fn plan_of(said: &str) -> PlanId {
    let said: Value = serde_json::from_str(said).expect("JSON");
    said["plan"].as_str().expect("an id").parse().expect("a digest")
}

const PARTITION: [&str; 7] = ["--json", "partition", "--q", "0.3", "--partitions", "48", "--id"];

#[test]
fn any_number_of_ranks_reads_the_same_steps_and_goes_on_anywhere_without_a_node() {
    let home = TempDir::new().expect("a temporary directory");
    let shardctl = || {
        let mut command = std::process::Command::new(binary("shardctl"));
        command.arg("--store").arg(home.path().join("store"));
        command
    };
    run(shardctl().arg("ingest").arg(digits()).args(["--name", "digits", "--shard-size", "8KiB"]));
    let plan = plan_of(&run(shardctl().args(PARTITION)));
    let store = home.path().join("store");
    let source = move |_: &str| LoaderSource::Store(StorePlace::Directory(store.clone()));
    let place = Place { source: Box::new(source), plan, transport: None };
    let worlds = [1, 2, 3, 4, 6, 8, 12, 16];
    for (virtual_ranks, batch_size, last_batch) in [
        (16, 3, LastBatch::Short),
        (16, 5, LastBatch::Drop),
        (48, 1, LastBatch::Short),
        (48, 2, LastBatch::Drop),
    ] {
        let how = How { virtual_ranks, batch_size, last_batch };
        place.check(how, &worlds, &[&[8, 2, 8, 3], &[1, 16, 5], &[12, 7]]);
    }
}

#[test]
fn any_number_of_ranks_reads_the_same_steps_and_goes_on_anywhere_with_nodes() {
    if is_quick() {
        return;
    }
    for (share, transports) in
        [("files", &[Transport::Files, Transport::Stream][..]), ("ring", &[Transport::Ring][..])]
    {
        let cluster = Cluster::start_with(2, &[("SHARDD_SHARE", share.to_owned())]);
        run(cluster.shardctl().arg("ingest").arg(digits()).args([
            "--name",
            "digits",
            "--shard-size",
            "8KiB",
        ]));
        let plan = plan_of(&run(cluster.shardctl().args(PARTITION)));
        for &transport in transports {
            let servers: Vec<String> = cluster.nodes.iter().map(|node| node.http.clone()).collect();
            let source = move |run: &str| LoaderSource::Nodes {
                servers: servers.clone(),
                run: format!("{run}-{transport}").parse().expect("a name"),
                credentials: Credentials::default(),
            };
            let place = Place { source: Box::new(source), plan, transport: Some(transport) };
            let how = How { virtual_ranks: 16, batch_size: 5, last_batch: LastBatch::Short };
            place.check(how, &[1, 3, 8, 16], &[&[8, 2, 8, 3]]);
        }
    }
}

/// A loader reads ahead of its trainer; nodes hold two epochs of a run.
#[test]
fn epochs_of_few_steps_are_read_with_nodes_by_a_trainer_that_is_slower_than_its_loader() {
    let cluster = Cluster::start(2);
    run(cluster.shardctl().arg("ingest").arg(digits()).args(["--name", "digits", "--shard-size", "8KiB"]));
    let plan = plan_of(&run(cluster.shardctl().args(PARTITION)));
    let servers: Vec<String> = cluster.nodes.iter().map(|node| node.http.clone()).collect();
    // 1,437 samples: two steps an epoch, one, and steps that have samples of four epochs.
    for (batch_size, last_batch) in [(50, LastBatch::Short), (100, LastBatch::Short), (300, LastBatch::Carry)]
    {
        let source = LoaderSource::Nodes {
            servers: servers.clone(),
            run: format!("of-{batch_size}").parse().expect("a name"),
            credentials: Credentials::default(),
        };
        let mut config = LoaderConfig::new(source, plan, batch_size);
        (config.virtual_ranks, config.last_batch, config.end_epoch) = (Some(16), last_batch, 6);
        config.audit = true;
        let mut loader = Loader::open(config).expect("opens");
        loop {
            // It has asked at least once, and then nothing for ten looks.
            let (mut before, mut quiet) = (0, 0);
            wait_until("the loader has read ahead as far as it may", || {
                let asked = loader.asked().values().map(|node| node.questions).sum::<u64>();
                quiet = if asked > 0 && asked == before { quiet + 1 } else { 0 };
                before = asked;
                quiet == 10
            });
            if loader.next_step().expect("reads").is_none() {
                break;
            }
        }
        let audits = loader.audits();
        assert_eq!(audits.len(), 6);
        let of_first = (1437, audits[0].digest_sum);
        assert!(audits.iter().all(|audit| (audit.samples, audit.digest_sum) == of_first), "{audits:?}");
    }
}
