//! What more ranks are worth: the same global batch on 1, 2, 4 and 8 of them (strong), and a micro-batch for each (weak), on links of 10, 1 and
//! 0.1 Gbit/s. `cargo bench -p shardd-benches --bench scaling` prints a table, and one of what goes over the link.
//!
//! Blocks take a set time, as on an accelerator, so that few cores are enough for eight ranks; the parameters, their sums and updates are real.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::Parser;
use shardd_benches::link::{self, LinkSpeed, Links, Usage};
use shardd_benches::timed::TimedModel;
use shardd_benches::turns::{StepFigures, Way, growth, in_turns, medians};
use shardd_trainer::Optimizer;
use shardd_trainer::buckets::BucketSizes;
use shardd_trainer::collective::Collective;
use shardd_trainer::collective::tcp::{TcpOptions, connect};
use shardd_trainer::compress::Compression;
use shardd_trainer::engine::{Engine, EngineError, Share, StepPlan};
use shardd_trainer::random::Key;
use shardd_trainer::reduce::{Comm, Reduction, VirtualRanks};

/// As in `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;
const WORLDS: [u32; 4] = [1, 2, 4, 8];
const GBITS: [f64; 3] = [10.0, 1.0, 0.1];
/// Micro-batches of a step in strong scaling.
const GLOBAL: u32 = 8;
/// 10 MiB that take 150 ms for a micro-batch.
const MODEL: TimedModel = TimedModel { blocks: 10, block_len: 1 << 18, forward: Duration::from_millis(50) };

/// Prints the tables, or is one of the processes whose links `benches/link/run` has shaped.
#[derive(Parser)]
struct Args {
    /// Which of the processes, from 0.
    #[arg(long, requires_all = ["world", "meet", "gbit"])]
    rank: Option<u32>,
    /// How many there are.
    #[arg(long, default_value_t = 1)]
    world: u32,
    /// Where rank 0 is: HOST:PORT.
    #[arg(long, default_value = "")]
    meet: String,
    /// How fast their links are, in Gbit/s.
    #[arg(long, default_value_t = 1.0)]
    gbit: f64,
    /// As cargo bench says it.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    if args.rank.is_some() {
        return process(&args);
    }
    println!("{HEADING}");
    for scaling in Scaling::BOTH {
        let mut alone = 0.0;
        for world in WORLDS {
            let speeds: Vec<_> = GBITS.into_iter().map(|gbit| Some(LinkSpeed::gbit(gbit))).collect();
            let speeds = if world == 1 { vec![None] } else { speeds };
            for (&speed, figures) in speeds.iter().zip(measure(world, scaling.work(world), &speeds, ROUNDS)) {
                if world == 1 {
                    alone = figures.seconds;
                }
                print(scaling, world, speed, figures, alone);
            }
        }
    }
    bytes();
}

const HEADING: &str =
    "scaling  ranks  Gbit/s       step  speed-up  of ideal  link/compute  hidden  sent of least";

/// How a step's work is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    Strong,
    Weak,
}

impl Scaling {
    const BOTH: [Scaling; 2] = [Scaling::Strong, Scaling::Weak];

    fn work(self, world: u32) -> Work {
        let virtual_ranks = if self == Scaling::Strong { GLOBAL } else { world };
        Work { model: MODEL, virtual_ranks, micro_batches: 1, reduction: Reduction::Exact }
    }
}

/// A line of the table, with the time of a step on one rank.
fn print(scaling: Scaling, world: u32, speed: Option<LinkSpeed>, figures: StepFigures, alone: f64) {
    let StepFigures { seconds, link_s, waited_s, sent } = figures;
    let grown = if scaling == Scaling::Strong { 1.0 } else { f64::from(world) };
    let speed_up = grown * alone / seconds;
    let compute_s = MODEL.time().as_secs_f64() * f64::from(scaling.work(world).virtual_ranks / world);
    let gbit = speed.map_or(String::new(), |speed| format!("{:.1}", speed.bytes_per_s * 8e-9));
    print!("{:<7} {world:>6} {gbit:>7}", format!("{scaling:?}").to_lowercase());
    print!(" {:>7.0} ms {speed_up:>9.2} {:>8.0}%", seconds * 1e3, 100.0 * speed_up / f64::from(world));
    if world > 1 {
        let hidden = 100.0 * (1.0 - waited_s / link_s).max(0.0);
        print!(" {:>13.2} {hidden:>6.0}% {:>14.4}", link_s / compute_s, sent / least(world, MODEL));
    }
    println!();
}

/// The fewest bytes that a rank can send for all to have the sums of a model's gradients (Patarasuk and Yuan, 2009).
fn least(world: u32, model: TimedModel) -> f64 {
    2.0 * f64::from(world - 1) / f64::from(world) * model.bytes() as f64
}

/// One rank as a process, over TCP; rank 0 prints a line for each way to scale.
fn process(args: &Args) {
    let &Args { rank, world, ref meet, gbit, .. } = args;
    let rank = rank.expect("asked for before");
    let speed = LinkSpeed { latency: Duration::ZERO, ..LinkSpeed::gbit(gbit) };
    for scaling in Scaling::BOTH {
        let alone = if rank == 0 { measure(1, scaling.work(1), &[None], ROUNDS)[0].seconds } else { 0.0 };
        let options = TcpOptions {
            run: format!("{scaling:?}"),
            host: Some(format!("{rank}")),
            ..TcpOptions::default()
        };
        let end = connect(meet, rank, world, &options).expect("the others come");
        let mut stepper = Stepper::new(scaling.work(world), end, Usage::default());
        let mut rounds = Vec::new();
        for round in 0..ROUNDS + 2 {
            stepper.comm.run(|collective| collective.barrier()).expect("the others continue");
            let began = Instant::now();
            let step = stepper.step().expect("the others continue");
            stepper.comm.run(|collective| collective.barrier()).expect("the others continue");
            let link_s = speed.time(step.sent as usize, step.sent as usize).as_secs_f64();
            if round >= 2 {
                rounds.push(StepFigures { seconds: began.elapsed().as_secs_f64(), link_s, ..step });
            }
        }
        if rank == 0 {
            print(scaling, world, Some(speed), medians(&[vec![rounds]])[0], alone);
        }
    }
}

/// The bytes a rank sends in a step of a model of 64 MiB, beside the least that is possible.
fn bytes() {
    let model = TimedModel { blocks: 16, block_len: 1 << 20, forward: Duration::ZERO };
    println!();
    println!("{:<44} {:>6} {:>12} {:>12} {:>9}", "a step of 64 MiB", "ranks", "sent MB", "least MB", "ratio");
    let fast = Reduction::Fast(Compression::None);
    for (name, per_rank, micro_batches, reduction) in [
        ("exact, a virtual rank each", 1, 1, Reduction::Exact),
        ("exact, two virtual ranks each", 2, 1, Reduction::Exact),
        ("exact, four micro-batches accumulated", 1, 4, Reduction::Exact),
        ("fast", 1, 1, fast),
        ("fast, four micro-batches accumulated", 1, 4, fast),
    ] {
        for world in [2, 4, 8] {
            let work = Work { model, virtual_ranks: per_rank * world, micro_batches, reduction };
            let sent = measure(world, work, &[None], 1)[0].sent;
            let least = least(world, model);
            let ratio = sent / least;
            println!("{name:<44} {world:>6} {:>12.3} {:>12.3} {ratio:>9.4}", sent / 1e6, least / 1e6);
        }
    }
}

/// The work of ranks in a step.
#[derive(Clone, Copy)]
struct Work {
    model: TimedModel,
    virtual_ranks: u32,
    /// Of each virtual rank.
    micro_batches: usize,
    reduction: Reduction,
}

/// A step's figures on links of each speed.
fn measure(world: u32, work: Work, speeds: &[Option<LinkSpeed>], rounds: usize) -> Vec<StepFigures> {
    let (all, links) = (Barrier::new(world as usize), Links::default());
    std::thread::scope(|scope| {
        let ranks = link::world(world, &links).into_iter().map(|(end, usage)| {
            let (all, links) = (&all, &links);
            scope.spawn(move || {
                let rank = end.rank();
                let stepper = std::cell::RefCell::new(Stepper::new(work, end, usage));
                let mut ways: Vec<Way<'_>> = Vec::new();
                for &speed in speeds {
                    let stepper = &stepper;
                    ways.push(Box::new(move || {
                        if rank == 0 {
                            links.set(speed);
                        }
                        all.wait();
                        stepper.borrow_mut().step()
                    }));
                }
                in_turns(all, rounds, &mut ways)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        medians(&ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Vec<_>>())
    })
}

/// A rank's engine, step by step.
struct Stepper {
    work: Work,
    engine: Engine,
    comm: Arc<Comm>,
    usage: Usage,
    number: u64,
}

impl Stepper {
    fn new(work: Work, end: impl Collective + 'static, usage: Usage) -> Stepper {
        let ranks = VirtualRanks { count: work.virtual_ranks, world: end.world() };
        let comm = Arc::new(Comm::new(Box::new(end)));
        let bucket = work.model.bytes() / work.model.blocks;
        let model = work.model.model();
        let (weights, rule, key) = (model.initial(0), Optimizer::sgd(0.0), Key::new(0));
        let engine = Engine::new(model, weights, Device::flex(), ranks, rule, key, Arc::clone(&comm))
            .with_buckets(BucketSizes { first: bucket, others: bucket })
            .with_reduction(work.reduction);
        Stepper { work, engine, comm, usage, number: 0 }
    }

    fn step(&mut self) -> Result<StepFigures, EngineError> {
        let plan = StepPlan { number: self.number, epoch: 0, rate: 1e-3 };
        self.number += 1;
        let model = self.work.model;
        let shares = |_| -> Vec<Share<'static>> {
            self.engine.virtual_ranks().map(|_| vec![model.micro_batch()]).collect()
        };
        let mut shares: Vec<_> = (0..self.work.micro_batches).map(shares).collect();
        let before = self.comm.run(|collective| Ok(collective.bytes_sent()))?;
        let usage = self.usage.clone();
        let (link_s, step) = growth(
            || usage.total(),
            || -> Result<_, EngineError> {
                let last = shares.pop().expect("a micro-batch at least");
                for share in shares {
                    self.engine.accumulate(share, plan)?;
                }
                self.engine.step(last, plan, |_| true)
            },
        );
        step?;
        let sent = self.comm.run(|collective| Ok(collective.bytes_sent()))? - before;
        let waited_s = self.engine.reducing().as_secs_f64();
        Ok(StepFigures { link_s, waited_s, sent: sent as f64, ..StepFigures::default() })
    }
}
