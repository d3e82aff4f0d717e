//! What a seed decides to go wrong, and what must hold after every step: each sample once in each epoch, with its own bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use shardd_api::drain::Drain;
use shardd_api::health::Ailment;
use shardd_api::local_transport::Transport;
use shardd_api::protocol::{Attach, CreateRun, LocateRequest, Located, RunId};
use shardd_plan::{Epoch, GrainNo, Plan, SlotTable, VirtualRank};
use shardfmt::{Grain, RowDigest};
use tokio::time::{Instant, timeout};

use super::world::{DATA, MOST_NODES, Metadata, World};
use crate::transport::lossy::{Dice, Net};

const VIRTUAL_RANKS: u32 = 4;
const EPOCHS: u32 = 4;
/// Samples of a step, of all ranks.
const STEP: u64 = 30;
/// A node gives a grain within this, whatever has become of the others.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The seeds that every run of the tests goes through.
const SEEDS: std::ops::Range<u64> = 0..200;

/// The possible faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Loss,
    Cut,
    OneWayCut,
    Isolation,
    MetastoreAway,
    AnswersLost,
    Crash,
    DiskLost,
    DiskSpoilt,
    DiskTorn,
    AllDisksLost,
    Restart,
    Lies,
    Drained,
    HostsAgain,
    Paused,
    Healing,
}

const FAULTS: [Fault; 16] = [
    Fault::Loss,
    Fault::Cut,
    Fault::OneWayCut,
    Fault::Isolation,
    Fault::MetastoreAway,
    Fault::Crash,
    Fault::DiskLost,
    Fault::DiskSpoilt,
    Fault::DiskTorn,
    Fault::AllDisksLost,
    Fault::Restart,
    Fault::Lies,
    Fault::Drained,
    Fault::HostsAgain,
    Fault::Paused,
    Fault::Healing,
];

/// The seeds of clusters whose metadata is in their store.
const SEEDS_IN_STORE: std::ops::Range<u64> = 0..10;

/// The seeds of clusters whose metadata is on the first node.
const SEEDS_ON_FIRST: std::ops::Range<u64> = 0..10;

/// The outcome of a story.
#[derive(Debug, Default)]
struct Outcome {
    faults: BTreeMap<Fault, u32>,
    virtual_time: Duration,
    datagrams: u64,
    lost: u64,
    origin: f64,
}

struct Scenario {
    world: World,
    dice: Dice,
    told: Outcome,
    run: RunId,
    ranks: u32,
    /// Whether answers of the metastore get lost, too.
    loses_answers: bool,
}

impl Scenario {
    async fn tell(seed: u64, meta: Metadata) -> Outcome {
        let began = Instant::now();
        let mut dice = Dice::new(seed);
        let nodes = 1 + dice.below(MOST_NODES);
        let q = ["0", "0.1", "0.3", "1"][dice.below(4)];
        let ranks = [1, 2, 4][dice.below(3)];
        let loses_answers = !matches!(meta, Metadata::Memory(_));
        let world = World::new(Net::new(Dice::new(dice.next())), meta, nodes, q).await;
        let run: RunId = "sim".parse().expect("a good name");
        let mut story = Scenario { world, dice, told: Outcome::default(), run, ranks, loses_answers };
        story.begin().await;
        for epoch in 0..EPOCHS {
            // The last one is quiet: what faults have left behind must not last.
            let rate = if epoch + 1 == EPOCHS { 0.0 } else { 0.5 };
            if rate == 0.0 {
                story.mend();
            }
            story.read_epoch(epoch, rate).await;
        }
        let Scenario { world, mut told, .. } = story;
        let counts = world.net.counts();
        (told.datagrams, told.lost) = (counts.sent, counts.lost);
        told.origin = world.origin_bytes() as f64 / DATA.manifest.bytes() as f64;
        told.virtual_time = began.elapsed();
        world.end().await;
        told
    }

    async fn begin(&mut self) {
        let plan = self.world.plan.id();
        let create = CreateRun { id: self.run.clone(), plan, virtual_ranks: VIRTUAL_RANKS };
        self.world.engine(0).create_run(create).await.expect("created");
        let attached = (0..self.ranks).map(|rank| {
            let own = rank as usize * self.world.nodes.len() / self.ranks as usize;
            let engine = Arc::clone(self.world.engine(own));
            let (run, world) = (self.run.clone(), self.ranks);
            async move { engine.attach(&run, rank, Attach { world, epoch: 0 }).await.expect("attached") }
        });
        futures::future::join_all(attached).await;
    }

    async fn read_epoch(&mut self, epoch: u32, rate: f64) {
        let table = SlotTable::at(&self.world.plan, Epoch(epoch));
        let samples = self.world.plan.sample_count();
        let mut seen = BTreeSet::new();
        let mut position = 0;
        while position < samples {
            if self.dice.happens(rate) {
                let mut fault = FAULTS[self.dice.below(FAULTS.len())];
                if self.loses_answers && self.dice.happens(0.1) {
                    fault = Fault::AnswersLost;
                }
                self.befall(fault).await;
            }
            let end = (position + STEP).min(samples);
            for rank in 0..self.ranks {
                for virtual_rank in Plan::virtual_ranks_of(rank, self.ranks, VIRTUAL_RANKS) {
                    let partitions = self.world.plan.partitions_of(VirtualRank(virtual_rank), VIRTUAL_RANKS);
                    for read in self.world.plan.step_reads(&table, position..end, partitions) {
                        let bytes = self.locate(rank, (epoch, position), read.partition.0, read.grain).await;
                        let grain = Grain::parse(&bytes).expect("a grain");
                        let sample = self.world.plan.sample(read.grain, read.row);
                        let expected = DATA.rows[sample.0 as usize];
                        assert_eq!(
                            RowDigest::of(grain.row(read.row)),
                            expected,
                            "sample {sample} in epoch {epoch}"
                        );
                        assert!(seen.insert(sample), "sample {sample} twice in epoch {epoch}");
                    }
                }
            }
            position = end;
            // A step takes its time: meanwhile the exchange continues.
            tokio::time::sleep(Duration::from_millis(50 + self.dice.next() % 400)).await;
        }
        assert_eq!(seen.len() as u64, samples, "epoch {epoch}");
    }

    /// A grain, from its host or, where that does not run, from any node that does: a loader asks in this order.
    async fn locate(&mut self, rank: u32, at: (u32, u64), partition: u32, grain: GrainNo) -> Vec<u8> {
        let began = Instant::now();
        for attempt in 0.. {
            let running = self.world.running();
            let own = running[rank as usize % running.len()];
            let view = timeout(TIMEOUT, self.world.engine(own).view(&self.run)).await;
            let placement = view.ok().and_then(Result::ok).and_then(|view| view.placement);
            let host = placement.and_then(|placement| {
                let number = self.world.number_of().get(placement.host(partition)).copied()?;
                running.contains(&number).then_some(number)
            });
            // The host first; if it cannot answer, one after the other.
            let asked = if attempt == 0 { host.unwrap_or(own) } else { running[attempt % running.len()] };
            let engine = Arc::clone(self.world.engine(asked));
            let request = self.request(rank, at, grain, Transport::Files);
            let located = timeout(TIMEOUT, engine.locate(&self.run, request)).await;
            let located = located.unwrap_or_else(|_| panic!("grain {} hangs at {at:?}", grain.0));
            // A node that came during an outage of the metastore does not know the run yet: another one does,
            // or it will.
            let (reply, inline) = match located {
                Ok(located) => located,
                Err(error) => {
                    assert!(began.elapsed() < TIMEOUT, "grain {} is not given at {at:?}: {error}", grain.0);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    self.mend_if_nobody_knows().await;
                    continue;
                }
            };
            match &reply.grains[0] {
                Located::File { segment, offset, len } => {
                    // A segment may be dropped before it is opened: then a loader asks again.
                    let Ok(file) = engine.open_segment(segment) else { continue };
                    let mut bytes = vec![0; *len as usize];
                    if file.read_exact_at(&mut bytes, *offset).is_err() || !self.is_good(grain, &bytes) {
                        // Spoilt under the node's feet: a loader verifies, says so, and takes bytes. Here it asks another node.
                        return self.read_elsewhere(rank, at, grain).await;
                    }
                    return bytes;
                }
                Located::Inline { .. } | Located::Rows { .. } => return inline[0].to_vec(),
            }
        }
        unreachable!("attempts do not end");
    }

    fn request(&self, rank: u32, at: (u32, u64), grain: GrainNo, transport: Transport) -> LocateRequest {
        let ((epoch, position), world) = (at, self.ranks);
        let (for_epoch, grains, doubted) = (epoch, vec![grain.0], transport == Transport::Stream);
        let rows = Vec::new();
        let loop_time = None;
        LocateRequest { rank, world, epoch, position, for_epoch, grains, transport, doubted, rows, loop_time }
    }

    fn is_good(&self, grain: GrainNo, bytes: &[u8]) -> bool {
        let place = self.world.plan.locate_grain(grain);
        let entry = &DATA.manifest.shards[place.shard as usize];
        let rows = self.world.plan.document().grain_rows;
        let key = shardfmt::GrainKey { shard: entry.id, rows, index: place.index };
        Grain::parse(bytes).is_ok_and(|grain| grain.verify(key, entry.rows, entry.root).is_ok())
    }

    /// Bytes instead of a file, as for a loader on another machine.
    async fn read_elsewhere(&self, rank: u32, at: (u32, u64), grain: GrainNo) -> Vec<u8> {
        for number in self.world.running() {
            let request = self.request(rank, at, grain, Transport::Stream);
            let engine = self.world.engine(number);
            let located = timeout(TIMEOUT, engine.locate(&self.run, request)).await;
            if let Ok(Ok((_, inline))) = located
                && let Some(bytes) = inline.first()
            {
                assert!(self.is_good(grain, bytes), "a node sends grains that it has not verified");
                return bytes.to_vec();
            }
        }
        panic!("no node gives grain {}", grain.0);
    }

    /// Runs are known to who has heard of them; when all who had are gone, the metastore has to come back.
    async fn mend_if_nobody_knows(&mut self) {
        for number in self.world.running() {
            if self.world.engine(number).view(&self.run).await.is_ok() {
                return;
            }
        }
        self.world.heal();
        // It may have the metadata.
        if self.world.nodes[0].process.is_none() {
            self.world.start(0);
        }
    }

    async fn befall(&mut self, fault: Fault) {
        let running = self.world.running();
        let one = running[self.dice.below(running.len())];
        let other = self.dice.below(self.world.nodes.len());
        match fault {
            Fault::Loss => self.world.net.set_loss(0.2),
            Fault::Cut | Fault::OneWayCut => {
                let (a, b) = (self.world.nodes[one].address, self.world.nodes[other].address);
                self.world.net.cut(a, b);
                if fault == Fault::Cut {
                    self.world.net.cut(b, a);
                }
            }
            Fault::Isolation => self.world.isolate(one),
            Fault::MetastoreAway => self.world.lose_metastore(one),
            Fault::AnswersLost => self.world.lose_answers(one),
            // One node is always left.
            Fault::Crash | Fault::DiskLost | Fault::DiskSpoilt | Fault::DiskTorn if running.len() == 1 => {
                return;
            }
            Fault::Crash => self.world.kill(one).await,
            Fault::DiskLost => self.restart(one, |disk, _| lose(disk)).await,
            Fault::DiskSpoilt => self.restart(one, spoil).await,
            // It had promised to keep the lost grains.
            Fault::DiskTorn => self.restart(one, tear).await,
            Fault::AllDisksLost => {
                for number in running {
                    self.restart(number, |disk, _| lose(disk)).await;
                }
            }
            Fault::Lies => self.world.set_lies(one, true),
            // The metastore may be away, and there may be no other node.
            Fault::Drained => {
                let why = [Drain::Asked, Drain::Stopping][self.dice.below(2)];
                let _ = self.world.engine(one).drain(&self.world.nodes[other].id, Some(why)).await;
            }
            Fault::HostsAgain => {
                let _ = self.world.engine(one).drain(&self.world.nodes[other].id, None).await;
            }
            Fault::Paused => tokio::time::sleep(Duration::from_secs(600)).await,
            Fault::Restart => {
                if self.world.nodes[other].process.is_some() {
                    return;
                }
                self.world.start(other);
            }
            Fault::Healing => self.world.heal(),
        }
        *self.told.faults.entry(fault).or_default() += 1;
    }

    /// Kills a node, lets something happen to its disk, and starts it again. What happens has dice of its own: how often they
    /// are thrown depends on the files there, and later steps are not to depend on it.
    async fn restart(&mut self, number: usize, happens: fn(&Path, &mut Dice)) {
        self.world.kill(number).await;
        let mut dice = Dice::new(self.dice.next());
        happens(self.world.nodes[number].disk.path(), &mut dice);
        self.world.start(number);
    }

    /// All nodes run, and reach each other.
    fn mend(&mut self) {
        self.world.heal();
        for number in 0..self.world.nodes.len() {
            if self.world.nodes[number].process.is_none() {
                self.world.start(number);
            }
        }
    }
}

/// Nothing is left of a cache.
fn lose(disk: &Path) {
    let _ = std::fs::remove_dir_all(disk.join("segments"));
}

/// Changes a byte in some of the segments of a cache.
fn spoil(disk: &Path, dice: &mut Dice) {
    harm(disk, dice, |bytes, dice| {
        let at = dice.below(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
    });
}

/// Some of the segments of a cache end early.
fn tear(disk: &Path, dice: &mut Dice) {
    harm(disk, dice, |bytes, dice| bytes.truncate(dice.below(bytes.len())));
}

fn harm(disk: &Path, dice: &mut Dice, harm: impl Fn(&mut Vec<u8>, &mut Dice)) {
    let Ok(entries) = std::fs::read_dir(disk.join("segments")) else { return };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let Ok(mut bytes) = std::fs::read(&path) else { continue };
        if bytes.is_empty() || dice.happens(0.5) {
            continue;
        }
        harm(&mut bytes, dice);
        std::fs::write(&path, bytes).expect("written");
    }
}

/// Ends the process if a seed takes no end: under a clock that jumps, a task that waits for nothing stands
/// still.
struct Watchdog(mpsc::SyncSender<u64>);

impl Watchdog {
    /// Real time that a seed may take, on a machine that does much else.
    const TIMEOUT: Duration = Duration::from_secs(120);

    fn new() -> Watchdog {
        let (tell, told) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut seed = None;
            loop {
                match told.recv_timeout(Self::TIMEOUT) {
                    Ok(next) => seed = Some(next),
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                }
            }
            let seed = seed.expect("the first one is reported at once");
            eprintln!("seed {seed} takes no end: {}", replay(seed));
            std::process::exit(1);
        });
        Watchdog(tell)
    }

    /// A seed begins.
    fn begins(&self, seed: u64) {
        self.0.send(seed).expect("the other end listens");
    }
}

/// How to repeat a seed, with all that the nodes log.
fn replay(seed: u64) -> String {
    let next = seed.wrapping_add(1);
    format!(
        "SHARDD_SIM_LOG=1 SHARDD_SIM_SEEDS={seed}..{next} SHARDD_SIM_TIMES=20 cargo test --release -p shardd --lib sim:: -- --nocapture"
    )
}

/// How often each seed is played: the faults and their times are the same each time, but which of several
/// tasks and threads is ahead is not up to the seed.
fn times() -> u32 {
    let Ok(text) = std::env::var("SHARDD_SIM_TIMES") else { return 1 };
    text.parse().expect("SHARDD_SIM_TIMES=NUMBER")
}

fn seeds(by_default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SHARDD_SIM_SEEDS") else { return by_default };
    let (from, to) = text.split_once("..").expect("SHARDD_SIM_SEEDS=FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn whatever_goes_wrong_every_sample_is_read_once_and_right() {
    play(seeds(SEEDS), Metadata::in_memory);
}

#[test]
fn whatever_goes_wrong_with_metadata_in_the_store_every_sample_is_read_once_and_right() {
    play(seeds(SEEDS_IN_STORE), Metadata::in_store);
}

#[test]
fn whatever_goes_wrong_with_metadata_on_the_first_node_every_sample_is_read_once_and_right() {
    play(seeds(SEEDS_ON_FIRST), Metadata::on_first);
}

/// Tells the stories of these seeds, each of a new cluster.
fn play(seeds: std::ops::Range<u64>, meta: fn() -> Metadata) {
    let began = std::time::Instant::now();
    let mut all = Outcome::default();
    let count = seeds.end - seeds.start;
    if std::env::var_os("SHARDD_SIM_LOG").is_some() {
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_target(false);
        lines.with_writer(std::io::stderr).with_ansi(false).try_init().ok();
    }
    let (times, mut before) = (times(), None);
    let watchdog = Watchdog::new();
    for seed in seeds.flat_map(|seed| std::iter::repeat_n(seed, times as usize)) {
        watchdog.begins(seed);
        let told = std::panic::catch_unwind(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(Scenario::tell(seed, meta()))
        });
        let Ok(told) = told else { panic!("seed {seed} fails: {}", replay(seed)) };
        if let Some((last, faults)) = before.replace((seed, told.faults.clone()))
            && last == seed
        {
            assert_eq!(faults, told.faults, "seed {seed} does not decide what goes wrong");
        }
        for (fault, times) in told.faults {
            *all.faults.entry(fault).or_default() += times;
        }
        all.virtual_time += told.virtual_time;
        all.datagrams += told.datagrams;
        all.lost += told.lost;
        all.origin = all.origin.max(told.origin);
        if seed % 50 == 49 {
            println!("seed {seed}: {:.1} s", began.elapsed().as_secs_f64());
        }
    }
    println!(
        "{count} seeds, {:.1} virtual hours in {:.1} s; {} datagrams, {} lost; faults {:?}; at most {:.2} x the data set from the store",
        all.virtual_time.as_secs_f64() / 3600.0,
        began.elapsed().as_secs_f64(),
        all.datagrams,
        all.lost,
        all.faults,
        all.origin,
    );
}

/// Reads some epochs of a cluster of four with something wrong with the third node; checks which node is then
/// reported, and that the report ended with the fault.
fn named(goes_wrong: fn(&World)) -> BTreeMap<String, BTreeSet<Ailment>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let world = World::new(Net::new(Dice::new(7)), Metadata::in_memory(), 4, "1").await;
        let run: RunId = "sim".parse().expect("a good name");
        let mut story = Scenario {
            world,
            dice: Dice::new(7),
            told: Outcome::default(),
            run,
            ranks: 4,
            loses_answers: false,
        };
        story.begin().await;
        story.read_epoch(0, 0.0).await;
        goes_wrong(&story.world);
        for epoch in 1..6 {
            story.read_epoch(epoch, 0.0).await;
        }
        tokio::time::sleep(Duration::from_secs(85)).await;
        let health_issues = |story: &Scenario, of: usize| {
            let nodes = story.world.engine(of).node_states().into_iter();
            let named = nodes.filter(|node| !node.health_issues.is_empty()).map(|node| {
                (node.record.id.to_string(), node.health_issues.iter().map(|trouble| trouble.what).collect())
            });
            named.collect::<BTreeMap<String, BTreeSet<Ailment>>>()
        };
        let found = health_issues(&story, 0);
        assert_eq!(health_issues(&story, 3), found, "all nodes know the same");
        story.world.heal();
        tokio::time::sleep(Duration::from_secs(5400)).await;
        assert_eq!(health_issues(&story, 0), BTreeMap::new(), "an ended fault stays ended");
        story.world.end().await;
        found
    })
}

#[test]
fn a_node_that_lies_is_named_and_no_other_is() {
    let found = named(|world| world.set_lies(2, true));
    assert_eq!(found, BTreeMap::from([("n2".to_owned(), BTreeSet::from([Ailment::WrongGrains]))]));
}

#[test]
fn a_node_behind_a_slow_link_is_named_and_no_other_is() {
    let found = named(|world| world.net.slow_down(world.nodes[2].address, Duration::from_millis(300)));
    assert_eq!(found, BTreeMap::from([("n2".to_owned(), BTreeSet::from([Ailment::SlowAnswers]))]));
}

#[test]
fn of_nodes_that_are_in_order_none_is_named() {
    assert_eq!(named(|_| {}), BTreeMap::new());
}
