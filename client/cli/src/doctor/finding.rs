//! A finding of the doctor: the check, how bad it is, the evidence, and the remedy. Knows no check.

use serde::Serialize;

use super::redact;

/// The part of the set-up that a check looks at, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Group {
    /// Its kernel, its memory, its limits.
    Machine,
    /// The directory in which a node keeps its data, and its disk.
    Directory,
    /// Variables, contexts, settings, and the files that they name.
    Settings,
    /// The store, as this machine reaches it.
    Store,
    /// The nodes, and the way to them.
    Cluster,
}

impl Group {
    /// The heading over its findings.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Group::Machine => "This machine",
            Group::Directory => "Data directory",
            Group::Settings => "Settings",
            Group::Store => "Store",
            Group::Cluster => "Cluster",
        }
    }
}

/// How bad a finding is, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Nothing to do.
    Ok,
    /// Worth knowing.
    Info,
    /// It works, and is slower or less safe than it has to be, or will fail later.
    Warning,
    /// Something does not work.
    Error,
}

impl Severity {
    /// Its name, as in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A check, by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check {
    group: Group,
    name: &'static str,
    doc: &'static str,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The part of the set-up.
    pub(crate) group: Group,
    /// The name of the check.
    pub(crate) check: String,
    /// How bad it is.
    pub(crate) severity: Severity,
    /// The values that were read or measured.
    pub(crate) evidence: String,
    /// What to do, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    /// The same as a line for a shell, where one line mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// The page with more about it.
    pub(crate) doc: &'static str,
}

impl Check {
    /// A check of a part of the set-up, that a page of the documentation is about.
    pub(crate) const fn new(group: Group, name: &'static str, doc: &'static str) -> Check {
        Check { group, name, doc }
    }

    /// All is well.
    pub(crate) fn ok(self, evidence: impl Into<String>) -> Finding {
        self.finding(Severity::Ok, evidence)
    }

    /// Something worth knowing.
    pub(crate) fn info(self, evidence: impl Into<String>) -> Finding {
        self.finding(Severity::Info, evidence)
    }

    /// Something that costs speed or safety.
    pub(crate) fn warning(self, evidence: impl Into<String>) -> Finding {
        self.finding(Severity::Warning, evidence)
    }

    /// Something that does not work.
    pub(crate) fn error(self, evidence: impl Into<String>) -> Finding {
        self.finding(Severity::Error, evidence)
    }

    /// A finding of any severity.
    pub(crate) fn finding(self, severity: Severity, evidence: impl Into<String>) -> Finding {
        let Check { group, name, doc } = self;
        let (check, evidence) = (name.to_owned(), evidence.into());
        Finding { group, check, severity, evidence, remedy: None, command: None, doc }
    }

    /// The check took too long, and was given up.
    pub(crate) fn given_up(self, after: std::time::Duration) -> Finding {
        self.warning(format!("the check took longer than {} s, and was given up", after.as_secs_f64().ceil()))
            .mend("Look for a disk or a network mount that hangs, then run the doctor again.")
    }
}

impl Finding {
    /// With a remedy in words.
    #[must_use]
    pub(crate) fn mend(self, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    /// With a remedy as a line for a shell.
    #[must_use]
    pub(crate) fn run(self, command: impl Into<String>) -> Finding {
        Finding { command: Some(command.into()), ..self }
    }

    /// Whether it is worse than worth knowing.
    pub(crate) fn is_problem(&self) -> bool {
        self.severity > Severity::Info
    }

    /// The same without secrets: those in URLs, and tokens.
    #[must_use]
    pub(crate) fn redacted(self) -> Finding {
        Finding {
            evidence: redact::line(&self.evidence),
            remedy: self.remedy.as_deref().map(redact::line),
            command: self.command.as_deref().map(redact::line),
            ..self
        }
    }
}

/// The pages that findings name.
pub(crate) mod doc {
    pub(crate) const CONTEXTS: &str = "docs/OPERATIONS.md#contexts";
    pub(crate) const SETTINGS: &str = "docs/OPERATIONS.md#settings-of-a-node";
    pub(crate) const START: &str = "docs/OPERATIONS.md#start-with-the-machine";
    pub(crate) const LOADERS: &str = "docs/OPERATIONS.md#loaders-on-a-nodes-machine";
    pub(crate) const LEAVING: &str = "docs/OPERATIONS.md#nodes-that-join-and-leave";
    pub(crate) const EXCHANGE: &str = "docs/OPERATIONS.md#the-pace-of-the-exchange";
    pub(crate) const SLOW: &str = "docs/OPERATIONS.md#slow-and-failing-nodes";
    pub(crate) const MACHINES: &str = "docs/CLUSTER.md#three-machines";
    pub(crate) const CERTIFICATES: &str = "docs/CLUSTER.md#certificates";
    pub(crate) const TOKENS: &str = "docs/CLUSTER.md#who-may-ask";
    pub(crate) const STORES: &str = "docs/STORES.md#stores";
    pub(crate) const CREDENTIALS: &str = "docs/STORES.md#credentials";
    pub(crate) const WITHOUT_NODES: &str = "docs/STORES.md#without-any-node";
    pub(crate) const TRAINER: &str = "docs/TRAINER.md";

    #[cfg(test)]
    pub(crate) const ALL: [&str; 14] = [
        CONTEXTS,
        SETTINGS,
        START,
        LOADERS,
        LEAVING,
        EXCHANGE,
        SLOW,
        MACHINES,
        CERTIFICATES,
        TOKENS,
        STORES,
        CREDENTIALS,
        WITHOUT_NODES,
        TRAINER,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The anchor of a heading.
    fn anchor(heading: &str) -> String {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    }

    #[test]
    fn every_page_that_findings_name_has_the_heading() {
        for page in doc::ALL {
            let (file, wanted) = page.split_once('#').unwrap_or((page, ""));
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
            let text = std::fs::read_to_string(path).expect(page);
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            let is_there = headings.any(|line| anchor(line.trim_start_matches('#').trim()) == wanted);
            assert!(wanted.is_empty() || is_there, "{page}");
        }
    }

    #[test]
    fn a_finding_is_one_object_without_secrets() {
        let check = Check::new(Group::Store, "store_reached", doc::STORES);
        let finding = check.error("https://me:pw@host/x?sig=1 refuses").mend("Ask.").run("true").redacted();
        let json = serde_json::to_string(&finding).expect("JSON");
        assert_eq!(
            json,
            "{\"group\":\"store\",\"check\":\"store_reached\",\"severity\":\"error\",\"evidence\":\
             \"https://REDACTED@host/x?REDACTED refuses\",\"remedy\":\"Ask.\",\"command\":\"true\",\
             \"doc\":\"docs/STORES.md#stores\"}"
        );
        assert!(finding.is_problem() && !check.info("x").is_problem());
    }
}
