//! Which process it is: so that another one of the same machine can tell whether it still lives. Does not
//! know its callers.

use std::fs;
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

/// A process, unlike any other of any machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessName {
    /// The start of the machine that it runs on.
    boot: String,
    /// Where its number counts: a container has numbers of its own.
    namespace: String,
    pid: u32,
    /// When it began, in ticks since the machine was started: numbers are used again.
    began: u64,
}

/// The known state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Lives,
    /// It does nothing any more.
    Ended,
    /// It is one of another machine or container.
    Unknown,
}

impl ProcessName {
    /// Of this process; `None` where the system does not say.
    pub(crate) fn this() -> Option<ProcessName> {
        Self::of(std::process::id())
    }

    /// Of the process of that number here; `None` where there is none, or the system does not say.
    pub(crate) fn of(pid: u32) -> Option<ProcessName> {
        let (boot, namespace) = here()?;
        Some(ProcessName { boot, namespace, pid, began: Stat::of(pid).ok()??.began })
    }

    /// Whether it lives.
    pub(crate) fn life(&self) -> Life {
        if here().is_none_or(|(boot, namespace)| boot != self.boot || namespace != self.namespace) {
            return Life::Unknown;
        }
        match Stat::of(self.pid) {
            Ok(Some(stat)) if stat.began == self.began && !stat.has_ended => Life::Lives,
            Ok(_) => Life::Ended,
            Err(_) => Life::Unknown,
        }
    }
}

/// The start of this machine, and where numbers of processes count.
fn here() -> Option<(String, String)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some((boot.trim().to_owned(), namespace.to_string_lossy().into_owned()))
}

/// The system's state of a process.
struct Stat {
    began: u64,
    /// It has ended, and its parent has not asked how.
    has_ended: bool,
}

impl Stat {
    /// `None` where there is no such process.
    fn of(pid: u32) -> std::io::Result<Option<Stat>> {
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(line) => Stat::parse(&line).map(Some).ok_or_else(|| ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(line: &str) -> Option<Stat> {
        // The name before it may hold anything.
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let has_ended = matches!(*fields.first()?, "Z" | "X" | "x");
        Some(Stat { began: fields.get(19)?.parse().ok()?, has_ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended_and_its_number_is_not_enough() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("it runs");
        let this = ProcessName::this().expect("the system says");
        let name = ProcessName::of(child.id()).expect("there");
        assert_eq!([this.life(), name.life()], [Life::Lives; 2]);
        assert_eq!(ProcessName { began: name.began + 1, ..name.clone() }.life(), Life::Ended);
        child.kill().expect("it can be");
        child.wait().expect("it ends");
        assert_eq!(name.life(), Life::Ended);
        assert_eq!(ProcessName { boot: "another".to_owned(), ..name }.life(), Life::Unknown);
    }

    #[test]
    fn a_name_with_brackets_does_not_hide_what_follows() {
        let line = "7 (a) Z b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3";
        let stat = Stat::parse(line).expect("it is one");
        assert_eq!((stat.began, stat.has_ended), (98765, false));
    }
}
