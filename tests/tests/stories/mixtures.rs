//! Several datasets of several stores read as one, without any node: what each step reads is what the mixture says, for any
//! number of ranks, and is gone on with at the very sample.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shardd_client::audit::row_digests;
use shardd_client::loader::{
    Cursor, EpochAudit, Follow, LastBatch, Loader, LoaderConfig, MixedSource, OrderId, Part, Spans, Steps,
};
use shardd_plan::{Mixture, MixtureDocument, MixturePhase, MixtureSource, Plan, SampleNo, SourceNo, Take};
use shardd_store::catalog::{Catalog, LocalCatalog, StorePlace};
use shardd_tests::{binary, run};
use shardfmt::{DigestSum, PlanId, RowCodec, RowDigest};
use tempfile::TempDir;

/// Datasets by name, how many samples each has, and in which of the two stores.
const DATASETS: [(&str, u64, &str); 4] =
    [("books", 613, "one"), ("code", 150, "two"), ("maths", 37, "two"), ("pictures", 9, "one")];

/// Two stores with datasets.
struct Stores(TempDir);

/// A source of a mixture, and its facts.
struct Known {
    plan: Plan,
    rows: Vec<RowDigest>,
    sum: DigestSum,
    source: MixedSource,
}

impl Stores {
    fn new() -> Stores {
        let stores = Stores(TempDir::new().expect("a temporary directory can be made"));
        for (name, samples, store) in DATASETS {
            let rows: String = match name {
                "pictures" => (0..samples).map(|n| format!("{n},{name} {n}\n")).collect(),
                _ => {
                    (0..samples).map(|n| format!("{name} {n},{}\n", "x".repeat((n % 50) as usize))).collect()
                }
            };
            let header = if name == "pictures" { "number,text" } else { "title,text" };
            let file = stores.0.path().join(format!("{name}.csv"));
            fs::write(&file, format!("{header}\n{rows}")).expect("it can be written");
            run(stores.shardctl(store).arg("ingest").arg(&file).args([
                "--name",
                name,
                "--shard-size",
                "4KiB",
            ]));
        }
        stores
    }

    fn place(&self, store: &str) -> PathBuf {
        self.0.path().join(store)
    }

    fn shardctl(&self, store: &str) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.arg("--store").arg(self.place(store)).env("HOME", self.0.path());
        command
    }

    /// A source over a plan of the dataset of this name.
    fn source(&self, name: &str, take: Take) -> MixedSource {
        let (_, _, store) = DATASETS.into_iter().find(|(known, ..)| *known == name).expect("a dataset");
        let said = run(self
            .shardctl(store)
            .args(["--json", "partition", "--q", "0.5", "--partitions", "8", name])
            .args(["--grain-rows", "1"]));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let plan: PlanId = said["plan"].as_str().expect("an id").parse().expect("a digest");
        MixedSource { place: StorePlace::Directory(self.place(store)), plan: plan.into(), take }
    }

    fn known(&self, source: MixedSource) -> Known {
        let StorePlace::Directory(directory) = &source.place else { panic!("a directory") };
        let catalog = LocalCatalog::open(directory).expect("a store");
        let shardd_client::loader::PlanRef::Id(id) = &source.plan else { panic!("an id") };
        let document = catalog.plan(*id).expect("a plan");
        let manifest = catalog.manifest(document.version).expect("a version");
        let file = catalog.open_manifest(document.version).expect("a version");
        Known {
            plan: Plan::new(document, &manifest.shard_rows()).expect("it fits"),
            rows: row_digests(&catalog, &file).expect("sidecars"),
            sum: manifest.digest_sum(),
            source,
        }
    }
}

/// A step: its reads and their ranks, and the next place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Read {
    parts: Vec<Part>,
    /// By the number of the part and the position in its epoch.
    rows: BTreeMap<(usize, u64), (SourceNo, RowDigest)>,
    cursor: Cursor,
}

/// A mixture, and how it is read.
struct Story {
    known: Vec<Known>,
    mixture: Mixture,
    epoch_size: Option<u64>,
    shuffle: bool,
    batch_size: u32,
    last_batch: LastBatch,
    end_epoch: u32,
}

impl Story {
    fn new(stores: &Stores, takes: &[(&str, Take)], epoch_size: Option<u64>) -> Story {
        Story::changing(stores, takes, epoch_size, &[])
    }

    /// One whose proportions change at these positions.
    fn changing(
        stores: &Stores,
        takes: &[(&str, Take)],
        epoch_size: Option<u64>,
        changes: &[(u64, [&str; 3])],
    ) -> Story {
        let phase = |(from, shares): &(u64, [&str; 3])| MixturePhase {
            from: *from,
            proportions: shares.map(|share| share.parse().expect("a decimal")).to_vec(),
        };
        let phases = changes.iter().map(phase).collect();
        let known: Vec<Known> =
            takes.iter().map(|(name, take)| stores.known(stores.source(name, *take))).collect();
        let sources = known.iter().map(|known| MixtureSource {
            plan: known.plan.id(),
            samples: known.plan.sample_count(),
            take: known.source.take,
        });
        let document = MixtureDocument::with_phases(sources.collect(), epoch_size, phases);
        Story {
            known,
            mixture: document.and_then(Mixture::new).expect("a mixture"),
            epoch_size,
            shuffle: true,
            batch_size: 2,
            last_batch: LastBatch::Short,
            end_epoch: 3,
        }
    }

    fn config(&self, virtual_ranks: u32, start: (u32, u64)) -> LoaderConfig {
        let follow = Follow::Mixture {
            sources: self.known.iter().map(|known| known.source.clone()).collect(),
            epoch_size: self.epoch_size,
            phases: self.mixture.document().phases.clone(),
        };
        LoaderConfig {
            virtual_ranks: Some(virtual_ranks),
            last_batch: self.last_batch,
            shuffle: self.shuffle,
            start,
            end_epoch: self.end_epoch,
            audit: true,
            ..LoaderConfig::following(follow, self.batch_size)
        }
    }

    /// What the documents say that is read from a position on: the walk of the mixture, and of each source its plan's epochs.
    fn said(&self, virtual_ranks: u32, start: (u32, u64)) -> Vec<Read> {
        let steps = Steps {
            sample_count: self.mixture.epoch_size(),
            global_batch: u64::from(virtual_ranks) * u64::from(self.batch_size),
            last_batch: self.last_batch,
        };
        let spans = Spans { steps, end_epoch: self.end_epoch }.from(start.0, start.1);
        let step = |span: shardd_client::loader::StepSpan| {
            let mut rows = BTreeMap::new();
            for (number, part) in span.parts.iter().enumerate() {
                // Unshuffled samples have the same order in every epoch.
                let epoch = if self.shuffle { u64::from(part.epoch) } else { 0 };
                let first = epoch * self.mixture.epoch_size() + part.positions.start;
                for (position, read) in part.positions.clone().zip(self.mixture.walk(first)) {
                    let known = &self.known[read.source.0 as usize];
                    let (epoch, at) = self.mixture.in_plan(read.source, read.nth);
                    let sample = if self.shuffle { known.plan.sample_at(epoch, at) } else { SampleNo(at) };
                    rows.insert((number, position), (read.source, known.rows[sample.0 as usize]));
                }
            }
            let order = OrderId::Mixture(self.mixture.id());
            let cursor = Cursor { order, epoch: span.next.0, position: span.next.1 };
            Read { parts: span.parts, rows, cursor }
        };
        spans.map(step).collect()
    }

    /// The samples that `world` ranks read of it, and their reports.
    fn read(&self, virtual_ranks: u32, world: u32, start: (u32, u64)) -> (Vec<Read>, Vec<EpochAudit>) {
        let (mut all, mut audits) = (Vec::new(), Vec::new());
        for rank in 0..world {
            let config = LoaderConfig { rank, world, ..self.config(virtual_ranks, start) };
            let mut loader = Loader::open(config).expect("opens");
            let mut number = 0;
            while let Some(read) = next(&mut loader) {
                let (read, shares) = read;
                let total = read.parts.iter().map(Part::samples).sum::<u64>();
                for (virtual_rank, samples) in shares {
                    let of = u64::from(virtual_ranks);
                    assert!(
                        (total / of..=total.div_ceil(of)).contains(&samples),
                        "{samples} samples for virtual rank {virtual_rank} of {of} in a step of {total}"
                    );
                }
                match all.get_mut(number) {
                    None => all.push(read),
                    Some(Read { parts, rows, cursor }) => {
                        assert_eq!((&*parts, *cursor), (&read.parts, read.cursor), "all ranks say the same");
                        for (at, row) in read.rows {
                            assert!(rows.insert(at, row).is_none(), "{at:?} is read by one rank");
                        }
                    }
                }
                number += 1;
            }
            assert_eq!(number, all.len(), "all ranks have as many steps");
            audits.extend_from_slice(loader.audits());
        }
        (all, audits)
    }
}

/// A rank's next step, and how many samples each of its virtual ranks has of it.
fn next(loader: &mut Loader) -> Option<(Read, Vec<(u32, u64)>)> {
    let codec = RowCodec::new(loader.schema().clone()).expect("rows");
    let step = loader.next_step().expect("reads")?;
    let (mut rows, mut shares) = (BTreeMap::new(), Vec::new());
    for micro_batch in &step.micro_batches {
        shares.push((micro_batch.virtual_rank, micro_batch.positions.len() as u64));
        assert_eq!(micro_batch.sources.len(), micro_batch.positions.len());
        let mut canonical = Vec::new();
        for (row, position) in micro_batch.positions.iter().enumerate() {
            canonical.clear();
            codec.encode(&micro_batch.batch, row, &mut canonical).expect("own rows");
            let part = micro_batch.ends.partition_point(|end| *end <= row);
            let found = (micro_batch.sources[row], RowDigest::of(&canonical));
            assert!(rows.insert((part, *position), found).is_none(), "{position} is read once");
        }
    }
    Some((Read { parts: step.parts.clone(), rows, cursor: step.cursor }, shares))
}

fn proportion(text: &str) -> Take {
    Take::Proportion(text.parse().expect("a decimal"))
}

fn repeat(text: &str) -> Take {
    Take::Repeat(text.parse().expect("a decimal"))
}

#[test]
fn any_number_of_ranks_reads_what_the_mixture_says_and_goes_on_anywhere() {
    let stores = Stores::new();
    let takes = [("books", proportion("0.6")), ("code", proportion("0.3")), ("maths", proportion("0.1"))];
    let mut story = Story::new(&stores, &takes, Some(301));
    for (virtual_ranks, last_batch) in
        [(8, LastBatch::Short), (8, LastBatch::Drop), (12, LastBatch::Wrap), (12, LastBatch::Carry)]
    {
        story.last_batch = last_batch;
        let said = story.said(virtual_ranks, (0, 0));
        let last = said.len() - 1;
        for world in [1, 2, 3, 4, 6, 8] {
            assert!(
                story.read(virtual_ranks, world, (0, 0)).0 == said,
                "{last_batch:?}: {world} ranks of {virtual_ranks} read other steps than the mixture says"
            );
            for stop in [0, 1, 4, last - 1, last] {
                let Cursor { epoch, position, .. } = said[stop].cursor;
                assert!(
                    story.read(virtual_ranks, world, (epoch, position)).0 == said[stop + 1..],
                    "{last_batch:?}: {world} ranks continue elsewhere after {} steps",
                    stop + 1
                );
            }
        }
        println!("{last_batch:?}: {} steps alike for 1 to 8 ranks of {virtual_ranks}", said.len());
    }
}

#[test]
fn proportions_that_change_are_read_alike_by_any_number_of_ranks_from_anywhere() {
    let stores = Stores::new();
    let takes = [("books", proportion("0.9")), ("code", proportion("0.1")), ("maths", proportion("0"))];
    // Within the first epoch, within a step of the second, and where the third begins.
    let changes = [(100, ["0.5", "0.5", "0"]), (425, ["0", "0.25", "0.75"]), (602, ["1", "1", "1"])];
    let mut story = Story::changing(&stores, &takes, Some(301), &changes);
    for last_batch in [LastBatch::Short, LastBatch::Drop, LastBatch::Wrap, LastBatch::Carry] {
        story.last_batch = last_batch;
        let said = story.said(8, (0, 0));
        let read = said.iter().flat_map(|read| read.rows.values()).map(|(source, _)| source.0);
        assert!(read.take(96).all(|source| source < 2), "maths is read before its time");
        for world in [1, 3, 8] {
            assert!(story.read(8, world, (0, 0)).0 == said, "{last_batch:?}: {world} ranks read other steps");
            for stop in [5, 6, 18, 26, 37] {
                let Cursor { epoch, position, .. } = said[stop].cursor;
                assert!(
                    story.read(8, world, (epoch, position)).0 == said[stop + 1..],
                    "{last_batch:?}: {world} ranks continue elsewhere after {} steps",
                    stop + 1
                );
            }
        }
    }
}

#[test]
fn what_worlds_of_changing_size_read_one_after_the_other_is_disjoint_and_complete() {
    let stores = Stores::new();
    let takes = [("books", repeat("0.5")), ("code", repeat("2")), ("maths", Take::Choose(90))];
    let mut story = Story::new(&stores, &takes, None);
    (story.batch_size, story.end_epoch) = (5, 2);
    let said = story.said(8, (1, 0));
    let mut seen: BTreeMap<u64, (SourceNo, RowDigest)> = BTreeMap::new();
    let mut start = (1, 0);
    for (world, steps) in [(8, 3), (2, 1), (3, 5), (1, 2), (6, usize::MAX)] {
        for read in story.read(8, world, start).0.into_iter().take(steps) {
            for ((_, position), row) in read.rows {
                assert!(seen.insert(position, row).is_none(), "{position} was read before");
            }
            start = (read.cursor.epoch, read.cursor.position);
        }
    }
    let all = said.iter().flat_map(|read| &read.rows).map(|((_, position), row)| (*position, *row));
    assert!(seen == all.collect::<BTreeMap<_, _>>());
    assert_eq!(seen.len() as u64, 306 + 300 + 90, "an epoch has the requested samples");
    for (source, samples) in [306, 300, 90].into_iter().enumerate() {
        assert_eq!(seen.values().filter(|(of, _)| of.0 as usize == source).count(), samples);
    }
}

#[test]
fn in_every_prefix_each_source_is_within_two_samples_of_its_share() {
    let stores = Stores::new();
    let shares = [("books", 55), ("code", 25), ("maths", 13), ("code", 7)];
    let takes = shares.map(|(name, percent)| (name, proportion(&format!("{}", f64::from(percent) / 100.0))));
    let mut story = Story::new(&stores, &takes, Some(1000));
    (story.batch_size, story.end_epoch) = (10, 1);
    let (read, _) = story.read(4, 1, (0, 0));
    let mut had = [0_i64; 4];
    let in_order = read.iter().flat_map(|read| read.rows.values());
    for (before, (source, _)) in (1_i64..).zip(in_order) {
        had[source.0 as usize] += 1;
        for ((_, percent), had) in shares.iter().zip(had) {
            let off = (had * 100 - before * i64::from(*percent)).abs();
            assert!(off <= 200, "{had} of {before} are {percent} per cent");
        }
    }
    assert_eq!(had, [550, 250, 130, 70]);
}

#[test]
fn the_sum_of_all_ranks_audits_is_that_of_the_datasets_as_often_as_each_was_read() {
    let stores = Stores::new();
    let takes = [("books", repeat("1")), ("code", repeat("2")), ("maths", repeat("3"))];
    let story = Story::new(&stores, &takes, None);
    let sums: Vec<DigestSum> = story.known.iter().map(|known| known.sum).collect();
    let expected: DigestSum = [0, 1, 1, 2, 2, 2].into_iter().map(|source: usize| sums[source]).sum();
    for world in [1, 3] {
        let (_, audits) = story.read(6, world, (0, 0));
        for epoch in 0..3 {
            let of: Vec<&EpochAudit> = audits.iter().filter(|audit| audit.epoch == epoch).collect();
            assert_eq!(of.iter().map(|audit| audit.samples).sum::<u64>(), 613 + 2 * 150 + 3 * 37);
            assert_eq!(of.iter().map(|audit| audit.digest_sum).sum::<DigestSum>(), expected);
        }
    }
}

#[test]
fn stored_order_is_mixed_alike_and_every_other_step_can_be_left_to_others() {
    let stores = Stores::new();
    let takes = [("maths", proportion("1")), ("code", proportion("2"))];
    let mut story = Story::new(&stores, &takes, None);
    story.shuffle = false;
    let said = story.said(4, (0, 0));
    assert!(story.read(4, 3, (0, 0)).0 == said);
    let turns = [0, 1].map(|turn| {
        let start = (0, turn * 8);
        let mut loader = Loader::open(LoaderConfig { stride: 2, ..story.config(4, start) }).expect("opens");
        let mut read = Vec::new();
        while let Some((step, _)) = next(&mut loader) {
            read.push(step);
        }
        read
    });
    let [even, odd] = turns;
    let both = (0..said.len()).map(|at| if at % 2 == 0 { even[at / 2].clone() } else { odd[at / 2].clone() });
    assert!(both.collect::<Vec<_>>() == said);
}

#[test]
fn what_makes_no_mixture_is_refused_with_the_source_and_the_way_out() {
    let stores = Stores::new();
    let open = |takes: &[(&str, Take)], change: fn(&mut LoaderConfig)| {
        let sources = takes.iter().map(|(name, take)| stores.source(name, *take)).collect();
        let mut config = LoaderConfig::mixed(sources, None, 2);
        change(&mut config);
        Loader::open(config).err().expect("refused").to_string()
    };
    let both = [("books", repeat("1")), ("code", repeat("1"))];
    for (said, expected) in [
        (open(&[("books", repeat("1")), ("pictures", repeat("1"))], |_| ()), "source 1 (plan "),
        (
            open(&[("books", repeat("1")), ("pictures", repeat("1"))], |_| ()),
            "has no column \"title\", which is in source 0 (plan ",
        ),
        (
            open(&[("books", repeat("1")), ("pictures", repeat("1"))], |_| ()),
            "ingest one of the two again with the columns of the other",
        ),
        (
            open(&[("books", proportion("1")), ("code", repeat("1"))], |_| ()),
            "give all of them a proportion, or each a repeat or choose",
        ),
        (open(&[], |_| ()), "a mixture needs at least one source"),
        (
            open(&both, |config| (config.world, config.virtual_ranks) = (3, Some(2))),
            "as many virtual ranks as there will ever be ranks",
        ),
        (open(&both, |config| config.start = (0, 764)), "position 764 is beyond the 763 samples of an epoch"),
        (
            open(&both, |config| {
                (config.start, config.end_epoch, config.virtual_ranks) = ((0, 0), 1, Some(0))
            }),
            "0 virtual ranks",
        ),
    ] {
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_damaged_shard_of_one_source_is_named_and_nothing_of_it_is_read() {
    let stores = Stores::new();
    let takes = [("books", repeat("1")), ("maths", repeat("1"))];
    let story = Story::new(&stores, &takes, None);
    for shard in shards(&stores.place("two").join("store/shards")) {
        let mut bytes = fs::read(&shard).expect("a shard");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::remove_file(&shard).expect("it can be replaced");
        fs::write(&shard, bytes).expect("it can be written");
    }
    let mut loader = Loader::open(story.config(2, (0, 0))).expect("opens");
    let error = std::iter::repeat_with(|| loader.next_step()).find_map(Result::err).expect("it is found");
    let damaged = ["corrupt", "damaged", "digest"];
    assert!(damaged.iter().any(|word| error.to_string().contains(word)), "{error}");
}

fn shards(directory: &Path) -> Vec<PathBuf> {
    let below = |directory: &Path| -> Vec<PathBuf> {
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
    };
    let files = below(directory).into_iter().flat_map(|directory| below(&directory));
    files.filter(|file| file.extension().is_some_and(|kind| kind == "arrow")).collect()
}
