//! A catalog through several servers of one cluster: as long as one of them answers, it does.

use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use shardd_api::protocol::{AuditReport, RunId, RunRecord};
use shardd_plan::PlanDocument;
use shardfmt::{
    CommitId, DatasetName, DatasetRef, FinishedShard, Manifest, ManifestFile, Message, PlanId, Provenance,
    ShardEntry, ShardId, Sidecar, TagName, VersionId,
};

use super::{
    Catalog, CatalogError, CommitNote, DatasetInfo, Forget, ForgetReport, GcOptions, GcReport, HttpCatalog,
    LogEntry, PlanInfo, RecoverOptions, RecoverReport, RemoveRun, RunInfo, TagExpected, TagInfo,
};
use crate::http::{Credentials, HttpError, living_first};

/// A [`Catalog`] that asks the server that answered last, and another when that one is gone.
///
/// Any server will do, and asking again is harmless: everything put is content-addressed, and a commit names the version
/// it replaces.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::catalog::{Catalog, ClusterCatalog};
///
/// let catalog = ClusterCatalog::new(&["http://10.0.0.1:7700", "http://10.0.0.2:7700"]);
/// let digits = catalog.dataset(&"digits".parse()?)?;
/// assert_eq!(catalog.manifest(digits.version)?.sample_count(), digits.samples);
/// # Ok(())
/// # }
/// ```
pub struct ClusterCatalog {
    servers: Vec<HttpCatalog>,
    current: AtomicUsize,
    /// Looks, once, which of the servers live: one that hangs would be waited for.
    look: Once,
    urls: Vec<String>,
    credentials: Option<Credentials>,
}

impl ClusterCatalog {
    /// A catalog that asks the servers at `urls`, the first as long as it answers, with the credentials of the environment.
    ///
    /// # Panics
    ///
    /// If there is no server to ask.
    pub fn new<U: AsRef<str>>(urls: &[U]) -> Self {
        let credentials = Credentials::of_env().ok();
        Self::of(urls, credentials, HttpCatalog::new)
    }

    /// The same, with these credentials.
    ///
    /// # Panics
    ///
    /// If there is no server to ask.
    pub fn with<U: AsRef<str>>(urls: &[U], credentials: &Credentials) -> Self {
        Self::with_token_of(urls, credentials, None)
    }

    /// The same, with the source of the token, which errors about the token name.
    pub(crate) fn with_token_of<U: AsRef<str>>(
        urls: &[U],
        credentials: &Credentials,
        source: Option<String>,
    ) -> Self {
        let server = |url: &str| HttpCatalog::with_token_of(url, credentials, source.as_deref());
        Self::of(urls, Some(credentials.clone()), server)
    }

    fn of<U: AsRef<str>>(
        urls: &[U],
        credentials: Option<Credentials>,
        server: impl Fn(&str) -> HttpCatalog,
    ) -> Self {
        assert!(!urls.is_empty(), "a cluster has at least one server");
        let servers = urls.iter().map(|url| server(url.as_ref())).collect();
        let urls = urls.iter().map(|url| url.as_ref().to_owned()).collect();
        Self { servers, current: AtomicUsize::new(0), look: Once::new(), urls, credentials }
    }

    /// Begins with the first server that lives.
    fn look(&self) {
        let Some(credentials) = &self.credentials else { return };
        let (living, _) = living_first(&self.urls, credentials);
        if let Some(first) = self.urls.iter().position(|url| living.first() == Some(url)) {
            self.current.store(first, Ordering::Relaxed);
        }
    }

    fn ask<T>(&self, question: impl Fn(&HttpCatalog) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        self.look.call_once(|| self.look());
        let count = self.servers.len();
        let current = self.current.load(Ordering::Relaxed);
        let mut unreachable = None;
        for server in (current..current + count).map(|server| server % count) {
            match question(&self.servers[server]) {
                Err(
                    error @ CatalogError::Http(HttpError::Unreachable { .. } | HttpError::Untrusted { .. }),
                ) => {
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

    fn resolve(&self, reference: &DatasetRef) -> Result<DatasetInfo, CatalogError> {
        self.ask(|server| server.resolve(reference))
    }

    fn log(&self, name: &DatasetName, limit: usize) -> Result<Vec<LogEntry>, CatalogError> {
        self.ask(|server| server.log(name, limit))
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        self.ask(|server| server.manifest(version))
    }

    fn open_manifest(&self, version: VersionId) -> Result<ManifestFile, CatalogError> {
        self.ask(|server| server.open_manifest(version))
    }

    fn provenance(&self, version: VersionId) -> Result<Option<Provenance>, CatalogError> {
        self.ask(|server| server.provenance(version))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        self.ask(|server| server.shard(entry))
    }

    fn shard_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        self.ask(|server| server.shard_file(id))
    }

    fn sidecar_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        self.ask(|server| server.sidecar_file(id))
    }

    fn sidecar(&self, entry: &ShardEntry) -> Result<Sidecar, CatalogError> {
        self.ask(|server| server.sidecar(entry))
    }

    fn shard_ranges(&self, id: ShardId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, CatalogError> {
        self.ask(|server| server.shard_ranges(id, ranges))
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<VersionId, CatalogError> {
        self.ask(|server| server.put_manifest(manifest))
    }

    fn put_provenance(&self, version: VersionId, provenance: &Provenance) -> Result<(), CatalogError> {
        self.ask(|server| server.put_provenance(version, provenance))
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
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError> {
        self.ask(|server| server.commit(name, expected, manifest, note))
    }

    fn restore(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        message: &Message,
    ) -> Result<DatasetInfo, CatalogError> {
        self.ask(|server| server.restore(name, expected, version, message))
    }

    fn remove_dataset(&self, name: &DatasetName, expected: VersionId) -> Result<(), CatalogError> {
        self.ask(|server| server.remove_dataset(name, expected))
    }

    fn prune(&self, name: &DatasetName, oldest: CommitId) -> Result<u64, CatalogError> {
        self.ask(|server| server.prune(name, oldest))
    }

    fn tags(&self, dataset: Option<&DatasetName>) -> Result<Vec<TagInfo>, CatalogError> {
        self.ask(|server| server.tags(dataset))
    }

    fn put_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
    ) -> Result<TagInfo, CatalogError> {
        self.ask(|server| server.put_tag(dataset, tag, commit, expected))
    }

    fn remove_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        expected: VersionId,
    ) -> Result<(), CatalogError> {
        self.ask(|server| server.remove_tag(dataset, tag, expected))
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

    fn remove_plan(&self, id: PlanId) -> Result<(), CatalogError> {
        self.ask(|server| server.remove_plan(id))
    }

    fn run(&self, id: &RunId) -> Result<RunRecord, CatalogError> {
        self.ask(|server| server.run(id))
    }

    fn runs(&self) -> Result<Vec<RunInfo>, CatalogError> {
        self.ask(Catalog::runs)
    }

    fn remove_run(&self, id: &RunId, options: RemoveRun) -> Result<RunInfo, CatalogError> {
        self.ask(|server| server.remove_run(id, options))
    }

    fn audits(&self, run: &RunId) -> Result<Vec<AuditReport>, CatalogError> {
        self.ask(|server| server.audits(run))
    }

    fn gc(&self, options: &GcOptions) -> Result<GcReport, CatalogError> {
        self.ask(|server| server.gc(options))
    }

    fn forget(&self, forget: &Forget) -> Result<ForgetReport, CatalogError> {
        self.ask(|server| server.forget(forget))
    }

    fn recover(&self, options: RecoverOptions) -> Result<RecoverReport, CatalogError> {
        self.ask(|server| server.recover(options))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// An address without a listener.
    fn nobody() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        format!("http://{}", listener.local_addr().expect("bound"))
    }

    #[test]
    fn a_server_that_is_gone_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let alive = format!("http://{}", listener.local_addr().expect("bound"));
        // It is asked first whether it lives.
        let server = std::thread::spawn(move || {
            for (asked, content) in [("GET /v1/health ", "{}"), ("GET /v1/plans ", "[]")] {
                let (mut stream, _) = listener.accept().expect("a question");
                let mut question = [0; 1024];
                let read = stream.read(&mut question).expect("a request");
                assert!(question[..read].starts_with(asked.as_bytes()));
                let answer =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{content}");
                stream.write_all(answer.as_bytes()).expect("an answer");
            }
        });
        assert_eq!(ClusterCatalog::new(&[nobody(), alive]).plans().expect("the second answers"), []);
        server.join().expect("no panic");
    }

    #[test]
    fn when_all_are_gone_the_first_is_named() {
        let urls = [nobody(), nobody()];
        let error = ClusterCatalog::new(&urls).datasets().expect_err("no node answers");
        assert!(error.to_string().contains(&urls[0]), "{error}");
    }
}
