//! The place of a process in its launch, by the environment that torchrun, Slurm, Open MPI, MPICH or Kubeflow sets.
//! Pure: `variable` looks a variable up.
//!
//! ```
//! use shardd_client::launcher::{self, Launcher};
//!
//! let step = [
//!     ("SLURM_PROCID", "3"),
//!     ("SLURM_LOCALID", "1"),
//!     ("SLURM_STEP_NUM_TASKS", "4"),
//!     ("SLURM_STEP_NUM_NODES", "2"),
//!     ("SLURM_STEP_NODELIST", "gpu[07-08]"),
//!     ("SLURM_JOB_ID", "1"),
//! ];
//! let variable = |name: &str| step.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string());
//!
//! let place = launcher::place(variable)?.expect("Slurm started this process");
//! assert_eq!((place.launcher, place.rank.rank, place.rank.world_size), (Launcher::Slurm, 3, 4));
//! assert_eq!(place.master.as_deref(), Some("gpu07:10016"));
//! # Ok::<_, shardd_client::loader::RankError>(())
//! ```

mod environment;
mod hostlist;
#[cfg(test)]
mod tests;

use self::environment::Environment;
use crate::loader::{RankError, WorldRank};

/// Where the ranks of one machine meet by default.
pub const LOCAL_MASTER: &str = "127.0.0.1:29500";
/// The default port of [`Place::master`].
const PORT: &str = "29500";
/// Ports of the steps of Slurm begin here, and there are this many: below those that systems give to connections.
const SLURM_PORTS: (u64, u64) = (10_000, 20_000);
/// Steps of a job that have ports of their own.
const SLURM_STEPS: u64 = 16;

/// The program that started a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, `shardtrain run`, Ray Train, or any other that sets RANK and WORLD_SIZE.
    Torchrun,
    /// `srun` of Slurm.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI.
    Mpich,
    /// Kubeflow Trainer, by the variables that it sets for torchrun.
    Kubeflow,
}

/// The place of a rank in its launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The program that started it.
    pub launcher: Launcher,
    /// Its rank, and the number of ranks.
    pub rank: WorldRank,
    /// The number of ranks on its machine, if the launcher counts them.
    pub local_world_size: Option<u32>,
    /// HOST:PORT, where rank 0 listens. `None` if the environment does not name the host of rank 0.
    pub master: Option<String>,
}

/// The place of a machine in a launch that starts one process on each, which starts the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The program that started the process.
    pub launcher: Launcher,
    /// The number of this machine, from 0.
    pub number: u32,
    /// The number of machines.
    pub machines: u32,
    /// The number of ranks to start on it, if the environment says so.
    pub ranks: Option<u32>,
    /// HOST:PORT, where rank 0 listens.
    pub master: Option<String>,
}

/// The place of this process, by the first of these that is complete: RANK and WORLD_SIZE, as torchrun sets them; a job of Open MPI
/// or MPICH; a step of Slurm. `None` if no launcher started it.
///
/// The batch script of a Slurm job is no step: it has SLURM_PROCID and SLURM_NTASKS too, but is one process for all tasks.
/// MASTER_ADDR and MASTER_PORT take precedence over the launcher's own address.
///
/// # Errors
/// [`RankError`] for a value that is not a number, for RANK without WORLD_SIZE or the reverse, and for a rank that is not there.
pub fn place(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Place>, RankError> {
    let environment = Environment::new(&variable);
    if let Some(place) = torchrun(&environment)? {
        return Ok(Some(place));
    }
    let of_mpi = match open_mpi(&environment)? {
        Some(place) => Some(place),
        None => mpich(&environment)?,
    };
    Ok(match (of_mpi, slurm(&environment)?) {
        // `srun` sets the variables of MPI as well, to the same.
        (Some(mpi), Some(step)) if is_same(&mpi.rank, &step.rank) => Some(step),
        // `mpirun` starts a process on each machine by `srun`, which starts the ranks.
        (Some(mpi), _) => Some(mpi),
        (None, step) => step,
    })
}

fn is_same(one: &WorldRank, other: &WorldRank) -> bool {
    (one.rank, one.world_size) == (other.rank, other.world_size)
}

/// The place of this machine, for a program that starts its ranks: by the variables that torchrun reads as its options
/// (PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE), else by a step of Slurm with one task per machine. `None` if neither says so.
///
/// # Errors
/// [`RankError`] for a value that is not a number, for a machine that is not there, and for a step of Slurm with several tasks on a
/// machine.
pub fn machine(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Machine>, RankError> {
    let environment = Environment::new(&variable);
    let found = match kubeflow(&environment)? {
        Some(machine) => Some(machine),
        None => slurm_machine(&environment)?,
    };
    match found {
        Some(Machine { number, machines, .. }) if number >= machines => {
            Err(RankError::OutsideMachines { number, machines })
        }
        found => Ok(found),
    }
}

/// How often the launcher has started this process before, after a failure or from the queue: by torchrun's or Slurm's count.
pub fn restarts(variable: impl Fn(&str) -> Option<String>) -> u64 {
    let count = |name| variable(name).and_then(|value| value.trim().parse().ok()).unwrap_or(0u64);
    count("TORCHELASTIC_RESTART_COUNT").saturating_add(count("SLURM_RESTART_COUNT"))
}

/// MASTER_ADDR:MASTER_PORT, if one of them is set; the other is then 127.0.0.1 or 29500.
pub fn master(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    Environment::new(&variable).given_master()
}

fn torchrun(environment: &Environment<'_>) -> Result<Option<Place>, RankError> {
    let (rank, world_size) = (environment.number("RANK")?, environment.number("WORLD_SIZE")?);
    let local_rank = environment.number("LOCAL_RANK")?;
    let (rank, world_size) = match (rank, world_size) {
        (Some(rank), Some(world_size)) => (rank, world_size),
        (Some(_), None) => return Err(RankError::HalfSet { given: "RANK", missing: "WORLD_SIZE" }),
        (None, Some(_)) => return Err(RankError::HalfSet { given: "WORLD_SIZE", missing: "RANK" }),
        (None, None) => return Ok(None),
    };
    Ok(Some(Place {
        launcher: Launcher::Torchrun,
        rank: WorldRank::new(rank, world_size, local_rank)?,
        local_world_size: environment.number("LOCAL_WORLD_SIZE")?,
        master: environment.given_master(),
    }))
}

fn slurm(environment: &Environment<'_>) -> Result<Option<Place>, RankError> {
    let (Some(rank), Some(world_size)) =
        (environment.number("SLURM_PROCID")?, environment.number("SLURM_STEP_NUM_TASKS")?)
    else {
        return Ok(None);
    };
    Ok(Some(Place {
        launcher: Launcher::Slurm,
        rank: WorldRank::new(rank, world_size, environment.number("SLURM_LOCALID")?)?,
        local_world_size: None,
        master: slurm_master(environment),
    }))
}

fn open_mpi(environment: &Environment<'_>) -> Result<Option<Place>, RankError> {
    let names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];
    mpi(environment, Launcher::OpenMpi, names)
}

fn mpich(environment: &Environment<'_>) -> Result<Option<Place>, RankError> {
    mpi(environment, Launcher::Mpich, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"])
}

/// A rank by the names of its variables: rank, world size, and the same on its machine.
fn mpi(
    environment: &Environment<'_>,
    launcher: Launcher,
    [rank, world_size, local_rank, local_world_size]: [&'static str; 4],
) -> Result<Option<Place>, RankError> {
    let (Some(rank), Some(world_size)) = (environment.number(rank)?, environment.number(world_size)?) else {
        return Ok(None);
    };
    let local_world_size = environment.number(local_world_size)?;
    // MPI does not name the host of rank 0, which is this one if all ranks are here.
    let is_one_machine = local_world_size == Some(world_size);
    Ok(Some(Place {
        launcher,
        rank: WorldRank::new(rank, world_size, environment.number(local_rank)?)?,
        local_world_size,
        master: environment.given_master().or_else(|| is_one_machine.then(|| LOCAL_MASTER.to_owned())),
    }))
}

fn kubeflow(environment: &Environment<'_>) -> Result<Option<Machine>, RankError> {
    let Some(machines) = environment.number("PET_NNODES")? else { return Ok(None) };
    let ranks = match environment.text("PET_NPROC_PER_NODE").as_deref() {
        // torchrun's words for the number of processors or devices.
        None | Some("auto" | "cpu" | "gpu") => None,
        Some(_) => environment.number("PET_NPROC_PER_NODE")?,
    };
    let host = environment.text("PET_MASTER_ADDR");
    let port = environment.text("PET_MASTER_PORT");
    Ok(Some(Machine {
        launcher: Launcher::Kubeflow,
        number: environment.number("PET_NODE_RANK")?.unwrap_or(0),
        machines,
        ranks,
        master: environment.master(host.as_deref(), port.as_deref()),
    }))
}

fn slurm_machine(environment: &Environment<'_>) -> Result<Option<Machine>, RankError> {
    let (Some(machines), Some(tasks)) =
        (environment.number("SLURM_STEP_NUM_NODES")?, environment.number("SLURM_STEP_NUM_TASKS")?)
    else {
        return Ok(None);
    };
    if tasks > machines {
        return Err(RankError::SeveralTasks { tasks, machines });
    }
    Ok(Some(Machine {
        launcher: Launcher::Slurm,
        number: environment.number("SLURM_NODEID")?.unwrap_or(0),
        machines,
        ranks: None,
        master: slurm_master(environment),
    }))
}

/// The first host of a step, and a port that other steps on it do not use.
fn slurm_master(environment: &Environment<'_>) -> Option<String> {
    let number = |name| environment.text(name).and_then(|value| value.parse::<u64>().ok());
    let step = number("SLURM_STEP_ID").unwrap_or(0) % SLURM_STEPS;
    let (first, count) = SLURM_PORTS;
    let port =
        number("SLURM_JOB_ID").map(|job| first + job.wrapping_mul(SLURM_STEPS).wrapping_add(step) % count);
    let host = environment.text("SLURM_STEP_NODELIST").and_then(|hosts| hostlist::first(&hosts));
    environment.master(host.as_deref(), port.map(|port| port.to_string()).as_deref())
}
