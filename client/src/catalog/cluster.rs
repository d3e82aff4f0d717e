//! A catalog through several servers of one cluster: as long as one of them answers, it does.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use shardfmt::plan::PlanDocument;
use shardfmt::{DatasetName, FinishedShard, Manifest, PlanId, ShardEntry, ShardId, VersionId};

use super::{Catalog, CatalogError, DatasetInfo, HttpCatalog, PlanInfo};
use crate::http::HttpError;

/// A [`Catalog`] that asks the server that answered last, and another when that one is gone.
///
/// Any server will do, and asking again is harmless: everything put is content-addressed, and a commit names the version
/// it replaces.
pub struct ClusterCatalog {
    servers: Vec<HttpCatalog>,
    current: AtomicUsize,
}

impl ClusterCatalog {
    /// A catalog that asks the servers at `urls`, the first as long as it answers.
    ///
    /// # Panics
    ///
    /// If there is no server to ask.
    pub fn new<U: AsRef<str>>(urls: &[U]) -> Self {
        assert!(!urls.is_empty(), "a cluster has at least one server");
        let servers = urls.iter().map(|url| HttpCatalog::new(url.as_ref())).collect();
        Self { servers, current: AtomicUsize::new(0) }
    }

    fn ask<T>(&self, question: impl Fn(&HttpCatalog) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let count = self.servers.len();
        let current = self.current.load(Ordering::Relaxed);
        let mut unreachable = None;
        for server in (current..current + count).map(|server| server % count) {
            match question(&self.servers[server]) {
                Err(error @ CatalogError::Http(HttpError::Unreachable { .. })) => {
                    unreachable.get_or_insert(error);
                }
                answer => {
                    self.current.store(server, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(unreachable.expect("at least one server was asked"))
    }
}

impl Catalog for ClusterCatalog {
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        self.ask(Catalog::datasets)
    }

    fn dataset(&self, name: &DatasetName) -> Result<DatasetInfo, CatalogError> {
        self.ask(|server| server.dataset(name))
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        self.ask(|server| server.manifest(version))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        self.ask(|server| server.shard(entry))
    }

    fn put_shard(&self, shard: &FinishedShard) -> Result<(), CatalogError> {
        self.ask(|server| server.put_shard(shard))
    }

    fn has_shard(&self, id: &ShardId) -> Result<bool, CatalogError> {
        self.ask(|server| server.has_shard(id))
    }

    fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        manifest: &Manifest,
    ) -> Result<DatasetInfo, CatalogError> {
        self.ask(|server| server.commit(name, expected, manifest))
    }

    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError> {
        self.ask(|server| server.put_plan(plan))
    }

    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError> {
        self.ask(Catalog::plans)
    }

    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        self.ask(|server| server.plan(id))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// An address where nobody listens any more.
    fn nobody() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        format!("http://{}", listener.local_addr().expect("bound"))
    }

    #[test]
    fn a_server_that_is_gone_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let alive = format!("http://{}", listener.local_addr().expect("bound"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("one question");
            let mut question = [0; 1024];
            let read = stream.read(&mut question).expect("a request");
            assert!(question[..read].starts_with(b"GET /v1/plans "));
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]";
            stream.write_all(answer.as_bytes()).expect("an answer");
        });
        assert_eq!(ClusterCatalog::new(&[nobody(), alive]).plans().expect("the second answers"), []);
        server.join().expect("no panic");
    }

    #[test]
    fn when_all_are_gone_the_first_is_named() {
        let urls = [nobody(), nobody()];
        let error = ClusterCatalog::new(&urls).datasets().expect_err("nobody answers");
        assert!(error.to_string().contains(&urls[0]), "{error}");
    }
}
