//! The variables of the environment: those of shardd that no program knows, and proxies in the way to nodes and stores.

use std::collections::BTreeMap;
use std::net::IpAddr;

use shardd_api::suggest::nearest;

use super::finding::{Check, Finding, Group, doc};
use super::shell;

const UNKNOWN: Check = Check::new(Group::Settings, "unknown_variables", doc::SETTINGS);
const PROXIES: Check = Check::new(Group::Settings, "proxies", doc::CERTIFICATES);

/// The beginning of the names of our variables.
const PREFIX: &str = "SHARDD_";

/// Settings of nodes, of `shardctl`, of loaders and of trainers.
const KNOWN: [&str; 43] = [
    "ALLOWED_HOSTS",
    "ALLOW_INSECURE_HTTP",
    "AUTH",
    "CA",
    "CACHE_DIR",
    "CACHE_SIZE",
    "CERTIFICATE_LIFETIME",
    "CONFIG",
    "CONTEXT",
    "CONTEXTS",
    "DATA",
    "DISK_RESERVE",
    "ELASTIC",
    "EXCHANGE_RATE",
    "GRACE",
    "HTTP",
    "ID",
    "JOIN",
    "LAUNCHER",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MEMBER",
    "METASTORE",
    "NCCL",
    "ON_SIGTERM",
    "QUIC",
    "READY_FILE",
    "SERVER",
    "SHARE",
    "SOCKET",
    "STORE",
    "STORE_ANONYMOUS",
    "STORE_BANDWIDTH",
    "STORE_CA",
    "STORE_ENDPOINT",
    "STORE_REGION",
    "TLS",
    "TLS_CA",
    "TLS_CERT",
    "TLS_HOSTS",
    "TLS_KEY",
    "TOKEN",
    "TOKEN_FILE",
];

/// Those of tests and benches, which developers set. A `_` at the end stands for more.
const OF_TESTS: [&str; 17] = [
    "AZURITE",
    "BENCH_",
    "BIN",
    "COUNT",
    "DEATHS",
    "FUZZ_",
    "PLAN_CASES",
    "PYTHON",
    "QUICK",
    "S3S_FS",
    "SHARDCTL",
    "SHARED",
    "SIM_",
    "TEST_",
    "TESTS_",
    "WHOLE",
    "WRITE_DOCS",
];

/// The variables that name a proxy.
const PROXY: [&str; 6] = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
/// The variables that list hosts for which no proxy is used.
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// All of them. `hosts` are those of the nodes and of the service of the store.
pub(crate) fn check(variables: &BTreeMap<String, String>, hosts: &[String]) -> Vec<Finding> {
    let mut found = unknown(variables);
    if found.is_empty() {
        let ours = variables.keys().filter(|name| name.starts_with(PREFIX)).count();
        found.push(UNKNOWN.ok(format!("{ours} variables begin with {PREFIX}, and all are known")));
    }
    found.push(proxies(variables, hosts));
    found
}

/// The variables of this process that are text.
pub(crate) fn variables() -> BTreeMap<String, String> {
    let all = std::env::vars_os();
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

fn is_known(name: &str) -> bool {
    let is_it = |of_tests: &&str| name == *of_tests || of_tests.ends_with('_') && name.starts_with(*of_tests);
    KNOWN.contains(&name) || OF_TESTS.iter().any(is_it)
}

/// Those that begin as ours do, and are none.
fn unknown(variables: &BTreeMap<String, String>) -> Vec<Finding> {
    let names = variables.keys().filter_map(|name| name.strip_prefix(PREFIX));
    let wrong = names.filter(|name| !is_known(name));
    wrong
        .map(|wrong| {
            let name = format!("{PREFIX}{wrong}");
            let evidence = format!("no program of shardd knows the variable {name}");
            let word = shell::word(&name);
            let meant = nearest(wrong, KNOWN).map(|meant| format!("{PREFIX}{meant}"));
            let is_valid = name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
            match meant {
                Some(meant) if is_valid && !variables.contains_key(&meant) => UNKNOWN
                    .warning(format!("{evidence}; is it {meant}?"))
                    .mend(format!("Set {meant} in its place."))
                    .run(format!("export {meant}=\"${name}\"; unset {word}")),
                Some(meant) => UNKNOWN
                    .warning(format!("{evidence}; {meant} is set, too"))
                    .mend("Remove it.")
                    .run(format!("unset {word}")),
                None => UNKNOWN.warning(evidence).mend("Remove it.").run(format!("unset {word}")),
            }
        })
        .collect()
}

/// Whether requests to our hosts would take a proxy.
fn proxies(variables: &BTreeMap<String, String>, hosts: &[String]) -> Finding {
    let set = |name: &&str| variables.get(*name).is_some_and(|value| !value.is_empty());
    let given: Vec<&str> = PROXY.into_iter().filter(|name| set(name)).collect();
    if given.is_empty() {
        return PROXIES.ok("no variable names a proxy");
    }
    let lists = NO_PROXY.into_iter().filter(|name| set(name));
    let lists: Vec<&str> = lists.filter_map(|name| variables.get(name)).map(String::as_str).collect();
    // Programs read one of the two; which, differs.
    let is_spared = |host: &&String| !lists.is_empty() && lists.iter().all(|list| is_listed(list, host));
    let mut lacking: Vec<&str> = hosts.iter().filter(|host| !is_spared(host)).map(String::as_str).collect();
    lacking.sort_unstable();
    lacking.dedup();
    let given = given.join(", ");
    if lacking.is_empty() {
        return PROXIES.ok(format!("{given} set, and NO_PROXY lists the hosts of nodes and store"));
    }
    let mut parts: Vec<&str> = lists.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    parts.extend(&lacking);
    parts.retain(|part| !part.is_empty());
    let mut seen = std::collections::BTreeSet::new();
    parts.retain(|part| seen.insert(*part));
    let all = shell::word(&parts.join(","));
    PROXIES
        .warning(format!(
            "{given} set, and NO_PROXY lacks {}: stores, curl and Prometheus ask the proxy for them (shardctl and loaders ask nodes directly)",
            lacking.join(", ")
        ))
        .mend("List the hosts.")
        .run(format!("export NO_PROXY={all} no_proxy={all}"))
}

/// Whether a list of NO_PROXY has a host: by its name, a domain, an address, or a network.
fn is_listed(list: &str, host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    list.split(',').map(|part| part.trim().to_ascii_lowercase()).any(|part| {
        let part = part.trim_start_matches('[').trim_end_matches(']');
        let domain = part.trim_start_matches("*.").trim_start_matches('.');
        match part {
            "" => false,
            "*" => true,
            _ if domain == host => true,
            _ => {
                host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
                    || is_in_network(part, &host)
            }
        }
    })
}

/// Whether an address is in a network, such as `10.0.0.0/8`.
fn is_in_network(network: &str, host: &str) -> bool {
    let Some((network, length)) = network.split_once('/') else { return false };
    let (Ok(network), Ok(host)) = (network.parse::<IpAddr>(), host.parse::<IpAddr>()) else { return false };
    let Ok(length) = length.parse::<u32>() else { return false };
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let ((network, all), (host, own)) = (bits(network), bits(host));
    all == own && length <= all && (length == 0 || (network ^ host) >> (all - length) == 0)
}

/// The host of a URL, without port and user.
pub(crate) fn host_of(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.starts_with('[') {
        true => host.split_once(']').map_or(host, |(address, _)| &address[1..]),
        false => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    (!host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok, Warning};
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_one_that_is_meant() {
        let found = unknown(&set(&[("SHARDD_CASHE_SIZE", "1GiB"), ("SHARDD_DATA", "x"), ("PATH", "y")]));
        let [found] = &found[..] else { panic!("{found:?}") };
        assert_eq!(found.severity, Warning);
        assert!(found.evidence.contains("SHARDD_CASHE_SIZE; is it SHARDD_CACHE_SIZE?"), "{found:?}");
        let command = found.command.as_deref();
        assert_eq!(command, Some("export SHARDD_CACHE_SIZE=\"$SHARDD_CASHE_SIZE\"; unset SHARDD_CASHE_SIZE"));
        let both = unknown(&set(&[("SHARDD_TOKENS", "1"), ("SHARDD_TOKEN", "2")]));
        assert_eq!(both[0].command.as_deref(), Some("unset SHARDD_TOKENS"));
        let far = unknown(&set(&[("SHARDD_NOTHING_LIKE_IT", "1")]));
        assert_eq!(far[0].command.as_deref(), Some("unset SHARDD_NOTHING_LIKE_IT"));
        assert!(!format!("{far:?}{both:?}").contains("\"2\""), "no value is shown");
        assert_eq!(unknown(&set(&[("SHARDD_BENCH_SLOW", ""), ("SHARDD_TOKEN_FILE", "")])), []);
        assert_eq!(check(&set(&[]), &[]).iter().map(|found| found.severity).max(), Some(Ok));
    }

    #[test]
    fn a_proxy_is_a_problem_unless_the_hosts_are_listed() {
        let hosts = ["10.77.0.1".to_owned(), "n1.example.org".to_owned()];
        let proxy = ("http_proxy", "http://me:pw@proxy:3128");
        for (variables, severity) in [
            (set(&[]), Ok),
            (set(&[("http_proxy", "")]), Ok),
            (set(&[proxy]), Warning),
            (set(&[proxy, ("NO_PROXY", "10.77.0.1,example.org")]), Ok),
            (set(&[proxy, ("NO_PROXY", "10.77.0.0/16, .example.org")]), Ok),
            (set(&[proxy, ("NO_PROXY", "*")]), Ok),
            (set(&[proxy, ("NO_PROXY", "10.78.0.0/16,example.org")]), Warning),
            (set(&[proxy, ("NO_PROXY", "*"), ("no_proxy", "localhost")]), Warning),
        ] {
            let found = proxies(&variables, &hosts);
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(!found.evidence.contains("pw"), "{found:?}");
        }
        let found = proxies(&set(&[proxy, ("no_proxy", "localhost,n1.example.org")]), &hosts);
        let command = found.command.expect("a command");
        assert_eq!(
            command,
            "export NO_PROXY=localhost,n1.example.org,10.77.0.1 no_proxy=localhost,n1.example.org,10.77.0.1"
        );
        assert_eq!(proxies(&set(&[proxy]), &[]).severity, Ok, "there is nothing to reach");
    }

    #[test]
    fn lists_have_names_domains_addresses_and_networks() {
        for (list, host, wants) in [
            ("a.org", "a.org", true),
            ("a.org", "b.a.org", true),
            ("a.org", "ba.org", false),
            ("*.a.org", "b.a.org", true),
            ("fd00::/8", "fd00::1", true),
            ("10.0.0.0/33", "10.0.0.1", false),
            ("0.0.0.0/0", "10.0.0.1", true),
            ("10.0.0.0/8", "fd00::1", false),
            ("", "a.org", false),
        ] {
            assert_eq!(is_listed(list, host), wants, "{list} {host}");
        }
        for (url, host) in [
            ("http://10.77.0.1:7700/v1", Some("10.77.0.1")),
            ("https://[fd00::1]:7700", Some("fd00::1")),
            ("http://u:p@host", Some("host")),
            ("nothing", None),
        ] {
            assert_eq!(host_of(url).as_deref(), host, "{url}");
        }
    }
}
