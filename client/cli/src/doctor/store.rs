//! The store as this machine reaches it: a service elsewhere, or a directory.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use shardd_store::catalog::StorePlace;

use super::bucket::{Conditions, Fault, LARGE, RACERS, Stop, Trial, attempt};
use super::clock;
use super::finding::{Check, Finding, Group, Severity, doc};
use super::limit::within;
use super::{disk, shell, speed};
use crate::human::duration;

/// How long the probe of a directory may take.
const LIMIT: Duration = Duration::from_secs(10);
/// A store that takes longer for a small request slows every commit.
const SLOW: Duration = Duration::from_secs(1);
/// A store that transfers fewer bytes a second than this makes the first epoch wait.
const SLOW_RATE: f64 = 10e6;

const REACHED: Check = Check::new(Group::Store, "store_reached", doc::STORES);
const LIST: Check = Check::new(Group::Store, "store_list", doc::CREDENTIALS);
const WRITE: Check = Check::new(Group::Store, "store_write", doc::CREDENTIALS);
const READ: Check = Check::new(Group::Store, "store_read", doc::CREDENTIALS);
const DELETE: Check = Check::new(Group::Store, "store_delete", doc::CREDENTIALS);
const CONDITIONS: Check = Check::new(Group::Store, "store_conditional_puts", doc::WITHOUT_NODES);
const SPEED: Check = Check::new(Group::Store, "store_speed", doc::STORES);
const CLOCK: Check = Check::new(Group::Store, "store_clock", doc::WITHOUT_NODES);

/// Who keeps the names of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// The store itself, by conditional puts.
    InStore,
    /// Nodes.
    WithNodes,
}

/// All of them, until `stop`.
pub(crate) fn check(place: &StorePlace, names: Names, stop: Stop) -> Vec<Finding> {
    match place {
        StorePlace::Directory(directory) => of_directory(directory),
        StorePlace::Url { url, options } => match attempt(url, options, stop) {
            Ok(trial) => of_trial(url, &trial, names),
            Err(fault) => vec![unreached(url, &fault)],
        },
    }
}

/// What the steps of a trial show.
fn of_trial(url: &str, trial: &Trial, names: Names) -> Vec<Finding> {
    let Trial { listed, written, read, conditions, rates, skew, deleted } = trial;
    if let Some(Err(fault)) = listed
        && !matches!(fault, Fault::Denied(_) | Fault::Other(_))
    {
        return vec![unreached(url, fault)];
    }
    let mut found = vec![REACHED.ok(format!("{url} answers"))];
    found.extend(listed.as_ref().map(|listed| match listed {
        Ok(()) => LIST.ok(format!("objects of {url} can be listed")),
        Err(fault) => refused(LIST, "list objects of", url, "s3:ListBucket", fault),
    }));
    found.extend(written.as_ref().map(|written| {
        match written {
            Ok(_) => WRITE.ok(format!("an object can be written to {url}")),
            Err(Fault::ReadOnly) => WRITE
                .info(format!("{url} is a web server, which is only read"))
                .mend("To write, name the store that it shows."),
            Err(fault) => refused(WRITE, "write to", url, "s3:PutObject", fault),
        }
    }));
    found.extend(read.as_ref().map(|read| match read {
        Ok(_) => READ.ok(format!("an object of {url} can be read")),
        Err(fault) => refused(READ, "read from", url, "s3:GetObject", fault),
    }));
    found.extend(conditions.as_ref().map(|conditions| conditional(url, conditions, names)));
    let times = written.as_ref().and_then(|written| written.as_ref().ok());
    let times = times.zip(read.as_ref().and_then(|read| read.as_ref().ok()));
    found.extend(times.zip(*rates).map(|((write, read), rates)| speed_of(url, *write, *read, rates)));
    found.extend(skew.map(|skew| clock::of_store(CLOCK, skew)));
    // Nothing was written where writing is refused.
    let was_written = written.as_ref().is_some_and(Result::is_ok);
    found.extend(deleted.as_ref().filter(|_| was_written).map(|deleted| match deleted {
        Ok(()) => DELETE.ok(format!("objects of {url} can be deleted")),
        Err(fault) => refused(DELETE, "delete from", url, "s3:DeleteObject", fault),
    }));
    found
}

/// A store that cannot be used at all.
fn unreached(url: &str, fault: &Fault) -> Finding {
    let bucket = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    match fault {
        Fault::Clock(reason) => clock::refused(CLOCK, reason),
        Fault::NoBucket(reason) => {
            let finding = REACHED.error(format!("{url}: {reason}")).mend("Make the bucket, or correct its name.");
            match url.starts_with("s3") {
                true => finding.run(format!("aws s3 mb {}", shell::word(&format!("s3://{bucket}")))),
                false => finding,
            }
        }
        Fault::Region(reason) => REACHED
            .error(format!("{url}: {reason}"))
            .mend("Set AWS_REGION, or --store-region, to the region of the bucket."),
        Fault::Unreachable(reason) => REACHED.error(format!("{url} {}", with_verb(reason))).mend(
            "Start the service, or correct its address: --store-endpoint, SHARDD_STORE_ENDPOINT or the variable of the cloud's \
             own tools. Then look at the network and its proxies.",
        ),
        Fault::Denied(reason) | Fault::Other(reason) => {
            REACHED.error(format!("{url}: {reason}")).mend("Correct the setting that the message names.")
        }
        Fault::ReadOnly => WRITE.info(format!("{url} is only read")),
    }
}

fn with_verb(reason: &str) -> String {
    if reason.starts_with("cannot") { reason.to_owned() } else { format!("does not answer: {reason}") }
}

/// A request that the store refuses.
fn refused(check: Check, action: &str, url: &str, permission: &str, fault: &Fault) -> Finding {
    match fault {
        Fault::Clock(reason) => clock::refused(CLOCK, reason),
        Fault::Denied(reason) => check.error(format!("cannot {action} {url}: {reason}")).mend(format!(
            "Let the policy of these credentials and of the bucket allow it ({permission} of S3), or use other credentials."
        )),
        Fault::NoBucket(reason)
        | Fault::Unreachable(reason)
        | Fault::Region(reason)
        | Fault::Other(reason) => check
            .error(format!("cannot {action} {url}: {reason}"))
            .mend("Look at the log of the service, then run the doctor again."),
        Fault::ReadOnly => check.info(format!("{url} is only read")),
    }
}

fn conditional(url: &str, conditions: &Result<Conditions, Fault>, names: Names) -> Finding {
    let (severity, cost) = match names {
        Names::InStore => (Severity::Error, "names in this store would get lost"),
        Names::WithNodes => (
            Severity::Warning,
            "nodes keep the names; a copy of their metadata could be replaced by an older one",
        ),
    };
    let mend = "Use a store that does If-Match and If-None-Match properly, or let a node keep the names (`shardd serve --store`).";
    match conditions {
        Ok(Conditions::Hold) => {
            CONDITIONS.ok(format!("of {RACERS} conditional puts at once, {url} lets one through"))
        }
        Ok(Conditions::Broken(through)) => CONDITIONS
            .finding(
                severity,
                format!("of {RACERS} conditional puts at once, {url} lets {through} through: {cost}"),
            )
            .mend(mend),
        Ok(Conditions::Absent(reason)) => CONDITIONS
            .finding(severity, format!("{url} has no conditional puts ({reason}): {cost}"))
            .mend(mend),
        Err(fault) => refused(CONDITIONS, "put on a condition to", url, "s3:PutObject", fault),
    }
}

fn speed_of(url: &str, write: Duration, read: Duration, (write_rate, read_rate): (f64, f64)) -> Finding {
    let evidence = format!(
        "{url} takes {} for a small put and {} for a small get, and transfers {:.0} MB/s up and {:.0} MB/s down ({} MiB)",
        duration(write),
        duration(read),
        write_rate / 1e6,
        read_rate / 1e6,
        LARGE >> 20
    );
    match write.max(read) > SLOW || write_rate.min(read_rate) < SLOW_RATE {
        true => SPEED.warning(evidence).mend(
            "Use a store in the same region and network, and look at proxies on the way. Caches hide a slow store after the first \
             epoch.",
        ),
        false => SPEED.ok(evidence),
    }
}

/// The state of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Missing,
    Unwritable(ErrorKind),
    Unlockable(String),
    Good,
}

fn of_directory(directory: &Path) -> Vec<Finding> {
    // The objects of a directory without nodes lie in `store`.
    let inner = directory.join("store");
    let place = if inner.is_dir() { inner } else { directory.to_owned() };
    let probed = place.clone();
    let Some((state, mount)) = within(LIMIT, move || (look(&probed), disk::mount_of(&probed))) else {
        return vec![REACHED.given_up(LIMIT)];
    };
    let mut found = vec![usable(&place, &state, mount)];
    if state == State::Good {
        found.extend(speed::check(Group::Store, &place));
    }
    found
}

fn usable(place: &Path, state: &State, mount: Option<PathBuf>) -> Finding {
    let (shown, word) = (place.display(), shell::path(place));
    match state {
        State::Missing => REACHED
            .error(format!("there is no directory {shown}"))
            .mend("Mount the file system that has it, or make it.")
            .run(format!("mkdir -p {word}")),
        State::Unwritable(ErrorKind::ReadOnlyFilesystem) => {
            let mount = mount.unwrap_or_else(|| place.to_owned());
            WRITE
                .error(format!("{shown} is on {}, which is mounted read-only", mount.display()))
                .mend("Mount it for writing.")
                .run(format!("mount -o remount,rw {}", shell::path(&mount)))
        }
        State::Unwritable(kind) => WRITE
            .error(format!("{shown} cannot be written: {}", io::Error::from(*kind)))
            .mend("Give the user of the node the right to write it.")
            .run(format!("chmod u+rwx {word}")),
        State::Unlockable(reason) => CONDITIONS
            .error(format!("files of {shown} cannot be locked ({reason}): names would get lost"))
            .mend("Mount it with locks (NFS: version 4, or without `nolock`)."),
        State::Good => WRITE.ok(format!("{shown} can be read, written and locked")),
    }
}

fn look(place: &Path) -> State {
    if !place.is_dir() {
        return State::Missing;
    }
    let unwritable = |error: io::Error| State::Unwritable(error.kind());
    let mut file = match tempfile::tempfile_in(place) {
        Ok(file) => file,
        Err(error) => return unwritable(error),
    };
    if let Err(error) = file.write_all(b"doctor").and_then(|()| file.sync_all()) {
        return unwritable(error);
    }
    if let Err(error) = fs::read_dir(place) {
        return unwritable(error);
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => State::Good,
        Err(error) => State::Unlockable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Skew;
    use super::super::finding::Severity::{Error, Info, Ok as Fine, Warning};
    use super::*;

    fn good() -> Trial {
        Trial {
            listed: Some(Ok(())),
            written: Some(Ok(Duration::from_millis(20))),
            read: Some(Ok(Duration::from_millis(10))),
            conditions: Some(Ok(Conditions::Hold)),
            rates: Some((80e6, 120e6)),
            skew: Some(Skew { least: -1.0, most: 1.0 }),
            deleted: Some(Ok(())),
        }
    }

    fn worst(trial: &Trial, names: Names) -> (Severity, String, usize) {
        let found = of_trial("s3://data/lab", trial, names);
        let worst = found.iter().max_by_key(|finding| finding.severity).expect("some");
        (worst.severity, worst.check.clone(), found.iter().filter(|finding| finding.is_problem()).count())
    }

    #[test]
    fn each_refused_step_is_named_by_its_own_check() {
        let denied = || Fault::Denied("access denied (AccessDenied)".to_owned());
        for (trial, severity, check) in [
            (good(), Fine, "store_clock"),
            (Trial { listed: Some(Err(denied())), ..good() }, Error, "store_list"),
            (
                Trial { written: Some(Err(denied())), read: None, conditions: None, rates: None, ..good() },
                Error,
                "store_write",
            ),
            (Trial { read: Some(Err(denied())), rates: None, ..good() }, Error, "store_read"),
            (Trial { deleted: Some(Err(denied())), ..good() }, Error, "store_delete"),
            (
                Trial { conditions: Some(Ok(Conditions::Broken(8))), ..good() },
                Error,
                "store_conditional_puts",
            ),
            (Trial { rates: Some((1e6, 1e6)), ..good() }, Warning, "store_speed"),
            (Trial { skew: Some(Skew { least: 60.0, most: 62.0 }), ..good() }, Error, "store_clock"),
            (
                Trial { written: Some(Err(Fault::Clock("RequestTimeTooSkewed".to_owned()))), ..good() },
                Error,
                "store_clock",
            ),
        ] {
            let (found, name, problems) = worst(&trial, Names::InStore);
            assert_eq!(found, severity, "{trial:?}");
            if severity != Fine {
                assert_eq!((name.as_str(), problems), (check, 1), "{trial:?}");
            }
        }
        let broken = Trial { conditions: Some(Ok(Conditions::Absent("501".to_owned()))), ..good() };
        assert_eq!(worst(&broken, Names::WithNodes).0, Warning, "nodes keep the names");
        let web = Trial { listed: Some(Ok(())), written: Some(Err(Fault::ReadOnly)), ..Trial::default() };
        assert_eq!(worst(&web, Names::InStore).0, Info);
    }

    #[test]
    fn a_store_out_of_reach_is_one_finding_with_its_remedy() {
        for (fault, words, command) in [
            (Fault::Unreachable("cannot be reached (refused)".to_owned()), "cannot be reached", None),
            (Fault::Unreachable("no answer within 10 s".to_owned()), "does not answer", None),
            (
                Fault::NoBucket("there is no such bucket".to_owned()),
                "no such bucket",
                Some("aws s3 mb s3://data"),
            ),
            (Fault::Region("elsewhere".to_owned()), "elsewhere", None),
            (Fault::Clock("RequestTimeTooSkewed".to_owned()), "clock", Some("timedatectl set-ntp true")),
        ] {
            let trial = Trial { listed: Some(Err(fault)), ..Trial::default() };
            let found = of_trial("s3://data/lab", &trial, Names::InStore);
            assert!(found.len() == 1 && found[0].severity == Error, "{found:?}");
            assert!(found[0].evidence.contains(words), "{found:?}");
            assert_eq!(found[0].command.as_deref(), command);
        }
    }

    #[test]
    fn a_directory_is_tried_without_a_trace() {
        let root = tempfile::TempDir::new().expect("a directory");
        assert_eq!(look(root.path()), State::Good);
        assert_eq!(look(&root.path().join("a")), State::Missing);
        let found = of_directory(root.path());
        assert!(found.iter().all(|finding| finding.severity <= Warning), "{found:?}");
        assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 0);
        for (state, severity, command) in [
            (State::Good, Fine, None),
            (State::Missing, Error, Some("mkdir -p /s")),
            (State::Unwritable(ErrorKind::ReadOnlyFilesystem), Error, Some("mount -o remount,rw /m")),
            (State::Unwritable(ErrorKind::PermissionDenied), Error, Some("chmod u+rwx /s")),
            (State::Unlockable("no locks".to_owned()), Error, None),
        ] {
            let found = usable(Path::new("/s"), &state, Some("/m".into()));
            assert_eq!((found.severity, found.command.as_deref()), (severity, command), "{found:?}");
        }
    }
}
