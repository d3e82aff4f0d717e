//! One operation of one size by one algorithm, again and again.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use shardd_trainer::collective::sums::{
    self, Algorithm, Operation, all_gather, all_reduce_by, choose, reduce_scatter,
};
use shardd_trainer::collective::{Collective, CollectiveError};
use shardd_trainer::ledger::Ledger;
use shardd_trainer::reduce::VirtualRanks;
use shardd_trainer::reduce::fixed::{self, FixedSum, Scales};
use shardfmt::ByteSize;

/// How long a batch of repetitions takes at most, unless one alone takes longer.
const BATCH: Duration = Duration::from_millis(20);
/// How many there are.
const BATCHES: std::ops::RangeInclusive<u32> = 5..=15;

/// The measured task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Task {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    AllToAll,
    SendReceive,
    Barrier,
}

impl Task {
    pub(super) fn name(self) -> &'static str {
        match self {
            Task::AllReduce => "all_reduce",
            Task::ReduceScatter => "reduce_scatter",
            Task::AllGather => "all_gather",
            Task::Broadcast => "broadcast",
            Task::AllToAll => "all_to_all",
            Task::SendReceive => "send_receive",
            Task::Barrier => "barrier",
        }
    }

    fn ways(self, hosts: &[u32]) -> Vec<Way> {
        let of = |operation| {
            let all = Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.does(operation));
            // On one host it is what `direct` is.
            all.filter(|&algorithm| {
                algorithm != Algorithm::Hierarchical || hosts.iter().any(|host| *host != hosts[0])
            })
            .map(Way::Sum)
        };
        match self {
            Task::AllReduce => of(Operation::AllReduce).chain([Way::Exact]).collect(),
            Task::ReduceScatter => of(Operation::ReduceScatter).collect(),
            Task::AllGather => of(Operation::AllGather).collect(),
            Task::Broadcast | Task::AllToAll | Task::SendReceive | Task::Barrier => vec![Way::Only],
        }
    }

    /// The least bytes that a rank has to send, by the bytes that it has.
    fn least_sent(self, world: f64) -> f64 {
        match self {
            Task::AllReduce => 2.0 * (world - 1.0) / world,
            Task::ReduceScatter | Task::AllGather | Task::AllToAll => (world - 1.0) / world,
            Task::Broadcast | Task::SendReceive => 1.0,
            Task::Barrier => 0.0,
        }
    }
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Sum(Algorithm),
    /// The reduction of training, each rank with one virtual rank.
    Exact,
    /// There is no other.
    Only,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Sum(algorithm) => algorithm.name(),
            Way::Exact => "exact",
            Way::Only => "",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) task: Task,
    pub(super) bytes: usize,
    pub(super) way: Way,
}

/// The result of a case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) operation: &'static str,
    pub(super) bytes: usize,
    pub(super) algorithm: &'static str,
    /// Whether it is the choice for this size.
    pub(super) is_chosen: bool,
    pub(super) latency_us: f64,
    pub(super) algorithm_gb_s: f64,
    pub(super) bus_gb_s: f64,
}

/// All that is asked for, size by size.
pub(super) fn cases(tasks: &[Task], sizes: &[ByteSize], hosts: &[u32]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &task in tasks {
        let ways = task.ways(hosts);
        let of_size = |bytes: usize| ways.iter().map(move |&way| Case { task, bytes, way });
        match task {
            Task::Barrier => cases.extend(of_size(0)),
            _ => cases.extend(sizes.iter().flat_map(|size| of_size(size.0 as usize / 4 * 4))),
        }
    }
    cases
}

/// All ranks call this together, and get the same number of repetitions, for about `time`, from rank 0.
pub(super) fn measure(
    collective: &mut dyn Collective,
    case: Case,
    time: Duration,
) -> Result<Row, CollectiveError> {
    let mut subject = Subject::new(collective, case);
    subject.repeat(collective, 1)?; // memory is there afterwards
    let once = subject.repeat(collective, 3)? / 3;
    let once = agreed(collective, once)?.max(Duration::from_nanos(100));
    let batch = BATCH.min(time / *BATCHES.end());
    let batch = (batch.as_nanos() / once.as_nanos()).clamp(1, 1_000) as u32;
    let batches = (time.as_nanos() / (once * batch).as_nanos()) as u32;
    let mut times = Vec::new();
    for _ in 0..batches.clamp(*BATCHES.start(), *BATCHES.end()) {
        times.push(subject.repeat(collective, batch)?.as_secs_f64() / f64::from(batch));
    }
    times.sort_by(f64::total_cmp);
    let latency = times[times.len() / 2];
    let gb_s = case.bytes as f64 / latency / 1e9;
    let operation = match case.task {
        Task::AllReduce => Some(Operation::AllReduce),
        Task::ReduceScatter => Some(Operation::ReduceScatter),
        Task::AllGather => Some(Operation::AllGather),
        _ => None,
    };
    let chosen = operation
        .map(|operation| Way::Sum(choose(operation, case.bytes, collective.link(), collective.hosts())));
    Ok(Row {
        operation: case.task.name(),
        bytes: case.bytes,
        algorithm: case.way.name(),
        is_chosen: chosen == Some(case.way),
        latency_us: latency * 1e6,
        algorithm_gb_s: gb_s,
        bus_gb_s: gb_s * case.task.least_sent(f64::from(collective.world())),
    })
}

fn agreed(collective: &mut dyn Collective, time: Duration) -> Result<Duration, CollectiveError> {
    let heard = collective.broadcast(0, &time.as_secs_f64().to_le_bytes())?;
    let seconds = heard.bytes().first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
    Ok(Duration::from_secs_f64(seconds))
}

/// The numbers sent around.
struct Subject {
    case: Case,
    numbers: Vec<f32>,
}

impl Subject {
    fn new(collective: &dyn Collective, case: Case) -> Subject {
        let rank = collective.rank();
        // Sums of sums get infinite; that is added as fast as any number is.
        let numbers = (0..case.bytes / 4).map(|at| (at % 97) as f32 + rank as f32).collect();
        Subject { case, numbers }
    }

    /// The time of a number of repetitions on all ranks, without their preparation.
    fn repeat(&mut self, collective: &mut dyn Collective, times: u32) -> Result<Duration, CollectiveError> {
        collective.barrier()?;
        let started = Instant::now();
        let mut prepared = Duration::ZERO;
        for _ in 0..times {
            prepared += self.once(collective)?;
        }
        if !matches!(self.case.task, Task::AllReduce | Task::Barrier) {
            collective.barrier()?; // who only sends is done early
        }
        Ok(started.elapsed().saturating_sub(prepared))
    }

    fn once(&mut self, collective: &mut dyn Collective) -> Result<Duration, CollectiveError> {
        let (rank, world) = (collective.rank(), collective.world());
        let numbers = &mut self.numbers[..];
        match (self.case.task, self.case.way) {
            (Task::AllReduce, Way::Sum(algorithm)) => all_reduce_by(algorithm, collective, numbers)?,
            (Task::AllReduce, Way::Exact) => {
                let started = Instant::now();
                let ranks = VirtualRanks { count: world, world };
                // Numbers below 2^16 and a world of up to 1,024 ranks have 36 places after the point.
                let scales = Scales::new([(numbers.len(), 36)]);
                let mut mine = FixedSum::new(scales, 1, &Ledger::default());
                mine.push(numbers.to_vec().into());
                let prepared = started.elapsed();
                fixed::all_reduce(collective, ranks, mine)?;
                return Ok(prepared);
            }
            (Task::AllReduce, Way::Only) => {}
            (Task::ReduceScatter, Way::Sum(algorithm)) => reduce_scatter(algorithm, collective, numbers)?,
            (Task::ReduceScatter, _) => sums::reduce_scatter(Algorithm::Direct, collective, numbers)?,
            (Task::AllGather, Way::Sum(algorithm)) => all_gather(algorithm, collective, numbers)?,
            (Task::AllGather, _) => sums::all_gather(Algorithm::Direct, collective, numbers)?,
            (Task::Broadcast, _) => drop(collective.broadcast(0, bytemuck::cast_slice(numbers))?),
            (Task::AllToAll, _) => {
                let bytes: &[u8] = bytemuck::cast_slice(numbers);
                let bound = |rank: u32| bytes.len() * rank as usize / world as usize;
                let parts: Vec<&[u8]> = (0..world).map(|to| &bytes[bound(to)..bound(to + 1)]).collect();
                collective.exchange(&parts)?;
            }
            (Task::SendReceive, _) if world > 1 => {
                // From rank 0 to rank 1.
                match rank {
                    0 => collective.send(1, bytemuck::cast_slice(numbers))?,
                    1 => drop(collective.receive(0)?),
                    _ => {}
                }
            }
            (Task::SendReceive, _) => {}
            (Task::Barrier, _) => collective.barrier()?,
        }
        Ok(Duration::ZERO)
    }
}
