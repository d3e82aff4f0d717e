//! Ranks that meet through nodes, under tokio's paused clock: nodes restart and forget, or cannot be asked, the metastore
//! gives no answers, rank 0 dies and is replaced, and its last messages arrive late. A seed decides.

use std::cell::Cell;
use std::sync::Arc;

use shardd_store::metastore::MemoryMetastore;
use tokio::time::sleep;

use super::*;

/// The seeds that every run of the tests goes through; `SHARDD_SIM_SEEDS=A..B` goes through others.
const SEEDS: std::ops::Range<u64> = 0..2_000;
/// How often rank 0 repeats its announcement, and the others ask, as in the trainer's `through_nodes.rs`.
const REPEAT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(500);
/// After the last fault all ranks have met within this.
const BOUND: Duration = Duration::from_secs(15);

/// Random numbers that are the same for a seed everywhere (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
struct Dice(Cell<u64>);

impl Dice {
    fn below(&self, n: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A node: the announcements that it has heard, and whether it answers. Without the metastore it has one that never does.
struct Node {
    announced: Announced,
    is_up: bool,
    has_metastore: bool,
}

struct World {
    dice: Dice,
    run: RunId,
    meta: Arc<MemoryMetastore>,
    nodes: Vec<Node>,
    /// Where the present rank 0 listens.
    listens: String,
    /// Announcements and removals of earlier ones that are still under way.
    late: Vec<(String, bool)>,
    /// The other ranks, and the address at which each has met rank 0.
    others: Vec<Option<String>>,
}

const WORLD: u32 = 4;

impl World {
    fn new(seed: u64) -> World {
        let dice = Dice(Cell::new(seed));
        let node = |_| Node { announced: Announced::default(), is_up: true, has_metastore: true };
        World {
            run: "sim".parse().expect("a good name"),
            meta: Arc::new(MemoryMetastore::new()),
            nodes: (0..1 + dice.below(3)).map(node).collect(),
            listens: "10.0.0.1:1".to_owned(),
            late: Vec::new(),
            others: vec![None; WORLD as usize - 1],
            dice,
        }
    }

    fn meta_of(&self, node: &Node) -> Arc<dyn Metastore> {
        match node.has_metastore {
            true => Arc::clone(&self.meta) as Arc<dyn Metastore>,
            // Nothing was heard from it yet: it knows nothing, and nothing can be changed.
            false => Arc::new(shardd_store::metastore::Recalled::new(&["rendezvous/"])),
        }
    }

    async fn announce(&self, address: &str) {
        let said = Rendezvous { address: address.to_owned(), world: WORLD };
        for node in self.nodes.iter().filter(|node| node.is_up) {
            node.announced.put(self.meta_of(node).as_ref(), &self.run, &said).await.expect("kept");
        }
    }

    async fn remove(&self, address: &str) {
        for node in self.nodes.iter().filter(|node| node.is_up) {
            let meta = self.meta_of(node);
            node.announced.remove(meta.as_ref(), &self.run, Some(address)).await.expect("removed");
        }
    }

    /// The others ask, and meet rank 0 if it listens there.
    async fn ask(&mut self) {
        for rank in 0..self.others.len() {
            if self.others[rank].is_some() {
                continue;
            }
            for node in self.nodes.iter().filter(|node| node.is_up) {
                let meta = self.meta_of(node);
                let found = node.announced.find(meta.as_ref(), &self.run).await.expect("an answer");
                let Some(found) = found else { continue };
                if found.address == self.listens {
                    self.others[rank] = Some(found.address);
                }
                // The first that knows an address decides, as for a rank.
                break;
            }
        }
    }

    async fn befall(&mut self) {
        let number = self.dice.below(self.nodes.len() as u64) as usize;
        match self.dice.below(6) {
            0 => self.nodes[number].is_up = false,
            1 => {
                let has_metastore = self.nodes[number].has_metastore;
                self.nodes[number] = Node { announced: Announced::default(), is_up: true, has_metastore };
            }
            2 => self.nodes.iter_mut().for_each(|node| node.has_metastore = false),
            3 => self.nodes.iter_mut().for_each(|node| node.has_metastore = true),
            4 => {
                // Those that had met it have lost it.
                let (port, is_removed) = (2 + self.dice.below(60_000), self.dice.below(2) == 0);
                let before = std::mem::replace(&mut self.listens, format!("10.0.0.1:{port}"));
                self.late.push((before, is_removed));
                self.others.fill(None);
                let now = self.listens.clone();
                self.announce(&now).await;
            }
            _ => self.nodes.iter_mut().for_each(|node| node.is_up = true),
        }
    }

    /// Something arrives of what an earlier rank 0 has sent.
    async fn arrive(&mut self) {
        let Some((address, is_removed)) = self.late.pop() else { return };
        match is_removed {
            true => self.remove(&address).await,
            false => self.announce(&address).await,
        }
    }

    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let mut repeats = Instant::now() + REPEAT;
        while Instant::now() < until {
            sleep(POLL).await;
            if Instant::now() >= repeats {
                let now = self.listens.clone();
                self.announce(&now).await;
                repeats += REPEAT;
            }
            self.ask().await;
        }
    }

    async fn play(mut self) {
        let now = self.listens.clone();
        self.announce(&now).await;
        for _ in 0..self.dice.below(20) {
            self.befall().await;
            self.pass(Duration::from_millis(self.dice.below(5_000))).await;
            if self.dice.below(3) == 0 {
                self.arrive().await;
            }
        }
        while !self.late.is_empty() {
            self.arrive().await;
        }
        self.nodes.iter_mut().for_each(|node| (node.is_up, node.has_metastore) = (true, true));
        self.pass(BOUND).await;
        let met = vec![Some(self.listens.clone()); self.others.len()];
        assert_eq!(self.others, met, "all ranks are with the rank 0 that lives");
    }
}

fn play(seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(World::new(seed).play());
}

#[test]
fn whatever_goes_wrong_the_ranks_meet_soon_after_the_last_fault() {
    let (began, seeds) = (std::time::Instant::now(), seeds());
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let played = std::panic::catch_unwind(|| play(seed));
        assert!(played.is_ok(), "seed {seed} fails: SHARDD_SIM_SEEDS={seed}..{} repeats it", seed + 1);
    }
    println!("{count} seeds in {:.1} s", began.elapsed().as_secs_f64());
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SHARDD_SIM_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("SHARDD_SIM_SEEDS=FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn said(port: u16) -> Rendezvous {
    Rendezvous { address: format!("10.0.0.1:{port}"), world: WORLD }
}

#[tokio::test(start_paused = true)]
async fn a_late_removal_leaves_the_address_of_a_newer_rank_0() {
    let (meta, run) = (MemoryMetastore::new(), "r".parse().expect("a good name"));
    let (one, other) = (Announced::default(), Announced::default());
    one.put(&meta, &run, &said(1)).await.expect("kept");
    one.put(&meta, &run, &said(2)).await.expect("kept");
    one.remove(&meta, &run, Some(&said(1).address)).await.expect("removed");
    assert_eq!(one.find(&meta, &run).await, Ok(Some(said(2))));
    assert_eq!(other.find(&meta, &run).await, Ok(Some(said(2))));
    other.remove(&meta, &run, None).await.expect("removed");
    assert_eq!(Announced::default().find(&meta, &run).await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn what_rank_0_says_counts_for_more_than_what_an_earlier_one_left_in_the_metastore() {
    let (meta, run) = (MemoryMetastore::new(), "r".parse().expect("a good name"));
    let node = Announced::default();
    node.put(&meta, &run, &said(1)).await.expect("kept");
    let away = shardd_store::metastore::Recalled::new(&["rendezvous/"]);
    node.put(&away, &run, &said(2)).await.expect("kept");
    assert_eq!(node.find(&meta, &run).await, Ok(Some(said(2))));
    // Once it is repeated, all nodes know.
    node.put(&meta, &run, &said(2)).await.expect("kept");
    assert_eq!(Announced::default().find(&meta, &run).await, Ok(Some(said(2))));
}
