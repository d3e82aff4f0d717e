//! In-process restart: one process in one group of ranks after the other, with its files open and its caches
//! warm.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use shardd_trainer::collective::tcp::TcpOptions;
use shardd_trainer::elastic::{Left, Member, Place, Reforming, Slot};
use shardd_trainer::launch_env::OTHERS_ARE_GONE;
use shardd_trainer::train::{Progress, StateTransfer};

use super::{Ended, Failure, GoingOn, Group, Session, join_as};
use crate::args::Args;
use crate::log_to::{Curves, is_restart};
use crate::output::{Observer, check_outputs};

/// This process as a member of a launch whose ranks stay, if it is one.
pub(super) fn member() -> Result<Option<Member>, Failure> {
    Ok(Member::of_env(|| {
        eprintln!("shardtrain: the launcher has ended, and this rank ends with it");
        std::process::exit(1);
    })?)
}

/// Trains in group after group, until the training is over.
pub(super) fn run(args: &mut Args, member: Member) -> Result<Ended, Failure> {
    args.check()?;
    check_outputs(args)?;
    let mut kept = Kept {
        last: Last { step: 0, at: Instant::now() },
        legacy: StateTransfer::default(),
        has_begun: Cell::new(false),
        curves: Curves::default(),
    };
    let ended = train_in_groups(args, member, &mut kept);
    kept.curves.end(Ended::for_logs(&ended));
    ended
}

fn train_in_groups(args: &mut Args, mut member: Member, kept: &mut Kept) -> Result<Ended, Failure> {
    let named = Named { report: args.report.take(), progress: args.progress.take() };
    let session = Session::open(args, None)?;
    let (mut left, mut lost) = (Left::New, None);
    while let Some(seat) = member.ask(left)? {
        named.apply(args, &seat.place);
        session.open_logs(args, &mut kept.curves, is_restart() || seat.place.generation > 1)?;
        match train(&session, args, &seat, &mut member, kept) {
            Ok(Ended::Paused) => {
                left = Left::Paused;
                lost = None;
            }
            Err(error) if crate::code(&*error) == OTHERS_ARE_GONE => {
                left = Left::Lost { reason: crate::chain(&*error) };
                lost = Some(error);
            }
            ended => return ended,
        }
    }
    lost.map_or(Ok(Ended::Paused), Err)
}

/// Files that this rank writes, with {rank} in their names if every rank does, and else only where it is rank 0.
struct Named {
    report: Option<PathBuf>,
    progress: Option<PathBuf>,
}

impl Named {
    fn apply(&self, args: &mut Args, place: &Place) {
        let own = |path: &Option<PathBuf>| own(path.as_deref()?, place.rank);
        (args.report, args.progress) = (own(&self.report), own(&self.progress));
        (args.rank, args.world) = (place.rank, place.world);
        args.master = Some(place.master.clone());
    }
}

fn own(path: &Path, rank: u32) -> Option<PathBuf> {
    let name = path.to_string_lossy();
    match name.contains("{rank}") {
        true => Some(PathBuf::from(name.replace("{rank}", &rank.to_string()))),
        false => (rank == 0).then(|| path.to_owned()),
    }
}

/// This rank's state over all groups.
struct Kept {
    last: Last,
    legacy: StateTransfer,
    has_begun: Cell<bool>,
    curves: Curves,
}

/// The last step that this process has trained.
struct Last {
    /// Steps of the training by then; none if it has trained none.
    step: u64,
    /// When it ended; when the process began, if there was none.
    at: Instant,
}

/// Trains in one group.
fn train(
    session: &Session<'_>,
    args: &Args,
    seat: &Slot,
    member: &mut Member,
    kept: &mut Kept,
) -> Result<Ended, Failure> {
    let Kept { last, legacy, has_begun, curves } = kept;
    let Place { generation, ref history, .. } = seat.place;
    let mut observer = Observer::of_generation(args, curves, generation)?;
    let (join_timeout, timeout) = args.timeouts();
    // One that comes too late to a group does not take a place in the next.
    let run = format!("{}, group {generation}", args.run);
    let given_up = seat.is_over.clone();
    let collective = join_as(
        args,
        &session.target,
        TcpOptions { run, join_timeout, timeout, given_up, ..TcpOptions::default() },
    )?;
    let mut is_formed = generation == 1;
    let mut goes_on = |going_on: GoingOn, progress: Option<&Progress>| {
        let formed = (!is_formed).then(|| reforming(&seat.place, going_on, progress, last));
        is_formed = true;
        if let Some(progress) = progress {
            *last = Last { step: steps(progress), at: Instant::now() };
        }
        if let Some(formed) = formed.as_ref().filter(|_| args.rank == 0) {
            // If the launcher has ended, this process ends with it.
            let _ = member.tell(formed.clone());
        }
        formed
    };
    let group = Group {
        collective,
        has_begun,
        pause: Some(seat.pause.clone()),
        legacy: Some(legacy.clone()),
        history: history.clone(),
        goes_on: &mut goes_on,
    };
    session.train(args, group, &mut observer)
}

/// Steps of the training when this one had ended.
fn steps(progress: &Progress) -> u64 {
    u64::from(progress.epoch) * progress.steps + progress.step + 1
}

fn reforming(place: &Place, going_on: GoingOn, progress: Option<&Progress>, last: &Last) -> Reforming {
    let time = progress.map_or_else(Default::default, |progress| progress.time);
    let trained_s = time.decode_s + time.compute_s + time.update_s;
    Reforming {
        generation: place.generation,
        world_before: place.world_before,
        world: place.world,
        cause: place.cause.clone(),
        from_step: last.step,
        to_step: going_on.step,
        state: going_on.state,
        seconds: (last.at.elapsed().as_secs_f64() - trained_s).max(0.0),
    }
}
