//! Asks a cluster for what `top` shows: one node while it answers, else another one that it knows.

use serde::de::DeserializeOwned;
use serde_json::Value;
use shardd_api::duration;
use shardd_api::hot::HotOrder;
use shardd_api::overview::OverviewHere;
use shardd_api::overview::rows::NodeRows;
use shardd_api::protocol::Health;
use shardd_store::connect::Servers;
use shardd_store::http::{HttpClient, HttpError};

use super::state::{HotRows, Seen, Trouble, Window};
use crate::addresses::{Addresses, reason};
use crate::failure::Failure;

/// How long a node has for an answer; it may ask a thousand nodes for it.
pub(super) const ANSWERS_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);
/// How many nodes are tried for one question.
const TRIED: usize = 4;

/// What to ask.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    /// Whether the view is wanted; else only rows.
    pub(super) has_view: bool,
    pub(super) window: Window,
    /// The order and the number of hot shards, if they are wanted: every node is asked for those.
    pub(super) hot: Option<(HotOrder, usize)>,
}

/// An answer; parts that were not asked for are missing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct News {
    server: String,
    at: u64,
    view: Option<OverviewHere>,
    rows: NodeRows,
    window: Window,
    hot: Option<(HotOrder, HotRows)>,
}

/// Why no node answers.
#[derive(Debug)]
pub(super) struct NoAnswer {
    pub(super) trouble: Trouble,
    pub(super) failure: Failure,
}

/// The nodes that can be asked.
pub(super) struct Source {
    http: HttpClient,
    addresses: Addresses,
}

impl Source {
    pub(super) fn new(servers: &Servers) -> Source {
        let addresses = Addresses::new(&servers.urls, servers.first_that_answers());
        Source { http: servers.http_within(ANSWERS_WITHIN), addresses }
    }

    /// The client, with which another thread can end a question.
    pub(super) fn http(&self) -> HttpClient {
        self.http.clone()
    }

    /// The view as it is.
    pub(super) fn json(&self) -> Result<Value, Failure> {
        let server = self.addresses.current();
        self.http
            .get_json(&format!("{server}/v1/overview"))
            .map_err(|error| explained(&self.http, server, error))
    }

    /// Asks the node that answered last, and if it does not, others. The next question goes to the one that did.
    pub(super) fn ask(&mut self, question: &Question) -> Result<News, Box<NoAnswer>> {
        let mut first = None;
        for _ in 0..self.addresses.count().min(TRIED) {
            let server = self.addresses.current().to_owned();
            let error = match ask(&self.http, &server, question) {
                Ok(news) => {
                    self.addresses.learn(news.rows.rows.iter().map(|row| row.http.as_str()));
                    return Ok(news);
                }
                Err(error) => error,
            };
            first.get_or_insert_with(|| {
                let why = reason(&error);
                let failure = explained(&self.http, &server, error);
                NoAnswer { trouble: Trouble { server, why }, failure }
            });
            self.addresses.turn();
        }
        Err(Box::new(first.expect("there is an address")))
    }
}

fn ask(http: &HttpClient, server: &str, question: &Question) -> Result<News, HttpError> {
    let view = match question.has_view {
        true => Some(http.get_json(&format!("{server}/v1/overview"))?),
        false => None,
    };
    let window = question.window.clone();
    let rows = get(http, server, &rows_path(&window))?;
    let hot = match question.hot {
        Some((order, limit)) => {
            Some((order, get(http, server, &format!("/v1/hot?by={}&limit={limit}", order.name()))?))
        }
        None => None,
    };
    Ok(News { server: server.to_owned(), at: duration::now(), view, rows, window, hot })
}

fn get<T: DeserializeOwned>(http: &HttpClient, server: &str, path: &str) -> Result<T, HttpError> {
    http.get_json(&format!("{server}{path}"))
}

fn rows_path(window: &Window) -> String {
    let Window { order, search, offset, limit } = window;
    let (order, search) = (order.name(), encoded(search));
    format!("/v1/cluster/nodes?order={order}&search={search}&offset={offset}&limit={limit}")
}

/// A text in a query.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The failure of a question. A node of a release before this one does not know it.
fn explained(http: &HttpClient, server: &str, error: HttpError) -> Failure {
    if error.status() != Some(404) {
        return error.into();
    }
    let node = http.get_json::<Health>(&format!("{server}/v1/health"));
    let node = node.map_or_else(
        |_| server.to_owned(),
        |health| format!("node {} runs shardd {}", health.id, health.release),
    );
    Failure::failed(format!(
        "{node}, which is too old for `shardctl top` of {}: upgrade the node, or use `shardctl status`",
        env!("CARGO_PKG_VERSION")
    ))
}

impl News {
    /// Everything that is known with it. `before` has the parts that were not asked for now.
    pub(super) fn after(self, before: Option<&Seen>) -> Option<Seen> {
        let News { server, at, view, rows, window, hot } = self;
        // The view keeps its age when only rows are new.
        let at = if view.is_some() { at } else { before?.at };
        let none = || (HotOrder::default(), HotRows { half_life_s: 0, shards: Vec::new() });
        let (hot_order, hot) =
            hot.or_else(|| before.map(|before| (before.hot_order, before.hot.clone()))).unwrap_or_else(none);
        let view = match view {
            Some(view) => view,
            None => before?.view.clone(),
        };
        Some(Seen { server, at, view, rows, window, hot, hot_order })
    }
}

#[cfg(test)]
mod tests {
    use shardd_api::overview::rows::RowOrder;

    use super::*;

    #[test]
    fn rows_are_asked_for_by_window_and_search() {
        let window =
            Window { order: RowOrder::Disk, search: "gpu-7 &x=é".to_owned(), offset: 40, limit: 30 };
        assert_eq!(
            rows_path(&window),
            "/v1/cluster/nodes?order=disk&search=gpu-7%20%26x%3D%C3%A9&offset=40&limit=30"
        );
    }
}
