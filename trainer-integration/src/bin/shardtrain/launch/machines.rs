//! Which ranks of a training are this machine's: the launchers of all machines meet before each round, and learn how many ranks each
//! starts. A launcher that was started again is thus taken in again, with as many ranks as it now has.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use shardd_api::protocol::RunId;
use shardd_store::connect::{Servers, Target};
use shardd_trainer::collective::tcp::{Machine, MeetError, TcpOptions, Tls, meet, meet_through_nodes};
use tokio::sync::oneshot;

use super::{Failure, Launch, Signals};
use crate::args::Args;
use crate::tls::TlsArgs;

/// The ranks of this machine among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The first of this machine.
    pub(super) first: u32,
    /// The number of all ranks.
    pub(super) world: u32,
}

impl Share {
    /// That of machine `number`, by the ranks of all machines.
    pub(super) fn of(number: u32, ranks: &[u32]) -> Share {
        Share { first: ranks.iter().take(number as usize).sum(), world: ranks.iter().sum() }
    }
}

/// How launchers meet.
#[derive(Clone)]
enum Meeting {
    /// At the address where rank 0 will listen.
    At(String),
    /// Where the nodes say.
    Through(Servers, RunId),
}

/// How the launchers of a training find each other and believe each other.
pub(super) struct Machines {
    meeting: Meeting,
    run: String,
    certificates: Certificates,
    /// How long to wait for the others, the first time.
    join_timeout: Duration,
    /// How much longer ranks elsewhere may take to notice that one is lost.
    notice: Duration,
}

/// Read again for each meeting: they are renewed while a training runs.
enum Certificates {
    Flags(TlsArgs, Option<PathBuf>),
    Environment,
}

impl Machines {
    /// Those of a training; `None` if it has no address, and no nodes to ask for one.
    pub(super) fn of_training(
        args: &Args,
        master: Option<&str>,
        grace: Duration,
    ) -> Result<Option<Machines>, Failure> {
        let target = args.connect.target_beside_stores()?;
        let ca = match &target {
            Target::Servers(Servers { credentials, .. }) => credentials.ca.clone(),
            Target::Store(_) => crate::tls::ca_of_env(),
        };
        let meeting = match (master, target) {
            (Some(master), _) => Meeting::At(master.to_owned()),
            (None, Target::Servers(servers)) => Meeting::Through(servers, args.run.clone()),
            (None, Target::Store(_)) => return Ok(None),
        };
        let (join_timeout, timeout) = args.timeouts();
        let certificates = Certificates::Flags(args.tls.clone(), ca);
        let run = args.run.to_string();
        Ok(Some(Machines { meeting, run, certificates, join_timeout, notice: timeout + grace }))
    }

    /// Those of another program, whose ranks wait as long as [`LaunchEnv`](shardd_trainer::LaunchEnv) does.
    pub(super) fn of_program(master: &str, grace: Duration) -> Machines {
        let usual = TcpOptions::default();
        Machines {
            meeting: Meeting::At(master.to_owned()),
            run: "program".to_owned(),
            certificates: Certificates::Environment,
            join_timeout: usual.join_timeout,
            notice: usual.timeout + grace,
        }
    }

    /// Meets the others: this machine's share, or `None` when the launcher is to stop.
    pub(super) async fn meet(
        &self,
        launch: &Launch,
        ranks: u32,
        is_restart: bool,
        signals: &mut Signals,
    ) -> Result<Option<Share>, Failure> {
        let machine = Machine { number: launch.place.number, machines: launch.place.machines, ranks };
        let tls = match &self.certificates {
            Certificates::Flags(flags, usual) => flags.open(usual.as_deref())?,
            Certificates::Environment => Tls::of_env()?,
        };
        let given_up = Arc::new(AtomicBool::new(false));
        let options = TcpOptions {
            run: self.run.clone(),
            join_timeout: self.join_timeout + if is_restart { self.notice } else { Duration::ZERO },
            given_up: Arc::clone(&given_up),
            tls,
            ..TcpOptions::default()
        };
        let (tell, met) = oneshot::channel();
        let meeting = self.meeting.clone();
        // It ends with the meeting, or with the launcher.
        thread::Builder::new().name("machines".to_owned()).spawn(move || {
            let outcome = match &meeting {
                Meeting::At(master) => meet(master, machine, &options),
                Meeting::Through(Servers { urls, credentials, .. }, run) => {
                    meet_through_nodes(urls, credentials, run, machine, &options)
                }
            };
            // The receiver is gone when the launcher stops.
            let _ = tell.send(outcome);
        })?;
        tokio::select! {
            met = met => match met? {
                Ok(ranks) => Ok(Some(Share::of(launch.place.number, &ranks))),
                Err(MeetError::GivenUp) => Ok(None),
                Err(error) => Err(error.into()),
            },
            _ = signals.next() => {
                given_up.store(true, Ordering::Relaxed);
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_machine_come_after_those_of_the_machines_before_it() {
        let ranks = [2, 1, 4];
        let shares = [0, 1, 2].map(|number| Share::of(number, &ranks));
        assert_eq!(shares.map(|share| share.first), [0, 2, 3]);
        assert!(shares.iter().all(|share| share.world == 7));
    }
}
