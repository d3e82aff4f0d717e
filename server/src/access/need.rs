//! What a request needs: decided from its method and path alone, so that a route cannot forget to ask.

use axum::http::Method;
use shardfmt::{DatasetName, DatasetRef};

use super::{Role, Scope};

/// The right that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: whether the node lives, and how to join, which asks for a secret of its own.
    Nothing,
    /// A token of this role, for this dataset, if it is about one.
    Token {
        /// At least.
        role: Role,
        /// The dataset that the path names. Objects named by their digest belong to those who know the
        /// digest.
        dataset: Option<DatasetName>,
    },
}

impl Need {
    /// The right that this request needs.
    #[must_use]
    pub fn of(method: &Method, path: &str) -> Need {
        let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
        let is_read = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        let role = match steps[..] {
            ["v1", "health" | "ready" | "openapi.json" | "authority"] if is_read => return Need::Nothing,
            // The files of the console. What it shows, it asks for with a token.
            [] | ["console.js" | "charts.js" | "console.css" | "LICENSES.txt"] if is_read => {
                return Need::Nothing;
            }
            ["v1", "join"] => return Need::Nothing,
            [
                "v1",
                "tokens" | "join-tokens" | "certificates" | "gc" | "forget" | "recover" | "promote" | "evict"
                | "metastore",
                ..,
            ] => Role::Admin,
            ["v1", "nodes" | "exchange" | "balancer", ..] if !is_read => Role::Admin,
            ["v1", "runs", _, "rebalance"] => Role::Admin,
            ["v1", "runs", _] if *method == Method::DELETE => Role::Write,
            // Who may read may train: its runs, where its ranks are, and how far.
            ["v1", "runs", ..] => Role::Read,
            _ if is_read => Role::Read,
            _ => Role::Write,
        };
        let dataset = match steps[..] {
            ["v1", "datasets", name, ..] => Some(named(name)),
            _ => None,
        };
        match dataset {
            // A name that is none leads nowhere; that it is none is for the route to say, to who may ask at all.
            None | Some(None) => Need::Token { role, dataset: None },
            Some(dataset) => Need::Token { role, dataset },
        }
    }

    /// Whether a token of this role and scope is enough; if not, the missing right.
    ///
    /// # Errors
    /// One line for the holder of the token.
    pub fn met_by(&self, role: Role, scope: &Scope) -> Result<(), String> {
        match self {
            Need::Nothing => Ok(()),
            Need::Token { role: needed, .. } if role < *needed => {
                Err(format!("the token has the role {role}; this needs {needed}"))
            }
            Need::Token { role: Role::Admin, .. } if !scope.is_all() => {
                Err("the token is for some datasets, this is about the cluster".to_owned())
            }
            Need::Token { dataset: Some(dataset), .. } if !scope.holds(dataset) => {
                Err(format!("the token is not for dataset {dataset}"))
            }
            Need::Token { .. } => Ok(()),
        }
    }
}

/// The dataset of `NAME` or `NAME@VERSION`, percent-encoded or not.
fn named(step: &str) -> Option<DatasetName> {
    let decoded = percent_encoding::percent_decode_str(step).decode_utf8().ok()?;
    Some(decoded.parse::<DatasetRef>().ok()?.dataset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> Need {
        Need::of(&method.parse().expect("a method"), path)
    }

    fn token(role: Role, dataset: Option<&str>) -> Need {
        Need::Token { role, dataset: dataset.map(|name| name.parse().expect("a name")) }
    }

    #[test]
    fn each_request_needs_what_it_does() {
        let table = [
            ("GET", "/v1/health", Need::Nothing),
            ("POST", "/v1/join", Need::Nothing),
            ("PUT", "/v1/health", token(Role::Write, None)),
            ("GET", "/", Need::Nothing),
            ("GET", "/console.js", Need::Nothing),
            ("PUT", "/console.js", token(Role::Write, None)),
            ("GET", "/v1/overview", token(Role::Read, None)),
            ("GET", "/v1/nodes/n1/series", token(Role::Read, None)),
            ("GET", "/metrics", token(Role::Read, None)),
            ("GET", "/v1/datasets", token(Role::Read, None)),
            ("HEAD", "/v1/shards/00", token(Role::Read, None)),
            ("PUT", "/v1/shards/00", token(Role::Write, None)),
            ("GET", "/v1/strata/00", token(Role::Read, None)),
            ("PUT", "/v1/strata/00", token(Role::Write, None)),
            ("GET", "/v1/datasets/a", token(Role::Read, Some("a"))),
            ("GET", "/v1/datasets/a@~1/log", token(Role::Read, Some("a"))),
            ("GET", "/v1/datasets/a%40~1", token(Role::Read, Some("a"))),
            ("GET", "//v1//datasets//a", token(Role::Read, Some("a"))),
            ("PUT", "/v1/datasets/a/tags/t", token(Role::Write, Some("a"))),
            ("DELETE", "/v1/datasets/a/log", token(Role::Write, Some("a"))),
            ("DELETE", "/v1/datasets/a", token(Role::Write, Some("a"))),
            ("GET", "/v1/datasets/A B", token(Role::Read, None)),
            ("POST", "/v1/plans", token(Role::Write, None)),
            ("POST", "/v1/runs", token(Role::Read, None)),
            ("DELETE", "/v1/runs/r", token(Role::Write, None)),
            ("DELETE", "/v1/runs/r/ranks/0", token(Role::Read, None)),
            ("GET", "/v1/runs/r/placement", token(Role::Read, None)),
            ("POST", "/v1/runs/r/rebalance", token(Role::Admin, None)),
            ("GET", "/v1/balancer", token(Role::Read, None)),
            ("PUT", "/v1/balancer", token(Role::Admin, None)),
            ("POST", "/v1/gc", token(Role::Admin, None)),
            ("POST", "/v1/forget", token(Role::Admin, None)),
            ("POST", "/v1/recover", token(Role::Admin, None)),
            ("POST", "/v1/promote", token(Role::Admin, None)),
            ("GET", "/v1/metastore/backup", token(Role::Admin, None)),
            ("POST", "/v1/metastore/migrate", token(Role::Admin, None)),
            ("POST", "/v1/evict", token(Role::Admin, None)),
            ("GET", "/v1/tokens", token(Role::Admin, None)),
            ("GET", "/v1/nodes", token(Role::Read, None)),
            ("GET", "/v1/lost-nodes", token(Role::Read, None)),
            ("PUT", "/v1/nodes/n1/drain", token(Role::Admin, None)),
            ("GET", "/v1/exchange", token(Role::Read, None)),
            ("PUT", "/v1/exchange", token(Role::Admin, None)),
            ("GET", "/v1/authority", Need::Nothing),
            ("POST", "/v1/join-tokens", token(Role::Admin, None)),
            ("DELETE", "/v1/certificates/n2", token(Role::Admin, None)),
            ("BREW", "/v1/datasets/a", token(Role::Write, Some("a"))),
        ];
        for (method, path, need) in table {
            assert_eq!(of(method, path), need, "{method} {path}");
        }
    }

    #[test]
    fn a_token_is_enough_by_role_and_dataset() {
        let only_a = Scope::of(["a".parse().expect("a name")]);
        assert_eq!(of("GET", "/v1/datasets/a").met_by(Role::Read, &only_a), Ok(()));
        assert_eq!(of("GET", "/v1/shards/00").met_by(Role::Admin, &only_a), Ok(()));
        let refused = of("PUT", "/v1/datasets/a").met_by(Role::Read, &only_a).expect_err("too little");
        assert_eq!(refused, "the token has the role read; this needs write");
        let refused = of("POST", "/v1/join-tokens").met_by(Role::Admin, &only_a).expect_err("all are meant");
        assert_eq!(refused, "the token is for some datasets, this is about the cluster");
        let refused = of("GET", "/v1/datasets/b").met_by(Role::Admin, &only_a).expect_err("another one");
        assert_eq!(refused, "the token is not for dataset b");
        assert_eq!(of("GET", "/v1/health").met_by(Role::Read, &only_a), Ok(()));
    }
}
