//! Certificates of nodes: whether they are renewed in time. Nodes do that when two thirds of the time are over.

use std::path::Path;

use shardd_api::duration::now;
use shardd_certificates::{CertificateInfo, LIFETIME, NODE_CERTIFICATE, read_certificate};

use super::finding::{Check, Finding, Group, doc};
use crate::human::date;

const OF_NODE: Check = Check::new(Group::Cluster, "certificates", doc::CERTIFICATES);
const OF_DATA: Check = Check::new(Group::Directory, "certificate", doc::CERTIFICATES);
/// The part of the lifetime for which a renewal may be late before it is a problem: nodes retry.
const PATIENCE: u64 = 30;

/// The time of a certificate, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    /// When it was made; none if that is not known.
    pub(crate) made: Option<u64>,
    /// When it ends.
    pub(crate) ends: u64,
}

/// The certificate in the data directory of a node.
pub(crate) fn check(data: &Path) -> Vec<Finding> {
    let path = data.join("tls").join(NODE_CERTIFICATE);
    if !path.exists() {
        return Vec::new();
    }
    let read = read_certificate(&path).map_err(|error| error.to_string());
    let info = read.and_then(|certificate| CertificateInfo::of(&certificate));
    vec![match info {
        Ok(info) if info.is_early(now()) => OF_DATA
            .error(format!(
                "the certificate of {} begins at {} UTC, which is in the future",
                info.node,
                date(info.not_before)
            ))
            .mend("Set the clock of this machine by NTP, then start the node again.")
            .run("timedatectl set-ntp true"),
        Ok(info) => {
            let term = Term { made: Some(info.issued()), ends: info.not_after };
            let mend = "Start the node: it renews its certificate at its start. If it runs, look for the reason in its log. A \
                        certificate that has ended is renewed on the node that signs; elsewhere start with a new join token.";
            judge(OF_DATA, info.node.as_str(), term, now(), mend)
        }
        Err(reason) => OF_DATA
            .error(format!("{} cannot be read: {reason}", path.display()))
            .mend("Run the doctor as the user of the node, or restore the file."),
    }]
}

/// The certificate that a node shows.
pub(crate) fn of_node(node: &str, term: Term, now: u64) -> Finding {
    let mend = format!(
        "Let the node that signs run and reach this one: nodes renew their certificates by themselves then. Look for the reason in \
         the log of {node}."
    );
    let found = judge(OF_NODE, node, term, now, &mend);
    if found.is_problem() { found.run(format!("shardctl certs rotate {node}")) } else { found }
}

fn judge(check: Check, node: &str, Term { made, ends }: Term, now: u64, mend: &str) -> Finding {
    let made = made.unwrap_or_else(|| ends.saturating_sub(LIFETIME.as_secs()));
    let life = ends.saturating_sub(made);
    let due = ends.saturating_sub(life / 3);
    let until = format!("{} UTC", date(ends));
    if now >= ends {
        return check.error(format!("the certificate of {node} has ended at {until}")).mend(mend);
    }
    if now <= due.saturating_add(life / PATIENCE) {
        return check.ok(format!("the certificate of {node} is good until {until}"));
    }
    let evidence =
        format!("the certificate of {node} ends at {until}, and was due for renewal at {} UTC", date(due));
    match ends - now < life / 10 {
        true => check.error(evidence).mend(mend),
        false => check.warning(evidence).mend(mend),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Error, Ok as Fine, Warning};
    use super::*;

    const DAY: u64 = 24 * 3600;

    #[test]
    fn a_certificate_is_a_problem_when_its_renewal_is_late() {
        let term = Term { made: Some(1000 * DAY), ends: 1030 * DAY };
        for (day, severity) in [
            (1001, Fine),
            (1020, Fine),
            (1021, Fine),
            (1022, Warning),
            (1028, Error),
            (1030, Error),
            (2000, Error),
        ] {
            let found = of_node("n1", term, day * DAY);
            assert_eq!(found.severity, severity, "{found:?}");
            assert_eq!(found.command.is_some(), severity != Fine);
        }
        // A short one is renewed in the same parts of its time.
        let short = Term { made: Some(1000), ends: 1060 };
        assert_eq!(
            [1010, 1041, 1050, 1058].map(|at| of_node("n1", short, at).severity),
            [Fine, Fine, Warning, Error]
        );
        // Without its beginning, it is taken for one of 30 days.
        let unknown = Term { made: None, ends: 1030 * DAY };
        assert_eq!(of_node("n1", unknown, 1010 * DAY).severity, Fine);
        assert_eq!(of_node("n1", unknown, 1025 * DAY).severity, Warning);
    }

    #[test]
    fn the_certificate_of_a_data_directory_is_read() {
        let root = tempfile::TempDir::new().expect("a directory");
        assert_eq!(check(root.path()), []);
        std::fs::create_dir(root.path().join("tls")).expect("made");
        std::fs::write(root.path().join("tls/node.pem"), "none").expect("written");
        assert_eq!(check(root.path())[0].severity, Error);
        let (authority, to) = (root.path().join("ca"), root.path().join("n1/tls"));
        shardd_certificates::private_directory(&authority).expect("made");
        shardd_certificates::Authority::found(&authority).expect("founded");
        let node = "n1".parse().expect("a name");
        shardd_certificates::private_directory(&root.path().join("n1")).expect("made");
        shardd_certificates::issue(&authority, &node, &[], LIFETIME, &to).expect("issued");
        assert_eq!(check(&root.path().join("n1"))[0].severity, Fine);
    }
}
