//! A program as a rank of a training, by the environment that `shardtrain run --program`, torchrun, Slurm or MPI gives it.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, test_kill_process};
use shardd_client::launcher::{self, Place};
use shardd_client::loader::RankError;
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::checkpoint::StopFlag;
use crate::collective::tcp::{JoinError, TcpOptions, Tls, connect};
use crate::collective::{Collective, DEFAULT_TIMEOUT, threads};

/// The exit code of a rank that could continue if the others could: start the training again. A launcher
/// starts it again with those that are left.
pub const OTHERS_ARE_GONE: u8 = 3;

/// In which a launcher says which process it is.
pub const LAUNCHER: &str = "SHARDD_LAUNCHER";

/// Which rank this process is, and where it meets the others.
///
/// ```
/// use shardd_trainer::LaunchEnv;
///
/// let launched = LaunchEnv::of_env()?; // alone, unless the environment says otherwise
/// let collective = launched.join("my-run")?;
/// assert_eq!((launched.rank(), launched.world()), (0, 1));
/// # drop(collective);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchEnv {
    rank: u32,
    world: u32,
    master: String,
    launcher: Option<u32>,
}

/// Why a process cannot be the rank that its environment says.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum LaunchedError {
    /// Its environment names no place in a launch.
    #[error(transparent)]
    Place(#[from] RankError),
    /// The launcher's process number is not a number.
    #[error("{LAUNCHER} is {value:?}; `shardtrain run` sets it to a number")]
    Launcher { value: String },
    /// It has no launcher any more.
    #[error("the launcher that started this process has ended")]
    Ended,
    /// The system does not say, or does not take signals.
    #[error("the system does not pass signals on")]
    Signals(#[from] io::Error),
}

/// A variable of the environment that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl LaunchEnv {
    /// The place that the environment names ([`launcher::place`]): that of torchrun, Slurm, Open MPI or MPICH. Rank 0 of one by
    /// default.
    ///
    /// A process that `shardtrain run` started ends with that, however that ends.
    ///
    /// # Errors
    /// See [`LaunchedError`].
    pub fn of_env() -> Result<LaunchEnv, LaunchedError> {
        let launched = LaunchEnv::read(&variable)?;
        if let Some(launcher) = launched.launcher {
            end_with(launcher)?;
        }
        Ok(launched)
    }

    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<LaunchEnv, LaunchedError> {
        let launcher =
            variable(LAUNCHER).map(|value| value.parse().map_err(|_| LaunchedError::Launcher { value }));
        let (rank, world, master) = match launcher::place(variable)? {
            Some(Place { rank, master, .. }) => (rank.rank, rank.world_size, master),
            None => (0, 1, launcher::master(variable)),
        };
        let master = master.unwrap_or_else(|| launcher::LOCAL_MASTER.to_owned());
        Ok(LaunchEnv { rank, world, master, launcher: launcher.transpose()? })
    }

    /// From 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Meets the other ranks of a run by this name. Waits a minute for them, and in each step five minutes. Connections
    /// are encrypted and authenticated with the certificates of the environment, if it names any ([`Tls::of_env`]).
    ///
    /// # Errors
    /// See [`JoinError`]. End with [`OTHERS_ARE_GONE`] then, and when a collective operation fails later.
    pub fn join(&self, run: &str) -> Result<Box<dyn Collective>, JoinError> {
        if self.world == 1 {
            return Ok(Box::new(threads::world(1, DEFAULT_TIMEOUT).remove(0)));
        }
        let options = TcpOptions { run: run.to_owned(), tls: Tls::of_env()?, ..TcpOptions::default() };
        Ok(Box::new(connect(&self.master, self.rank, self.world, &options)?))
    }

    /// A flag that the first SIGTERM or SIGINT to this process raises. The second ends the process; that of a launched one does not listen a second
    /// time, as a service manager that stops all processes stops the launcher too, which passes it on.
    ///
    /// # Errors
    /// When the system does not take signals.
    pub fn stop_flag(&self) -> io::Result<StopFlag> {
        stop_on_signals(self.launcher.is_some())
    }
}

/// Has the system kill this process when the launcher that started it ends, however that ends.
///
/// # Errors
/// [`LaunchedError::Ended`] if it has already.
pub fn end_with(launcher: u32) -> Result<(), LaunchedError> {
    let launcher = i32::try_from(launcher).ok().and_then(Pid::from_raw);
    if getppid() == launcher {
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    }
    // It may have ended before it was asked to be watched; and something may stand between it and this process, which is its own affair.
    let is_there = launcher.is_some_and(|launcher| test_kill_process(launcher).is_ok());
    if is_there { Ok(()) } else { Err(LaunchedError::Ended) }
}

/// See [`LaunchEnv::stop_flag`].
///
/// # Errors
/// As that.
pub fn stop_on_signals(is_launched: bool) -> io::Result<StopFlag> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    drop(inside);
    let stop = StopFlag::default();
    let raised = stop.clone();
    let wait = async move {
        loop {
            let code = tokio::select! {
                _ = terminate.recv() => 128 + SignalKind::terminate().as_raw_value(),
                _ = interrupt.recv() => 128 + SignalKind::interrupt().as_raw_value(),
            };
            if raised.is_raised() && !is_launched {
                std::process::exit(code);
            }
            raised.raise();
        }
    };
    // It ends with the process.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<LaunchEnv, String> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        LaunchEnv::read(&variable).map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_says_who_one_is() {
        let alone = read(&[]).unwrap();
        assert_eq!((alone.rank(), alone.world(), &alone.master[..]), (0, 1, "127.0.0.1:29500"));
        let third = read(&[("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node7"), (LAUNCHER, "77")]);
        let third = third.unwrap();
        assert_eq!((third.rank(), third.world(), &third.master[..]), (2, 4, "node7:29500"));
        assert_eq!(third.launcher, Some(77));
        let task = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NODELIST", "n[4-5]")];
        let task = read(&task).unwrap();
        assert_eq!((task.rank(), task.world(), &task.master[..]), (1, 2, "n4:29500"));
        assert!(read(&[("RANK", "4"), ("WORLD_SIZE", "4")]).unwrap_err().contains("count from 0"));
        assert!(read(&[("WORLD_SIZE", "many")]).unwrap_err().contains("WORLD_SIZE=\"many\""));
        assert!(read(&[(LAUNCHER, "shardtrain")]).unwrap_err().contains("SHARDD_LAUNCHER is \"shardtrain\""));
    }

    #[test]
    fn who_has_no_launcher_any_more_is_told_so() {
        let parent = getppid().expect("something runs the tests").as_raw_nonzero().get().unsigned_abs();
        end_with(parent).unwrap();
        assert!(matches!(end_with(u32::MAX), Err(LaunchedError::Ended)));
    }
}
